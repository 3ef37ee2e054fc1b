"""The files of the page, read at the start: no path of a request ever reaches a disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["page_routes"]

# Not what the machine's own list of types says: browsers run no script of another type.
_TYPES = {
    "css": "text/css",
    "csv": "text/csv",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def page_routes() -> list[Route]:
    """A route for every file; index.html is `/`."""
    folder = resources.files("spgru.serve") / "static"
    routes = []
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        content = file.read_bytes()
        kind = _TYPES[file.name.rpartition(".")[2]]
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        routes.append(Route(path, _constant(content, kind)))
    return routes


def _constant(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        del request
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    return answer
