"""Plain mappings to typed dataclasses and back, strictly: every error names its field."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spgru.runtime.errors import ConfigError, problems_of, refuse

__all__ = ["flatten", "from_mapping", "to_mapping"]

T = TypeVar("T")


def from_mapping(cls: type[T], mapping: object, where: str = "") -> T:
    """The dataclass `cls` with the values of `mapping`; fields left out keep their default.

    Nested dataclasses are nested mappings. Where a field may be one of several dataclasses, their
    field `kind` tells which, the first being the default.

    Args:
        where: dotted name of the section, for error messages

    Raises:
        ConfigError: unknown fields, values of the wrong type, values that the class refuses; all
            of them at once.
    """
    problems: list[str] = []
    found = _from_mapping(cls, mapping, where, problems)
    refuse(problems)
    assert found is not None
    return found


def _from_mapping(cls: type[T], mapping: object, where: str, problems: list[str]) -> T | None:
    """As `from_mapping`, but adds to `problems`; None where they leave nothing to build."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(mapping, Mapping):
        problems.append(
            f"{where or 'the configuration'} is {_shown(mapping)}; give a section with fields of "
            f"{', '.join(names)}"
        )
        return None
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    refused = False
    for name, value in mapping.items():
        dotted = f"{where}.{name}" if where else str(name)
        if name not in names:
            problems.append(
                f"{dotted} is not a field of {where or 'a configuration'}; {_hint(name, names)}"
            )
            continue
        try:
            values[name] = _convert(hints[name], value, dotted, problems)
        except ConfigError as error:
            problems.extend(error.problems)
            refused = True
    # The class would hold the other fields against the defaults of those that were refused.
    if refused:
        return None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        problems.extend(_located(text, names, where) for text in problems_of(error))
        return None


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


def _convert(hint: Any, value: object, where: str, problems: list[str]) -> Any:
    """The value as the type asks for.

    Raises:
        ConfigError: the value cannot be used. Problems inside a section go to `problems`.
    """
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        if all(dataclasses.is_dataclass(option) for option in rest):
            return _section(_by_kind(rest, value, where), value, where, problems)
        assert len(rest) == 1, f"{where}: a field is one type, or none"
        return _convert_single(rest[0], value, where, optional=type(None) in options)
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, where, problems)
    return _convert_single(hint, value, where, optional=False)


def _section(cls: Any, value: object, where: str, problems: list[str]) -> Any:
    found = _from_mapping(cls, value, where, problems)
    if found is None:
        raise ConfigError()
    return found


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
