"""YAML read strictly: numbers such as 1e-5 are numbers, and no key is given twice."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from spgru.runtime.errors import ConfigError

__all__ = ["parse_value", "read_yaml"]


@cache
def _yaml() -> tuple[Any, Any]:
    """The module, and our loader."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading YAML needs PyYAML; install it with pip install 'spgru[cli]'"
        ) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key for key, _ in node.value]
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            names = set()
            for key in keys:
                name = self.construct_object(key, deep=True)
                if name in names:
                    raise yaml.MarkedYAMLError(problem=f"{name} twice", problem_mark=key.start_mark)
                names.add(name)
            return mapping

    # PyYAML follows YAML 1.1, in which 1e-5 is a text because it has no point.
    exponent = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return yaml, Loader


def _parse(text: str, where: str) -> Any:
    yaml, loader = _yaml()
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"{where} is not valid YAML{line} ({problem}); correct it") from error


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"{path} cannot be read ({reason}); give the path of a YAML configuration"
        ) from error
    mapping = _parse(text, str(path))
    if mapping is None:
        raise ConfigError(
            f"{path} is empty; write at least one field, such as steps: 1000, or {{}} for the "
            "default of every field"
        )
    if not isinstance(mapping, dict):
        raise ConfigError(f"{path} holds no fields; write lines such as steps: 1000")
    return mapping


def parse_value(text: str, where: str) -> Any:
    """A single value, as it would be written in the file."""
    return _parse(text, where)
