"""The exponential families that weights and neurons may follow."""

from spgru.families.base import Family, Parameterization
from spgru.families.gamma import Gamma
from spgru.families.gaussian import Gaussian
from spgru.families.lookup import get
from spgru.families.poisson import Poisson
from spgru.families.prior import Prior

__all__ = ["Family", "Gamma", "Gaussian", "Parameterization", "Poisson", "Prior", "get"]
