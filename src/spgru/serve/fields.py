"""Fields of a JSON object, checked one by one; every refusal names the field and the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from spgru.serve.errors import RefusedError

__all__ = ["Fields", "read_json"]

_NOTHING = object()


def read_json(body: bytes) -> Any:
    """JSON of RFC 8259: Python alone would take NaN, any depth and halves of surrogate pairs."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        found = json.loads(body, parse_constant=refuse)
        # No file, log or answer can hold a lone surrogate.
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RefusedError(
            "the body is not JSON (a text holds half of a surrogate pair); send whole characters",
            400,
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RefusedError(f"the body is not JSON ({reason})", 400) from error
    return found


class Fields:
    """An object of a request. `done` refuses what nobody asked for.

    Args:
        value: what came
        where: its name, to begin the names of its fields with
    """

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise RefusedError(f"{where or 'the body'} must be an object")
        self._left = dict(value)
        self._where = f"{where}." if where else ""

    def take(self, name: str, default: Any = _NOTHING) -> Any:
        found = self._left.pop(name, default)
        if found is _NOTHING:
            raise RefusedError(f"{self._where}{name} is missing")
        return found

    def number(self, name: str, low: float, high: float, default: Any = _NOTHING) -> float:
        found = self.take(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise RefusedError(f"{self._where}{name} must be a number")
        # Compared before it becomes a float, which cannot hold every whole number.
        if not low <= found <= high or not math.isfinite(found):
            raise RefusedError(f"{self._where}{name} must lie between {low:g} and {high:g}")
        return float(found)

    def whole(self, name: str, low: int, high: int, default: Any = _NOTHING) -> int:
        found = self.take(name, default)
        if isinstance(found, bool) or not (
            isinstance(found, int) or (isinstance(found, float) and found.is_integer())
        ):
            raise RefusedError(f"{self._where}{name} must be a whole number")
        if not low <= found <= high:
            raise RefusedError(f"{self._where}{name} must lie between {low} and {high}")
        return int(found)

    def choice(self, name: str, choices: Collection[str], default: Any = _NOTHING) -> str:
        found = self.take(name, default)
        if not isinstance(found, str) or found not in choices:
            raise RefusedError(f"{self._where}{name} must be one of {', '.join(choices)}")
        return found

    def text(self, name: str, longest: int, default: Any = _NOTHING) -> str:
        found = self.take(name, default)
        if not isinstance(found, str) or len(found) > longest:
            raise RefusedError(
                f"{self._where}{name} must be a text of at most {longest} characters"
            )
        return found

    def flag(self, name: str, default: Any = _NOTHING) -> bool:
        found = self.take(name, default)
        if not isinstance(found, bool):
            raise RefusedError(f"{self._where}{name} must be true or false")
        return found

    def done(self) -> None:
        if self._left:
            unknown = ", ".join(self._where + name for name in sorted(self._left))
            raise RefusedError(f"{unknown[:200]} is not known here; leave it out")
