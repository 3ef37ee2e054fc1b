// The dialog in which a digit is drawn: 28 x 28 bytes, by pointer or by keyboard.

import { paint } from "./frames.js";

const SIZE = 28;
const BRUSH = [[0, 0, 255], [1, 0, 170], [-1, 0, 170], [0, 1, 170], [0, -1, 170], [1, 1, 80], [-1, -1, 80], [1, -1, 80], [-1, 1, 80]];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function startDrawing() {
  const dialog = document.getElementById("draw-dialog");
  const canvas = document.getElementById("draw-canvas");
  let pixels = new Uint8Array(SIZE * SIZE);
  let cursor = [14, 14];
  let last = null;
  let finish = () => {};

  function show() {
    paint(canvas, pixels, 0, undefined, SIZE);
    if (document.activeElement !== canvas) return;
    const context = canvas.getContext("2d");
    context.fillStyle = "#5cb8f0b0";
    context.fillRect(cursor[0], cursor[1], 1, 1);
  }
  function dab(x, y, erase = false) {
    for (const [dx, dy, value] of BRUSH) {
      const [column, row] = [x + dx, y + dy];
      if (column < 0 || row < 0 || column >= SIZE || row >= SIZE) continue;
      const k = row * SIZE + column;
      pixels[k] = erase ? 0 : Math.max(pixels[k], value);
    }
  }
  function at(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top].map((part) => Math.floor((part / box.width) * SIZE));
  }
  function stroke(to) {
    const from = last ?? to;
    const count = Math.max(1, Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1]));
    for (let k = 0; k <= count; k++) {
      dab(...from.map((start, i) => Math.round(start + ((to[i] - start) * k) / count)));
    }
    last = to;
    show();
  }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    stroke(at(event));
  });
  canvas.addEventListener("pointermove", (event) => { if (last) stroke(at(event)); });
  canvas.addEventListener("pointerup", () => { last = null; });
  canvas.addEventListener("pointercancel", () => { last = null; });
  canvas.addEventListener("focus", show);
  canvas.addEventListener("blur", show);
  canvas.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (step) cursor = cursor.map((part, i) => Math.min(SIZE - 1, Math.max(0, part + step[i])));
    else if (event.key === " ") dab(...cursor);
    else if (event.key === "Delete" || event.key === "Backspace") dab(...cursor, true);
    else return;
    event.preventDefault();
    show();
  });
  document.getElementById("draw-clear").addEventListener("click", () => {
    pixels = new Uint8Array(SIZE * SIZE);
    show();
  });
  dialog.addEventListener("close", () => finish(dialog.returnValue === "use" && pixels.some(Boolean) ? pixels : null));

  // Resolves to the drawn bytes, or null.
  return (start) => new Promise((resolve) => {
    finish = resolve;
    pixels = start ? Uint8Array.from(start) : new Uint8Array(SIZE * SIZE);
    dialog.returnValue = "";
    dialog.showModal();
    canvas.focus();
    show();
  });
}
