// All frames of a clip, a row for each kind.

import { HALF, MAPS, SIZE, paint } from "./frames.js";

const GAP = 3;

export function showFilm(clip, networks) {
  const rows = [["Input, 1 to 10", clip.seen, MAPS.grey]];
  if (clip.truth) rows.push(["True future, 11 to 20", clip.truth, MAPS.grey]);
  for (const one of clip.predictions) {
    const name = networks[one.network].short;
    const many = clip.predictions.length > 1 ? `${name}: ` : "";
    rows.push([`${many}prediction`, one.mean, MAPS.grey], [`${many}uncertainty`, one.std, one.heat]);
  }
  document.getElementById("film").replaceChildren(...rows.flatMap((row) => makeRow(...row)));
}

function makeRow(name, bytes, map) {
  const label = document.createElement("span");
  label.className = "name";
  label.textContent = name.charAt(0).toUpperCase() + name.slice(1);
  const canvas = document.createElement("canvas");
  canvas.width = HALF * SIZE + (HALF - 1) * GAP;
  canvas.height = SIZE;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: ten frames`);
  const context = canvas.getContext("2d");
  context.fillStyle = "#8a94a3";
  context.fillRect(0, 0, canvas.width, SIZE);
  for (let t = 0; t < HALF; t++) paint(canvas, bytes, t, map, SIZE, t * (SIZE + GAP));
  return [label, canvas];
}
