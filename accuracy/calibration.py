"""The variance of trained networks before and after `spgru.calibrate`, against drawn networks.

Fitted on a few sequences of the kind the network was trained on, measured on sequences it never
saw, of that kind and of others: for the controlled path (H = 1024 at the scale of the paper) each
angle, speed and noise; for the packaged convolutional network one, two and three digits.

    python accuracy/calibration.py controlled --seeds 0 1 2 --device cuda
    python accuracy/calibration.py conv --device cuda
    python accuracy/calibration.py conv --as-is --device cuda   # the calibration that it came with
    python accuracy/calibration.py show RESULT.json ...     # tables of what was measured
    python accuracy/calibration.py show RESULT.json --publish --name BLOCK

The file of results is written after each network. Tables at the end hold the figures against the
bars of `calibration_bars.py`.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from calibration_bars import against_bars, passed, pixel_sets, times
from common import publish, save
from torch import Tensor

import spgru
from spgru.calibration.forms import PLAIN, Found, search
from spgru.calibration.perturb import check_changes
from spgru.calibration.problem import Problem, pose
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
AS_IS = "as it is"
TEST_SEED = 2024


SHARES = (0.9, 0.99, 0.999)
LEVELS = (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Of the true variance: which pixels count in the spread of the log ratio."""
PIXELS = ["all", *(f"{level:.0e}" for level in LEVELS), *(f"{100 * share:g} %" for share in SHARES)]


def main() -> None:
    arguments = _parse()
    if arguments.network == "show":
        results = [one for path in arguments.files for one in _read(path)]
        kinds = list(results[0]["forms"][PLAIN])
        print(_against_bars("conv" if "2 digits" in kinds else "controlled", results, arguments))
        if arguments.publish:
            publish("docs/mathematics.md", arguments.name, _summary(results, arguments.pixels))
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    results = []
    for name, model, fit, sets in _cases(arguments):
        results.append({"network": name, **measure(model, fit, sets, arguments)})
        save(arguments.name, _command(), results, arguments.output)
        print(json.dumps({"network": name, **results[-1]["search"]}), flush=True)
        print(passed(arguments.network, results[-1], arguments.pixels), flush=True)
    print(_against_bars(arguments.network, results, arguments))
    if arguments.publish:
        publish("docs/mathematics.md", arguments.name, _summary(results, arguments.pixels))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["controlled", "conv", "show"])
    parser.add_argument("files", nargs="*", type=Path, help="results to show")
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
    parser.add_argument("--as-is", action="store_true", help="no fit: as the networks were saved")
    parser.add_argument(
        "--perturb", type=float, nargs="*", default=[1.0, 2.0], help="as in spgru.calibrate"
    )
    parser.add_argument("--skip", type=float, nargs="*", default=[0.1, 0.2, 0.3], help="likewise")
    parser.add_argument(
        "--pixels",
        choices=PIXELS,
        default="1e-06",
        help="whose spread is held against the bar: all, above a true variance, with a share of it",
    )
    parser.add_argument("--chunk", type=int, default=1000, help="sequences that run at once")
    parser.add_argument("--name", default=None, help="of the file in accuracy/results")
    parser.add_argument("--output", type=Path, default=None, help="in place of that file")
    parser.add_argument("--publish", action="store_true", help="put the table into the documents")
    found = parser.parse_args()
    found.name = found.name or f"calibration_{found.network}"
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["result"]
    return found


def _against_bars(network: str, results: list[dict[str, Any]], arguments: Any) -> str:
    kinds = [kind for kind in results[0]["pixels"] if kind in ("familiar", "angle 35°", "2 digits")]
    parts = [against_bars(network, results, arguments.pixels), pixel_sets(results, kinds)]
    return "\n\n".join([*parts, times(results)])


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
        name = f"seed {source.seed}" if isinstance(source, Member) else str(source)
        print(f"{name}: ready after {time.monotonic() - start:.0f} s", flush=True)
        yield name, model.to(device), fit, sets


def _digits(count: int, digits: int, split: Any, device: torch.device) -> Tensor:
    return MovingMNIST(count, digits, split=split, seed=TEST_SEED, device=device).batch(0)[:10]


# -- measuring ------------------------------------------------------------------------------------


def measure(
    model: Any, fit: Tensor, sets: dict[str, Tensor], arguments: argparse.Namespace
) -> dict[str, Any]:
    start = time.monotonic()
    found, problem = (None, None) if arguments.as_is else _search(model, fit, arguments)
    seconds = time.monotonic() - start
    sizes = [frames.shape[1] for frames in sets.values()]
    frames = torch.cat(list(sets.values()), 1)
    start = time.monotonic()
    true, totals = _truth(model, frames, arguments.draws, arguments.chunk)
    truth_seconds = time.monotonic() - start
    # Of other networks than those that make the truth.
    drawn, _ = _truth(model, frames, 16, arguments.chunk, seed=2)
    kinds = dict(zip(sets, true.split(sizes, 1), strict=True))
    errors = {
        kind: round(_relative_error(part.sum(1)), 3)
        for kind, part in zip(sets, totals.split(sizes, 1), strict=True)
    }
    masks = {kind: pixel_masks(t) for kind, t in kinds.items()}
    ways: dict[str, Callable[[], Any]]
    if found is None or problem is None:
        ways = {AS_IS: lambda: None, PLAIN: partial(spgru.uncalibrate, model)}
    else:
        ways = {name: partial(form.apply, model, problem) for name, form in found.forms.items()}
    best = AS_IS if found is None else found.best
    forms = {}
    for name, apply in ways.items():
        apply()
        var = _in_chunks(lambda part: model.predict(part).var, frames, arguments.chunk)
        parts = zip(kinds.items(), var.split(sizes, 1), strict=True)
        forms[name] = {kind: _compare(t, v, masks[kind]) for (kind, t), v in parts}
    timed = {}
    for name in dict.fromkeys((PLAIN, "gains", best)):
        if name in ways and found is not None:
            ways[name]()
            timed[name] = copy.deepcopy(model)
    times = pass_times(timed, frames[:, :30])
    spgru.uncalibrate(model)
    scores = {} if found is None else found.scores
    return {
        "search": {
            "best": best,
            "scores": {name: round(value, 4) for name, value in scores.items()},
            "seconds": round(seconds, 1),
            "truth_seconds": round(truth_seconds, 1),
            "relative_standard_error_of_true_totals": errors,
            "milliseconds_of_a_pass": times,
            "power": {
                name: [round(value, 3) for value in form.scale.power.flatten().tolist()]
                for name, form in (found.forms if found else {}).items()
                if form.scale is not None and form.scale.power is not None
            },
        },
        "pixels": {
            kind: {name: float(f"{mask.double().mean().item():.3g}") for name, mask in sets.items()}
            for kind, sets in masks.items()
        },
        "drawn": {
            kind: spreads(t, v, masks[kind])
            for (kind, t), v in zip(kinds.items(), drawn.split(sizes, 1), strict=True)
        },
        "forms": forms,
    }


def _search(model: Any, fit: Tensor, arguments: argparse.Namespace) -> tuple[Found, Problem]:
    """All forms, and what they were fitted to."""
    with at_rest(model, 0) as scales, uncalibrated(model):
        changes = check_changes(arguments.perturb, arguments.skip)
        problem = pose(model, fit, None, 0.25, None, None, 0, scales, changes)
        found = search(
            problem, "auto", arguments.fit_draws, arguments.steps, 0.03, 0, progress=False
        )
    return found, problem


def _in_chunks(function: Callable[[Tensor], Tensor], frames: Tensor, chunk: int) -> Tensor:
    return torch.cat([function(part) for part in frames.split(chunk, 1)], 1)


@torch.no_grad()
def _truth(
    model: Any, frames: Tensor, draws: int, chunk: int, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Variance of every pixel over drawn networks, (10, B, 64, 64); what each adds, (draws, B)."""
    generator = torch.Generator(frames.device).manual_seed(seed)
    centre = _in_chunks(lambda part: model.predict(part).mean, frames, chunk)
    first = torch.zeros_like(centre, dtype=torch.float64)
    second, totals = torch.zeros_like(first), []
    for _ in range(draws):
        with sampling(model, generator):
            pixels = _in_chunks(lambda part: model.predict(part).mean, frames, chunk)
        deviation = pixels.double() - centre
        first += deviation
        second += deviation.square()
        totals.append(deviation.square().sum((0, 2, 3)))
    return (second - first.square() / draws) / (draws - 1), torch.stack(totals)


def _relative_error(values: Tensor) -> float:
    """Standard error of the mean, over it."""
    return (values.std() / len(values) ** 0.5 / values.mean()).item()


def pixel_masks(true: Tensor) -> dict[str, Tensor]:
    """The sets of `PIXELS`: all, those above a variance, those with a share of all of it."""
    ordered = true.flatten().sort(descending=True).values
    sums = ordered.cumsum(0)
    last = [int((sums < share * sums[-1]).sum()) for share in SHARES]
    least = [0.0, *LEVELS]
    masks = [true > level for level in least] + [true >= ordered[k] for k in last]
    return dict(zip(PIXELS, masks, strict=True))


def spreads(true: Tensor, var: Tensor, masks: dict[str, Tensor]) -> dict[str, float]:
    """Standard deviation of log(var / true) over each set of pixels."""
    logs = (var.double() / true).log()
    known = (true > 0) & (var > 0)
    return {name: round(logs[mask & known].std().item(), 3) for name, mask in masks.items()}


def _compare(true: Tensor, var: Tensor, masks: dict[str, Tensor]) -> dict[str, Any]:
    """Of one kind of sequences, (10, B, 64, 64)."""
    var = var.double()
    frames = var.sum((1, 2, 3)) / true.sum((1, 2, 3))
    sequences = (var.sum((0, 2, 3)) / true.sum((0, 2, 3))).sort().values
    within = ((sequences > 0.6) & (sequences < 1.6)).double().mean()
    some = [tensor[:, :5].flatten(0, 1).flatten(1) for tensor in (true, var)]
    ranks = [spgru.metrics.spearman(t, v).item() for t, v in zip(*some, strict=True)]
    return {
        "total": round((var.sum() / true.sum()).item(), 4),
        "frames": [round(value, 3) for value in frames.tolist()],
        # The lowest, the median, the highest.
        "sequences": [round(sequences[k].item(), 3) for k in (0, len(sequences) // 2, -1)],
        "within": round(within.item(), 3),
        "spreads": spreads(true, var, masks),
        "rank": round(sum(ranks) / len(ranks), 4),
    }


@torch.no_grad()
def pass_times(models: dict[str, Any], frames: Tensor) -> dict[str, float]:
    """Milliseconds of a pass within `spgru.frozen`, the median of turns with each network in each.

    Args:
        models: the same network in different forms, by their names
    """
    found: dict[str, list[float]] = {name: [] for name in models}
    begin = time.perf_counter()
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(spgru.frozen(model))
            # The first call prepares the weights; on a GPU those that repeat are recorded.
            for _ in range(6 if frames.is_cuda else 1):
                model.predict(frames)
        for turn in range(60):
            if turn > 5 and time.perf_counter() - begin > 20:
                break  # on a CPU
            for name, model in models.items():
                _wait(frames)
                start = time.perf_counter()
                model.predict(frames)
                _wait(frames)
                found[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(sorted(values)[len(values) // 2], 4) for name, values in found.items()}


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _summary(results: list[dict[str, Any]], pixels: str) -> str:
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
            lambda found: [found["spreads"][pixels]],
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
