// Summed variance of every predicted frame, on a logarithmic axis, over the range of training.

import { HALF } from "./frames.js";
import { area, decades, element, legend, line, linear, logarithmic, onResize, short, swatch } from "./svg.js";

const STYLES = [
  { colour: "var(--ours)", dash: "none" },
  { colour: "var(--theirs)", dash: "6 4" },
];
const HEADROOM = 500; // times the range of training: what noise can do

export function startVarianceChart() {
  const box = document.getElementById("variance-chart");
  const small = document.getElementById("variance-small"); // on a phone, beside the sliders
  let series = [];
  const whole = onResize(box, (width, height) => box.replaceChildren(draw(series, width, height)));
  const brief = onResize(small, (width, height) => small.replaceChildren(drawSmall(series, width, height)));
  return {
    // [{ name, values: 10 numbers, range: [low, middle, high] of 10 numbers each }]
    show(next) {
      series = next;
      whole();
      brief();
      legend(document.getElementById("variance-legend"), next.flatMap((one, k) => [
        [swatch({ stroke: STYLES[k].colour, "stroke-dasharray": STYLES[k].dash }), `${one.name}, this sequence`],
        [swatch({ fill: STYLES[k].colour, opacity: 0.25 }, "box"), `${one.name}, 90 % of the sequences of training`],
      ]));
    },
  };
}

function domain(series) {
  const low = Math.min(...series.flatMap((one) => [...one.range[0], ...one.values]));
  const ours = Math.max(...series[0].range[2]) * HEADROOM;
  const high = Math.max(ours, ...series.flatMap((one) => [...one.range[2], ...one.values]));
  return [low / 2, high * 1.3];
}

function draw(series, width, height) {
  const root = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  if (!series.length) return root;
  const [left, right, top, bottom] = [56, width - 12, 12, height - 40];
  const x = linear([HALF + 1, 2 * HALF], [left + 8, right - 8]);
  const limits = domain(series);
  const y = logarithmic(limits, [bottom, top]);
  for (const value of decades(limits)) {
    root.append(
      element("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      element("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    );
  }
  for (let t = HALF + 1; t <= 2 * HALF; t++) {
    root.append(element("text", { x: x(t), y: bottom + 18, "text-anchor": "middle" }, String(t)));
  }
  root.append(
    element("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    element("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "predicted frame"),
    element("text", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` },
      "sum, brightness²"),
  );
  series.forEach((one, k) => root.append(...drawSeries(one, STYLES[k], x, y)));
  root.setAttribute("aria-label", `Summed variance of frames 11 to 20. ${series.map(describe).join(" ")}`);
  return root;
}

// Curves and bands, with a mark for every second power of ten.
function drawSmall(series, width, height) {
  const root = element("svg", { viewBox: `0 0 ${width} ${height}` });
  if (!series.length) return root;
  const [left, right, top, bottom] = [46, width - 4, 4, height - 16];
  const limits = domain(series);
  const x = linear([HALF + 1, 2 * HALF], [left + 4, right - 4]);
  const y = logarithmic(limits, [bottom, top]);
  for (const value of decades(limits).filter((_, k) => k % 2 === 0)) {
    root.append(
      element("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      element("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    );
  }
  root.append(element("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, "summed variance, frames 11 to 20"));
  series.forEach((one, k) => root.append(...drawSeries(one, STYLES[k], x, y).slice(0, 3)));
  return root;
}

// Band, middle and curve, then the dots.
function drawSeries(one, style, x, y) {
  const place = (values) => values.map((value, t) => [x(HALF + 1 + t), y(value)]);
  const band = element("path", { class: "band", d: area(place(one.range[2]), place(one.range[0])), fill: style.colour, opacity: 0.2 });
  const middle = element("path", { d: line(place(one.range[1])), fill: "none", stroke: style.colour, opacity: 0.5 });
  const points = place(one.values);
  const curve = element("path", {
    class: "curve", d: line(points), fill: "none", stroke: style.colour, "stroke-width": 2.5, "stroke-dasharray": style.dash,
  });
  const dots = points.map(([cx, cy], t) => element("circle", { class: "dot", "data-network": one.network, cx, cy, r: 3.5, fill: style.colour },
    element("title", {}, `${one.name}, frame ${HALF + 1 + t}: ${short(one.values[t])}`)));
  return [band, middle, curve, ...dots];
}

function describe(one) {
  const values = one.values;
  return `${one.name}: from ${short(values[0])} to ${short(values[values.length - 1])}.`;
}
