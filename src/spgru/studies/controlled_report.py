"""What the numbers of the controlled study say."""

from __future__ import annotations

from spgru.reporting.markdown import count, figure, number, table, yes_no
from spgru.reporting.tables import Row
from spgru.studies.calibrated import PICTURED
from spgru.studies.controlled_audit import audit_finding, audit_sections
from spgru.studies.guesses import least_error
from spgru.studies.statistics import growth, mean, mean_and_range, rises
from spgru.studies.study import Conclusion, Tables

__all__ = ["conclude", "curve", "seeds_of"]


# Shares of the digit on the canvas; the text of the report names them as 1 % lost and 90 %.
_WHOLE, _MOSTLY = 0.99, 0.9
_SIMILAR = 1.1
"""Largest ratio of two errors that count as similar; the report says "within 10 %"."""
_COLUMNS = {
    "variance": "variance",
    "calibrated": "calibrated variance",
    "error": "squared error",
    "nats": "nats per frame",
}
"""Of the curves, and their names in the report."""


def seeds_of(rows: list[Row], model: str) -> list[int]:
    return sorted({row["seed"] for row in rows if row["model"] == model})


def curve(
    rows: list[Row], model: str, seed: int, kind: str, column: str = "variance"
) -> list[float]:
    """One column along a kind of deviation, from the familiar value on."""
    chosen = (model, seed, kind)
    return [row[column] for row in rows if (row["model"], row["seed"], row["kind"]) == chosen]


def _ordered(rows: list[Row], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def conclude(results: Tables) -> Conclusion:
    curves = results["curves"]
    models, kinds = _ordered(curves, "model"), _ordered(curves, "kind")
    # In results of earlier versions nothing is calibrated.
    note = PICTURED if any(row.get("calibrated") for row in curves) else ""
    return Conclusion(
        introduction=(
            "One digit on one straight path is all that the networks were trained on. Each number "
            "below is the predicted variance of the pixels, summed over a frame and averaged over "
            "frames 11 to 20 and over the test sequences of a deviation."
        ),
        findings=_findings(results, models, kinds),
        sections=[
            figure("curves.png", "Mean over seeds; the band is the range of all seeds"),
            "## Variance and error",
            _curve_table(curves, models, kinds),
            _models_table(results["models"]),
            "On the familiar path, without a network:",
            table(
                ["guess", "squared error", "nats per frame"],
                [list(row.values()) for row in results["guesses"]],
            ),
            "## Does the variance know where the error is?",
            "Spearman's rank correlation, over test sequences, of predicted variance and true "
            "squared error.",
            _correlation_table(results["correlation"], models),
            "## How true is the variance?",
            *audit_sections(results),
            "## What is on the canvas",
            _canvas_text(results["canvas"]),
            figure("trajectories.png", "Paths"),
            "## Pictures",
            *[figure(f"{kind}.png", f"Deviating {kind}, first seed{note}") for kind in kinds],
            figure("prediction.gif", f"What is there, prediction, uncertainty{note}"),
        ],
    )


def _findings(results: Tables, models: list[str], kinds: list[str]) -> list[str]:
    curves = results["curves"]
    lines, contradictions = [], []
    for model in models:
        variances = [name for name in _columns(curves, model) if name in ("variance", "calibrated")]
        for column in variances:
            for kind in kinds:
                of_seeds = [
                    curve(curves, model, seed, kind, column) for seed in seeds_of(curves, model)
                ]
                answers = [rises(values) for values in of_seeds]
                middle, low, high = mean_and_range([growth(values) for values in of_seeds])
                lines.append(
                    f"{model}, {kind}: {_COLUMNS[column]} rises monotonically for every seed: "
                    f"{count(answers)}; farthest over familiar {number(middle)} ({number(low)} to "
                    f"{number(high)})."
                )
                if not all(answers):
                    name = "calibrated " * (column == "calibrated") + model
                    contradictions.append(f"{name} over {kind}")
    errors = [
        mean([curve(curves, model, s, kinds[0], "error")[0] for s in seeds_of(curves, model)])
        for model in models
    ]
    lines.append(
        "Squared error per frame on the familiar path: "
        + ", ".join(f"{m} {number(e)}" for m, e in zip(models, errors, strict=True))
        + f"; within 10 % of each other, as the paper trained them: "
        f"{yes_no(max(errors) <= _SIMILAR * min(errors))}."
    )
    bar = least_error(results)
    lines += [
        f"{model} predicts the familiar path better than anyone can without a network "
        f"(squared error {number(bar)}): {yes_no(error < bar)}."
        for model, error in zip(models, errors, strict=True)
    ]
    lines.append(audit_finding(results["audit"]))
    lines.append(
        "The paper says that uncertainty increases with every kind of deviation for both models: "
        + (
            "confirmed here."
            if not contradictions
            else f"not so here for {_listed(contradictions)}."
        )
    )
    return lines


def _columns(curves: list[Row], model: str) -> list[str]:
    """What was measured: a baseline has no calibrated variance, nor has any earlier version's."""
    rows = [row for row in curves if row["model"] == model]
    return [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _over_seeds(rows: list[Row], column: str) -> str:
    values = [row[column] for row in rows if row[column] is not None]
    if not values:
        return number(None)
    middle, low, high = mean_and_range(values)
    band = f" ({number(low)} to {number(high)})" if len(values) > 1 else ""
    return f"{number(middle)}{band}"


def _curve_table(curves: list[Row], models: list[str], kinds: list[str]) -> str:
    columns = [(model, column) for model in models for column in _columns(curves, model)]
    rows: list[list[object]] = []
    for kind in kinds:
        for value in dict.fromkeys(row["value"] for row in curves if row["kind"] == kind):
            cells: list[object] = [kind, value]
            for model, column in columns:
                own = [
                    r for r in curves if (r["model"], r["kind"], r["value"]) == (model, kind, value)
                ]
                cells.append(_over_seeds(own, column))
            rows.append(cells)
    header = ["deviation", "value", *[f"{model}: {_COLUMNS[column]}" for model, column in columns]]
    return table(header, rows)


def _models_table(rows: list[Row]) -> str:
    columns = ("parameters", "steps", "draws")
    one_each = {row["model"]: [row["model"], *[row[name] for name in columns]] for row in rows}
    return table(["model", *columns], list(one_each.values()))


def _correlation_table(rows: list[Row], models: list[str]) -> str:
    kinds = _ordered(rows, "over")
    lines = []
    for model in models:
        for seed in seeds_of(rows, model):
            own = {
                row["over"]: row["spearman"]
                for row in rows
                if row["model"] == model and row["seed"] == seed
            }
            lines.append([model, seed, *[own[kind] for kind in kinds]])
    return table(["model", "seed", *kinds], lines)


def _canvas_text(rows: list[Row]) -> str:
    sets = dict.fromkeys((row["kind"], row["value"]) for row in rows)
    lines, lost = [], []
    for kind, value in sets:
        own = [row for row in rows if (row["kind"], row["value"]) == (kind, value)]
        predicted = mean([row["visible"] for row in own if row["frame"] > len(own) // 2])
        gone = [row["frame"] for row in own if row["visible"] < _WHOLE]
        lines.append([kind, value, predicted, ", ".join(map(str, gone)) or "none"])
        if predicted < _MOSTLY:
            lost.append(f"{kind} {number(value)} ({number(1 - predicted, 2)} lost)")
    note = (
        "A digit that leaves the canvas has fewer pixels to be uncertain about: read the sums "
        f"above with that in mind for {_listed(lost)}."
        if lost
        else "At every deviation at least 90 % of the digit stays on the canvas while it is to be "
        "predicted."
    )
    header = ["deviation", "value", "visible in predicted frames", "frames with over 1 % lost"]
    return f"{note}\n\n{table(header, lines)}"
