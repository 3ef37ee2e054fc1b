from __future__ import annotations

import pytest

from spgru.reporting.markdown import count, number, table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.05, "0.05"),
        (1234.5, "1234"),
        (0.000123, "1.23e-04"),
        (0.0, "0"),
        (-2.0, "-2"),
        (7, "7"),
        (None, "-"),
        (True, "yes"),
        ("text", "text"),
    ],
)
def test_numbers_are_for_reading(value: object, shown: str) -> None:
    assert number(value) == shown


def test_table() -> None:
    assert table(["a", "b"], [[1, 0.5]]) == "| a | b |\n| --- | --- |\n| 1 | 0.5 |"


def test_yes_is_for_all() -> None:
    assert count([True, True]) == "yes (2 of 2 seeds)"
    assert count([True, False]) == "no (1 of 2 seeds)"
