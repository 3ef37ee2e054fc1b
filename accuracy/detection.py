"""Does the predicted variance tell sequences off the trained path from familiar ones?

The controlled study: for each angle, speed and noise the AUROC of a sequence's score against the
familiar path, for the closed form, the calibrated closed form, and drawn networks. Scores are

- variance: summed over the predicted pixels
- relative: over their summed brightness, since bright digits have more variance on any path
- expected: over what is familiar at this brightness, which is brightness to the power that fits as
  many familiar sequences that are not those of the test

Rank correlations are those of the score with the squared error, over all sequences. `--set` tries
another configuration; choose among them by `--validation`, which measures on sequences that are not
those of the test.

    python accuracy/detection.py --seeds 0 1 2 --device cuda
    python accuracy/detection.py --validation --set objective.beta=0.05 --device cuda
    python accuracy/detection.py --publish          # the table of what was measured, over all seeds
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import RESULTS, publish, save
from torch import Tensor

import spgru
from spgru.data import MovingMNIST
from spgru.moments import Moments
from spgru.nn.contexts import sampling
from spgru.reporting.markdown import table
from spgru.studies.runs import CONFIGS
from spgru.studies.scales import SCALES
from spgru.studies.sequences import DEVIATIONS, FAMILIAR, Deviation
from spgru.studies.statistics import auroc, rank_correlation
from spgru.training import load_config, load_model, train
from spgru.training.config import parse_override
from spgru.training.evaluation import TEST_SEED

RUN = "controlled_sp_gru"
FIT_SEED, VALIDATION_SEED, REFERENCE_SEED = 2024, 771, 772


class Scores(NamedTuple):
    """Of every sequence, (B,)."""

    variance: Tensor
    relative: Tensor
    """to predicted brightness"""
    expected: Tensor
    """relative to what is familiar at this brightness"""
    error: Tensor


def main() -> None:
    arguments = _parse()
    if arguments.publish:
        results = json.loads((RESULTS / f"{arguments.name}.json").read_text())["result"]
        publish("docs/mathematics.md", arguments.name, _summary(results))
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    results = []
    command = shlex.join(["python", "accuracy/detection.py", *sys.argv[1:]])
    for source in arguments.runs or arguments.seeds:
        model = _trained(arguments, source)
        results.append({"network": str(source), **_measure(model, arguments)})
        print(f"network {source}")
        print(_as_table(results[-1]), flush=True)
        save(arguments.name, command, results, arguments.output)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--scale", choices=list(SCALES), default="paper")
    parser.add_argument("--runs", nargs="*", default=[], help="trained runs, in place of seeds")
    parser.add_argument("--fit-sequences", type=int, default=32, help="of the calibration")
    parser.add_argument("--output", type=Path, default=None, help="in place of that file")
    parser.add_argument("--set", nargs="*", default=[], help="fields of the configuration")
    parser.add_argument("--models", default="outputs/detection", help="where networks are trained")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draws", type=int, default=50, help="networks to compare with; 0: none")
    parser.add_argument("--sequences", type=int, default=200, help="of each kind")
    parser.add_argument("--validation", action="store_true", help="sequences other than the test's")
    parser.add_argument("--plain", action="store_true", help="leave out the calibrated form")
    parser.add_argument("--publish", action="store_true", help="put the table into the documents")
    parser.add_argument("--name", default="detection", help="of the file in accuracy/results")
    return parser.parse_args()


def _trained(arguments: argparse.Namespace, source: int | str) -> Any:
    """A network by its folder, or trained from this seed."""
    if isinstance(source, str):
        return load_model(source).model.to(arguments.device)
    seed = source
    changes = dict(parse_override(text) for text in arguments.set)
    folder = Path(arguments.models, "-".join([RUN, *arguments.set, str(seed)]))
    config = load_config(
        CONFIGS / arguments.scale / f"{RUN}.yaml",
        {**changes, "output": str(folder), "seed": seed, "device": arguments.device},
    )
    train(config, resume=True, show="none")
    return load_model(folder).model.to(arguments.device)


def _measure(model: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    sets = {
        "familiar" if deviation.is_familiar else deviation.label: _pair(deviation, arguments)
        for deviation in DEVIATIONS
        if deviation == FAMILIAR or not deviation.is_familiar
    }
    known = _familiar(arguments.sequences, REFERENCE_SEED, arguments.device)[:10]
    forms = {"closed": _all_scores(model.predict, sets, known)}
    if arguments.draws:
        forms["drawn"] = _all_scores(partial(_drawn, model, arguments.draws), sets, known)
    if not arguments.plain:
        count, where = arguments.fit_sequences, arguments.device
        data = MovingMNIST.controlled(count, split="train", seed=FIT_SEED, device=where)
        spgru.calibrate(model, data.batch(0)[:10], progress=False)
        forms["calibrated"] = _all_scores(model.predict, sets, known)
    return {
        "error": {kind: scores.error.mean().item() for kind, scores in forms["closed"].items()},
        "forms": {name: _compare(kinds) for name, kinds in forms.items()},
    }


def _pair(deviation: Deviation, arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Frames seen, with noise, and frames to come, without, (10, B, 64, 64) each."""
    seed = VALIDATION_SEED if arguments.validation else TEST_SEED
    frames = partial(_familiar, arguments.sequences, seed, arguments.device)
    changed = {deviation.kind: deviation.value}
    return frames(**changed)[:10], frames(**{} if deviation.kind == "noise" else changed)[10:]


def _familiar(count: int, seed: int, device: str, **changed: Any) -> Tensor:
    """Whole sequences of test digits, (20, B, 64, 64)."""
    return MovingMNIST.controlled(count, split="test", seed=seed, device=device, **changed).batch(0)


def _drawn(model: Any, draws: int, seen: Tensor) -> Moments:
    """Mean and variance of pixels over drawn networks."""
    generator = torch.Generator(seen.device).manual_seed(0)
    first = torch.zeros((), dtype=torch.float64, device=seen.device)
    second = first
    for _ in range(draws):
        with sampling(model, generator):
            pixels = torch.sigmoid(model.predict_logits(seen).mean).double()
        first, second = first + pixels, second + pixels.square()
    mean = first / draws
    return Moments(mean, (second - draws * mean.square()).clamp(min=0) / (draws - 1))


@torch.no_grad()
def _all_scores(
    predict: Callable[[Tensor], Moments], sets: dict[str, tuple[Tensor, Tensor]], known: Tensor
) -> dict[str, Scores]:
    """Of every kind of sequences.

    Args:
        known: frames of familiar sequences that are not among them
    """
    variance, brightness = _sums(predict(known))
    level = brightness.log() - brightness.log().mean()
    power = (level * variance.log()).sum() / level.square().sum()
    found = {}
    for kind, (seen, after) in sets.items():
        pixels = predict(seen)
        variance, brightness = _sums(pixels)
        error = (pixels.mean.double() - after).square().sum((0, 2, 3)) / len(after)
        found[kind] = Scores(
            variance, variance / brightness, variance / brightness**power, error.cpu()
        )
    return found


def _sums(pixels: Moments) -> tuple[Tensor, Tensor]:
    """Variance and brightness of every sequence."""
    variance, brightness = (
        part.double().sum((0, 2, 3)).cpu() for part in (pixels.var, pixels.mean)
    )
    return variance, brightness


def _compare(kinds: dict[str, Scores]) -> dict[str, Any]:
    familiar = kinds["familiar"]
    found: dict[str, Any] = {}
    for score in ("variance", "relative", "expected"):
        pooled = [
            torch.cat([getattr(k, part) for k in kinds.values()]) for part in (score, "error")
        ]
        found[score] = {
            "auroc": {
                kind: round(auroc(getattr(familiar, score), getattr(own, score)), 3)
                for kind, own in kinds.items()
                if own is not familiar
            },
            "rank correlation with the error": round(rank_correlation(*pooled) or 0.0, 3),
        }
    return found


def _as_table(result: dict[str, Any]) -> str:
    rows = []
    for name, found in result["forms"].items():
        for score, values in found.items():
            cells = [f"{value:.2f}" for value in values["auroc"].values()]
            rows.append([f"{name}, {score}", *cells, values["rank correlation with the error"]])
    kinds = list(result["error"])
    errors = [f"{value:.2f}" for value in result["error"].values()]
    header = ["AUROC against the familiar path", *kinds[1:], "rank correlation with the error"]
    last = [f"squared error; familiar {errors[0]}", *errors[1:], ""]
    return table(header, [*rows, last])


def _summary(results: list[dict[str, Any]]) -> str:
    """Least and largest over all seeds."""

    def span(values: list[float]) -> str:
        low, high = f"{min(values):.2f}", f"{max(values):.2f}"
        return low if low == high else f"{low} to {high}"

    kinds = list(results[0]["error"])[1:]
    rows = []
    for name, scores in results[0]["forms"].items():
        for score in scores:
            found = [result["forms"][name][score] for result in results]
            cells = [span([one["auroc"][kind] for one in found]) for kind in kinds]
            rank = span([one["rank correlation with the error"] for one in found])
            rows.append([f"{name}, {score}", *cells, rank])
    errors = [span([result["error"][kind] for result in results]) for kind in kinds]
    familiar = span([result["error"]["familiar"] for result in results])
    rows.append([f"squared error; familiar {familiar}", *errors, ""])
    return table(["AUROC", *kinds, "rank correlation with the error"], rows)


if __name__ == "__main__":
    main()
