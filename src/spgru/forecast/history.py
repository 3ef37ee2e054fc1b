"""New values after those that are known."""

from __future__ import annotations

import numpy as np

from spgru.forecast.data import Panel
from spgru.forecast.numbers import Numbers
from spgru.forecast.scaling import Array
from spgru.forecast.times import MOST_MISSING, Times, check_gaps

__all__ = ["appended"]


def appended(known: Panel, new: Panel) -> tuple[Panel, list[int]]:
    """The longer series, and by how many values each; times between them are missing values."""
    if known.single != new.single or (not known.single and set(known.names) != set(new.names)):
        raise ValueError(
            f"y holds the series {new.names}, and those known are {known.names}; an update takes "
            "new values of all of them"
        )
    if (known.times is None) != (new.times is None):
        raise ValueError("only one of y and the known series has a time index; give both one")
    order = [0] if known.single else [new.names.index(name) for name in known.names]
    values, times, numbers, added = [], [], [], []
    for number, place in enumerate(order):
        later = new.values[place]
        if known.times is not None and new.times is not None:
            later = _from_the_end(known.times[number], new.times[place], later, known.names[number])
            times.append(known.times[number].longer(len(later)))
        if known.numbers is not None:
            own = known.numbers[number]
            if new.numbers is not None:
                later = _from_the_count(own, new.numbers[place], later, known.names[number])
            numbers.append(own.longer(len(later)))
        values.append(np.concatenate([known.values[number], later]))
        added.append(len(later))
    panel = Panel(values, known.names, times or None, known.single, numbers or None)
    return panel, added


def _from_the_count(known: Numbers, new: Numbers, values: Array, name: object) -> Array:
    """The new values, after NaN for numbers that are missing in between."""
    gap = known.missing_before(new, name)
    if gap > MOST_MISSING * known.count:
        raise ValueError(
            f"y of the series {name!r} starts at {new.start}, far more steps after its end than it "
            "has values; correct its index, or pass an array"
        )
    return np.concatenate([np.full(gap, np.nan), values])


def _from_the_end(known: Times, new: Times, values: Array, name: object) -> Array:
    """The new values, after NaN for times that are missing in between."""
    known.require_alike(new, "the known series and y together")
    last = known.index(known.count - 1, 1)[0]
    if new.start <= last:
        raise ValueError(
            f"y of the series {name!r} starts at {new.start}, and it is known until {last}; "
            "an update takes what came later"
        )
    ahead = known.index(0, known.count)
    check_gaps(ahead.append(type(ahead)([new.start])), f"the series {name!r}")
    steps = 1
    while True:
        ahead = known.index(known.count, steps)
        if new.start in ahead:
            gap = int(ahead.get_indexer([new.start])[0])
            return np.concatenate([np.full(gap, np.nan), values])
        if ahead[-1] > new.start:
            raise ValueError(
                f"y of the series {name!r} starts at {new.start}, which is no time of frequency "
                f"{known.freq!r} after {last}"
            )
        steps *= 2
