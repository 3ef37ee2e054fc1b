"""Modules as ONNX programs, which run without torch and without this package.

spgru.to_onnx(model, "model.onnx", x)                  # x -> mean, var
spgru.to_onnx(gru, "step.onnx", x_t, stream=True)      # x, h_mean, h_var -> mean, var, ...
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spgru.moments import Moments
from spgru.moments.nested import first_moments

__all__ = ["to_onnx", "write_program"]

# What `Recurrent.step` calls its states.
_STATES = ("h", "c")


def to_onnx(
    module: nn.Module,
    path: str | Path,
    x: Tensor | Moments,
    *,
    stream: bool = False,
    fixed: tuple[int, ...] = (),
    free: tuple[int, ...] | None = None,
) -> Path:
    """Write a module as an ONNX program for any batch size and length, calibration included.

    Inputs are `x`, and `x_var` if the example is uncertain; outputs are `mean` and `var`. A stream
    has inputs `h_mean` and `h_var` besides, an LSTM's `c_mean` and `c_var` too (`state0_mean`, ...
    for a state of three parts and more), all zeros at the start, and outputs `next_h_mean`, ...
    that are the inputs of the next step. The file is checked by `onnx`, and loaded by `onnxruntime`
    where that is installed.

    Args:
        module: called with `x`; of several results the first Moments are taken. A `Forecaster` has
            a method of its own, `forecaster.to_onnx(path)`
        path: of a file ending in .onnx
        x: an example
        stream: one time step of a layer, by its `step`; x is (B, I). A scale of the output, which
            `calibrate` may give a module, acts where the module is called and not in a step
        fixed: dimensions of `x` that keep the size of the example
        free: dimensions of `x` that may have any size. By default the first two, of (T, B, I) or
            (B, T, I), and of whole numbers (B, T) for an embedding; of other examples with two
            dimensions, (B, I), the first. Time is elsewhere in (B, C, T): pass `free=(0, 2)`
    """
    path = _checked_path(path)
    if not isinstance(module, nn.Module):
        own = ", which has its own method, .to_onnx(path)" if hasattr(module, "to_onnx") else ""
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}{own}")
    if stream and not hasattr(module, "step"):
        raise TypeError(
            f"{type(module).__name__} has no step; pass a recurrent layer, or stream=False"
        )
    if not isinstance(x, (Tensor, Moments)):
        raise TypeError(
            f"x must be a Tensor or Moments, got {type(x).__name__}; export a module of several "
            "inputs inside one that takes them as one tensor and splits it"
        )
    sizes = _free_dims(x, stream, fixed, free)
    x = x.contiguous()  # the strides of a view would become those of every input
    was_training = module.training
    try:
        inputs, outputs, shapes = _signature(module.eval(), x, stream, sizes)
        call = _Call(module, isinstance(x, Moments), stream).eval()
        return write_program(call, path, inputs, outputs, shapes)
    finally:
        module.train(was_training)


def write_program(
    call: nn.Module,
    path: str | Path,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    free: Sequence[Sequence[int]],
) -> Path:
    """Write a function of tensors as an ONNX program, and check the file.

    Args:
        call: takes `*tensors`, and gives a tuple of them
        path: of a file ending in .onnx
        inputs: examples by name
        outputs: names
        free: for each input the dimensions that may have any size
    """
    path = _checked_path(path)
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) or None for dims in free)
    with warnings.catch_warnings():
        # Of torch's own making: it copies tree specs and imports what onnxscript deprecates.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            program = torch.onnx.export(
                call,
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes={"tensors": shapes},
                dynamo=True,
                verbose=False,
            )
        except RuntimeError as error:
            if "conflicts between user-specified ranges" not in str(error):
                raise
            raise ValueError(
                f"the module does not take any size of the dimensions {list(free[0])} of "
                f"{next(iter(inputs))}; name those that it does in free= (of (B, C, T) 0 and 2)"
            ) from error
    assert program is not None
    _rename_inner_values(program.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path)
    _check_file(path)
    return path


def _checked_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path} must end in .onnx")
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"to_onnx needs {package}; install it with pip install 'spgru[onnx]'", name=package
            )
    return path


def _free_dims(
    x: Tensor | Moments, stream: bool, fixed: Iterable[int], free: Iterable[int] | None
) -> list[int]:
    if free is None:
        is_sequence = x.ndim > 2 or (x.ndim == 2 and not x.dtype.is_floating_point)
        free = (0, 1) if is_sequence and not stream else (0,)
    for name, dims in (("free", free), ("fixed", fixed)):
        for d in dims:
            if not 0 <= d < x.ndim:
                raise ValueError(f"{name} names dimension {d}, but x has {x.ndim}, from 0 on")
    return [d for d in free if d not in tuple(fixed)]


def _signature(
    module: nn.Module, x: Tensor | Moments, stream: bool, free: list[int]
) -> tuple[dict[str, Tensor], list[str], list[list[int]]]:
    """Inputs by name, names of the outputs, and the free dimensions of every input."""
    inputs = dict(zip(("x", "x_var"), x if isinstance(x, Moments) else (x,), strict=False))
    shapes, outputs = [free] * len(inputs), ["mean", "var"]
    if not stream:
        with torch.no_grad():
            first_moments(module(x))  # refused here in a sentence, and not by the exporter
        return inputs, outputs, shapes
    parts, wider = _states(module, x), None
    if free:  # which dimension is that of the batch
        wider = _states(module, x[[*range(x.shape[0]), 0]])
    for k, value in enumerate(parts):
        name = _STATES[k] if len(parts) <= len(_STATES) else f"state{k}"
        dims = [] if wider is None else _different(value.shape, wider[k].shape)
        for moment, part in zip(("mean", "var"), value, strict=True):
            inputs[f"{name}_{moment}"] = torch.zeros_like(part)
            outputs.append(f"next_{name}_{moment}")
            shapes.append(dims)
    return inputs, outputs, shapes


def _states(module: nn.Module, x: Any) -> tuple[Moments, ...]:
    """The parts of a state after one step."""
    with torch.no_grad():
        _, state = module.step(x)  # type: ignore[operator]
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:
        if not isinstance(part, Moments):
            raise TypeError(
                f"the state of {type(module).__name__} holds a {type(part).__name__}; a stream "
                "takes a state of Moments, or a tuple of them"
            )
    return parts


def _different(shape: Sequence[int], other: Sequence[int]) -> list[int]:
    return [d for d, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b]


def _rename_inner_values(model: Any) -> None:
    """Give what is computed inside other names than inputs and outputs have.

    The exporter names inputs and outputs last, whatever else is called "mean" by then, and a
    program that defines a name twice cannot be loaded.
    """
    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    inner = [value for value in _values(model.graph) if id(value) not in ends]
    used = taken | {value.name for value in inner}
    for value in inner:
        if value.name in taken:
            name, number = f"inner_{value.name}", 1
            while name in used:
                name, number = f"inner_{value.name}_{number}", number + 1
            used.add(name)
            value.name = name


def _values(graph: Any) -> Iterator[Any]:
    """All values of a graph and of the graphs inside it."""
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                yield from _values(attribute.value)
            elif attribute.type.name == "GRAPHS":
                for part in attribute.value:
                    yield from _values(part)


def _check_file(path: Path) -> None:
    """Refuse, and delete, a program that runtimes would."""
    import onnx

    try:
        # By its path: above 2 GB there is no other way.
        onnx.checker.check_model(str(path), full_check=True)
        if importlib.util.find_spec("onnxruntime") is not None:
            runtime: Any = importlib.import_module("onnxruntime")
            runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        path.unlink(missing_ok=True)
        raise RuntimeError(
            f"the program that torch's exporter made is not valid ONNX: {error}"
        ) from error


class _Call(nn.Module):
    """A module as a function of tensors."""

    def __init__(self, module: nn.Module, uncertain: bool, stream: bool) -> None:
        super().__init__()
        self.module, self.uncertain, self.stream = module, uncertain, stream

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = 2 if self.uncertain else 1
        x: Any = Moments(*tensors[:2]) if self.uncertain else tensors[0]
        if not self.stream:
            found = first_moments(self.module(x))
            return found.mean, found.var
        rest = tensors[count:]
        state = tuple(Moments(*rest[k : k + 2]) for k in range(0, len(rest), 2))
        step: Any = self.module.step
        output, after = step(x, state[0] if len(state) == 1 else state)
        parts = after if isinstance(after, tuple) else (after,)
        return output.mean, output.var, *(part for value in parts for part in value)
