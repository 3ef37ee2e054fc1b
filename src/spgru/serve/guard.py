"""What stands around every route: known hosts, own origin, limits of the body, security headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from spgru.serve.errors import RefusedError

__all__ = ["Guard", "failure", "read_body"]

_log = logging.getLogger("spgru.serve")
_DRAINED = 64_000_000
"""Bytes of a body that is too large which are read and thrown away, so that its sender gets to read
the answer; whoever sends more is cut off."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Middleware around the whole application.

    Args:
        app: what it guards
        hosts: names under which the server may be asked; an unknown one may be a foreign page
            whose name was pointed here
    """

    def __init__(self, app: Any, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(Headers(scope=scope))
            await self.app(scope, receive, send_guarded)
        except ClientDisconnect:
            return
        except RefusedError as error:
            await failure(str(error), error.status)(scope, receive, send_guarded)
        except Exception:
            _log.exception("a request failed")
            if started:
                raise
            answer = failure("the server made an error; its log says which", 500)
            await answer(scope, receive, send_guarded)

    def _check(self, headers: Headers) -> None:
        if _host_name(headers.get("host", "")) not in self.hosts:
            raise RefusedError(
                "this server is not known by that name; use the address that it printed, or start "
                "it with --host",
                400,
            )
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != headers.get("host"):
            raise RefusedError("requests of other pages are not answered", 403)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def failure(message: str, status: int) -> Response:
    """An error as JSON."""
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": message}, status, headers)


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The body, whether its size is announced or it comes in pieces.

    Raises:
        RefusedError: it is larger than `limit` bytes, or takes longer than `seconds`
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                else:
                    parts.clear()
                if size > _DRAINED:
                    break
    except TimeoutError:
        raise RefusedError(f"the body did not arrive within {seconds:g} seconds", 408) from None
    if size > limit:
        raise RefusedError(
            f"the body has more than {limit:,} bytes, the limit here; send less", 413
        )
    return b"".join(parts)
