from __future__ import annotations

import json
from pathlib import Path

import pytest

from spgru.studies.training_log import LOGS, PLOT, draw_logs, training_curve

ROWS = [
    {"step": 10, "nll": 500.0, "sequences_per_second": 20.0},
    {"step": 30, "nll": 300.0, "sequences_per_second": 40.0},
    {"step": 30, "test_cross_entropy": 310.0},
    {"step": 40, "nll": 200.0, "sequences_per_second": 10.0},
    {"step": 40, "test_cross_entropy": None},
]


def test_a_curve_tells_time_by_speed() -> None:
    curve = training_curve(ROWS, batch_size=6)
    assert curve.steps == [10, 30, 40]
    # 60 sequences in 3 s, 120 in 3 s, 60 in 6 s
    assert curve.minutes == pytest.approx([3 / 60, 6 / 60, 12 / 60])
    assert curve.loss == [500.0, 300.0, 200.0]
    assert (curve.tested_steps, curve.tested) == ([30], [310.0])
    assert curve.tested_minutes == pytest.approx([6 / 60])


@pytest.mark.parametrize("stem", ["net-0", "net"])
def test_logs_are_drawn_where_there_are_some(tmp_path: Path, stem: str) -> None:
    configs = {"net-0": {"batch_size": 6}, "other-0": {"batch_size": 6}}
    assert not draw_logs(tmp_path, configs)
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "other-0.jsonl").write_text("")
    assert not draw_logs(tmp_path, configs)
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / LOGS / f"{stem}.jsonl").write_text(text + '{"step": 5')
    assert draw_logs(tmp_path, configs)
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
