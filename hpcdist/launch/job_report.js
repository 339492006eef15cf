// Moves, zooms and searches the graphs of Programs; tells values of plots. Asks for nothing outside the page.
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
  // At first from the top, all of it if that can be read; a closed graph has no size yet.
  const begin = () => {
    const { clientWidth: width, clientHeight: height } = svg;
    if (width && view === all) {
      const by = Math.min(1.6, Math.max(1, all[2] / width, all[3] / height));
      show((all[2] - width * by) / 2, Math.min(0, (all[3] - height * by) / 2), width * by, height * by);
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
    if (found.length) {
      look(found[at]);
      told.textContent += ": " + found[at].querySelector("title").textContent.replaceAll("\n", "; ");
    }
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
  const pan = (fx, fy) => show(view[0] + view[2] * fx, view[1] + view[3] * fy, view[2], view[3]);
  const keys = {
    ArrowLeft: () => pan(-0.2, 0), ArrowRight: () => pan(0.2, 0), ArrowUp: () => pan(0, -0.2), ArrowDown: () => pan(0, 0.2),
    "+": buttons.in, "=": buttons.in, "-": buttons.out, Home: buttons.all,
  };
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const details = box.closest("details");
  details.addEventListener("toggle", begin);
  begin();
}

for (const box of document.querySelectorAll(".plot")) {
  const svg = box.querySelector("svg"), mark = box.querySelector(".mark"), told = box.querySelector("output");
  const lines = [...box.querySelectorAll("polyline")].map((line) => ({
    name: line.dataset.name,
    values: JSON.parse(line.dataset.values),
    pixels: line.getAttribute("points").split(" ").map((point) => parseFloat(point)),
  }));
  const places = new Map(lines.flatMap(({ values, pixels }) => values.map(([x], k) => [x, pixels[k]])));
  const across = [...places.keys()].sort((a, b) => a - b);
  let at = -1;

  const nearest = (numbers, wanted) => numbers.reduce(
    (best, number, k) => Math.abs(number - wanted) < Math.abs(numbers[best] - wanted) ? k : best, 0);
  const show = (k) => {
    at = Math.max(0, Math.min(across.length - 1, k));
    const pixel = places.get(across[at]);
    for (const end of ["x1", "x2"]) mark.setAttribute(end, pixel);
    mark.style.visibility = "visible";
    const values = lines.map(({ name, values, pixels }) => `${name} ${values[nearest(pixels, pixel)][1]}`.trim());
    told.textContent = `${box.dataset.across} ${across[at]}: ${values.join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const on = svg.getBoundingClientRect();
    const pixel = (event.clientX - on.x) / on.width * svg.viewBox.baseVal.width;
    show(nearest(across.map((x) => places.get(x)), pixel));
  });
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: across.length - 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    show(by);
  });
}
