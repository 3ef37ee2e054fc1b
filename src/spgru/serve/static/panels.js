// The large pictures of one frame: what is there, prediction, uncertainty; and the times they took.

import { HALF, clear, paint } from "./frames.js";

const byId = (id) => document.getElementById(id);

export function showFrame(ours, theirs, t) {
  const future = t >= HALF;
  const there = future ? ours.truth : ours.seen;
  byId("caption-there").textContent = !future ? "Input" : ours.truth ? "True future" : "Future: not known";
  if (there) paint(byId("frame-there"), there, t % HALF);
  else clear(byId("frame-there"));
  paintPrediction("frame-mean", "frame-std", ours.predictions[0], t - HALF);
  if (theirs) paintPrediction("frame-beside-mean", "frame-beside-std", theirs.predictions[0], t - HALF);
  for (const figure of document.querySelectorAll(".beside")) figure.hidden = !theirs;
}

function paintPrediction(mean, std, one, k) {
  if (k < 0) {
    for (const id of [mean, std]) clear(byId(id));
    return;
  }
  paint(byId(mean), one.mean, k);
  paint(byId(std), one.std, k, one.heat);
}

export function showTimes(rows) {
  byId("times").replaceChildren(...rows.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
    return [term, text];
  }));
}
