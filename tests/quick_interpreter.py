"""Triton's interpreter with less bookkeeping: it computes the same, in about half of the time.

At every call of a device function it looks through `triton.language` for what to replace, though
the launch of the kernel has replaced it already; and with every tensor it describes the types of
its sizes and looks up that of its numbers anew. None of it is needed twice.
"""

from __future__ import annotations

import functools
from typing import Any


def install() -> None:
    """Change Triton's interpreter for the rest of the process, where it is as we know it."""
    try:
        from triton.language import core
        from triton.runtime import interpreter
    except ImportError:
        return
    known = (
        hasattr(interpreter, "_patch_lang")
        and hasattr(interpreter.InterpretedFunction, "rewrite")
        and hasattr(interpreter, "_get_np_dtype")
        and hasattr(core, "_type_for_tuple_values")
    )
    if known:
        _replace_names_once_a_launch(interpreter)
        _describe_sizes_once(core)
        _look_numbers_up_once(interpreter)


def _replace_names_once_a_launch(interpreter: Any) -> None:
    launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    done: set[tuple[int, ...]] = set()  # which modules of the language, within this launch

    def modules(function: Any) -> tuple[int, ...]:
        language = (interpreter.tl, interpreter.tl.core)
        values = function.__globals__.values()
        return tuple(k for k, module in enumerate(language) if any(v is module for v in values))

    def patch_once(function: Any) -> Any:
        wanted = modules(function)
        if wanted in done:
            return None
        done.add(wanted)
        return patch(function)

    @functools.wraps(launch)
    def launch_afresh(self: Any, *arguments: Any, **options: Any) -> Any:
        done.clear()
        try:
            return launch(self, *arguments, **options)
        finally:
            done.clear()

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_afresh


def _describe_sizes_once(core: Any) -> None:
    describe, found = core._type_for_tuple_values, {}

    def describe_once(values: Any, fields: Any = None) -> Any:
        sizes = tuple([v.value if type(v) is core.constexpr else v for v in values])
        for size in sizes:
            if fields or type(size) is not int:
                return describe(values, fields)
        if sizes not in found:
            found[sizes] = describe(values)
        return found[sizes]

    core._type_for_tuple_values = describe_once


def _look_numbers_up_once(interpreter: Any) -> None:
    look_up, found = interpreter._get_np_dtype, {}

    def look_up_once(dtype: Any) -> Any:
        scalar = dtype.scalar
        if type(scalar) is not interpreter.tl.dtype:  # a pointer, say
            return look_up(dtype)
        if scalar.name not in found:
            found[scalar.name] = look_up(dtype)
        return found[scalar.name]

    interpreter._get_np_dtype = look_up_once
