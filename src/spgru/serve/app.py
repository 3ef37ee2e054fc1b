"""The application: routes, each from a checked request to a worker's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from spgru import __version__
from spgru.serve.answers import MEDIA_TYPES
from spgru.serve.errors import RefusedError
from spgru.serve.fields import Fields, read_json
from spgru.serve.files import page_routes
from spgru.serve.guard import Guard, Uploads, failure
from spgru.serve.hosts import LOCAL, Hosts
from spgru.serve.limits import Limits
from spgru.serve.networks import NETWORKS, describe
from spgru.serve.openapi import description
from spgru.serve.pool import Pool
from spgru.serve.prediction import VARIANCES, Asked, Upload
from spgru.serve.scene import SAMPLES, read_scene
from spgru.serve.table import read_forecast, read_table
from spgru.serve.worker import answer_requests

__all__ = ["make_app"]

_THREADS = 1
"""Of torch in each process: small networks gain nothing by more."""
_COLOURS = 64
"""Entries of the colour map that the page gets."""


def make_app(
    limits: Limits | None = None,
    hosts: Hosts | None = None,
    ready: Callable[[], None] = lambda: None,
) -> Starlette:
    """The page and what it asks for.

    Args:
        limits: sizes, times and computations at once
        hosts: names under which it may be asked; default: those of this machine for itself
        ready: called when it can answer
    """
    server = _Server(limits or Limits(), ready)
    return Starlette(
        routes=[*page_routes(), *server.routes()],
        middleware=[Middleware(Guard, hosts=hosts or Hosts.of(LOCAL[0]))],
        exception_handlers={HTTPException: _http_error},
        lifespan=server.lifespan,
    )


class _Server:
    def __init__(self, limits: Limits, ready: Callable[[], None]) -> None:
        self.limits, self.ready = limits, ready
        self.uploads = Uploads(limits.uploads, limits.scene_bytes, limits.upload_seconds)

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        del app
        limits = self.limits
        swift = tuple(network.name for network in NETWORKS.values() if not network.slow)
        line = limits.waiting, limits.patience
        quick = partial(answer_requests, threads=_THREADS, networks=swift)
        self.quick = Pool(limits.quick, *line, limits.quick_seconds, quick)
        long = partial(answer_requests, threads=_THREADS)
        self.long = Pool(limits.long, *line, limits.long_seconds, long)
        for pool in (self.quick, self.long):
            await pool.start()
        self.ready()
        try:
            yield
        finally:
            for pool in (self.quick, self.long):
                await pool.close()

    def routes(self) -> list[Route]:
        return [
            Route("/openapi.json", self.openapi),
            Route("/api/about", self.about),
            Route("/api/scene", self.scene, methods=["POST"]),
            Route("/api/sequence", self.sequence, methods=["POST"]),
            Route("/api/columns", self.columns, methods=["POST"]),
            Route("/api/forecast", self.forecast, methods=["POST"]),
        ]

    async def openapi(self, request: Request) -> Response:
        del request
        return JSONResponse(description(self.limits))

    async def about(self, request: Request) -> Response:
        """What the page has to know at its start."""
        del request
        return JSONResponse(
            {
                "version": __version__,
                "limits": asdict(self.limits),
                "samples": SAMPLES,
                "networks": [describe(network) for network in NETWORKS.values()],
                "colours": _colours(),
            }
        )

    async def scene(self, request: Request) -> Response:
        """Predict a described sequence."""
        body = await self._body(request, "application/json", self.limits.scene_bytes)
        fields = Fields(read_json(body))
        scene = read_scene(fields, self.limits)
        names = fields.take("networks")
        asked = Asked(
            scene,
            _network_names(names),
            fields.choice("variance", VARIANCES, "calibrated"),
            fields.whole("draws", 2, self.limits.draws, 50),
        )
        fields.done()
        return await self._predict(request, asked)

    async def sequence(self, request: Request) -> Response:
        """Predict an uploaded sequence."""
        query = request.query_params
        names = query.get("networks", "one-digit").split(",")
        fields = Fields({k: query[k] for k in ("variance", "which", "draws") if k in query})
        which = _whole(query.get("which", "0"), "which", 0, 9999)
        draws = _whole(query.get("draws", "50"), "draws", 2, self.limits.draws)
        networks, variance = (
            _network_names(names),
            fields.choice("variance", VARIANCES, VARIANCES[0]),
        )
        data = await self._body(request, "application/octet-stream", self.limits.sequence_bytes)
        return await self._predict(request, Asked(Upload(data, which), networks, variance, draws))

    async def _predict(self, request: Request, asked: Asked) -> Response:
        form = request.query_params.get("as", "json")
        if form not in MEDIA_TYPES:
            raise RefusedError(f"as must be one of {', '.join(MEDIA_TYPES)}")
        slow = any(NETWORKS[name].slow for name in asked.networks)
        pool = self.long if slow else self.quick
        gone = _gone(request) if slow else None
        content: bytes = await pool.run("predict", asked, form, gone=gone)
        headers = {}
        if form != "json":
            headers["Content-Disposition"] = f'attachment; filename="spgru.{form}"'
        return Response(content, media_type=MEDIA_TYPES[form], headers=headers)

    async def columns(self, request: Request) -> Response:
        """What a table holds."""
        fields = Fields(read_json(await self._table(request)))
        text = read_table(fields, self.limits)
        fields.done()
        columns, rows = await self.quick.run("columns", text)
        return JSONResponse({"rows": rows, "columns": [asdict(column) for column in columns]})

    async def forecast(self, request: Request) -> Response:
        """Fit a forecaster to a column, and forecast."""
        fields = Fields(read_json(await self._table(request)))
        asked = read_forecast(fields, self.limits)
        fields.done()
        return JSONResponse(await self.long.run("forecast", asked, gone=_gone(request)))

    async def _table(self, request: Request) -> bytes:
        # JSON needs more bytes than the table: quotes and line ends take two.
        return await self._body(request, "application/json", 2 * self.limits.table_bytes)

    async def _body(self, request: Request, media_type: str, limit: int) -> bytes:
        body = await self.uploads.read(request, limit)
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != media_type:
            raise RefusedError(
                f"the body must be {media_type}, not {given or 'without a type'}", 415
            )
        return body


def _gone(request: Request) -> Callable[[], Awaitable[bool]]:
    return request.is_disconnected


def _network_names(value: Any) -> tuple[str, ...]:
    known = isinstance(value, list) and all(isinstance(n, str) and n in NETWORKS for n in value)
    if not known or not 1 <= len(value) <= 2 or len(set(value)) != len(value):
        raise RefusedError(f"networks must name one or two of {', '.join(NETWORKS)}")
    return tuple(value)


def _whole(text: str, name: str, low: int, high: int) -> int:
    """A whole number of a query."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise RefusedError(f"{name} must be a whole number between {low} and {high}")
    return int(text)


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    found = failure(f"{error.detail.lower()}; /openapi.json lists what there is", error.status_code)
    found.headers.update(error.headers or {})
    return found


def _colours() -> list[list[int]]:
    """The colour map of uncertainty, dark to bright: the one that the studies have."""
    from matplotlib import colormaps

    from spgru.reporting.pictures import COLOURS

    table = colormaps[COLOURS["uncertainty"]]
    steps = [table(k / (_COLOURS - 1))[:3] for k in range(_COLOURS)]
    return [[round(255 * part) for part in colour] for colour in steps]
