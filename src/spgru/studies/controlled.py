"""Controlled paths: does uncertainty rise when the input leaves the trained path?

One digit on a straight line at one angle and speed is all the networks ever see. Then angle, speed
or noise deviate, and the variance of the predicted pixels is summed over each frame and averaged
over time and test sequences, for an SP-GRU and for an LSTM with Monte Carlo dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from spgru.reporting.tables import Row
from spgru.studies import controlled_report
from spgru.studies.controlled_audit import measure_audit
from spgru.studies.controlled_pictures import save_curves, save_pictures
from spgru.studies.guesses import measure_guesses
from spgru.studies.networks import Networks
from spgru.studies.prediction import Measured, compare, parameters, predict
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.sequences import DEVIATIONS, FAMILIAR, Deviation, Pairs, controlled_pairs
from spgru.studies.statistics import rank_correlation
from spgru.studies.study import Study, Tables
from spgru.training.evaluation import CONTROLLED_SETS

__all__ = ["MODELS", "STUDY", "first_of", "measure_model"]

MODELS = {"controlled_sp_gru": "SP-GRU", "controlled_mc_lstm": "MC-LSTM"}
"""What the runs are called."""


def _members(config: StudyConfig) -> list[Member]:
    return members(config, MODELS)


def first_of(run: str, config: StudyConfig) -> Member:
    """The network whose pictures are shown."""
    return Member(run, config.all_seeds[0])


def _all_pairs(config: StudyConfig, count: int) -> dict[Deviation, Pairs]:
    """Test sequences of every deviation; the familiar ones stand under each kind."""
    familiar = controlled_pairs(config, FAMILIAR, count)
    return {
        deviation: familiar if deviation.is_familiar else controlled_pairs(config, deviation, count)
        for deviation in DEVIATIONS
    }


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    scale = config.scale
    pairs = _all_pairs(config, scale.sequences)
    names = ("models", "curves", "correlation", "audit", "audit_by_frame")
    results: Tables = {name: [] for name in names}
    results["canvas"] = [
        {
            "kind": deviation.kind,
            "value": deviation.value,
            "frame": frame + 1,
            "visible": found.visible[frame].item(),
        }
        for deviation, found in pairs.items()
        for frame in range(len(found.visible))
    ]
    results["guesses"] = measure_guesses(config, pairs[FAMILIAR])
    for member in _members(config):
        model, label = networks.load(member), MODELS[member.run]
        who = {"model": label, "seed": member.seed}
        results["models"].append(
            {
                **who,
                "parameters": parameters(model),
                "steps": networks.steps(member),
                "draws": 0 if label == "SP-GRU" else scale.draws,
            }
        )
        calibrated = networks.calibrated(member)
        curves, correlation = measure_model(model, pairs, scale.draws, calibrated)
        results["curves"] += [{**who, **row} for row in curves]
        results["correlation"] += [{**who, **row} for row in correlation]
        if calibrated is not None:
            sets = {d: p.seen[:, : scale.audit_sequences] for d, p in pairs.items()}
            audits = measure_audit(calibrated, sets, scale.audit_draws)
            for name, rows in zip(("audit", "audit_by_frame"), audits, strict=True):
                results[name] += [{**who, **row} for row in rows]
    shown = networks.calibrated(first_of("controlled_sp_gru", config))
    assert shown is not None
    save_pictures(folder, config, shown, pairs)
    return results


def measure_model(
    model: Any, pairs: dict[Deviation, Pairs], draws: int, calibrated: Any = None
) -> tuple[list[Row], list[Row]]:
    """Variance and error of every deviation, and their rank correlation over sequences.

    Args:
        calibrated: the same model with its calibration, for a column of its variance; None if
            there is none
    """
    found = _compare_all(model, pairs, draws)
    after = {} if calibrated is None else _compare_all(calibrated, pairs, draws)
    curves = [
        {
            "kind": deviation.kind,
            "value": deviation.value,
            "variance": measured.variance.mean().item(),
            "calibrated": after[deviation].variance.mean().item() if after else None,
            "variance_per_ink": (measured.variance.sum() / measured.ink.sum()).item(),
            "error": measured.error.mean().item(),
            "nats": measured.nats.mean().item(),
        }
        for deviation, measured in found.items()
    ]

    def correlated(chosen: Callable[[Deviation], bool]) -> float | None:
        sets = [measured for deviation, measured in found.items() if chosen(deviation)]
        variance = torch.cat([measured.variance for measured in sets])
        return rank_correlation(variance, torch.cat([measured.error for measured in sets]))

    # Pooled, the familiar sequences count once although they stand under each kind.
    pooled = correlated(lambda d: not d.is_familiar or d == FAMILIAR)
    rows: list[Row] = [{"over": "all", "spearman": pooled}]
    for kind in CONTROLLED_SETS:
        own = correlated(lambda d, kind=kind: d.kind == kind)  # type: ignore[misc]
        rows.append({"over": kind, "spearman": own})
    return curves, rows


def _compare_all(
    model: Any, pairs: dict[Deviation, Pairs], draws: int
) -> dict[Deviation, Measured]:
    """Of every deviation; the familiar one, which stands under each kind, is measured once."""

    def measure(pair: Pairs) -> Measured:
        return compare(predict(model, pair.seen, draws), pair.after)

    familiar = measure(pairs[FAMILIAR])
    return {
        deviation: familiar if deviation.is_familiar else measure(pair)
        for deviation, pair in pairs.items()
    }


STUDY = Study(
    name="controlled",
    title="Controlled paths: does uncertainty rise off the trained path?",
    members=_members,
    measure=_measure,
    draw=save_curves,
    conclude=controlled_report.conclude,
    calibrates=True,
)
