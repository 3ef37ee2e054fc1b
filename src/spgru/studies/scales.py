"""How large a study is. What is trained, and how long, stands in `configs/SCALE/RUN.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from spgru.calibration.layout import LEAST
from spgru.runtime.errors import refuse

__all__ = ["SCALES", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Everything but the training.

    Args:
        name: folder of the training configurations
        seeds: how many networks are trained for curves with a band, seeds 0, 1, ...
        sequences: unfamiliar test sequences for each deviation of the controlled path
        draws: networks drawn for a prediction by sampling
        audit_sequences: on how many sequences of each deviation the variance is compared with
            brute force
        audit_draws: networks drawn for that
        test_sequences: of the two-digit test set, and of each number of digits out of domain
        calibration_sequences: of the kind that a network was trained on, for its calibration
        calibration_draws: networks drawn for that
        calibration_steps: of its fit of gains
        timed: predictions timed, after one that is not
        timed_draws: networks drawn for each of them
    """

    name: str
    seeds: int
    sequences: int
    draws: int
    audit_sequences: int
    audit_draws: int
    test_sequences: int
    calibration_sequences: int
    calibration_draws: int
    calibration_steps: int
    timed: int
    timed_draws: int

    def __post_init__(self) -> None:
        # A variance over draws, or a correlation over sequences, takes two of them.
        two = (
            "sequences", "test_sequences", "draws", "audit_draws", "timed_draws",
            "calibration_draws",
        )  # fmt: skip
        least = {name: 2 if name in two else 1 for name in vars(self) if name != "name"}
        least["calibration_sequences"] = LEAST
        refuse(
            f"{name} is {getattr(self, name)}; give at least {minimum}"
            for name, minimum in least.items()
            if getattr(self, name) < minimum
        )


SCALES = {
    "small": Scale(
        name="small",
        seeds=3,
        sequences=100,
        draws=10,
        audit_sequences=4,
        audit_draws=60,
        test_sequences=200,
        calibration_sequences=8,
        calibration_draws=50,
        calibration_steps=40,
        timed=3,
        timed_draws=50,
    ),
    "paper": Scale(
        name="paper",
        seeds=3,
        sequences=100,
        draws=50,
        audit_sequences=20,
        audit_draws=400,
        test_sequences=10_000,
        calibration_sequences=32,
        calibration_draws=200,
        calibration_steps=300,
        timed=20,
        timed_draws=50,
    ),
}
