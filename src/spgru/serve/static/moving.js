// The tab of moving digits: what is asked for, and where the answers go.

import { Cancelled, postBytes, postJson } from "./api.js";
import { MOST, asRequest, makeCard, newMover } from "./digits.js";
import { saveBlob, saveCsv } from "./download.js";
import { startDrawing } from "./draw.js";
import { showFilm } from "./film.js";
import { HALF, MAPS, clear, decode, encode, paint } from "./frames.js";
import { newestOnly } from "./live.js";
import { hideError, showError } from "./notices.js";
import { startPlayer } from "./player.js";
import { makeSlider } from "./slider.js";
import { startStage } from "./stage.js";
import { startUpload } from "./upload.js";
import { startVarianceChart } from "./variance-chart.js";
import { showVerdict } from "./verdict.js";

const byId = (id) => document.getElementById(id);
const FAMILIAR_SPEED = { leave: 0.05, bounce: 0.1 };

export function startMoving(about) {
  const networks = Object.fromEntries(about.networks.map((one) => [one.name, { ...one, short: one.label.split(",")[0] }]));
  const state = { network: "one-digit", variance: "calibrated", compare: false, draws: 50, noise: 0, movers: [newMover(0)] };
  const chart = startVarianceChart();
  const player = startPlayer(showFrame);
  const askDrawing = startDrawing();
  const upload = startUpload(about.limits, change);
  const stage = startStage((k) => { cards[k].showStart(); change(); });
  let cards = [];
  let ours = null;
  let theirs = null;
  let slowRequest = null;

  // -- asking ---------------------------------------------------------------------------------

  async function ask(names, form, signal) {
    if (upload.file) {
      const query = new URLSearchParams({
        networks: names.join(","), which: upload.which, variance: state.variance, draws: state.draws, as: form,
      });
      return postBytes(`/api/sequence?${query}`, upload.file.bytes, signal);
    }
    const body = {
      networks: names, variance: state.variance, draws: state.draws, noise: state.noise,
      boundary: networks[state.network].boundary,
      digits: state.movers.map((mover) => asRequest(mover, encode)),
    };
    return postJson(`/api/scene?as=${form}`, body, signal);
  }
  async function askClip(name, signal) {
    const start = performance.now();
    const found = await (await ask([name], "json", signal)).json();
    const [one] = found.predictions;
    return {
      ...found, seen: decode(found.seen), truth: found.truth && decode(found.truth),
      images: found.images.map(decode), answered: performance.now() - start,
      predictions: [{ ...one, mean: decode(one.mean), std: decode(one.std) }],
    };
  }
  async function guarded(task) {
    try {
      await task();
      hideError("moving-error");
    } catch (error) {
      if (error instanceof Cancelled) return;
      showError("moving-error", error.message);
      // A file that cannot be read is not sent again with every move of a slider.
      if (upload.file && !ours?.uploaded) upload.forget();
    }
  }
  const askOurs = newestOnly(() => guarded(async () => {
    ours = { ...(await askClip(state.network)), uploaded: Boolean(upload.file) };
    show();
  }));
  const askTheirs = newestOnly(() => guarded(async () => {
    const name = beside();
    theirs = name && (await askClip(name));
    show();
  }));
  const beside = () => state.compare && networks[state.network].beside;
  const names = () => [state.network, ...(beside() ? [beside()] : [])];

  function change() {
    stage.show();
    if (networks[state.network].slow) return showSlow("changed");
    byId("moving").setAttribute("aria-busy", "true");
    const asked = [askOurs(), beside() ? askTheirs() : null];
    Promise.all(asked).then(() => byId("moving").setAttribute("aria-busy", "false"));
  }
  async function computeSlowly() {
    if (slowRequest) return slowRequest.abort();
    slowRequest = new AbortController();
    showSlow("computing");
    await guarded(async () => {
      ours = { ...(await askClip(state.network, slowRequest.signal)), uploaded: Boolean(upload.file) };
      show();
    });
    slowRequest = null;
    showSlow("done");
  }
  function showSlow(stage) {
    byId("slow").hidden = !networks[state.network].slow;
    byId("panels").classList.toggle("waiting", stage !== "done");
    byId("compute").textContent = stage === "computing" ? "Cancel" : "Compute";
    byId("slow-text").textContent = {
      changed: "This network takes some ten seconds a sequence on two cores, so it does not follow the sliders. Set the sequence, then compute it.",
      computing: "Computing …",
      done: "This is the prediction for the sequence as it is set.",
    }[stage];
    if (stage === "changed") byId("verdict-text").textContent = "The sequence has changed; press Compute to see its prediction.";
  }

  // -- showing --------------------------------------------------------------------------------

  function show() {
    if (!ours) return;
    const both = beside() && theirs ? [...ours.predictions, ...theirs.predictions] : ours.predictions;
    const clip = { ...ours, predictions: both };
    const series = both.map((one) => ({
      network: one.network, name: networks[one.network].short, values: one.variance, range: networks[one.network].range.forms[one.form],
    }));
    chart.show(series);
    showVerdict(series[0].name, series[0].values, series[0].range);
    showFilm(clip, networks);
    showTimes(both);
    upload.show(ours.sequences);
    if (!upload.file) stage.showFrame(ours.seen);
    ours.images.forEach((bytes, k) => cards[k]?.showImage(bytes));
    for (const figure of document.querySelectorAll(".beside")) figure.hidden = both.length < 2;
    byId("panels").classList.remove("waiting");
    player.redraw();
  }
  function showFrame(t) {
    if (!ours) return;
    const future = t >= HALF;
    const there = future ? ours.truth : ours.seen;
    byId("caption-there").textContent = !future ? "Input" : ours.truth ? "True future" : "Future: not known";
    if (there) paint(byId("frame-there"), there, t % HALF);
    else clear(byId("frame-there"));
    paintPrediction("frame-mean", "frame-std", ours.predictions[0], t - HALF);
    if (beside() && theirs) paintPrediction("frame-beside-mean", "frame-beside-std", theirs.predictions[0], t - HALF);
  }
  function paintPrediction(mean, std, one, k) {
    if (k < 0) return [mean, std].forEach((id) => clear(byId(id)));
    paint(byId(mean), one.mean, k);
    paint(byId(std), one.std, k, MAPS.heat);
  }
  function showTimes(predictions) {
    const rows = predictions.map((one) => [
      `${networks[one.network].short}, ${one.draws ? `${one.draws} draws` : "one pass"}`, one.milliseconds,
    ]);
    rows.push(["Answer on this page", ours.answered]);
    byId("times").replaceChildren(...rows.flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
      return [term, text];
    }));
  }

  // -- steering -------------------------------------------------------------------------------

  function rebuild() {
    const options = { samples: about.samples, askDrawing, change, rebuild };
    cards = state.movers.map((_, k) => makeCard(k, state.movers, options));
    byId("digits").replaceChildren(...cards.map((card) => card.root));
    byId("add-digit").disabled = state.movers.length >= MOST;
    byId("add-digit").textContent = ["", "Add a second digit", "Add a third digit", "Three digits are the most"][state.movers.length];
    stage.setMovers(state.movers, networks[state.network]);
    change();
  }
  function startOver() {
    const network = networks[state.network];
    state.movers = Array.from({ length: network.digits }, (_, k) => ({ ...newMover(k), speed: FAMILIAR_SPEED[network.boundary] }));
    state.noise = 0;
    noise.set(0);
    if (upload.file) upload.forget();
    rebuild();
  }
  function chooseNetwork(name) {
    state.network = name;
    const network = networks[name];
    byId("network-help").textContent = `Trained on ${network.trained_on}.`;
    byId("beside-controls").hidden = !network.beside;
    byId("slow").hidden = true;
    startOver();
  }
  const noise = makeSlider({
    label: "Noise on the input", min: 0, max: 0.6, step: 0.02, value: 0,
    format: (v) => (v ? `up to ${v.toFixed(2)} per pixel` : "none"),
    onInput: (value) => { state.noise = value; change(); },
  });
  byId("noise-control").append(noise.root);
  const draws = makeSlider({
    label: "Draws", min: 2, max: about.limits.draws, step: 1, value: state.draws, format: (v) => String(v),
    onInput: (value) => { state.draws = value; askTheirs(); },
  });
  byId("draws-control").append(draws.root);
  for (const network of about.networks) {
    if (network.kind === "closed-form") byId("network").add(new Option(network.label, network.name));
  }
  byId("network").addEventListener("change", (event) => chooseNetwork(event.target.value));
  byId("variance-kind").addEventListener("change", (event) => { state.variance = event.target.value; change(); });
  byId("compare").addEventListener("change", (event) => {
    state.compare = event.target.checked;
    byId("draws-control").hidden = !state.compare;
    change();
    if (!state.compare) show();
  });
  byId("add-digit").addEventListener("click", () => {
    const next = newMover(state.movers.length);
    state.movers.push({ ...next, speed: FAMILIAR_SPEED[networks[state.network].boundary] });
    rebuild();
  });
  byId("reset").addEventListener("click", startOver);
  byId("compute").addEventListener("click", computeSlowly);
  byId("moving-form").addEventListener("submit", (event) => event.preventDefault());

  // -- taking away ----------------------------------------------------------------------------

  const save = (form) => guarded(async () => saveBlob(await (await ask(names(), form)).blob(), `spgru.${form}`));
  byId("save-gif").addEventListener("click", () => save("gif"));
  byId("save-npz").addEventListener("click", () => save("npz"));
  byId("save-csv").addEventListener("click", () => {
    if (!ours) return;
    const shown = beside() && theirs ? [ours.predictions[0], theirs.predictions[0]] : ours.predictions;
    const header = ["frame", ...shown.flatMap((one) => [`${one.network}_variance`, `${one.network}_squared_error`])];
    const rows = ours.predictions[0].variance.map((_, t) => [
      HALF + 1 + t, ...shown.flatMap((one) => [one.variance[t], one.error?.[t]]),
    ]);
    saveCsv([header, ...rows], "spgru.csv");
  });

  chooseNetwork(state.network);
}
