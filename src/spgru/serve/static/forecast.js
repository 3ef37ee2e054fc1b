// The tab of forecasts: a table in, a forecast with intervals out.

import { Cancelled, postJson } from "./api.js";
import { saveCsv } from "./download.js";
import { startForecastChart } from "./forecast-chart.js";
import { hideError, showError } from "./notices.js";
import { startPartsChart } from "./parts-chart.js";
import { legend, short, swatch } from "./svg.js";

const byId = (id) => document.getElementById(id);
const NO_TIME = "";
const PAUSE = 400; // milliseconds without a key, after which a table is read

export function startForecast(limits) {
  const chart = startForecastChart((text) => { byId("forecast-readout").textContent = text; });
  const parts = startPartsChart();
  let running = null;
  let found = null;
  let read = Promise.resolve(false); // true when the columns are those of the table as it is
  let reads = 0;
  let pause = null;
  byId("horizon").max = limits.horizon;
  byId("csv-help").textContent = `At most ${limits.table_rows.toLocaleString("en")} rows and ${limits.table_bytes / 1e6} MB. Empty cells, and empty lines of a single column, count as missing.`;

  // -- the table ------------------------------------------------------------------------------

  // The options stay as they are meanwhile: a button that is disabled under the pointer loses its click.
  function readColumns({ quiet = false } = {}) {
    clearTimeout(pause);
    const number = ++reads;
    read = (async () => {
      try {
        if (!byId("csv").value.trim()) throw new Error("");
        const table = await (await postJson("/api/columns", { csv: byId("csv").value })).json();
        if (number !== reads) return false;
        fillColumns(table);
        hideError("forecast-error");
        byId("forecast-options").disabled = false;
        return true;
      } catch (error) {
        if (number !== reads) return false;
        if (!quiet) {
          byId("forecast-options").disabled = true;
          showError("forecast-error", error.message);
        }
        return false;
      }
    })();
    return read;
  }
  function fillColumns({ columns, rows }) {
    const numbers = columns.filter((column) => ["number", "year"].includes(column.kind));
    if (!numbers.length) throw new Error("No column holds numbers only. Separate columns by commas, write decimals with a point, and leave cells empty where a value is missing.");
    const first = numbers.find((column) => column.kind === "number") ?? numbers[0];
    const time = columns.find((column) => ["time", "year"].includes(column.kind) && column !== first);
    fillChoice(byId("column"), numbers.map((column) => new Option(column.name)), first.name);
    fillChoice(byId("time"), [
      new Option("none: rows are equally far apart", NO_TIME),
      ...columns.map((column) => new Option(column.name)),
    ], time ? time.name : NO_TIME);
    byId("csv-help").textContent = `${rows.toLocaleString("en")} rows, ${columns.length} column${columns.length === 1 ? "" : "s"}.`;
  }
  // Of the same columns as before, those that were chosen stay chosen.
  function fillChoice(select, options, usual) {
    const names = (list) => [...list].map((option) => option.value).join("\n");
    const chosen = names(select.options) === names(options) ? select.value : usual;
    select.replaceChildren(...options);
    select.value = chosen;
  }
  async function take(text) {
    byId("csv").value = text;
    await readColumns();
  }
  byId("csv").addEventListener("change", () => readColumns());
  byId("csv").addEventListener("paste", () => setTimeout(readColumns));
  byId("csv").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => readColumns({ quiet: true }), PAUSE); // half a table is no error yet
  });
  byId("csv-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    if (file.size > limits.table_bytes) {
      showError("forecast-error", `${file.name} has ${(file.size / 1e6).toFixed(1)} MB, and ${limits.table_bytes / 1e6} MB is the limit. Take fewer rows, or use spgru forecast on the command line.`);
      return;
    }
    await take(await file.text());
  });
  byId("csv-example").addEventListener("click", async () => take(await (await fetch("/static/example.csv")).text()));

  if (byId("csv").value.trim()) readColumns(); // it was quicker than this script

  // -- the forecast ---------------------------------------------------------------------------

  function asked() {
    return {
      csv: byId("csv").value,
      column: byId("column").value,
      time: byId("time").value || null,
      horizon: Number(byId("horizon").value),
      season: byId("season").value ? Number(byId("season").value) : null,
      level: Number(byId("level").value),
      positive: byId("positive").checked,
      thorough: byId("thorough").checked,
    };
  }
  byId("forecast-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!(await read) || running) return;
    running = new AbortController();
    showBusy(true);
    const start = performance.now();
    const clock = setInterval(() => { byId("forecast-elapsed").textContent = `${((performance.now() - start) / 1000).toFixed(0)} s`; }, 200);
    try {
      found = await (await postJson("/api/forecast", asked(), running.signal)).json();
      hideError("forecast-error");
    } catch (error) {
      if (!(error instanceof Cancelled)) showError("forecast-error", error.message);
    }
    clearInterval(clock);
    running = null;
    showBusy(false);
  });
  byId("forecast-cancel").addEventListener("click", () => running?.abort());

  function showBusy(busy) {
    // Not disabled: the focus would be lost.
    byId("forecast-go").ariaDisabled = String(busy);
    if (!busy && document.activeElement === byId("forecast-cancel")) byId("forecast-go").focus();
    byId("forecast-busy").hidden = !busy;
    byId("forecast-empty").hidden = busy || Boolean(found);
    byId("forecast-result").hidden = busy || !found;
    if (!busy && found) showResult();
  }
  function showResult() {
    const level = Math.round(100 * found.level);
    byId("forecast-title").textContent = `${found.column}: the next ${found.mean.length} step${found.mean.length === 1 ? "" : "s"}`;
    chart.show(found);
    parts.show(found);
    legend(byId("forecast-legend"), [
      [swatch({ stroke: "var(--text)" }), "observed"],
      [swatch({ stroke: "var(--ours)" }), "median"],
      [swatch({ fill: "var(--ours)", opacity: 0.5 }, "box"), "50 % interval"],
      [swatch({ fill: "var(--ours)", opacity: 0.2 }, "box"), `${level} % interval, made to hold on the last windows`],
    ]);
    byId("forecast-readout").textContent =
      `Trained in ${found.seconds.toFixed(1)} s; reads ${found.context} values, season of ${found.season}. Point at the forecast to read it.`;
    const rows = tableRows();
    byId("forecast-table").replaceChildren(...rows.map((row, k) => tableRow(row, k === 0)));
  }
  function tableRows() {
    const header = ["time", "mean", "std", "low", "median", "high", ...Object.keys(found.parts).map((name) => `variance of ${name}`)];
    return [header, ...found.mean.map((_, k) => [
      found.times ? found.times[k] : found.first_step + found.history.length + k,
      found.mean[k], found.std[k], found.low[k], found.median[k], found.high[k],
      ...Object.values(found.parts).map((part) => part[k]),
    ])];
  }
  function tableRow(row, head) {
    const made = document.createElement("tr");
    for (const value of row) {
      const cell = document.createElement(head ? "th" : "td");
      cell.textContent = typeof value === "number" ? short(value) : value;
      made.append(cell);
    }
    return made;
  }
  byId("forecast-save").addEventListener("click", () => saveCsv(tableRows(), "spgru-forecast.csv"));
}
