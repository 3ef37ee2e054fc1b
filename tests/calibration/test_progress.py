"""The bar of long commands: drawn on a terminal alone, and it counts what has been used."""

import pytest

from spgru.calibration.progress import Bar


def test_a_bar_counts_the_values_that_have_been_used(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    with Bar(True, 3, "angle 25") as bar:
        assert list(bar.over("abc")) == ["a", "b", "c"]
    shown = capsys.readouterr()
    assert "angle 25" in shown.err
    assert "3/3" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_is_written_where_there_is_no_terminal(capsys, shown):
    with Bar(shown, 2) as bar:
        assert list(bar.over([1, 2])) == [1, 2]
    assert capsys.readouterr() == ("", "")
