// The tab of moving digits: what is steered, what is asked for, and where the answers go.

import { Cancelled } from "./api.js";
import { askClip, askFor } from "./clips.js";
import { MOST, makeCard, newMover } from "./digits.js";
import { saveBlob, saveCsv } from "./download.js";
import { startDrawing } from "./draw.js";
import { showFilm } from "./film.js";
import { HALF } from "./frames.js";
import { newestOnly } from "./live.js";
import { hideError, showError } from "./notices.js";
import { showFrame, showTimes } from "./panels.js";
import { startPlayer } from "./player.js";
import { heatMap, scaleTop, showScale } from "./scale.js";
import { makeSlider } from "./slider.js";
import { startStage } from "./stage.js";
import { startUpload } from "./upload.js";
import { startVarianceChart } from "./variance-chart.js";
import { showVerdict } from "./verdict.js";

const byId = (id) => document.getElementById(id);
const PREVIEW = "one-digit"; // shows the pictures of a sequence whose own network is slow
const FAMILIAR_SPEED = { leave: 0.05, bounce: 0.1 };
const SLOW = {
  changed: "This network takes seconds for a sequence, so it does not follow the sliders. Set the sequence, then compute it.",
  computing: "Computing …",
  done: "This is the prediction for the sequence as it is set.",
};

export function startMoving(about) {
  const networks = Object.fromEntries(about.networks.map((one) => [one.name, { ...one, short: one.label.split(",")[0] }]));
  const state = { network: "one-digit", variance: "calibrated", compare: false, draws: 50, noise: 0, movers: [] };
  let cards = [];
  let ours = null;
  let theirs = null;
  let computing = null;
  let changes = 0;
  const chart = startVarianceChart();
  const player = startPlayer((t) => ours && showFrame(ours, beside() && theirs, t));
  const askDrawing = startDrawing();
  const upload = startUpload(about.limits, change);
  const stage = startStage((k) => { cards[k].showStart(); change(); });

  // -- asking ---------------------------------------------------------------------------------

  const network = () => networks[state.network];
  const beside = () => state.compare && network().beside;
  const clipOf = (name, signal) => askClip(name, state, network().boundary, upload, signal);

  // True if the task succeeded.
  async function guarded(task) {
    const file = upload.file;
    try {
      await task();
      hideError("moving-error");
      return true;
    } catch (error) {
      if (error instanceof Cancelled || error.name === "AbortError") return false;
      // A file that cannot be read is not sent again with every move of a slider.
      const name = upload.refuse(file) ? `${file.name}: ` : "";
      showError("moving-error", name + error.message);
      return false;
    }
  }
  // An answer that arrives after another network was chosen is not shown.
  const askOurs = newestOnly(() => guarded(async () => {
    const name = state.network;
    if (network().slow) return;
    const found = await clipOf(name);
    if (name !== state.network) return;
    ours = found;
    show();
  }));
  const askTheirs = newestOnly(() => guarded(async () => {
    const name = beside();
    if (!name) return;
    const found = await clipOf(name);
    if (name !== beside()) return;
    theirs = found;
    show();
  }));
  const askPreview = newestOnly(() => guarded(async () => showSequence(await clipOf(PREVIEW))));

  function change() {
    stage.show();
    byId("moving").setAttribute("aria-busy", "true");
    stopComputing(); // it would be the prediction of another sequence
    if (network().slow) showSlow("changed");
    const change = ++changes;
    const asked = network().slow ? [askPreview()] : [askOurs(), askTheirs()];
    Promise.all(asked).then(() => {
      if (change === changes) byId("moving").setAttribute("aria-busy", "false");
    });
  }
  async function compute() {
    if (computing) {
      stopComputing();
      return showSlow("changed");
    }
    const mine = computing = new AbortController();
    showSlow("computing");
    const done = await guarded(async () => { ours = await clipOf(state.network, mine.signal); show(); });
    if (computing !== mine) return; // stopped; whoever did so has said why
    computing = null;
    showSlow(done ? "done" : "changed");
  }
  function stopComputing() {
    computing?.abort();
    computing = null;
  }

  // -- showing --------------------------------------------------------------------------------

  function show() {
    if (!ours) return;
    const both = [...ours.predictions, ...(beside() && theirs ? theirs.predictions : [])];
    const series = both.map((one) => ({
      network: one.network, name: networks[one.network].short, values: one.variance, range: networks[one.network].range.forms[one.form],
    }));
    const top = scaleTop(both, networks);
    for (const one of both) one.heat = heatMap(one.std_top, top);
    showScale(both, networks, top);
    chart.show(series);
    showVerdict(series[0].values, series[0].range);
    showFilm({ ...ours, predictions: both }, networks);
    showTimes([
      ...both.map((one) => [`${networks[one.network].short}, ${one.draws ? `${one.draws} draws` : "one pass"}`, one.milliseconds]),
      ["Answer on this page", ours.answered],
    ]);
    showSequence(ours);
    byId("moving-view").classList.remove("stale");
    player.redraw();
  }
  function showSequence(clip) {
    upload.accept(clip);
    if (!clip.file) stage.showFrame(clip.seen);
    clip.images.forEach((bytes, k) => cards[k]?.showImage(bytes));
  }
  function showSlow(phase) {
    byId("slow").hidden = !network().slow;
    byId("slow-text").textContent = SLOW[phase];
    byId("compute").textContent = phase === "computing" ? "Cancel" : "Compute";
    byId("moving-view").classList.toggle("stale", phase !== "done");
    if (phase === "done") return;
    byId("verdict-mark").className = "mark";
    byId("verdict-text").textContent = "The sequence has changed; its prediction is to be computed.";
  }

  // -- steering -------------------------------------------------------------------------------

  // The focus goes to the card `focused`, if one is named: the button that was pressed may be gone.
  function rebuild(focused = null) {
    const options = { samples: about.samples, boundary: network().boundary, askDrawing, change, rebuild };
    cards = state.movers.map((_, k) => makeCard(k, state.movers, options));
    byId("digits").replaceChildren(...cards.map((card) => card.root));
    byId("add-digit").disabled = state.movers.length >= MOST;
    byId("add-digit").textContent = ["", "Add a second digit", "Add a third digit", "Three digits are the most"][state.movers.length];
    stage.setMovers(state.movers, network());
    cards[focused]?.focus();
    change();
  }
  const makeMover = (k) => ({ ...newMover(k, network().boundary), speed: FAMILIAR_SPEED[network().boundary] });
  function startOver() {
    state.movers = Array.from({ length: network().digits }, (_, k) => makeMover(k));
    state.noise = 0;
    noise.set(0);
    if (upload.file) upload.forget();
    rebuild();
  }
  function chooseNetwork(name) {
    [state.network, ours, theirs] = [name, null, null];
    byId("network-help").textContent = `Trained on ${network().trained_on}.`;
    byId("beside-controls").hidden = !network().beside;
    const hasPath = network().boundary === "leave";
    byId("dashed").hidden = !hasPath;
    byId("reset").textContent = hasPath ? "Back to the path of training" : "Start over";
    byId("slow").hidden = true;
    startOver();
  }
  const noise = makeSlider({
    label: "Noise on the input", min: 0, max: 0.6, step: 0.02, value: 0,
    format: (v) => (v ? `up to ${v.toFixed(2)} per pixel` : "none"),
    onInput: (value) => { state.noise = value; change(); },
  });
  byId("noise-control").append(noise.root);
  byId("draws-control").append(makeSlider({
    label: "Draws", min: 2, max: about.limits.draws, step: 1, value: state.draws, format: String,
    onInput: (value) => { state.draws = value; askTheirs(); },
  }).root);
  for (const one of about.networks) {
    if (one.kind === "closed-form") byId("network").add(new Option(one.label, one.name));
  }
  byId("network").addEventListener("change", (event) => chooseNetwork(event.target.value));
  byId("variance-kind").addEventListener("change", (event) => { state.variance = event.target.value; change(); });
  byId("compare").addEventListener("change", (event) => {
    state.compare = event.target.checked;
    byId("draws-control").hidden = !state.compare;
    change();
  });
  byId("add-digit").addEventListener("click", () => { rebuild(state.movers.push(makeMover(state.movers.length)) - 1); });
  byId("reset").addEventListener("click", startOver);
  byId("compute").addEventListener("click", compute);
  byId("moving-form").addEventListener("submit", (event) => event.preventDefault());

  // -- taking away ----------------------------------------------------------------------------

  // The server computes what is saved once more: the button says so, and does nothing meanwhile.
  async function save(button, form) {
    if (button.ariaBusy === "true") return;
    const text = button.textContent;
    [button.ariaBusy, button.textContent] = ["true", "Computing …"];
    await guarded(async () => {
      const names = [state.network, ...(beside() ? [beside()] : [])];
      const answer = await askFor(names, form, state, network().boundary, upload);
      saveBlob(await answer.blob(), `spgru.${form}`);
    });
    [button.ariaBusy, button.textContent] = ["false", text];
  }
  for (const form of ["gif", "npz"]) {
    byId(`save-${form}`).addEventListener("click", (event) => save(event.currentTarget, form));
  }
  byId("save-csv").addEventListener("click", () => {
    if (!ours) return;
    const shown = [...ours.predictions, ...(beside() && theirs ? theirs.predictions : [])];
    const header = ["frame", ...shown.flatMap((one) => [`${one.network}_variance`, `${one.network}_squared_error`])];
    const rows = ours.predictions[0].variance.map((_, t) => [
      HALF + 1 + t, ...shown.flatMap((one) => [one.variance[t], one.error?.[t]]),
    ]);
    saveCsv([header, ...rows], "spgru.csv");
  });

  chooseNetwork(state.network);
}
