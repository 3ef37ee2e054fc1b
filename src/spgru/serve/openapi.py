"""The interface of the server, described by OpenAPI: /openapi.json."""

from __future__ import annotations

from typing import Any

from spgru import __version__
from spgru.data.mnist import DIGIT
from spgru.data.trajectories import SLACK
from spgru.serve.answers import MEDIA_TYPES
from spgru.serve.limits import Limits
from spgru.serve.networks import NETWORKS
from spgru.serve.prediction import VARIANCES
from spgru.serve.scene import BOUNDARIES, SAMPLES

__all__ = ["description"]

_ERRORS = {
    "400": "the body is not JSON, or the host is unknown",
    "403": "asked by another page",
    "408": "the body or the computation took too long",
    "413": "the body is too large",
    "415": "the body has another type",
    "422": "a value is wrong; the sentence says which, and what to do",
    "429": "all workers are busy, or too many files arrive at once; try again",
    "503": "too many requests are under way; try again",
}


def description(limits: Limits) -> dict[str, Any]:
    """The document."""
    networks = {
        "type": "array",
        "items": {"type": "string", "enum": list(NETWORKS)},
        "minItems": 1,
        "maxItems": 2,
        "uniqueItems": True,
        "example": ["one-digit"],
    }
    variance = {"type": "string", "enum": list(VARIANCES), "default": VARIANCES[0]}
    draws = _whole(2, limits.draws, 50)
    form = _query("as", {"type": "string", "enum": list(MEDIA_TYPES), "default": "json"})
    scene = {
        "type": "object",
        "required": ["digits", "networks"],
        "additionalProperties": False,
        "properties": {
            "digits": {
                "type": "array",
                "minItems": 1,
                "maxItems": limits.digits,
                "items": {"oneOf": [_mover("digit"), _mover("drawing")]},
            },
            "noise": _number(0, 1, 0.0),
            "seed": _whole(0, 9999, 0),
            "boundary": {"type": "string", "enum": list(BOUNDARIES), "default": BOUNDARIES[0]},
            "networks": networks,
            "variance": variance,
            "draws": draws,
        },
    }
    csv = {"type": "string", "maxLength": limits.table_bytes}
    table = {
        "type": "object",
        "required": ["csv"],
        "additionalProperties": False,
        "properties": {"csv": csv},
    }
    forecast = {
        "type": "object",
        "required": ["csv", "column", "horizon"],
        "additionalProperties": False,
        "properties": {
            "csv": csv,
            "column": {"type": "string", "maxLength": 1000},
            "time": {"type": ["string", "null"]},
            "horizon": _whole(1, limits.horizon),
            "level": _number(0.5, 0.99, 0.8),
            "season": {"type": ["integer", "null"], "minimum": 1, "maximum": limits.table_rows},
            "positive": {"type": "boolean", "default": False},
            "thorough": {"type": "boolean", "default": False},
        },
    }
    names = {"type": "string", "default": "one-digit", "enum": list(NETWORKS)}
    uploaded = [
        _query("networks", names, "one name, or two with a comma between"),
        _query("which", _whole(0, 9999, 0), "sequence of the file, from 0"),
        _query("variance", variance),
        _query("draws", draws),
        form,
    ]
    pictures: dict[str, Any] = {kind: {} for kind in MEDIA_TYPES.values()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "spgru serve", "version": __version__},
        "paths": {
            "/api/about": {"get": _operation("about", "limits, networks, colours", _JSON)},
            "/api/scene": {
                "post": _operation(
                    "scene", "predict a described sequence", pictures, "application/json", scene,
                    [form],
                ),
            },
            "/api/sequence": {
                "post": _operation(
                    "sequence",
                    f"predict an uploaded .npy file of at most {limits.sequence_bytes:,} bytes",
                    pictures,
                    "application/octet-stream",
                    {"type": "string", "format": "binary", "maxLength": limits.sequence_bytes},
                    uploaded,
                ),
            },
            "/api/columns": {
                "post": _operation(
                    "columns", "what a table holds", _JSON, "application/json", table
                ),
            },
            "/api/forecast": {
                "post": _operation(
                    "forecast", "forecast a column of a table", _JSON, "application/json", forecast
                ),
            },
        },
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string"}},
                }
            }
        },
    }  # fmt: skip


_JSON: dict[str, Any] = {"application/json": {}}
_DRAWING = 4 * -(-DIGIT * DIGIT // 3)
"""Letters of a drawing in base64."""


def _mover(image: str) -> dict[str, Any]:
    place = _number(-DIGIT, SLACK + DIGIT)
    images: dict[str, Any] = {
        "digit": {"digit": _whole(0, 9), "sample": _whole(0, SAMPLES - 1, 0)},
        "drawing": {
            "drawing": {
                "type": "string",
                "contentEncoding": "base64",
                "description": f"{DIGIT} x {DIGIT} bytes, row by row",
                "maxLength": _DRAWING,
            }
        },
    }
    return {
        "type": "object",
        "required": [image, "y", "x", "angle", "speed"],
        "additionalProperties": False,
        "properties": {
            **images[image],
            "y": place,
            "x": place,
            "angle": _number(-360, 360),
            "speed": _number(0, 0.5),
        },
    }


def _number(low: float, high: float, default: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "number", "minimum": low, "maximum": high}
    return found if default is None else {**found, "default": default}


def _whole(low: int, high: int, default: int | None = None) -> dict[str, Any]:
    return {**_number(low, high, default), "type": "integer"}


def _query(name: str, schema: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "in": "query", "schema": schema}
    return found if text is None else {**found, "description": text}


def _operation(
    name: str,
    summary: str,
    content: dict[str, Any],
    body_type: str | None = None,
    body: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: dict[str, Any] = {"200": {"description": "found", "content": content}}
    kept = _ERRORS if body_type else {status: _ERRORS[status] for status in ("400", "403", "503")}
    answers |= {status: {"description": text, "content": error} for status, text in kept.items()}
    found: dict[str, Any] = {"operationId": name, "summary": summary, "responses": answers}
    if parameters:
        found["parameters"] = parameters
    if body_type:
        found["requestBody"] = {"required": True, "content": {body_type: {"schema": body}}}
    return found
