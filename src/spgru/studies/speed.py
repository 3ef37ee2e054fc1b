"""Cost of one prediction with uncertainty: one pass in closed form against many drawn ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.baselines import Deterministic, MCDropoutLSTM
from spgru.moments import Moments
from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import new_figure
from spgru.runtime.device import synchronize
from spgru.runtime.memory import peak_bytes
from spgru.runtime.precision import float32_products
from spgru.studies.animation import Clip, save_animation
from spgru.studies.controlled import MODELS, first_of
from spgru.studies.networks import Networks
from spgru.studies.prediction import parameters
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.sequences import FAMILIAR, controlled_pairs
from spgru.studies.study import Conclusion, Study, Tables

__all__ = ["STUDY", "predict_in_a_loop", "time_calls"]

SEQUENCES = 30
"""As in the paper's comparison."""
PAPER_RATIO = 40 / 3
"""Seconds of MC-LSTM with 50 draws over seconds of SP-GRU, for 30 sequences, as published."""
_OURS, _FOLDED, _MASKED, _LOOPED, _PLAIN = (
    "SP-GRU",
    "MC-LSTM, draws folded into the batch",
    "MC-LSTM, folded, state masked at every step",
    "MC-LSTM, one draw after the other",
    "GRU without uncertainty",
)
_SAMPLING = (_FOLDED, _MASKED, _LOOPED)


def _members(config: StudyConfig) -> list[Member]:
    return members(config, (), single=MODELS)


def predict_in_a_loop(model: MCDropoutLSTM, seen: Tensor, draws: int) -> Moments:
    """What `MCDropoutLSTM.predict` computes, with one network at a time."""
    first = second = torch.zeros(())
    for _ in range(draws):
        pixels = torch.sigmoid(model(seen, model.draw_masks(seen.shape[1])))
        first, second = first + pixels, second + pixels.square()
    mean = first / draws
    return Moments(mean, ((second - first * mean) / (draws - 1)).clamp(min=0))


def _contestants(
    config: StudyConfig, networks: Networks, seen: Tensor
) -> dict[str, tuple[torch.nn.Module, Callable[[], Moments]]]:
    """Networks, and one prediction of each."""
    draws = config.scale.timed_draws
    ours, masked = (networks.load(first_of(run, config)) for run in MODELS)
    # Same weights, but fused layers: the fastest form of the method.
    folded = MCDropoutLSTM(
        masked.hidden_size, masked.num_layers, masked.dropout, recurrent_dropout=False
    ).to(config.torch_device)
    folded.load_state_dict(masked.state_dict())
    plain = Deterministic(ours.config.hidden_size, ours.config.num_layers).to(config.torch_device)
    return {
        _OURS: (ours, lambda: ours.predict(seen)),
        _FOLDED: (folded, lambda: folded.predict(seen, draws=draws)),
        _MASKED: (masked, lambda: masked.predict(seen, draws=draws)),
        _LOOPED: (folded, lambda: predict_in_a_loop(folded, seen, draws)),
        _PLAIN: (plain, lambda: plain.predict(seen)),
    }


def time_calls(work: Callable[[], Any], count: int, device: torch.device) -> list[float]:
    """Seconds of each of `count` calls, after one that is not counted."""
    work()
    seconds = []
    for _ in range(count):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds


@torch.no_grad()
def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    device = config.torch_device
    pairs = controlled_pairs(config, FAMILIAR, SEQUENCES)
    rows = []
    clips = {}
    for name, (model, work) in _contestants(config, networks, pairs.seen).items():
        # TF32 where a GPU has it, as in training: what one would use.
        with float32_products(tf32=True):
            seconds = time_calls(work, config.scale.timed, device)
        rows.append(
            {
                "what": name,
                "parameters": parameters(model),
                "draws": config.scale.timed_draws if name in _SAMPLING else 1,
                "seconds": statistics.median(seconds),
                "least": min(seconds),
                "largest": max(seconds),
                "bytes": peak_bytes(work, device),
            }
        )
        if name in (_OURS, _FOLDED):
            clips[name.partition(",")[0]] = Clip(pairs.seen[:, 0], pairs.after[:, 0], work()[:, 0])
    save_animation(folder / "prediction.gif", clips)
    return {"cost": rows}


def _draw(results: Tables, folder: Path) -> None:
    rows = results["cost"][::-1]
    names = [row["what"] for row in rows]
    drawing = new_figure(11, 2.8)
    left, right = drawing.subplots(1, 2, sharey=True)
    left.barh(names, [row["seconds"] for row in rows])
    left.set(xlabel="seconds, median", xscale="log")
    right.barh(names, [row["bytes"] / 1e6 for row in rows])
    right.set(xlabel="MB at the peak", xscale="log")
    drawing.savefig(folder / "cost.png", dpi=110)


def _conclude(results: Tables) -> Conclusion:
    rows = {row["what"]: row for row in results["cost"]}
    ours = rows[_OURS]
    ratios = {name: row["seconds"] / ours["seconds"] for name, row in rows.items()}
    lines = [
        f"{name}: {number(ratios[name])} times the time and "
        f"{number(rows[name]['bytes'] / ours['bytes'])} times the memory of SP-GRU."
        for name in rows
        if name != _OURS
    ]
    forms = sorted(_SAMPLING, key=lambda name: ratios[name])
    fastest, slowest = forms[0], forms[-1]
    lines += [
        f"SP-GRU is faster than the fastest form of sampling ({fastest}): "
        f"{yes_no(ratios[fastest] > 1)}.",
        f"The paper's ratio of {number(PAPER_RATIO)} is reached against the fastest form: "
        f"{yes_no(ratios[fastest] >= PAPER_RATIO)}; against the slowest ({slowest}): "
        f"{yes_no(ratios[slowest] >= PAPER_RATIO)}.",
    ]
    cells = [
        [
            name,
            row["parameters"],
            row["draws"],
            1e3 * row["seconds"],
            f"{number(1e3 * row['least'])} to {number(1e3 * row['largest'])}",
            row["bytes"] / 1e6,
            ratios[name],
        ]
        for name, row in rows.items()
    ]
    header = ["", "parameters", "draws", "ms, median", "range", "MB at the peak", "over SP-GRU"]
    return Conclusion(
        introduction=(
            f"One prediction of 10 frames for {SEQUENCES} sequences, in one process, after a "
            "warm-up, in float32 (a GPU may multiply in TF32). Ratios travel between machines, "
            "times do not."
        ),
        findings=lines,
        sections=[
            table(header, cells),
            figure("cost.png", "Time and memory of one prediction, on logarithmic scales"),
            figure("prediction.gif", "What both computed: prediction and uncertainty"),
        ],
    )


STUDY = Study(
    name="speed",
    title="Speed: one pass in closed form against many drawn ones",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
)
