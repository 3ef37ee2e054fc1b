"""Families by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spgru.checks import check_choice
from spgru.families.base import Family, PositiveFamily
from spgru.families.gamma import Gamma
from spgru.families.gaussian import Gaussian
from spgru.families.poisson import Poisson

_BY_NAME: dict[str, type[Family]] = {family.name: family for family in (Gaussian, Gamma, Poisson)}


def get(family: str | Family) -> Family:
    """The family itself, or the one of that name with its default constants."""
    if isinstance(family, Family):
        return family
    check_choice("family", family, tuple(_BY_NAME))
    return _BY_NAME[family]()


def describe(family: Family) -> dict[str, Any]:
    """A family of ours as plain values."""
    if type(family) is not _BY_NAME.get(family.name):
        raise ValueError(
            f"{type(family).__name__} is a family of your own, which a file cannot hold; save the "
            "state dict instead"
        )
    constants = {"c": family.c, "gamma": family.gamma} if isinstance(family, PositiveFamily) else {}
    return {"name": family.name, **constants}


def described(description: Mapping[str, Any]) -> Family:
    """The family that `describe` described."""
    constants = {name: value for name, value in description.items() if name != "name"}
    check_choice("family", description["name"], tuple(_BY_NAME))
    return _BY_NAME[description["name"]](**constants)
