// A sequence of the user's own: the file stays in the page and goes to the server with every request.

import { makeSlider } from "./slider.js";
import { showError } from "./notices.js";

export function startUpload(limits, change) {
  const input = document.getElementById("upload");
  const state = document.getElementById("upload-state");
  const megabytes = limits.sequence_bytes / 1e6;
  let file = null;
  let accepted = null; // the last file that the server could read: { file, which, count }
  document.getElementById("upload-help").textContent =
    `A NumPy file of at most ${megabytes} MB: uint8, or floats from 0 to 1, as (frames, 64, 64) or (frames, sequences, 64, 64). `
    + "The first 10 frames are read; frames 11 to 20, if there, are the true future.";
  const which = makeSlider({
    label: "Sequence", min: 0, max: 0, step: 1, value: 0, format: (v) => String(v + 1),
    onInput: () => change(),
  });
  document.getElementById("which-control").append(which.root);

  input.addEventListener("change", async () => {
    const chosen = input.files[0];
    input.value = "";
    if (!chosen) return;
    if (chosen.size > limits.sequence_bytes) {
      showError("moving-error", `${chosen.name} has ${(chosen.size / 1e6).toFixed(1)} MB, and ${megabytes} MB is the limit. Save fewer sequences, or uint8 instead of floats.`);
      return;
    }
    file = { name: chosen.name, bytes: await chosen.arrayBuffer() };
    which.set(0);
    change();
  });
  document.getElementById("upload-clear").addEventListener("click", () => {
    file = null;
    change();
  });

  function show() {
    state.hidden = !accepted;
    // The digits' controls change nothing while a file is shown.
    document.getElementById("scene-card").inert = Boolean(accepted);
    if (!accepted) return;
    const { count } = accepted;
    document.getElementById("upload-name").textContent = `${accepted.file.name}: ${count} sequence${count === 1 ? "" : "s"}`;
    which.input.max = count - 1;
    which.root.hidden = count < 2;
  }
  return {
    get file() { return file; },
    get which() { return Number(which.input.value); },
    forget() {
      file = accepted = null;
      show();
    },
    // The server has answered: with the digits, or with the file that was sent.
    accept(clip) {
      if (clip.file !== file) return; // another was chosen meanwhile
      accepted = file && { file, which: this.which, count: clip.sequences };
      show();
    },
    // No answer: back to what was shown before. True if that takes away the file that was sent.
    refuse(sent) {
      const before = accepted?.file ?? null;
      if (sent !== file || file === before) return false;
      file = before;
      which.set(accepted?.which ?? 0);
      return Boolean(sent);
    },
  };
}
