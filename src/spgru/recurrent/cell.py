"""What a backend needs to know about a cell: its equations, its weights, and who can run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.recurrent.gru import make_gru_step
from spgru.recurrent.lstm import lstm_step
from spgru.recurrent.rnn import rnn_step
from spgru.recurrent.scan import Step

__all__ = ["Cell", "gru_cell", "lstm_cell", "rnn_cell"]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A recurrent step with its weights. Made by `gru_cell`, `lstm_cell` and `rnn_cell`."""

    name: Literal["gru", "gru_reset_before", "lstm", "rnn"]
    hidden: Affine
    """H -> gates H, the map that is applied to the state at every step"""
    family: Family
    rule: Rule
    equation: Callable[[Any], Step[Any]]
    """the reference, as a function of `hidden` or of another map that stands for it"""
    obstacle: str | None = None
    """why no kernel has these equations, None where one has"""
    projection: Affine | None = None
    """of an LSTM's state"""
    nonlinearity: str = "tanh"
    """of an RNN"""

    @property
    def step(self) -> Step[Any]:
        """The reference."""
        return self.equation(self.hidden)


def gru_cell(
    hidden: Affine, size: int, family: Family, rule: Rule = "exact", reset_after: bool = True
) -> Cell:
    """The GRU with `size` units; see `spgru.recurrent.gru`.

    Args:
        hidden: H -> 3 H
    """

    def equation(other: Any) -> Step[Any]:
        return make_gru_step(other, size, reset_after, family, rule)

    name: Any = "gru" if reset_after else "gru_reset_before"
    return Cell(name, hidden, family, rule, equation)


def lstm_cell(
    hidden: Affine, family: Family, rule: Rule = "exact", projection: Affine | None = None
) -> Cell:
    """The LSTM; see `spgru.recurrent.lstm`.

    Args:
        hidden: H or projected size -> 4 H
        projection: H -> projected size
    """

    def equation(other: Any) -> Step[Any]:
        return partial(
            lstm_step, hidden=other, projection=projection, family=family, rule=rule,
            coherence=other.coherence,
        )  # fmt: skip

    obstacle = None if projection is None else "there is no kernel for proj_size"
    return Cell("lstm", hidden, family, rule, equation, obstacle, projection)


def rnn_cell(
    hidden: Affine,
    family: Family,
    rule: Rule = "exact",
    nonlinearity: Literal["tanh", "relu"] = "tanh",
) -> Cell:
    """The plain recurrent network; see `spgru.recurrent.rnn`.

    Args:
        hidden: H -> H
    """

    def equation(other: Any) -> Step[Any]:
        return partial(rnn_step, hidden=other, nonlinearity=nonlinearity, family=family, rule=rule)

    obstacle = None if nonlinearity == "tanh" else "there is no kernel for nonlinearity='relu'"
    return Cell("rnn", hidden, family, rule, equation, obstacle, nonlinearity=nonlinearity)
