// Names what Material leaves without a name, and lets the keyboard scroll what is wider than its place.
"use strict";
const name = (selector, attributes) => {
  for (const [k, element] of document.querySelectorAll(selector).entries()) {
    for (const [key, value] of Object.entries(attributes)) {
      const wanted = value.replace("#", k + 1);
      if (element.getAttribute(key) !== wanted) element.setAttribute(key, wanted);
    }
  }
};
const all = () => {
  name(".md-search[role=dialog]", { "aria-label": "Search" });
  name("input.md-toggle", { "aria-hidden": "true", tabindex: "-1" });
  name(".md-code__nav", { "aria-label": "Code #" });
  name(".md-typeset__scrollwrap", { tabindex: "0", role: "region", "aria-label": "Table #" });
  name(".md-typeset pre > code", { tabindex: "0" });
};
all();
new MutationObserver(all).observe(document.body, { childList: true, subtree: true });
