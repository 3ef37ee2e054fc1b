"""The variance of trained networks before and after `spgru.calibrate`, against drawn networks.

Fitted on a few sequences of the kind the network was trained on, measured on sequences it never
saw, of that kind and of others: for the controlled path (H = 1024 at the scale of the paper) each
angle, speed and noise; for the packaged convolutional network one, two and three digits.

    python accuracy/calibration.py controlled --seeds 0 1 2 --device cuda
    python accuracy/calibration.py conv --device cuda
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import publish, save
from torch import Tensor, nn

import spgru
from spgru.calibration.forms import PLAIN, search
from spgru.calibration.problem import pose
from spgru.calibration.state import at_rest, uncalibrated
from spgru.data import MovingMNIST
from spgru.nn.contexts import sampling
from spgru.reporting.markdown import table
from spgru.studies.networks import Networks, train_all
from spgru.studies.runs import Member, StudyConfig
from spgru.studies.scales import SCALES
from spgru.studies.sequences import DEVIATIONS, FAMILIAR, controlled_pairs
from spgru.training import load_model

RUN = "controlled_sp_gru"
TEST_SEED = 2024


def main() -> None:
    arguments = _parse()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    results = []
    for name, model, fit, sets in _cases(arguments):
        results.append({"network": name, **measure(model, fit, sets, arguments)})
        print(json.dumps({"network": name, **results[-1]["search"]}), flush=True)
        print(_as_table(results[-1]), flush=True)
        save(arguments.name, _command(), results)
    if arguments.publish:
        publish("docs/mathematics.md", arguments.name, _summary(results))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["controlled", "conv"])
    parser.add_argument("--runs", nargs="*", default=[], help="trained runs, in place of training")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--scale", choices=list(SCALES), default="paper")
    parser.add_argument("--models", default="outputs/reproduce", help="where networks are trained")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--draws", type=int, default=300, help="of the truth on test sequences")
    parser.add_argument("--sequences", type=int, default=20, help="of each kind, in the test")
    parser.add_argument("--fit-draws", type=int, default=200)
    parser.add_argument("--fit-sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--chunk", type=int, default=1000, help="sequences that run at once")
    parser.add_argument("--name", default=None, help="of the file in accuracy/results")
    parser.add_argument("--publish", action="store_true", help="put the table into the documents")
    found = parser.parse_args()
    found.name = found.name or f"calibration_{found.network}"
    return found


def _command() -> str:
    """As it was called, defaults left out."""
    return shlex.join(["python", "accuracy/calibration.py", *sys.argv[1:]])


def _cases(arguments: argparse.Namespace) -> Any:
    """Name, network, sequences of the fit, and test sequences by kind."""
    seeds = tuple(arguments.seeds)
    config = StudyConfig(
        SCALES[arguments.scale], Path(arguments.models), arguments.device, seeds=seeds
    )
    device = config.torch_device
    count, fitted = arguments.sequences, arguments.fit_sequences
    if arguments.network == "conv":
        sets = {f"{digits} digits": _digits(count, digits, "test", device) for digits in (2, 1, 3)}
        for source in arguments.runs or ["two-digits-conv"]:
            model = load_model(source).model.to(device)
            yield str(source), model, _digits(fitted, 2, "train", device), sets
        return
    data = MovingMNIST.controlled(fitted, split="train", seed=TEST_SEED, device=device)
    fit = data.batch(0)[:10]
    sets = {
        "familiar" if deviation.is_familiar else deviation.label: controlled_pairs(
            config, deviation, count
        ).seen
        for deviation in DEVIATIONS
        if deviation == FAMILIAR or not deviation.is_familiar
    }
    sources: list[Any] = list(arguments.runs) or [Member(RUN, seed) for seed in seeds]
    networks = Networks(config)
    for source in sources:
        start = time.monotonic()
        if isinstance(source, Member):
            train_all(networks, [source], None, "none")
        model = networks.load(source) if isinstance(source, Member) else load_model(source).model
        print(f"{source}: ready after {time.monotonic() - start:.0f} s", flush=True)
        yield str(source), model.to(device), fit, sets


def _digits(count: int, digits: int, split: Any, device: torch.device) -> Tensor:
    return MovingMNIST(count, digits, split=split, seed=TEST_SEED, device=device).batch(0)[:10]


# -- measuring ------------------------------------------------------------------------------------


def measure(
    model: Any, fit: Tensor, sets: dict[str, Tensor], arguments: argparse.Namespace
) -> dict[str, Any]:
    start = time.monotonic()
    with at_rest(model, 0) as scale, uncalibrated(model):
        problem = pose(model, fit, None, 0.25, None, None, 0)
        found = search(
            problem, scale, "auto", arguments.fit_draws, arguments.steps, 0.03, 0, progress=False
        )
    seconds = time.monotonic() - start
    sizes = [frames.shape[1] for frames in sets.values()]
    frames = torch.cat(list(sets.values()), 1)
    start = time.monotonic()
    true = _truth(model, frames, arguments.draws, arguments.chunk)
    truth_seconds = time.monotonic() - start
    forms = {}
    for name, form in found.forms.items():
        form.apply(model)
        var = _in_chunks(lambda part: model.predict(part).var, frames, arguments.chunk)
        parts = zip(sets, true.split(sizes, 1), var.split(sizes, 1), strict=True)
        forms[name] = {kind: _compare(t, v) for kind, t, v in parts}
    timed = {name: found.forms[name] for name in dict.fromkeys((PLAIN, "gains", found.best))}
    times = _times(model, timed, frames[:, :30])
    spgru.uncalibrate(model)
    return {
        "search": {
            "best": found.best,
            "scores": {name: round(value, 4) for name, value in found.scores.items()},
            "seconds": round(seconds, 1),
            "truth_seconds": round(truth_seconds, 1),
            "milliseconds_of_a_pass": times,
            "power": {
                name: form.scale.power.item()
                for name, form in found.forms.items()
                if form.scale is not None and form.scale.power is not None
            },
        },
        "forms": forms,
    }


def _in_chunks(function: Callable[[Tensor], Tensor], frames: Tensor, chunk: int) -> Tensor:
    return torch.cat([function(part) for part in frames.split(chunk, 1)], 1)


@torch.no_grad()
def _truth(model: Any, frames: Tensor, draws: int, chunk: int) -> Tensor:
    """Variance of every pixel over drawn networks, (10, B, 64, 64)."""
    generator = torch.Generator(frames.device).manual_seed(1)
    centre = _in_chunks(lambda part: model.predict(part).mean, frames, chunk)
    first = torch.zeros_like(centre, dtype=torch.float64)
    second = torch.zeros_like(first)
    for _ in range(draws):
        with sampling(model, generator):
            pixels = _in_chunks(lambda part: model.predict(part).mean, frames, chunk)
        deviation = pixels.double() - centre
        first += deviation
        second += deviation.square()
    return (second - first.square() / draws) / (draws - 1)


def _compare(true: Tensor, var: Tensor) -> dict[str, Any]:
    """Of one kind of sequences, (10, B, 64, 64)."""
    var = var.double()
    frames = var.sum((1, 2, 3)) / true.sum((1, 2, 3))
    sequences = (var.sum((0, 2, 3)) / true.sum((0, 2, 3))).sort().values
    logs = (var / true)[(true > 0) & (var > 0)].log()
    # Of pixels that have nine tenths of the variance.
    ordered, order = true.flatten().sort(descending=True)
    most = order[: int((ordered.cumsum(0) < 0.9 * ordered.sum()).sum()) + 1]
    main = (var.flatten()[most] / true.flatten()[most]).log()
    within = ((sequences > 0.6) & (sequences < 1.6)).double().mean()
    some = [tensor[:, :5].flatten(0, 1).flatten(1) for tensor in (true, var)]
    ranks = [spgru.metrics.spearman(t, v).item() for t, v in zip(*some, strict=True)]
    return {
        "total": round((var.sum() / true.sum()).item(), 4),
        "frames": [round(value, 3) for value in frames.tolist()],
        "sequences": [round(value, 3) for value in sequences.tolist()],
        "within": round(within.item(), 3),
        "spread": round(logs.std().item(), 3),
        "main_spread": round(main.std().item(), 3),
        "rank": round(sum(ranks) / len(ranks), 4),
    }


@torch.no_grad()
def _times(model: nn.Module, forms: dict[str, Any], frames: Tensor) -> dict[str, float]:
    """Milliseconds of a pass, the median of turns with each form in each."""
    found: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(12):
        for name, form in forms.items():
            form.apply(model)
            with spgru.frozen(model):
                for k in range(4):
                    _wait(frames)
                    start = time.perf_counter()
                    model.predict(frames)
                    _wait(frames)
                    if k:  # the first prepares the weights
                        found[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(sorted(values)[len(values) // 2], 3) for name, values in found.items()}


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _as_table(result: dict[str, Any]) -> str:
    rows = []
    for name, kinds in result["forms"].items():
        if name not in (PLAIN, result["search"]["best"]) and "scale" in name and "step" not in name:
            continue
        for kind, found in kinds.items():
            frames, sequences = found["frames"], found["sequences"]
            rows.append(
                [
                    name + (" (best)" if name == result["search"]["best"] else ""),
                    kind,
                    f"{found['total']:.2f}",
                    f"{min(frames):.2f} to {max(frames):.2f}",
                    f"{sequences[0]:.2f} to {sequences[-1]:.2f}, {100 * found['within']:.0f} %",
                    f"{found['spread']:.2f}; {found['main_spread']:.2f}",
                    f"{found['rank']:.3f}",
                ]
            )
    header = [
        "form",
        "sequences",
        "closed / true",
        "by frame",
        "by sequence, within 0.6 to 1.6",
        "spread of log ratio; of the main pixels",
        "rank",
    ]
    return table(header, rows)


def _summary(results: list[dict[str, Any]]) -> str:
    """Before and after, over all networks; the form is the one that each has chosen."""

    def span(values: list[float]) -> str:
        low, high = f"{min(values):.2f}", f"{max(values):.2f}"
        return low if low == high else f"{low} to {high}"

    rows = []
    for kind in results[0]["forms"][PLAIN]:
        before = [result["forms"][PLAIN][kind] for result in results]
        after = [result["forms"][result["search"]["best"]][kind] for result in results]
        row = [kind]
        for pick in (
            lambda found: [found["total"]],
            lambda found: found["frames"],
            lambda found: [found["spread"]],
            lambda found: [found["rank"]],
        ):
            row += [span([v for one in found for v in pick(one)]) for found in (before, after)]
        rows.append([*row, span([one["within"] for one in after])])
    header = ["sequences"]
    for name in ("closed / true", "by frame", "spread of the log ratio", "rank correlation"):
        header += [f"{name}, before", "after"]
    return table([*header, "sequences within 0.6 to 1.6, after"], rows)


if __name__ == "__main__":
    main()
