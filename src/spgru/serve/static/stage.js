// The first frame with a handle for every digit: drag it, or focus it and use the arrow keys.

import { TRAINED, within } from "./digits.js";
import { SIZE, paint } from "./frames.js";
import { element } from "./svg.js";

const MIDDLE = 14;
const PIXELS = 36;
const FRAMES = 20;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The middle of a digit in every frame; with edges it turns back there.
function points(mover, bounces) {
  const turn = (mover.angle * Math.PI) / 180;
  const step = [Math.cos(turn), Math.sin(turn)].map((part) => part * mover.speed * PIXELS);
  let place = [mover.x, mover.y];
  const found = [];
  for (let t = 0; t < FRAMES; t++) {
    if (bounces) place = place.map((part) => Math.min(PIXELS, Math.max(0, part)));
    found.push(place.map((part) => (part + MIDDLE).toFixed(1)).join(","));
    place = place.map((part, i) => {
      if (bounces && (part + step[i] <= 0 || part + step[i] >= PIXELS)) {
        const edge = part + step[i] <= 0 ? 0 : PIXELS;
        step[i] = -step[i];
        return edge;
      }
      return part + step[i];
    });
  }
  return found.join(" ");
}

// `moved(k)` is called after the start of digit k has changed.
export function startStage(moved) {
  const stage = document.getElementById("stage");
  const canvas = document.getElementById("stage-canvas");
  const paths = document.getElementById("stage-paths");
  let handles = [];
  let movers = [];
  let network = null;

  function place(k, x, y) {
    Object.assign(movers[k], { x: within(x, network.boundary), y: within(y, network.boundary) });
    show();
    moved(k);
  }
  function makeHandle(k) {
    const handle = document.createElement("button");
    handle.type = "button";
    handle.className = `handle n${k + 1}`;
    handle.textContent = String(k + 1);
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const box = stage.getBoundingClientRect();
      const scale = SIZE / box.width;
      place(k, (event.clientX - box.left) * scale - MIDDLE, (event.clientY - box.top) * scale - MIDDLE);
    });
    handle.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      place(k, movers[k].x + step[0], movers[k].y + step[1]);
    });
    return handle;
  }
  function show() {
    handles.forEach((handle, k) => {
      const { x, y } = movers[k];
      handle.style.left = `${Math.min(98, Math.max(2, ((x + MIDDLE) / SIZE) * 100))}%`;
      handle.style.top = `${Math.min(98, Math.max(2, ((y + MIDDLE) / SIZE) * 100))}%`;
      handle.setAttribute("aria-label", `Start of digit ${k + 1}: ${x} pixels across, ${y} down. Arrow keys move it.`);
    });
    const lines = movers.map((mover, k) => element("polyline", { class: `path n${k + 1}`, points: points(mover, network?.boundary === "bounce") }));
    if (network?.boundary === "leave") lines.unshift(element("polyline", { class: "trained", points: points(TRAINED) }));
    paths.replaceChildren(...lines);
  }
  return {
    setMovers(next, chosen) {
      [movers, network] = [next, chosen];
      handles.forEach((handle) => handle.remove());
      handles = movers.map((_, k) => makeHandle(k));
      stage.append(...handles);
      show();
    },
    show,
    showFrame: (bytes) => paint(canvas, bytes),
  };
}
