// The tab of forecasts: a table in, a forecast with intervals out.

import { Cancelled, postJson } from "./api.js";
import { saveCsv } from "./download.js";
import { startForecastChart } from "./forecast-chart.js";
import { hideError, showError } from "./notices.js";
import { startPartsChart } from "./parts-chart.js";
import { legend, short, swatch } from "./svg.js";

const byId = (id) => document.getElementById(id);
const NO_TIME = "";

export function startForecast(limits) {
  const chart = startForecastChart((text) => { byId("forecast-readout").textContent = text; });
  const parts = startPartsChart();
  let running = null;
  let found = null;
  byId("horizon").max = limits.horizon;
  byId("csv-help").textContent = `At most ${limits.table_rows.toLocaleString("en")} rows and ${limits.table_bytes / 1e6} MB. Empty cells count as missing.`;

  // -- the table ------------------------------------------------------------------------------

  async function readColumns() {
    const options = byId("forecast-options");
    options.disabled = true;
    hideError("forecast-error");
    if (!byId("csv").value.trim()) return;
    try {
      const table = await (await postJson("/api/columns", { csv: byId("csv").value })).json();
      fillColumns(table);
      options.disabled = false;
    } catch (error) {
      showError("forecast-error", error.message);
    }
  }
  function fillColumns({ columns, rows }) {
    const numbers = columns.filter((column) => column.kind === "number");
    if (!numbers.length) throw new Error("No column holds numbers only. Give one column of numbers; leave cells empty where a value is missing.");
    byId("column").replaceChildren(...numbers.map((column) => new Option(column.name)));
    const time = columns.find((column) => column.kind === "time");
    byId("time").replaceChildren(
      new Option("none: rows are equally far apart", NO_TIME),
      ...columns.filter((column) => column.kind !== "number").map((column) => new Option(column.name)),
    );
    byId("time").value = time ? time.name : NO_TIME;
    byId("csv-help").textContent = `${rows.toLocaleString("en")} rows, ${columns.length} column${columns.length === 1 ? "" : "s"}.`;
  }
  async function take(text) {
    byId("csv").value = text;
    await readColumns();
  }
  byId("csv").addEventListener("change", readColumns);
  byId("csv").addEventListener("paste", () => setTimeout(readColumns));
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
    if (running) return;
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
    byId("forecast-busy").hidden = !busy;
    byId("forecast-empty").hidden = busy || Boolean(found);
    byId("forecast-result").hidden = busy || !found;
    byId("forecast-go").disabled = busy;
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
