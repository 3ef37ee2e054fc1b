// The cards of the digits: which one, its start, angle and speed.

import { paint } from "./frames.js";
import { makeSlider } from "./slider.js";

export const MOST = 3;
const PIXELS = 36;
// Where the upper left corner may be in the first frame: those that bounce are always on the canvas.
export const LIMITS = { leave: [-14, 50], bounce: [0, PIXELS] };
const DIGIT = 28;
const STARTS = [
  { digit: 3, sample: 2, x: -3, y: 7, angle: 20, speed: 0.05 },
  { digit: 7, sample: 1, x: 24, y: 30, angle: -160, speed: 0.05 },
  { digit: 5, sample: 2, x: 4, y: 32, angle: -40, speed: 0.05 },
];

export const TRAINED = STARTS[0];

export function newMover(k, boundary) {
  const { x, y } = STARTS[k];
  return { ...STARTS[k], x: within(x, boundary), y: within(y, boundary), drawing: null };
}

export function within(value, boundary) {
  const [low, high] = LIMITS[boundary];
  return Math.round(Math.min(high, Math.max(low, value)));
}

// `change` is called after every change, `rebuild` when cards come or go, with the one to focus.
export function makeCard(k, movers, { samples, boundary, askDrawing, change, rebuild }) {
  const mover = movers[k];
  const limits = LIMITS[boundary];
  const card = document.createElement("fieldset");
  card.className = "digit";
  const legend = document.createElement("legend");
  legend.className = "quiet";
  legend.textContent = `Digit ${k + 1}`;
  card.append(legend);
  card.append(makeHead(k, mover, movers, { samples, askDrawing, change, rebuild }));
  const slide = (label, key, min, max, step, format) => makeSlider({
    label, min, max, step, value: mover[key], format,
    onInput: (value) => { mover[key] = value; change(); },
  });
  const sliders = {
    angle: slide("Angle", "angle", -180, 180, 1, (v) => `${v}°`),
    speed: slide("Speed", "speed", 0, 0.15, 0.005, (v) => `${(100 * v).toFixed(1)} % (${(PIXELS * v).toFixed(1)} px per frame)`),
    x: slide("Start, across", "x", ...limits, 1, (v) => `${v} px`),
    y: slide("Start, down", "y", ...limits, 1, (v) => `${v} px`),
  };
  const pair = document.createElement("div");
  pair.className = "pair";
  pair.append(sliders.x.root, sliders.y.root);
  card.append(sliders.angle.root, sliders.speed.root, pair);
  return {
    root: card,
    focus: () => card.querySelector("select").focus(),
    showStart() { sliders.x.set(mover.x); sliders.y.set(mover.y); },
    showImage: (bytes) => paint(card.querySelector("canvas"), bytes, 0, undefined, DIGIT),
  };
}

function makeHead(k, mover, movers, { samples, askDrawing, change, rebuild }) {
  const head = document.createElement("div");
  head.className = "head";
  const picture = document.createElement("canvas");
  picture.width = picture.height = DIGIT;
  picture.setAttribute("aria-hidden", "true");

  const name = document.createElement("label");
  name.className = "name";
  const choice = document.createElement("select");
  for (let digit = 0; digit < 10; digit++) choice.add(new Option(String(digit), String(digit)));
  choice.add(new Option("drawn", "drawn"));
  name.append(`Digit ${k + 1}`, choice);

  function show() { choice.value = mover.drawing ? "drawn" : String(mover.digit); }
  async function drawOne() {
    const drawn = await askDrawing(mover.drawing);
    if (drawn) { mover.drawing = drawn; change(); }
    show();
  }
  choice.addEventListener("change", () => {
    if (choice.value === "drawn") return void drawOne();
    Object.assign(mover, { drawing: null, digit: Number(choice.value) });
    change();
  });

  const buttons = document.createElement("div");
  buttons.className = "buttons";
  const button = (text, action, label) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    buttons.append(made);
  };
  button("Another", () => {
    Object.assign(mover, { drawing: null, sample: (mover.sample + 7) % samples });
    show();
    change();
  }, `Another image of digit ${k + 1}`);
  button("Draw …", drawOne, `Draw digit ${k + 1}`);
  if (movers.length > 1) {
    button("Remove", () => { movers.splice(k, 1); rebuild(Math.min(k, movers.length - 1)); }, `Remove digit ${k + 1}`);
  }
  const middle = document.createElement("div");
  middle.append(name, buttons);
  head.append(picture, middle);
  show();
  return head;
}

// A digit as the server reads it.
export function asRequest(mover, encode) {
  const { x, y, angle, speed } = mover;
  const image = mover.drawing ? { drawing: encode(mover.drawing) } : { digit: mover.digit, sample: mover.sample };
  return { ...image, x, y, angle, speed };
}
