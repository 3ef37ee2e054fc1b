"""Every public name has a docstring, and a place in the reference (docs/api)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spgru
from spgru.moments.tensor_methods import TensorMethods

pytest.importorskip("gluonts")
pytest.importorskip("sktime")
pytestmark = pytest.mark.filterwarnings("ignore:Using `json`-module")  # GluonTS, when imported

REFERENCE = Path(__file__).parents[1] / "docs" / "api"
INTERNAL = {
    "spgru.__main__",
    "spgru.checks",  # called by layers; `set_value_checks` is public as `spgru.set_value_checks`
    "spgru.cli",  # its reference is `spgru --help`
    "spgru.modes",  # contexts that layers ask; `spgru.frozen` and `spgru.uncalibrated` set them
    "spgru.moments",  # the table of torch's functions; `Moments` and more are public in `spgru`
    "spgru.serve",  # a page for people, its reference is the guide
}
MORE = ["spgru.forecast.gluonts", "spgru.forecast.sktime"]


def public_modules() -> list[ModuleType]:
    names = [f"spgru.{module.name}" for module in pkgutil.iter_modules(spgru.__path__)]
    modules = [importlib.import_module(name) for name in names if name not in INTERNAL]
    modules = [spgru, *modules, *map(importlib.import_module, MORE)]
    return [module for module in modules if hasattr(module, "__all__")]


def public_names() -> Iterator[tuple[str, Any]]:
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing):  # whose own names come in their turn
                yield f"{module.__name__}.{name}", thing


def resolve(name: str) -> Any:
    """What a directive of autodoc names; `spgru.audit` is the function and not its module."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (AttributeError, ValueError):
        return importlib.import_module(name)


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that a class of ours defines itself or inherits from one of ours."""
    for owner in thing.__mro__:
        if not owner.__module__.startswith("spgru") or owner is TensorMethods:
            continue  # of another library; or methods of torch's Tensor that mean the same here
        for name, member in vars(owner).items():
            if not name.startswith("_") and (
                inspect.isfunction(member)
                or isinstance(member, (property, classmethod, staticmethod))
            ):
                yield name, getattr(thing, name)


def is_documented(thing: Any) -> bool:
    # dataclasses and named tuples make up a docstring, their signature, where there is none.
    text = inspect.getdoc(thing) or ""
    made_up = inspect.isclass(thing) and text.startswith(f"{thing.__name__}(")
    return bool(text.strip()) and not made_up


def test_public_names_have_docstrings() -> None:
    missing = [module.__name__ for module in public_modules() if not module.__doc__]
    for name, thing in public_names():
        if inspect.isclass(thing):
            missing += [
                f"{name}.{part}" for part, member in members(thing) if not is_documented(member)
            ]
        if (inspect.isclass(thing) or inspect.isroutine(thing)) and not is_documented(thing):
            missing.append(name)
    assert not missing, f"give these a docstring: {sorted(set(missing))}"


def test_public_names_are_in_the_reference() -> None:
    shown: list[Any] = []
    described: set[str] = set()
    for page in REFERENCE.glob("*.md"):
        text = page.read_text()
        data = re.findall(r"^\.\. py:data:: (\S+)\n   :module: (\S+)$", text, flags=re.M)
        described |= {f"{module}.{name}" for name, module in data}
        for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)", text, flags=re.M):
            thing = resolve(name)
            shown.append(thing)
            if kind == "module":  # autodoc shows what its __all__ has, if it has a docstring
                all_of_it = [getattr(thing, each) for each in thing.__all__]
                shown += [each for each in all_of_it if has_own_docstring(each)]
    known = {id(thing) for thing in shown}
    missing = [
        name for name, thing in public_names() if id(thing) not in known and name not in described
    ]
    assert not missing, f"add these to a page of docs/api: {missing}"


def has_own_docstring(thing: Any) -> bool:
    """Not numbers, tuples, dicts and aliases of types: theirs is that of their class."""
    return inspect.isclass(thing) or inspect.isroutine(thing)
