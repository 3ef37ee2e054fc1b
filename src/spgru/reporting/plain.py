"""Results as plain values, for JSON."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

__all__ = ["for_json"]


def for_json(value: Any) -> Any:
    """The same with lists for tensors, and None for what is not finite, as JSON has it."""
    if isinstance(value, Tensor):
        return for_json(value.tolist())
    if isinstance(value, list):
        return [for_json(one) for one in value]
    if isinstance(value, dict):
        return {name: for_json(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
