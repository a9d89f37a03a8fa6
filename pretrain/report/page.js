"use strict";
// Reads values off a chart: under the pointer or a finger, and by the arrow keys; and switches between light and dark.
// The page is whole without it.

const number = (value, percent) => value === null || value === undefined ? "—"
  : percent ? (100 * value).toFixed(1) + "%"
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(value);

// The index of the value in ascending `steps` that is nearest to `wanted`.
const nearest = (steps, wanted) => {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - steps[low] <= steps[high] - wanted ? low : high;
};

// A line under the pointer and a box of text beside it: show(share of the width, lines of text), hide().
const pointerOf = (plot) => {
  const tip = plot.querySelector(".tip");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  plot.append(cursor);
  tip.setAttribute("role", "status");
  const hide = () => { tip.hidden = cursor.hidden = true; };
  const show = (share, lines) => {
    tip.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    tip.hidden = cursor.hidden = false;
    cursor.style.left = `${100 * share}%`;
    const at = share * plot.clientWidth;
    const left = share < 0.5 ? at + 10 : at - tip.offsetWidth - 10;
    const edge = plot.getBoundingClientRect().left;
    const room = document.documentElement.clientWidth - edge - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4 - edge, Math.min(room, left))}px`;
  };
  return { show, hide };
};

// `at(x, y)` shows what is at these shares of width and height, `move(dx, dy)` goes on by keys.
const listen = (plot, at, move, hide) => {
  const point = (event) => {
    const box = plot.getBoundingClientRect();
    const within = (share) => Math.max(0, Math.min(1, share));
    at(within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height));
  };
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-1e9, 0], End: [1e9, 0] }[event.key];
    if (event.key === "Escape") hide();
    if (way === undefined) return;
    event.preventDefault();
    move(...way);
  });
};

const between = (index, count) => Math.max(0, Math.min(count - 1, index));

for (const plot of document.querySelectorAll("[data-plot]")) {
  const data = JSON.parse(plot.dataset.plot);
  const pointer = pointerOf(plot);
  const longest = data.lines.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
  let index = longest.steps.length - 1;
  const show = (wanted) => {
    index = between(wanted, longest.steps.length);
    const step = longest.steps[index];
    const lines = data.lines.map((line) => {
      const i = nearest(line.steps, step);
      const other = line.steps[i] === step || line === longest ? "" : ` (step ${line.steps[i].toLocaleString("en")})`;
      return `${line.name}: ${number(line.values[i], data.percent)}${other}`;
    });
    pointer.show((step - data.x[0]) / (data.x[1] - data.x[0]), [`step ${step.toLocaleString("en")}`, ...lines]);
  };
  listen(plot, (x) => show(nearest(longest.steps, data.x[0] + x * (data.x[1] - data.x[0]))),
    (dx) => show(index + dx), pointer.hide);
}

for (const plot of document.querySelectorAll("[data-grid]")) {
  const data = JSON.parse(plot.dataset.grid);
  const pointer = pointerOf(plot);
  const first = data.edges[0], span = data.edges[data.edges.length - 1] - first;
  let row = 0, column = data.edges.length - 2;
  const show = (wantedRow, wantedColumn) => {
    row = between(wantedRow, data.names.length);
    column = between(wantedColumn, data.edges.length - 1);
    const from = data.edges[column];
    pointer.show((from - first) / span,
      [`step ${from.toLocaleString("en")}`, `${data.names[row]}: ${number(data.cells[row][column], false)}`]);
  };
  listen(plot, (x, y) => {
    const step = first + x * span;
    const after = data.edges.findIndex((edge) => edge > step);
    show(Math.floor(y * data.names.length), (after < 0 ? data.edges.length : after) - 1);
  }, (dx, dy) => show(row + dy, column + dx), pointer.hide);
}

{
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; button.ariaLabel = `Switch to ${dark() ? "light" : "dark"} colours`; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  button.hidden = false;
  name();
}
