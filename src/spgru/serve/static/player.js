// Play, pause and scrub through the twenty frames.

import { HALF } from "./frames.js";

const FRAMES = 2 * HALF;
const MILLISECONDS = 220;

export function startPlayer(onFrame) {
  const scrub = document.getElementById("scrub");
  const text = document.getElementById("scrub-text");
  const play = document.getElementById("play");
  let timer = null;

  function show(frame) {
    scrub.value = frame;
    text.textContent = `frame ${frame}, ${frame <= HALF ? "input" : "predicted"}`;
    scrub.setAttribute("aria-valuetext", text.textContent);
    onFrame(frame - 1);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play");
  }
  play.addEventListener("click", () => {
    if (timer) return pause();
    timer = setInterval(() => show((Number(scrub.value) % FRAMES) + 1), MILLISECONDS);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
  });
  scrub.addEventListener("input", () => {
    pause();
    show(Number(scrub.value));
  });
  return { redraw: () => show(Number(scrub.value)) };
}
