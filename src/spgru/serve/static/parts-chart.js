// The variance of every step by its source, stacked, as shares of the whole.

import { element, legend, linear, onResize, short, swatch } from "./svg.js";

const SOURCES = [
  ["noise", "var(--ours)", "Noise: what the values do by themselves"],
  ["inputs", "var(--third)", "Inputs: covariates that are not certain"],
  ["weights", "var(--theirs)", "Weights: what the network has not learned"],
];

export function startPartsChart() {
  const box = document.getElementById("parts-chart");
  let found = null;
  const again = onResize(box, (width, height) => found && box.replaceChildren(draw(found, width, height)));
  return {
    show(next) {
      found = next;
      again();
      const there = SOURCES.filter(([name]) => next.parts[name]?.some((value) => value > 0));
      legend(document.getElementById("parts-legend"), there.map(([, fill, text]) => [swatch({ fill }, "box"), text]));
      document.getElementById("parts-text").textContent = sentence(next, there);
    },
  };
}

function sentence(found, there) {
  const sums = there.map(([name]) => [name, found.parts[name].reduce((sum, value) => sum + value, 0)]);
  const whole = sums.reduce((sum, [, value]) => sum + value, 0) || 1;
  const shares = sums.map(([name, value]) => `${name} ${short((100 * value) / whole)} %`);
  return `Of the variance of all steps: ${shares.join(", ")}.`;
}

// Heights are standard deviations of the whole, divided by each source's share of the variance.
function draw(found, width, height) {
  const root = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Standard deviation of every step by source" });
  const [left, right, top, bottom] = [58, width - 10, 8, height - 36];
  const steps = found.std.length;
  const highest = Math.max(...found.std) || 1;
  const y = linear([0, highest], [bottom, top]);
  const wide = (right - left) / steps;
  for (const share of [0, 0.5, 1]) {
    root.append(
      element("line", { class: "grid", x1: left, x2: right, y1: y(share * highest), y2: y(share * highest) }),
      element("text", { x: left - 8, y: y(share * highest) + 4, "text-anchor": "end" }, short(share * highest)),
    );
  }
  for (let k = 0; k < steps; k++) {
    const variance = found.std[k] ** 2 || 1;
    let from = 0;
    for (const [name, fill] of SOURCES) {
      const part = found.parts[name]?.[k] ?? 0;
      const size = (part / variance) * found.std[k];
      root.append(element("rect", {
        class: `part-${name}`, x: left + k * wide + 0.5, width: Math.max(1, wide - 1), y: y(from + size), height: Math.max(0, y(from) - y(from + size)), fill,
      }));
      from += size;
    }
  }
  root.append(
    element("text", { x: left, y: bottom + 18 }, "1"),
    element("text", { x: right, y: bottom + 18, "text-anchor": "end" }, String(steps)),
    element("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, `step of the forecast; height in units of ${found.column}`),
  );
  return root;
}
