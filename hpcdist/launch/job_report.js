// Moves, zooms and searches the graphs of Programs. Asks for nothing outside the page.
"use strict";
for (const box of document.querySelectorAll(".graph")) {
  const svg = box.querySelector("svg"), field = box.querySelector("input");
  const told = box.querySelector("output"), nodes = [...svg.querySelectorAll("g")];
  const all = [0, 0, svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
  let view = all, found = [], at = 0;

  const show = (x, y, width, height) => {
    view = [x, y, width, height];
    svg.setAttribute("viewBox", view.join(" "));
  };
  const zoom = (by, fx = 0.5, fy = 0.5) => {
    const [x, y, width, height] = view;
    show(x + width * (1 - by) * fx, y + height * (1 - by) * fy, width * by, height * by);
  };
  // At first as large as it is drawn, from the top; a closed graph has no size yet.
  const begin = () => {
    const { clientWidth: width, clientHeight: height } = svg;
    if (width && view === all) {
      show((all[2] - width) / 2, Math.min(0, (all[3] - height) / 2), width, height);
    }
  };
  const look = (node) => {
    const rect = node.querySelector("rect"), { clientWidth: width, clientHeight: height } = svg;
    const [x, y] = [+rect.getAttribute("x") + 75, +rect.getAttribute("y") + 12];
    show(x - width / 2, y - height / 2, width, height);
  };
  const search = () => {
    const word = field.value.trim().toLowerCase();
    found = word ? nodes.filter((node) => node.dataset.words.includes(word)) : [];
    for (const node of nodes) node.classList.toggle("found", found.includes(node));
    svg.classList.toggle("searched", word !== "");
    at = 0;
    tell(word);
  };
  const tell = (word) => {
    told.textContent = found.length ? `${at + 1} of ${found.length}` : word ? "none" : "";
    if (found.length) look(found[at]);
  };
  const next = () => {
    at = (at + 1) % Math.max(found.length, 1);
    tell(field.value.trim());
  };

  const buttons = { in: () => zoom(0.8), out: () => zoom(1.25), all: () => show(...all), next };
  for (const button of box.querySelectorAll("button")) {
    button.addEventListener("click", buttons[button.name]);
  }
  field.addEventListener("input", search);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next();
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const on = svg.getBoundingClientRect();
    const [fx, fy] = [(event.clientX - on.x) / on.width, (event.clientY - on.y) / on.height];
    zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, fx, fy);
  }, { passive: false });
  svg.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1)) return;
    const scale = Math.max(view[2] / svg.clientWidth, view[3] / svg.clientHeight);
    show(view[0] - event.movementX * scale, view[1] - event.movementY * scale, view[2], view[3]);
  });
  const details = box.closest("details");
  details.addEventListener("toggle", begin);
  begin();
}
