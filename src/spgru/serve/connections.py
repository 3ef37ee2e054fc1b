"""HTTP connections that cannot lock others out: a time limit for headers, room for new ones."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from spgru.serve.guard import failure
from spgru.serve.limits import Limits

__all__ = ["protocol_for"]


def protocol_for(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol, with limits of our own."""

    class Limited(_Connection):
        most = limits.connections
        seconds = limits.header_seconds

    return Limited


class _Connection(H11Protocol):
    most: int
    """Connections at once: a new one ends the oldest of those that wait for their client."""
    seconds: float
    """For the head of a request to arrive; uvicorn limits only the pause before its first byte."""

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0
    _begun = False
    """Whether a part of a head has arrived."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()
        if not self._has_room():
            self.app = _refuse

    def data_received(self, data: bytes) -> None:
        if self._waits_for_head() and self._timer is None:
            self._start_timer()
        self._begun = True
        super().data_received(data)
        if not self._waits_for_head():
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._answer(400, f"{msg.rstrip('.').lower()}; send HTTP/1.1")

    def waits_for_client(self) -> bool:
        """Nothing is computed for it: its request is not complete, or has been answered."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered or self.conn.their_state is h11.SEND_BODY

    def _has_room(self) -> bool:
        """Whether there is a place, or one could be made."""
        others = [
            one
            for one in self.connections
            if isinstance(one, _Connection) and one is not self and not one.transport.is_closing()
        ]
        if len(others) < self.most:
            return True
        waiting = [one for one in others if one.waits_for_client()]
        if not waiting:
            return False
        # Not closed but cut off: whoever reads nothing would never let it be closed.
        min(waiting, key=lambda one: one._since).transport.abort()
        return True

    def _waits_for_head(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _start_timer(self) -> None:
        self._since, self._begun = self.loop.time(), False
        self._timer = self.loop.call_later(self.seconds, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._begun:
            self._answer(408, f"the request did not arrive within {self.seconds:g} seconds")
        else:
            self.transport.close()  # a browser that connected early does not expect an answer

    def _answer(self, status: int, message: str) -> None:
        response = failure(message, status)
        head = h11.Response(
            status_code=status,
            reason=HTTPStatus(status).phrase.encode(),
            headers=[*response.raw_headers, CLOSE_HEADER],
        )
        events: tuple[Any, ...] = (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    """The application for connections beyond the limit."""
    response = failure("too many requests are under way; try again in a second", 503)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
