"""The deep Markov model on the fixed path: the other way to uncertainty, with the same budget."""

from __future__ import annotations

from pathlib import Path

from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Line, Panel, save_panels
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.controlled import MODELS as CONTROLLED
from spgru.studies.controlled_report import curve
from spgru.studies.guesses import least_error, measure_guesses
from spgru.studies.networks import Networks
from spgru.studies.prediction import compare, parameters, predict
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.sequences import AXES, DEVIATIONS, FAMILIAR, controlled_pairs
from spgru.studies.statistics import growth, rank_correlation, rises
from spgru.studies.study import Conclusion, Study, Tables
from spgru.training.evaluation import CONTROLLED_SETS

__all__ = ["STUDY"]

_OURS, _THEIRS = "SP-GRU", "deep Markov model"
MODELS = {
    **{run: label for run, label in CONTROLLED.items() if label == _OURS},
    "controlled_deep_markov": _THEIRS,
}


def _members(config: StudyConfig) -> list[Member]:
    return members(config, (), single=MODELS)


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    results: Tables = {"models": [], "curves": []}
    clips = {}
    for member in _members(config):
        model, label = networks.load(member), MODELS[member.run]
        size = {"parameters": parameters(model), "steps": networks.steps(member)}
        results["models"].append({"model": label, "seed": member.seed, **size})
        for deviation in DEVIATIONS:
            pairs = controlled_pairs(config, deviation, config.scale.sequences)
            prediction = predict(model, pairs.seen, config.scale.draws)
            found = compare(prediction, pairs.after)
            who: Row = {"model": label, "seed": member.seed}
            who |= {"kind": deviation.kind, "value": deviation.value}
            results["curves"].append(
                {
                    **who,
                    "variance": found.variance.mean().item(),
                    "error": found.error.mean().item(),
                    "nats": found.nats.mean().item(),
                    "spearman": rank_correlation(found.variance, found.error),
                }
            )
            if deviation == FAMILIAR:
                clips[label] = Clip(pairs.seen[:, 0], pairs.after[:, 0], prediction[:, 0])
    familiar = controlled_pairs(config, FAMILIAR, config.scale.sequences)
    results["guesses"] = measure_guesses(config, familiar)
    save_animation(folder / "prediction.gif", clips)
    return results


def _draw(results: Tables, folder: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in results["curves"]))
    panels = []
    for column in ("variance", "error"):
        row = []
        for kind, values in CONTROLLED_SETS.items():
            lines = {}
            for model in models:
                seed = next(r["seed"] for r in results["curves"] if r["model"] == model)
                points = curve(results["curves"], model, seed, kind, column)
                lines[model] = Line(values, points, points, points)
            row.append(Panel(kind, AXES[kind], column, lines))
        panels.append(row)
    save_panels(folder / "curves.png", panels)


def _conclude(results: Tables) -> Conclusion:
    curves = results["curves"]
    familiar = {
        row["model"]: row
        for row in curves
        if (row["kind"], row["value"]) == ("angle", CONTROLLED_SETS["angle"][0])
    }
    bar = least_error(results)
    lines = [
        f"{model}: squared error {number(row['error'])} per frame on the familiar path, variance "
        f"{number(row['variance'])}; predicts better than every guess without a network "
        f"({number(bar)}): {yes_no(row['error'] < bar)}."
        for model, row in familiar.items()
    ]
    for model, row in familiar.items():
        for kind in CONTROLLED_SETS:
            values = curve(curves, model, row["seed"], kind)
            lines.append(
                f"{model}, {kind}: variance rises monotonically: {yes_no(rises(values))}; farthest "
                f"over familiar {number(growth(values))}."
            )
    theirs, ours = familiar[_THEIRS], familiar[_OURS]
    steps = {row["model"]: row["steps"] for row in results["models"]}
    lines += [
        f"The paper could not make the deep Markov model predict. Here it does, by the measure "
        f"above: {yes_no(theirs['error'] < bar)}; as well as SP-GRU: "
        f"{yes_no(theirs['error'] <= ours['error'])} "
        f"({number(theirs['error'] / ours['error'])} times its squared error).",
        f"Both had the same number of steps: {yes_no(steps[_OURS] == steps[_THEIRS])}.",
    ]
    columns = ("model", "kind", "value", "variance", "error", "nats", "spearman")
    guess_rows = [[row["guess"], row["error"], row["nats"]] for row in results["guesses"]]
    size_rows = [[row["model"], row["parameters"], row["steps"]] for row in results["models"]]
    return Conclusion(
        introduction=(
            "A state-space model of the same sequences, whose uncertainty is that of its states, "
            "drawn; its weights are numbers. Its variance therefore need not rise off the path."
        ),
        findings=lines,
        sections=[
            figure("curves.png", "Variance and squared error over deviations"),
            table(columns, [[row[name] for name in columns] for row in curves]),
            "What one can say on the familiar path without a network:",
            table(["guess", "squared error", "nats per frame"], guess_rows),
            table(["model", "parameters", "steps"], size_rows),
            figure("prediction.gif", "The familiar path: what is there, prediction, uncertainty"),
        ],
    )


STUDY = Study(
    name="deep-markov",
    title="The deep Markov model on the fixed path",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
)
