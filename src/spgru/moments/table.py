"""The table from functions of torch to what they do with `Moments`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import resolve_name

__all__ = ["find_rule", "functions_named", "no_rule_for", "refuse_writing", "rule_for"]

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[Any, Rule] = {}
"""From a function of torch to what it does with `Moments`."""

_REMEDIES: dict[Any, str] = {}
"""What to use instead of a function that has no rule, if not simply x.mean."""


def rule_for(*functions: Any) -> Callable[[RuleT], RuleT]:
    """Decorator: the function below answers for these functions of torch, with their arguments."""

    def register(rule: RuleT) -> RuleT:
        _RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def no_rule_for(*functions: Any, remedy: str) -> None:
    """What the error says instead of "use x.mean" when one of these functions meets `Moments`."""
    _REMEDIES.update(dict.fromkeys(functions, remedy))


def refuse_writing(argument: str) -> NoReturn:
    """Raise what torch's arguments that write into a tensor get."""
    raise TypeError(f"Moments are immutable; leave out {argument} and use what is returned")


def functions_named(*names: str) -> list[Any]:
    """The functions of these names in `torch`, `torch.nn.functional`, and the methods of `Tensor`.

    They are different objects to `__torch_function__`.
    """
    spaces = (torch, F, Tensor)
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


def find_rule(function: Any) -> Rule:
    """What answers for a function of torch; TypeError with the remedy if nothing does."""
    rule = _RULES.get(function)
    if rule is None:
        remedy = _REMEDIES.get(
            function, "use x.mean and x.var, or register a rule with spgru.moments.rule_for"
        )
        raise TypeError(f"{name_of(function)} has no rule for Moments; {remedy}")
    return rule


def name_of(function: Any) -> str:
    return str(resolve_name(function) or getattr(function, "__name__", function))
