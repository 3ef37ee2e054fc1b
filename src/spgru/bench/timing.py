"""Seconds of many works that take turns, so that a slow moment of the machine affects them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from spgru.runtime.device import synchronize

__all__ = ["Effort", "take_turns"]

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 30
    """samples of a contender, at most"""
    seconds: float = 3.0
    """time for the samples of one contender in one case; a slow one takes part in fewer rounds"""
    least: int = 3
    """samples of a contender, however slow: the fewest with a median between two others"""
    sample: float = 5e-3
    """seconds; quicker work is repeated until a sample takes this long, which makes the cost of
    reading the clock (below 1e-7) and of launching the first kernel (about 1e-5) negligible"""


QUICK = Effort(rounds=5, seconds=0.3, least=2, sample=1e-3)


def _seconds(work: Work, calls: int, device: torch.device) -> float:
    """Seconds of one call, in the mean over consecutive ones."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def _takes_part(number: int, samples: int, rounds: int) -> bool:
    """Whether a work that takes part `samples` times does so in this round: evenly spaced."""
    return (number + 1) * samples // rounds > number * samples // rounds


def take_turns(
    works: Mapping[str, Work],
    device: torch.device,
    effort: Effort,
    refresh: Callable[[], None],
) -> dict[str, list[float]]:
    """Seconds of every work, a list of samples each.

    Args:
        works: by name; each has run before, so that nothing is compiled any more
        refresh: makes the inputs of a round, whose time does not count
    """
    plan = {}
    for name, work in works.items():
        _seconds(work, 1, device)  # warm
        guess = _seconds(work, 1, device)
        calls = max(1, round(effort.sample / guess))
        samples = int(effort.seconds / (guess * calls))
        plan[name] = calls, min(max(samples, effort.least), effort.rounds)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(effort.rounds):
        refresh()
        for name, work in works.items():
            calls, samples = plan[name]
            if _takes_part(number, samples, effort.rounds):
                seconds[name].append(_seconds(work, calls, device))
    return seconds
