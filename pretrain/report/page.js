"use strict";
// Reads values off a chart: under the pointer or a finger, and by the arrow keys. The page is whole without it.
for (const plot of document.querySelectorAll("[data-plot]")) {
  const data = JSON.parse(plot.dataset.plot);
  const tip = plot.querySelector(".tip");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  plot.append(cursor);
  tip.setAttribute("role", "status");
  const longest = data.lines.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
  let at = longest.steps.length - 1;

  const nearest = (steps, wanted) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < wanted) low = middle; else high = middle;
    }
    return wanted - steps[low] <= steps[high] - wanted ? low : high;
  };
  const written = (value) => data.share ? (100 * value).toFixed(1) + " %"
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(value);
  const show = (index) => {
    at = Math.max(0, Math.min(longest.steps.length - 1, index));
    const step = longest.steps[at];
    const share = (step - data.x[0]) / (data.x[1] - data.x[0]);
    const lines = data.lines.map((line) => {
      const i = nearest(line.steps, step);
      const other = line.steps[i] === step || line === longest ? "" : ` (step ${line.steps[i].toLocaleString("en")})`;
      return `${line.name}: ${written(line.values[i])}${other}`;
    });
    tip.textContent = "";
    for (const text of [`step ${step.toLocaleString("en")}`, ...lines]) {
      const row = document.createElement("div");
      row.textContent = text;
      tip.append(row);
    }
    tip.hidden = cursor.hidden = false;
    cursor.style.left = `${100 * share}%`;
    const room = plot.clientWidth - tip.offsetWidth;
    const left = share < 0.5 ? share * plot.clientWidth + 10 : share * plot.clientWidth - tip.offsetWidth - 10;
    tip.style.left = `${Math.max(0, Math.min(room, left))}px`;
  };
  const hide = () => { tip.hidden = cursor.hidden = true; };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    show(nearest(longest.steps, data.x[0] + share * (data.x[1] - data.x[0])));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(at + move);
  });
}
