// One scale of uncertainty for all maps that are shown, so that equal colours mean equal numbers.
// It is fixed by training and has room for what sliders do; only what is beyond makes it longer.
// Colours go with the square root, so that training is still seen on a scale with that room.

import { MAPS, paintScale } from "./frames.js";
import { short } from "./svg.js";

const ROOM = 4; // times the largest standard deviation of a pixel in training
const LARGEST = 0.5; // of anything between 0 and 1
const LEVELS = 256;

export function scaleTop(predictions, networks) {
  const usual = predictions.map((one) => ROOM * networks[one.network].range.std_top[one.form]);
  return Math.max(...usual.map((top) => Math.min(top, LARGEST)), ...predictions.map((one) => one.std_top));
}

// A colour for each byte of a prediction: the square root of a share of `stdTop`, as it comes.
export function heatMap(stdTop, top) {
  return Uint32Array.from({ length: LEVELS }, (_, byte) => MAPS.heat[Math.round(byte * Math.sqrt(stdTop / top))]);
}

export function showScale(predictions, networks, top) {
  const bar = document.createElement("canvas");
  bar.setAttribute("aria-hidden", "true");
  paintScale(bar);
  const ticks = span("ticks", ...[0, top / 4, top].map((value) => span("", short(value))));
  const largest = predictions.map((one) => {
    const name = predictions.length > 1 ? `${networks[one.network].short} ` : "";
    return `${name}${short(Number(one.std_top.toPrecision(2)))}`;
  });
  document.getElementById("scales").replaceChildren(
    span("title", "Uncertainty: standard deviation of brightness, which reaches from 0 (black) to 1 (white)"),
    span("scale", bar, ticks),
    span("largest", `Largest here: ${largest.join(", ")}`),
  );
}

function span(name, ...children) {
  const made = document.createElement("span");
  made.className = name;
  made.append(...children);
  return made;
}
