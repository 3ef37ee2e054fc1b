from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spgru.forecast.times import Times, season_of, times_of

pandas = pytest.importorskip("pandas")

FREQUENCIES = [
    "s", "15min", "h", "6h", "D", "B", "7D", "W-WED", "14D", "MS", "ME", "BMS", "BME", "2MS", "2ME",
    "4MS", "QS", "QS-FEB", "QE", "QE-FEB", "QE-MAR", "BQE", "6MS", "6ME", "YS", "YS-APR", "YE",
    "YE-JUN", "2YS", "10YE",
]  # fmt: skip


@pytest.mark.parametrize("missing", [[], [5, 6, 30]], ids=["whole", "gaps"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("freq", FREQUENCIES)
def test_frequencies_are_found(freq: str, zone: str | None, missing: list[int]) -> None:
    """The longest step that explains all times: quarters are no months of which most are missing"""
    count = 24 if freq == "10YE" else 60
    full = pandas.date_range("1980-03-01", periods=count, freq=freq, tz=zone)
    index = pandas.DatetimeIndex(full.delete([n for n in missing if n < count]), freq=None)
    times = times_of(index, "y")
    assert times is not None
    assert times.index(0, count).equals(full)


def test_quarters_of_a_year_have_one_name() -> None:
    """So that series which start in other quarters go together."""
    for freq in ("QS", "QE"):
        full = pandas.date_range("2010", periods=40, freq=freq)
        parts = (pandas.DatetimeIndex(list(full[n:])) for n in range(4))
        assert {times_of(index, "y").freq for index in parts} == {full.freqstr}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("freq", "season"),
    [
        ("h", 24), ("15min", 96), ("D", 7), ("B", 5), ("7D", 52), ("MS", 12), ("2MS", 6), ("QS", 4),
        ("2QS", 2), ("BQE", 4), ("5MS", 1), ("YS", 1),
    ],
)  # fmt: skip
def test_usual_seasons(freq: str, season: int) -> None:
    index = pandas.date_range("2024-01-01", periods=60, freq=freq)
    assert season_of(times_of(index, "y")) == season
    assert season_of(None) == 1


@pytest.mark.parametrize("freq", ["h", "D", "M", "Q"])
def test_periods(freq: str) -> None:
    index = pandas.period_range("2024-01", periods=30, freq=freq)
    times = times_of(index, "y")
    assert times is not None
    assert times.index(30, 2)[0] == index[-1] + 1


def test_the_calendar_is_that_of_local_time() -> None:
    index = pandas.date_range("2024-03-28", periods=240, freq="h", tz="Europe/Berlin")
    times: Any = times_of(index, "y")
    hour = times.calendar(0, 240)[:, [0, 3]]
    expected = 2 * np.pi * index.hour.to_numpy() / 24
    np.testing.assert_allclose(hour, np.stack([np.sin(expected), np.cos(expected)], 1), atol=1e-12)
    # The part of the calendar from a later time on is the later part of the whole.
    np.testing.assert_array_equal(times.calendar(100, 140), times.calendar(0, 240)[100:])


@pytest.mark.parametrize(
    ("days", "freq"),
    [(400, "YS"), (95, "QS"), (31, "MS"), (7.3, "W"), (1.1, "D"), (0.2, "h"), (1 / 1400, "min")],
)
def test_the_advice_for_times_without_a_frequency_fits_their_distance(
    days: float, freq: str
) -> None:
    steps = np.random.default_rng(0).uniform(0.9, 1.1, 40)
    index = pandas.Timestamp("1990-01-01") + pandas.to_timedelta(days * steps.cumsum(), unit="D")
    with pytest.raises(ValueError, match=rf"for example by \.resample\('{freq}'\)"):
        times_of(index, "y")
    with pytest.raises(ValueError, match="y has 2 times, too few to tell their frequency"):
        times_of(index[:2], "y")


@pytest.mark.parametrize(
    ("offset", "freq"),
    [
        (pandas.DateOffset(hours=1), "h"),
        (pandas.offsets.Week(), "7D"),
        (pandas.offsets.BDay(), "B"),
        (pandas.offsets.QuarterBegin(2), "2QS-MAR"),
    ],
)
def test_offsets_get_a_name_that_gives_their_times(offset: Any, freq: str) -> None:
    index = pandas.date_range("2024-01-03 10:00", periods=40, freq=offset)
    times = times_of(index, "y")
    assert times is not None
    assert times.freq == freq
    after = pandas.date_range(index[-1], periods=4, freq=offset)[1:]
    assert times.index(40, 3).equals(after)


@pytest.mark.parametrize(
    "offset",
    [
        pandas.offsets.CustomBusinessDay(weekmask="Sun Mon Tue Wed Thu"),
        pandas.offsets.CustomBusinessDay(holidays=["2024-02-14"]),
        pandas.offsets.BusinessHour(start="10:00", end="14:00"),
    ],
)
def test_offsets_whose_name_leaves_something_out_are_refused(offset: Any) -> None:
    index = pandas.date_range("2024-01-03 10:00", periods=60, freq=offset)
    with pytest.raises(ValueError, match="whose times cannot be told from its name"):
        times_of(index, "y")


@pytest.mark.parametrize(
    ("start", "place", "expected"),
    [
        ("2024-03-29 02:30", 2, "2024-03-31 03:00+02:00"),  # skipped by the clock
        ("2024-10-25 02:30", 2, "2024-10-27 02:30+02:00"),  # there twice
    ],
)
def test_days_go_on_over_a_change_of_the_clock(start: str, place: int, expected: str) -> None:
    times = Times(pandas.Timestamp(start, tz="Europe/Berlin"), 2, "D")
    found = times.index(0, 4)
    assert found[place] == pandas.Timestamp(expected)
    assert [f"{time:%H:%M}" for time in found.delete(place)] == ["02:30"] * 3
