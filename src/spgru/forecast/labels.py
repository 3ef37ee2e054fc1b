"""Names of series in a JSON file: text and numbers, times, and tuples of these."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["label_from_json", "label_to_json"]


def label_to_json(label: Any) -> Any:
    """What JSON can hold of a name; a name of another kind is refused."""
    if isinstance(label, np.generic) and isinstance(label.item(), str | int | float):
        return label.item()
    if label is None or isinstance(label, str | int | float):
        return label
    if isinstance(label, tuple):
        return {"tuple": [label_to_json(part) for part in label]}
    if type(label).__name__ == "Timestamp":
        zone = None if label.tz is None else str(label.tz)
        naive = label if label.tz is None else label.tz_convert("UTC").tz_localize(None)
        return {"time": naive.isoformat(), "zone": zone}
    raise TypeError(
        f"a series is named {label!r}, of type {type(label).__name__}, and only text, numbers, "
        "pandas Timestamps and tuples of these can be saved; rename it, for example by str"
    )


def label_from_json(found: Any) -> Any:
    """The name that became this."""
    if not isinstance(found, dict):
        return found
    if "tuple" in found:
        return tuple(label_from_json(part) for part in found["tuple"])
    import pandas

    time = pandas.Timestamp(found["time"])
    return time if found["zone"] is None else time.tz_localize("UTC").tz_convert(found["zone"])
