"""`respond` and `Stream`: the variance by all sources, weights shared over time included."""

from spgru.response.consistency import consistent_gain
from spgru.response.respond import respond
from spgru.response.stream import Stream, StreamState

__all__ = ["Stream", "StreamState", "consistent_gain", "respond"]
