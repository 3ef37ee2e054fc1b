// Says in one sentence how the variance compares with the range of training.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export function showVerdict(values, range) {
  const [low, middle, high] = range.map(mean);
  const found = mean(values);
  const where = found > high ? "Outside" : found < low ? "Below" : "Inside";
  const times = found / middle;
  const factor = times >= 10 ? times.toFixed(0) : times.toPrecision(2);
  document.getElementById("verdict-mark").className = `mark ${where === "Inside" ? "inside" : "outside"}`;
  document.getElementById("verdict-text").textContent =
    `${where} the range of training: ${factor} times the usual variance.`;
}
