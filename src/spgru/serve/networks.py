"""The networks that the page offers, with the range of their variance in training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from spgru.training.packaged import WEIGHTS

__all__ = ["NETWORKS", "Network", "describe", "training_range"]


@dataclass(frozen=True)
class Network:
    """One network, as the page shows it."""

    name: str
    """of the packaged file"""
    label: str
    kind: Literal["closed-form", "draws"]
    """one pass, or many draws of dropout masks"""
    trained_on: str
    digits: int
    """in a sequence of its training"""
    boundary: Literal["leave", "bounce"]
    slow: bool
    """takes seconds: the page asks before it computes, and the server counts it as long"""
    beside: str | None
    """the network to compare it with"""


NETWORKS = {
    network.name: network
    for network in (
        Network(
            "one-digit",
            "SP-GRU, one digit",
            "closed-form",
            "one digit that always starts at the same place and moves at 20° with 5 % of 36 pixels "
            "per frame, without noise",
            1,
            "leave",
            False,
            "one-digit-mc-lstm",
        ),
        Network(
            "one-digit-mc-lstm",
            "MC-LSTM, one digit",
            "draws",
            "the same sequences, with as many parameters",
            1,
            "leave",
            False,
            None,
        ),
        Network(
            "two-digits-conv",
            "Convolutional SP-GRU, two digits",
            "closed-form",
            "two digits that start anywhere, move at any angle with 10 % of 36 pixels per frame, "
            "and bounce at the edges",
            2,
            "bounce",
            True,
            None,
        ),
    )
}


@cache
def training_range(name: str) -> dict[str, Any]:
    """Summed variance by frame on sequences of the kind trained on; tools/serve_ranges.py."""
    found: dict[str, Any] = json.loads((WEIGHTS / f"{name}.json").read_text())
    return found


def describe(network: Network) -> dict[str, Any]:
    """What the page needs to know of it."""
    return {
        "name": network.name,
        "label": network.label,
        "kind": network.kind,
        "trained_on": network.trained_on,
        "digits": network.digits,
        "boundary": network.boundary,
        "slow": network.slow,
        "beside": network.beside,
        "range": training_range(network.name),
    }
