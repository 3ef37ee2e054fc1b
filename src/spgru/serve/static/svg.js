// Elements, scales and axes of charts.

export function element(name, attributes = {}, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

export function linear([from, to], [start, end]) {
  const span = to - from || 1;
  return (value) => start + ((value - from) / span) * (end - start);
}

export function logarithmic([from, to], range) {
  const scale = linear([Math.log10(from), Math.log10(to)], range);
  return (value) => scale(Math.log10(Math.max(value, from)));
}

export function line(points) {
  let pen = "M";
  return points.map((point) => {
    if (point === null) { pen = "M"; return ""; }
    const part = `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    pen = "L";
    return part;
  }).join("");
}

export function area(upper, lower) {
  return `${line(upper)}L${line([...lower].reverse()).slice(1)}Z`;
}

// About `count` round numbers between two.
export function ticks([low, high], count = 5) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found;
}

export function decades([low, high]) {
  const found = [];
  for (let k = Math.ceil(Math.log10(low) - 1e-9); k <= Math.log10(high) + 1e-9; k++) found.push(10 ** k);
  return found;
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

// Draws again whenever the box changes its size; `draw` gets width and height in pixels.
export function onResize(box, draw) {
  const again = () => box.clientWidth && draw(box.clientWidth, box.clientHeight);
  new ResizeObserver(again).observe(box);
  return again;
}

export function swatch(attributes, shape = "line") {
  const drawn = shape === "line"
    ? element("line", { x1: 1, y1: 6, x2: 25, y2: 6, "stroke-width": 2.5, ...attributes })
    : element("rect", { x: 1, y: 1, width: 24, height: 10, rx: 2, ...attributes });
  return element("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, drawn);
}

export function legend(list, entries) {
  list.replaceChildren(...entries.map(([picture, text]) => {
    const item = document.createElement("li");
    item.append(picture, text);
    return item;
  }));
}
