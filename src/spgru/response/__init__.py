"""`respond`: the variance by all sources, weights shared over time included."""

from spgru.response.respond import respond

__all__ = ["respond"]
