"""`respond`: the variance to first order in every source, weights shared over time included."""

from spgru.response.respond import respond

__all__ = ["respond"]
