"""Plain mappings to typed dataclasses and back, strictly: what does not fit is named."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spgru.runtime.errors import ConfigError

__all__ = ["flatten", "from_mapping", "to_mapping"]

T = TypeVar("T")


def from_mapping(cls: type[T], mapping: object, where: str = "") -> T:
    """The dataclass `cls` with the values of `mapping`; fields left out keep their default.

    Nested dataclasses are nested mappings. Where a field may be one of several dataclasses, their
    field `kind` tells which, the first being the default.

    Args:
        where: dotted name of the section, for error messages

    Raises:
        ConfigError: an unknown field, a value of the wrong type, or one that the class refuses.
    """
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            f"{where or 'the configuration'} is {_shown(mapping)}; give a section with fields of "
            f"{', '.join(names)}"
        )
    hints = get_type_hints(cls)
    values = {}
    for name, value in mapping.items():
        dotted = f"{where}.{name}" if where else str(name)
        if name not in names:
            raise ConfigError(
                f"{dotted} is no field of {where or 'a configuration'}; {_hint(name, names)}"
            )
        values[name] = _convert(hints[name], value, dotted)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(_located(str(error), names, where)) from error


def to_mapping(value: Any) -> Any:
    """Inverse of `from_mapping`: plain values that JSON and YAML can hold, every field written."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: to_mapping(getattr(value, field.name)) for field in fields}
    return value


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one level of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _located(message: str, names: list[str], where: str) -> str:
    """The message of a class about itself, which knows its fields but not the section it is in."""
    if not where:
        return message
    about_field = re.match(r"\w*", message)[0] in names  # type: ignore[index]
    return f"{where}.{message}" if about_field else f"section {where}: {message}"


def _hint(name: object, names: list[str]) -> str:
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {close[0]}?" if close else f"its fields are {', '.join(names)}"


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping | list):
        return "a section" if isinstance(value, Mapping) else "a list"
    return repr(value)


def _convert(hint: Any, value: object, where: str) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        if all(dataclasses.is_dataclass(option) for option in rest):
            return from_mapping(_by_kind(rest, value, where), value, where)
        assert len(rest) == 1, f"{where}: a field is one type, or none"
        return _convert_single(rest[0], value, where, optional=type(None) in options)
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    return _convert_single(hint, value, where, optional=False)


def _by_kind(options: list[Any], value: object, where: str) -> Any:
    kinds = {kind: cls for cls in options for kind in get_args(get_type_hints(cls)["kind"])}
    if not isinstance(value, Mapping) or "kind" not in value:
        return options[0]
    _check_choice(f"{where}.kind", value["kind"], tuple(kinds))
    return kinds[value["kind"]]


def _check_choice(where: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices or isinstance(value, bool):
        listed = ", ".join(map(str, choices))
        raise ConfigError(f"{where} is {_shown(value)}; give one of {listed}")


_REMEDY: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def _convert_single(hint: Any, value: object, where: str, optional: bool) -> Any:
    if get_origin(hint) is Literal:
        _check_choice(where, value, get_args(hint))
        return value
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        remedy = _REMEDY[hint] + (", or null" if optional else "")
        raise ConfigError(f"{where} is {_shown(value)}; give {remedy}")
    return value
