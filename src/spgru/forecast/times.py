"""Times of a series: start, frequency and time zone; those that follow; what a calendar says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from spgru.forecast.scaling import Array

__all__ = ["MOST_MISSING", "Times", "aligned", "check_gaps", "check_index", "season_of", "times_of"]

MOST_MISSING = 100
"""Times that may be missing for one that is there; a wrong year would otherwise fill the memory."""

_SEASONS = {
    "s": 60, "min": 60, "h": 24, "D": 7, "B": 5, "W": 52, "M": 12, "MS": 12, "ME": 12, "BMS": 12,
    "BME": 12, "Q": 4, "QS": 4, "QE": 4, "BQS": 4, "BQE": 4, "Y": 1, "YS": 1, "YE": 1,
}  # fmt: skip
"""Steps of the season that is usual for a frequency."""

_USUAL = {
    "YS": 365 * 86400, "QS": 90 * 86400, "MS": 28 * 86400, "W": 7 * 86400, "D": 86400, "h": 3600,
    "min": 60, "s": 1,
}  # fmt: skip
"""Frequencies with the least seconds of a step."""

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


@dataclass(frozen=True)
class Times:
    """Equally spaced times, known by the first, their number and their frequency."""

    start: Any
    """pandas Timestamp or Period"""
    count: int
    freq: str

    @property
    def is_period(self) -> bool:
        return type(self.start).__name__ == "Period"

    def index(self, first: int, count: int) -> Any:
        """The times from number `first` on; the series' own are 0 to `self.count` - 1."""
        import pandas

        if self.is_period:
            return pandas.period_range(self.start, periods=first + count, freq=self.freq)[first:]
        try:
            return pandas.date_range(self.start, periods=first + count, freq=self.freq)[first:]
        except Exception:  # of pytz or pandas, by their versions
            if self.start.tz is None:
                raise
        # A time of day that the clock skips, or has twice, on one of the days.
        local = pandas.date_range(
            self.start.tz_localize(None), periods=first + count, freq=self.freq
        )
        once = np.ones(len(local), np.bool_)
        return local.tz_localize(self.start.tz, ambiguous=once, nonexistent="shift_forward")[first:]

    def longer(self, steps: int) -> Times:
        return Times(self.start, self.count + steps, self.freq)

    def require_alike(self, other: Times, name: str) -> None:
        """One frequency and one time zone."""
        if self.is_period != other.is_period:
            raise ValueError(
                f"{name} holds points of time and periods; convert one by to_period or to_timestamp"
            )
        if self.freq != other.freq and not self._steps_like(other):
            raise ValueError(
                f"{name} holds series of frequencies {self.freq!r} and {other.freq!r}; resample "
                "them to one, or fit one forecaster for each"
            )
        zones = [str(getattr(t.start, "tz", None)) for t in (self, other)]
        if zones[0] != zones[1]:
            raise ValueError(
                f"{name} holds times of zones {zones[0]} and {zones[1]}; convert them to one by "
                "tz_convert or tz_localize"
            )

    def _steps_like(self, other: Times) -> bool:
        """Whether two names of a frequency mean the same, as 7D and W-SUN do from a Sunday on."""
        import pandas

        if self.is_period:
            return False
        steps = [
            [pandas.date_range(start, periods=9, freq=freq) for freq in (self.freq, other.freq)]
            for start in (self.start, other.start)
        ]
        return all(one.equals(two) for one, two in steps)

    def calendar(self, first: int, count: int) -> Array:
        """What a calendar says of the times, as sines and cosines: (count, K).

        Hour of the day for less than a day, day of the week for a day or less, month of the year
        for a month or less. In local time, if there is a time zone.
        """
        # Equal times of two zones are equal in pandas, and have other hours.
        return _calendar(self.start, str(getattr(self.start, "tz", None)), self.freq, first, count)


@lru_cache(maxsize=64)
def _calendar(start: Any, zone: str, freq: str, first: int, count: int) -> Array:
    """Kept, since many series mostly have the same times."""
    times = Times(start, 0, freq)
    index = times.index(first, count)
    if times.is_period:
        index = index.to_timestamp()
    unit = _unit(freq)
    phases = []
    if unit in ("s", "min", "h"):
        phases.append((index.hour + index.minute / 60 + index.second / 3600) / 24)
    if unit in ("s", "min", "h", "D"):
        phases.append(index.day_of_week / 7)
    if unit in ("h", "D", "B", "W", "M", "MS", "ME", "BMS", "BME"):
        phases.append((index.day_of_year - 1) / 366)
    if not phases:
        return np.zeros((count, 0))
    angle = 2 * np.pi * np.stack([np.asarray(phase, np.float64) for phase in phases], 1)
    found = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    found.flags.writeable = False
    return found


def _unit(freq: str) -> str:
    """'15min' -> 'min', 'W-SUN' -> 'W'"""
    return freq.lstrip("0123456789").split("-")[0]


def season_of(times: Times | None) -> int:
    """The usual season of a frequency; 1, for none, where it is not known."""
    if times is None:
        return 1
    number = times.freq[: len(times.freq) - len(times.freq.lstrip("0123456789"))]
    unit = _unit(times.freq)
    if number in ("", "1"):
        return _SEASONS.get(unit, 1)
    if (number, unit) == ("7", "D"):
        return _SEASONS["W"]
    # Of multiples, those that fill a day or a year.
    whole = {"s": 86400, "min": 1440, "h": 24}.get(unit, 0)
    if unit.lstrip("B")[:1] in ("M", "Q"):
        whole = _SEASONS.get(unit, 0)
    return whole // int(number) if whole % int(number) == 0 and whole else 1


def times_of(index: Any, where: str, freq: str | None = None) -> Times | None:
    """Of a pandas index; None for one without times, such as 0, 1, ...

    Args:
        freq: if it is known; an index of another one is refused
    """
    import pandas

    if not check_index(index, where):
        return None
    if freq is not None and not isinstance(index, pandas.PeriodIndex):
        _check_freq(index, where, freq)
        return Times(index[0], len(index), freq)
    freq = _found_freq(index) if index.freq is None else _named_freq(index, where)
    if freq is None and len(index) < 3:
        raise ValueError(
            f"{where} has {len(index)} times, too few to tell their frequency; give it three, or "
            "an index with one, for example by pandas.date_range"
        )
    if freq is None:
        raise ValueError(
            f"the times of {where} have no frequency: their distances differ and are no multiples "
            f"of one step; resample it, for example by .resample({_near_freq(index)!r}).mean()"
        )
    return Times(index[0], len(index), freq)


def check_index(index: Any, where: str) -> bool:
    """Whether a pandas index holds times; refuses one that is in disorder."""
    import pandas

    if not isinstance(index, pandas.DatetimeIndex | pandas.PeriodIndex):
        if isinstance(index, pandas.RangeIndex) and index.step > 0:
            return False
        if isinstance(index, pandas.MultiIndex):
            raise TypeError(
                f"{where} has an index of several levels; pass a long table (reset_index)"
            )
        if pandas.api.types.is_object_dtype(index) or pandas.api.types.is_string_dtype(index):
            raise TypeError(
                f"{where} has an index of text or objects; convert it by pandas.to_datetime"
            )
        _check_order(index, where)
        steps = np.diff(np.asarray(index, np.float64))
        if len(steps) and steps.max() - steps.min() > 1e-6 * steps.max():  # they may be rounded
            raise ValueError(
                f"the index of {where} is numbers with gaps; reindex it, so that missing values "
                "are NaN, or reset_index(drop=True) if nothing is missing"
            )
        return False
    if index.hasnans:
        raise ValueError(f"{where} has a missing time (NaT) in its index; remove that row")
    _check_order(index, where)
    check_gaps(index, where)
    return True


def _check_freq(index: Any, where: str, freq: str) -> None:
    """Refuse times of another frequency, also of one whose times are all among those of this one.

    Frequencies have several names, so that their times are compared.
    """
    import pandas

    if index.freq is not None:
        own, expected = (
            pandas.date_range(index[0], periods=len(index) + 1, freq=kind)
            for kind in (index.freq, freq)
        )
        if not own.equals(expected):
            raise ValueError(
                f"the times of {where} are of the frequency {index.freqstr!r} and not of {freq!r}, "
                "that of the fit; resample them, or fit another forecaster"
            )
    places = pandas.date_range(index[0], index[-1], freq=freq).get_indexer(index)
    if (places < 0).any():
        raise ValueError(f"the times of {where} are not of the frequency {freq!r} of the fit")
    if len(places) > 1 and np.diff(places).min() > 1:
        raise ValueError(
            f"no two times of {where} are neighbours in the frequency {freq!r} of the fit; "
            f"resample them if they are of another one; if values are missing, add their times by "
            f".asfreq({freq!r})"
        )


def _check_order(index: Any, where: str) -> None:
    if index.has_duplicates:
        twice = index[index.duplicated()][0]
        raise ValueError(
            f"{where} has several values at {twice}; keep one of each, for example by "
            ".groupby(level=0).mean()"
        )
    if not index.is_monotonic_increasing:
        raise ValueError(f"the index of {where} is not sorted; call .sort_index() first")


def check_gaps(index: Any, where: str) -> None:
    """Refuse gaps that are far longer than all that is there."""
    if type(index).__name__ == "PeriodIndex":
        at = index.asi8
    else:
        local = index if index.tz is None else index.tz_convert(None)
        at = local.to_numpy().astype("datetime64[us]").astype(np.int64)
    gaps = np.diff(at)
    if len(gaps) and float(at[-1] - at[0]) > MOST_MISSING * len(at) * np.median(gaps) > 0:
        place = int(gaps.argmax())
        raise ValueError(
            f"between {index[place]} and {index[place + 1]} far more times of {where} are missing "
            "than there are; correct a time that is wrong, or pass what comes after the gap"
        )


def _named_freq(index: Any, where: str) -> str:
    """A name of the index's own frequency that gives its times again.

    Offsets with holidays, a week or hours of their own have none: their name leaves those out.
    """
    import pandas

    name = str(index.freqstr)
    if isinstance(index, pandas.PeriodIndex):
        return name
    # One time more than there are, so that what follows is right as well.
    own = pandas.date_range(index[0], periods=len(index) + 1, freq=index.freq)
    for freq in (name, _found_freq(index)):
        try:
            if freq is not None and own.equals(
                pandas.date_range(index[0], periods=len(index) + 1, freq=freq)
            ):
                return freq
        except ValueError:
            continue  # a name that pandas itself does not read
    raise ValueError(
        f"the frequency of {where} is {index.freq!r}, whose times cannot be told from its name "
        f"({name}): holidays, a week or hours of its own; pass the values without times "
        "(.to_numpy()), or at all times of a usual frequency, for example by .asfreq('D')"
    )


def _found_freq(index: Any) -> str | None:
    """The frequency whose range holds all times, of which some may be missing.

    Not that of pandas.infer_freq, which knows no missing times.
    """
    import pandas

    if len(index) < 3:
        return None
    local = index.tz_localize(None)
    candidates: list[Any] = [(index[1:] - index[:-1]).min()]
    if len(set(local - local.normalize())) == 1:
        # Days of the calendar, not spans of 24 hours, which a change of the clock breaks.
        step = (local[1:] - local[:-1]).min()
        candidates = [*_months(local), step]
        if step == pandas.Timedelta(days=1):
            weekdays = len(index) > 5 and (index.day_of_week < 5).all()
            candidates = ["B", "D"] if weekdays else ["D"]
        elif step == pandas.Timedelta(days=7):
            candidates = ["7D"]
    for freq in candidates:
        full = pandas.date_range(index[0], index[-1], freq=freq)
        # A step so small that next to nothing was observed is no frequency.
        if len(full) <= 3 * len(index) and index.isin(full).all():
            return str(full.freqstr)
    return None


def _near_freq(index: Any) -> str:
    """The longest of the usual frequencies that is not longer than most distances."""
    median = np.median(np.diff(index.tz_localize(None).to_numpy()) / np.timedelta64(1, "s"))
    return next((freq for freq, seconds in _USUAL.items() if seconds <= median), "ms")


def _months(index: Any) -> list[str]:
    """Frequencies of the longest step of whole months that reaches all months of the index.

    The longest: every shorter one holds the same times, and takes what is between for missing.
    """
    months = np.asarray(12 * index.year + index.month - 1)
    step = int(np.gcd.reduce(np.diff(months)))
    if step == 0:
        return []
    month = int(months[0] % 12)
    found = []
    for when in ("S", "E", "BS", "BE"):  # first or last day, of all or of business days
        business, edge = when[:-1], when[-1]
        if step % 12 == 0:
            number, unit = step // 12, f"{business}Y{edge}-{_MONTHS[month]}"
        elif step % 3 == 0:
            # The quarters of a year have four names; this is the one that pandas prefers.
            first = month % 3 if edge == "S" else 9 + month % 3
            number, unit = step // 3, f"{business}Q{edge}-{_MONTHS[first]}"
        else:
            number, unit = step, f"{business}M{edge}"
        found.append(unit if number == 1 else f"{number}{unit}")
    return found


def aligned(values: Array, index: Any, times: Times) -> tuple[Array, Times]:
    """Values with NaN at times that are missing."""
    import pandas

    if times.is_period:
        full = pandas.period_range(index[0], index[-1], freq=times.freq)
    else:
        full = pandas.date_range(index[0], index[-1], freq=times.freq)
    if len(full) == len(index):
        return values, times
    laid = np.full(len(full), np.nan)
    laid[full.get_indexer(index)] = values
    return laid, Times(times.start, len(full), times.freq)
