"""What stands around every route: known hosts, own origin, limits of the body, security headers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from spgru.serve.errors import RefusedError
from spgru.serve.hosts import Hosts, host_name

__all__ = ["SECURITY_HEADERS", "Guard", "Uploads", "failure"]

_log = logging.getLogger("spgru.serve")
_DRAINED = 64_000_000
"""Bytes of a body that is refused which are read and thrown away, so that its sender gets to read
the answer; whoever sends more is cut off."""
SECURITY_HEADERS = {
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
        hosts: names under which the server may be asked
    """

    def __init__(self, app: Any, hosts: Hosts) -> None:
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
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(Headers(scope=scope), scope.get("server"))
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

    def _check(self, headers: Headers, server: Any) -> None:
        host = headers.get("host", "")
        if not self.hosts.know(host, server):
            raise RefusedError(
                "this server is not known by that name; use the address that it printed, or start "
                f"it with --allow-host {host_name(host)[:100] or 'NAME'}",
                400,
            )
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != host.lower():
            raise RefusedError("requests of other pages are not answered", 403)


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def failure(message: str, status: int) -> Response:
    """An error as JSON."""
    again = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse({"error": message}, status, SECURITY_HEADERS | again)


class Uploads:
    """Bodies of requests, of which only so many large ones are held at once.

    Small ones need no place, so that slow uploads do not keep sliders from being answered.

    Args:
        most: large bodies at once
        small: bytes that need no place
        seconds: for a body to arrive
    """

    def __init__(self, most: int, small: int, seconds: float) -> None:
        self._free, self._small, self._seconds = most, small, seconds

    async def read(self, request: Request, limit: int) -> bytes:
        """The body, whether its size is announced or it comes in pieces.

        Raises:
            RefusedError: it is larger than `limit` bytes, there is no place for it, or it takes
                too long
        """
        parts: list[bytes] = []
        size = 0
        placed = refused = False
        try:
            async with asyncio.timeout(self._seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > self._small and not placed and not refused:
                        placed, refused = self._free > 0, self._free <= 0
                        self._free -= placed
                    if size <= limit and not refused:
                        parts.append(part)
                    else:
                        parts.clear()
                    if size > _DRAINED:
                        break
        except TimeoutError:
            raise RefusedError(
                f"the body did not arrive within {self._seconds:g} seconds", 408
            ) from None
        finally:
            self._free += placed
        if size > limit:
            raise RefusedError(
                f"the body has more than {limit:,} bytes, the limit here; send less", 413
            )
        if refused:
            raise RefusedError("the server is reading other files; try again in a second", 429)
        return b"".join(parts)
