// History, median and two intervals over time; pointer or arrow keys read the values.

import { area, element, line, linear, onResize, short, ticks } from "./svg.js";

export function startForecastChart(readout) {
  const box = document.getElementById("forecast-chart");
  let found = null;
  let chosen = null;
  const again = onResize(box, (width, height) => found && box.replaceChildren(draw(found, width, height, choose)));

  function choose(step, cursor) {
    chosen = step;
    const x = cursor.scale(found.first_step + found.history.length + step);
    cursor.line.setAttribute("x1", x);
    cursor.line.setAttribute("x2", x);
    cursor.line.style.display = "";
    readout(describe(found, step));
  }
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Forecast. Left and right arrow keys read its steps.");
  box.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || !found) return;
    event.preventDefault();
    const next = chosen === null ? 0 : chosen + move;
    box.firstChild?.chooseStep?.(Math.min(found.mean.length - 1, Math.max(0, next)));
  });
  return { show(next) { found = next; chosen = null; again(); } };
}

export function describe(found, step) {
  const when = found.times ? shortTime(found.times[step]) : `step ${step + 1}`;
  const level = Math.round(100 * found.level);
  return `${when}: ${short(found.median[step])}, ${level} % between ${short(found.low[step])} and ${short(found.high[step])}`;
}

function draw(found, width, height, choose) {
  const root = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Forecast of ${found.column}` });
  const [left, right, top, bottom] = [76, width - 10, 10, height - 46];
  const start = found.first_step;
  const known = found.history.length;
  const end = start + known + found.mean.length - 1;
  const values = [...found.history, ...found.low, ...found.high].filter((value) => value !== null);
  const limits = [Math.min(...values), Math.max(...values)];
  const margin = 0.05 * (limits[1] - limits[0] || 1);
  const x = linear([start, end], [left, right]);
  const y = linear([limits[0] - margin, limits[1] + margin], [bottom, top]);

  for (const value of ticks(limits)) {
    root.append(
      element("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      element("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    );
  }
  const times = found.times && [...found.history_times, ...found.times];
  const labels = Math.max(1, Math.floor((right - left) / 140));
  for (let k = 0; k < labels; k++) {
    const step = Math.round(start + ((end - start) * (k + 0.5)) / labels);
    const text = times ? shortTime(times[step - start]) : String(step);
    root.append(
      element("line", { class: "axis", x1: x(step), x2: x(step), y1: bottom, y2: bottom + 5 }),
      element("text", { x: x(step), y: bottom + 19, "text-anchor": "middle" }, text),
    );
  }
  root.append(
    element("text", { class: "label", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, times ? "time" : "row of the table, from 0"),
    element("text", { class: "label", x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` },
      found.column),
  );
  const after = (list) => list.map((value, k) => [x(start + known + k), y(value)]);
  const last = found.history[known - 1];
  const past = found.history.map((value, k) => (value === null ? null : [x(start + k), y(value)]));
  const median = after(found.median);
  if (last !== null) median.unshift([x(start + known - 1), y(last)]);
  const cursor = { scale: x, line: element("line", { y1: top, y2: bottom, stroke: "var(--quiet)" }) };
  cursor.line.style.display = "none";
  root.append(
    element("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    element("path", { class: "interval", d: area(after(found.high), after(found.low)), fill: "var(--ours)", opacity: 0.2 }),
    element("path", { d: area(after(found.inner_high), after(found.inner_low)), fill: "var(--ours)", opacity: 0.3 }),
    element("path", { d: line(past), fill: "none", stroke: "var(--text)", "stroke-width": 1.5 }),
    element("path", { class: "median", d: line(median), fill: "none", stroke: "var(--ours)", "stroke-width": 2.5 }),
    cursor.line,
  );
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const step = Math.round(start + ((event.clientX - box.left - left) / (right - left)) * (end - start)) - start - known;
    if (step >= 0 && step < found.mean.length) choose(step, cursor);
  });
  root.chooseStep = (step) => choose(step, cursor);
  return root;
}

function shortTime(text) {
  return text.replace("T", " ").replace(/(?<=\d:\d\d):00(?=$|\+)/, "").replace(/ 00:00$/, "");
}
