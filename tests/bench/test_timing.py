from __future__ import annotations

import time

import torch

from spgru.bench.timing import Effort, take_turns


def test_works_take_turns_and_a_slow_one_sits_out() -> None:
    calls: list[str] = []

    def work(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    effort = Effort(rounds=6, seconds=0.15, least=3, sample=0.0)
    works = {"quick": lambda: work("quick", 0.0), "slow": lambda: work("slow", 0.06)}
    found = take_turns(works, torch.device("cpu"), effort, lambda: calls.append("fresh"))
    assert {name: len(seconds) for name, seconds in found.items()} == {"quick": 6, "slow": 3}
    assert min(found["slow"]) >= 0.06
    timed = calls[calls.index("fresh") :]
    rounds = " ".join(timed).split("fresh")[1:]
    assert [part.split() for part in rounds] == [["quick"], ["quick", "slow"]] * 3


def test_a_quick_work_is_repeated_within_a_sample() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        time.sleep(1e-3)

    effort = Effort(rounds=2, seconds=1.0, least=2, sample=0.05)
    (seconds,) = take_turns({"a": work}, torch.device("cpu"), effort, lambda: None).values()
    assert len(seconds) == 2
    assert len(calls) > 8
    assert all(1e-3 <= value < 5e-2 for value in seconds)
