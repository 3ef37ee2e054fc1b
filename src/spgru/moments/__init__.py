"""`Moments`: a random tensor, known by its elementwise mean and variance.

Torch's own functions accept `Moments` (`__torch_function__`) if a table has a rule for them. Here
stand the rules that treat mean and variance alike (`alike`); those that need mathematics are in
`spgru.functional.torch_rules`.
"""

from spgru.moments.alike import cat, stack
from spgru.moments.fields import is_autocast
from spgru.moments.observers import observed_as_one, observing, unobserved
from spgru.moments.packed import pack_padded_moments, pad_packed_moments
from spgru.moments.pair import Moments, Value, certain, promote
from spgru.moments.table import functions_named, no_rule_for, refuse_writing, rule_for

__all__ = [
    "Moments",
    "Value",
    "cat",
    "certain",
    "functions_named",
    "is_autocast",
    "no_rule_for",
    "observed_as_one",
    "observing",
    "pack_padded_moments",
    "pad_packed_moments",
    "promote",
    "refuse_writing",
    "rule_for",
    "stack",
    "unobserved",
]
