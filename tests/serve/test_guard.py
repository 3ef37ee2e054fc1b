"""What comes from outside: limits, hosts, origins, headers and paths; and its description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from serve.conftest import MOVER, SCENE
from spgru.serve.limits import Limits

JSON = {"Content-Type": "application/json"}


def pieces(count: int) -> Iterator[bytes]:
    """A body without an announced size."""
    for _ in range(count):
        yield b" " * 1000


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("path", "limit", "kind"),
    [
        ("/api/scene", Limits.scene_bytes, "application/json"),
        ("/api/sequence", Limits.sequence_bytes, "application/octet-stream"),
        ("/api/columns", 2 * Limits.table_bytes, "application/json"),
        ("/api/forecast", 2 * Limits.table_bytes, "application/json"),
    ],
)
def test_a_body_that_is_too_large(
    client: TestClient, path: str, limit: int, kind: str, chunked: bool
) -> None:
    count = limit // 1000
    for extra, status in ((0, (400, 422)), (1, (413,))):
        body: Any = pieces(count + extra) if chunked else b" " * 1000 * (count + extra)
        answer = client.post(path, content=body, headers={"Content-Type": kind})
        assert answer.status_code in status
        assert answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 60_000, 400),
        (b'{"noise": NaN}', 400),
        (rb'{"\ud800": 1}', 400),
        (b'{"\xed\xa0\x80": 1}', 400),
        (rb'{"digits": [{"drawing": "\udfff"}]}', 400),
        (rb'{"\ud83d\ude00": 1}', 422),
        (b"[]", 422),
        (b"null", 422),
        (b"{}", 422),
    ],
)
def test_a_body_that_is_no_scene(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/api/scene", content=body, headers=JSON)
    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": []}, "networks must name one or two of one-digit"),
        ({"networks": ["../one-digit"]}, "networks must name"),
        ({"networks": ["one-digit"] * 2}, "networks must name"),
        ({"digits": []}, "digits must be a list of 1 to 3"),
        ({"digits": [MOVER] * 4}, "digits must be a list of 1 to 3"),
        ({"digits": [3]}, "digits[0] must be an object"),
        ({"digits": [{**MOVER, "digit": 10}]}, "digits[0].digit must lie between 0 and 9"),
        ({"digits": [{**MOVER, "digit": True}]}, "digits[0].digit must be a whole number"),
        ({"digits": [{**MOVER, "sample": 800}]}, "digits[0].sample must lie between"),
        ({"digits": [{**MOVER, "x": 1e9}]}, "digits[0].x must lie between -28 and 64"),
        ({"digits": [{**MOVER, "angle": "20"}]}, "digits[0].angle must be a number"),
        ({"digits": [{**MOVER, "angle": 10**400}]}, "digits[0].angle must lie between"),
        ({"digits": [{**MOVER, "drawing": "!"}]}, "digits[0].drawing must be base64"),
        ({"digits": [{**MOVER, "drawing": "AAAA"}]}, "has 3 bytes"),
        ({"digits": [{**MOVER, "drawing": 5}]}, "must be base64"),
        ({"noise": 2}, "noise must lie between 0 and 1"),
        ({"draws": 1}, "draws must lie between 2 and 200"),
        ({"draws": 10**6}, "draws must lie between 2 and 200"),
        ({"variance": "true"}, "variance must be one of calibrated, plain"),
        ({"colour": "red"}, "colour is not known here"),
    ],
)
def test_a_wrong_value_is_named(client: TestClient, change: Any, message: str) -> None:
    answer = client.post("/api/scene", json=SCENE | change)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_the_type_of_a_body_is_checked(client: TestClient) -> None:
    """So that a form of another page cannot send one."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post(
            "/api/scene", content=json.dumps(SCENE), headers={"Content-Type": kind}
        )
        assert answer.status_code == 415


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[", "10.0.0.1"])
def test_an_unknown_host(client: TestClient, host: str) -> None:
    answer = client.get("/api/about", headers={"Host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765"])
def test_a_known_host(client: TestClient, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert client.get("/api/about", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "][", "http://[::1"]
)
def test_another_page(client: TestClient, origin: str) -> None:
    answer = client.post("/api/scene", json=SCENE, headers={"Origin": origin})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/", "/static/main.js", "/openapi.json", "/api/about", "/nothing", "/static/../app.py"],
)
def test_every_answer_has_its_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/..\\app.py",
        "/%00",
        "/etc/passwd",
        "/api",
    ],
)
def test_no_path_reaches_a_file(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]


def test_a_wrong_method(client: TestClient) -> None:
    answer = client.get("/api/scene")
    assert answer.status_code == 405
    assert "POST" in answer.headers["Allow"]


def test_the_page_loads_nothing_from_outside() -> None:
    """No address but namespaces, in any file; the browser's own record is in test_page.py."""
    from spgru.serve import app

    folder = Path(app.__file__).parent / "static"
    files = [file for file in folder.iterdir() if file.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) > 10
    for file in files:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", ""), file.name
        assert "onclick" not in text
        assert " style=" not in text


def test_the_description_is_of_the_routes_that_there_are(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            answer = client.request(method, path, content=b"")
            assert str(answer.status_code) in operation["responses"]
