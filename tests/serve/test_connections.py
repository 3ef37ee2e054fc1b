"""Clients that are slow, or many, do not keep others out."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import numpy as np

from serve.conftest import SCENE
from serve.test_uploads import FRAMES, saved
from spgru.serve.connections import protocol_for
from spgru.serve.guard import Guard
from spgru.serve.hosts import Hosts
from spgru.serve.limits import Limits

HALF_A_HEAD = b"GET /api/about HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BINARY = {"Content-Type": "application/octet-stream"}


@contextmanager
def connected(address: str, data: bytes, count: int) -> Iterator[list[socket.socket]]:
    parts = urlsplit(address)
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(
                socket.create_connection((parts.hostname or "", parts.port or 0))
            )
            one.sendall(data)
            found.append(one)
        yield found


def test_heads_that_never_end_lock_nobody_out(address: str) -> None:
    with connected(address, HALF_A_HEAD, Limits.connections + 10):
        for _ in range(3):
            assert httpx.get(f"{address}api/about").status_code == 200
        assert httpx.post(f"{address}api/scene", json=SCENE).status_code == 200


def test_bodies_that_never_end_lock_nobody_out(address: str) -> None:
    head = (
        b"POST /api/scene HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
    )
    with connected(address, head, Limits.connections + 10):
        for _ in range(3):
            assert httpx.post(f"{address}api/scene", json=SCENE).status_code == 200


def test_so_many_large_bodies_at_once(address: str) -> None:
    head = (
        b"POST /api/sequence HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 8000000\r\n\r\n"
    )
    upload = f"{address}api/sequence"
    file = saved(np.tile(FRAMES, (1, 2, 1, 1)))
    assert len(file) > Limits.scene_bytes
    with connected(address, head + bytes(Limits.scene_bytes + 1), Limits.uploads):
        until = time.monotonic() + 10
        while (answer := httpx.post(upload, content=file, headers=BINARY)).status_code == 200:
            assert time.monotonic() < until, "the bodies that are under way take no places"
        assert answer.status_code == 429
        assert "other files" in answer.json()["error"]
        assert answer.headers["Retry-After"] == "1"
        # What is small needs no place.
        assert httpx.post(f"{address}api/scene", json=SCENE).status_code == 200
    until = time.monotonic() + 10
    while httpx.post(upload, content=file, headers=BINARY).status_code == 429:
        assert time.monotonic() < until, "the places were not given back"


async def _small(scope: Any, receive: Any, send: Any) -> None:
    del receive
    if scope["path"] == "/wait":
        await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _talk(limits: Limits, *said: bytes) -> list[bytes]:
    """What a server answers to every one of several connections, until it closes them."""
    import uvicorn

    app = Guard(_small, hosts=Hosts.of("localhost"))
    config = uvicorn.Config(
        app, http=protocol_for(limits), lifespan="off", log_level="critical", timeout_keep_alive=1
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def one(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(data)
            try:
                return await reader.read()
            except ConnectionResetError:
                return b"reset"
            finally:
                writer.close()

        talks = []
        for data in said:
            talks.append(asyncio.create_task(one(data)))
            await asyncio.sleep(0.05)  # in this order
        found = await asyncio.wait_for(asyncio.gather(*talks), 10)
        server.should_exit = True
        await serving
    return found


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and sentence of an answer of ours, with its headers."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().splitlines()
    assert "content-type: application/json" in lines
    assert "x-content-type-options: nosniff" in lines
    assert any(line.startswith("content-security-policy: default-src 'none'") for line in lines)
    return int(lines[0].split()[1]), json.loads(body)["error"]


def test_a_head_has_to_arrive_in_time() -> None:
    limits = Limits(header_seconds=0.2)
    start = time.monotonic()
    half, second, silent = asyncio.run(_talk(limits, HALF_A_HEAD, WHOLE + HALF_A_HEAD, b""))
    assert time.monotonic() - start < 5
    assert refusal(half) == (408, "the request did not arrive within 0.2 seconds")
    assert second.startswith(b"HTTP/1.1 204")
    assert silent == b""


def test_what_is_not_http() -> None:
    (answer,) = asyncio.run(_talk(Limits(), b"hello\r\n\r\n"))
    assert refusal(answer) == (400, "invalid http request received; send HTTP/1.1")


def test_more_requests_than_connections() -> None:
    """Those that are computed stay; what is beyond them is told so."""
    waits = WHOLE.replace(b"/ ", b"/wait ").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    *served, last = asyncio.run(
        _talk(Limits(connections=2), waits, waits, waits.replace(b"/wait", b"/"))
    )
    assert all(answer.startswith(b"HTTP/1.1 204") for answer in served)
    assert refusal(last) == (503, "too many requests are under way; try again in a second")
    assert b"retry-after: 1" in last
