"""Sequences and tables of users: good ones are computed, bad ones refused with what to do."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from spgru.data import MovingMNIST

FRAMES = (255 * MovingMNIST.controlled(2, split="test").batch(0)).byte().numpy()
"""(20, 2, 64, 64)"""


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def send(client: TestClient, data: Any, **query: Any) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    return client.post("/api/sequence", content=data, params=query, headers=headers)


@pytest.mark.parametrize(
    "array",
    [
        FRAMES,
        FRAMES[:, 1],
        FRAMES.astype(np.float64) / 255,
        (FRAMES / 255).astype(np.float32),
        np.asfortranarray(FRAMES),
    ],
    ids=["several", "one", "float64", "float32", "columns first"],
)
def test_a_good_sequence(client: TestClient, array: Any) -> None:
    which = 1 if array.ndim == 4 else 0
    answer = send(client, saved(array), which=which)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    expected = send(client, saved(FRAMES[:, 1])).json()
    assert found["sequences"] == (2 if array.ndim == 4 else 1)
    assert (found["seen"], found["truth"]) == (expected["seen"], expected["truth"])
    ours, theirs = (one["predictions"][0]["variance"] for one in (found, expected))
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_the_future_may_be_unknown(client: TestClient) -> None:
    found = send(client, saved(FRAMES[:10])).json()
    assert found["truth"] is None
    assert found["predictions"][0]["error"] is None
    for form in ("gif", "npz"):
        assert send(client, saved(FRAMES[:10]), **{"as": form}).status_code == 200


def header(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a .npy file"),
        (b"time,value\n1,2\n", "not a .npy file"),
        (saved(np.array([{"a": 1}], object), allow_pickle=True), "dtype object"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "not a .npy file"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(100), "not a .npy file"),
        (header("(10, 64, 64)") + bytes(7), "announces 40960 bytes"),
        (header(f"({10**12}, 64, 64)"), "announces"),
        (header("(-10, -64, 64)") + bytes(10 * 64 * 64), "shape"),
        (header("(10.5, 64)"), "not a .npy file"),
        (header("(" * 900), "not a .npy file"),
        (header("(10, 64, 64)", "[('a', '|u1')]") + bytes(10 * 64 * 64), "dtype"),
        (saved(FRAMES.astype(np.int32)), "dtype int32"),
        (saved(FRAMES[:, 0, :32]), r"shape (20, 1, 32, 64)"),
        (saved(FRAMES[:9]), "9 frames"),
        (saved(FRAMES[:0]), "shape (0, 2, 64, 64)"),
        (saved(FRAMES.astype(np.float32)), "from 0 to 255"),
        (saved(np.full((10, 64, 64), np.nan)), "without NaN"),
    ],
)
def test_a_bad_sequence_says_what_to_do(client: TestClient, data: bytes, message: str) -> None:
    answer = send(client, data)
    assert answer.status_code == 422
    assert message in answer.json()["error"]
    assert "save" in answer.json()["error"]


def test_a_sequence_that_is_not_there(client: TestClient) -> None:
    answer = send(client, saved(FRAMES), which=2)
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "sequence 2 is not there: the file has 0 to 1",
    )


def demand(count: int = 120) -> str:
    rng = np.random.default_rng(0)
    values = 50 + 10 * np.sin(np.arange(count) * 2 * np.pi / 12) + rng.standard_normal(count)
    days = np.datetime64("2026-01-01") + np.arange(count)
    rows = [f"{day},{value:.2f}," for day, value in zip(days, values, strict=True)]
    return "\n".join(["day,visitors,note", *rows]) + "\n"


def test_columns(client: TestClient) -> None:
    found = client.post("/api/columns", json={"csv": demand()}).json()
    kinds = [("day", "time"), ("visitors", "number"), ("note", "text")]
    assert found == {"rows": 120, "columns": [{"name": n, "kind": k} for n, k in kinds]}


@pytest.mark.parametrize(
    ("csv", "rows", "kinds"),
    [
        ("v\n1\n\n3\n\n\n4\n", 6, ["number"]),
        ("v\r\n1\r\n\r\n3\r\n\r\n", 3, ["number"]),
        ("v,w\n1,\n\n,2\n", 2, ["number", "number"]),
        ("year,v\n1990,1000\n1991,1001.5\n1992,3\n", 3, ["year", "number"]),
        ("v\n1990\n1980\n", 2, ["number"]),
    ],
)
def test_rows_and_kinds(client: TestClient, csv: str, rows: int, kinds: list[str]) -> None:
    found = client.post("/api/columns", json={"csv": csv}).json()
    assert found["rows"] == rows
    assert [column["kind"] for column in found["columns"]] == kinds


@pytest.mark.parametrize(
    ("csv", "mark"), [("a;b\n1;2,5\n", "semicolons"), ("a\tb\n1\t2\n", "tabs")]
)
def test_other_separators_are_named(client: TestClient, csv: str, mark: str) -> None:
    answer = client.post("/api/columns", json={"csv": csv})
    assert answer.status_code == 422
    assert f"separated by {mark}; separate its columns by commas" in answer.json()["error"]


def test_a_forecast(client: TestClient) -> None:
    asked = {"csv": demand(), "column": "visitors", "time": "day", "horizon": 6, "season": 12}
    answer = client.post("/api/forecast", json=asked)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["times"][0].startswith("2026-05-01")
    assert len(found["history"]) == len(found["history_times"]) == 60
    names = ("low", "inner_low", "median", "inner_high", "high")
    assert (np.diff([found[name] for name in names], axis=0) > 0).all()
    truth = 50 + 10 * np.sin(np.arange(120, 126) * 2 * np.pi / 12)
    inside = (np.array(found["low"]) - 2 < truth) & (truth < np.array(found["high"]) + 2)
    assert inside.mean() >= 0.8
    parts = np.sum(list(found["parts"].values()), axis=0)
    np.testing.assert_allclose(parts, np.square(found["std"]), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"csv": ""}, "the table is empty"),
        ({"csv": "a,b\n1,2\n"}, "no column 'visitors'"),
        ({"csv": "visitors\n1\n2\n3\n"}, "values are needed"),
        ({"csv": "visitors\n1\nmany\n"}, "holds 'many' in row 2 of the table"),
        ({"time": "note"}, "note"),
        ({"time": "visitors", "csv": "visitors\nx\n"}, "holds 'x'"),
        ({"horizon": 0}, "horizon must lie between 1 and 200"),
        ({"horizon": 1000}, "horizon must lie between 1 and 200"),
        ({"level": 1}, "level must lie between"),
        ({"season": 0}, "season must lie between"),
        ({"csv": "a\n" * 30_000}, "20000 are the limit"),
        ({"csv": "a\r" * 30_000}, "20000 are the limit"),
        ({"csv": "a," * 300 + "b\n1\n"}, "301 columns, and 200 are the limit"),
    ],
)
def test_a_bad_table_says_what_to_do(client: TestClient, change: Any, message: str) -> None:
    asked = {"csv": demand(), "column": "visitors", "horizon": 6} | change
    answer = client.post("/api/forecast", json=asked)
    assert answer.status_code == 422
    assert message.replace("values are needed", "are needed") in answer.json()["error"]


@pytest.mark.parametrize("csv", ["a,b\n", "a,a\n1,2\n", '"\n'])
def test_a_table_without_columns(client: TestClient, csv: str) -> None:
    answer = client.post("/api/columns", json={"csv": csv})
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("path", ["/api/columns", "/api/forecast"])
def test_half_a_character_in_a_table(client: TestClient, path: str) -> None:
    body = rb'{"csv": "a\n\ud800\n", "column": "a", "horizon": 2}'
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert "half of a surrogate pair" in answer.json()["error"]
