"""Families by name."""

from __future__ import annotations

from spgru.checks import check_choice
from spgru.families.base import Family
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
