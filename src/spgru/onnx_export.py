"""Modules as ONNX programs, which run without torch and without this package.

spgru.to_onnx(model, "model.onnx", x)                  # x -> mean, var
spgru.to_onnx(gru, "step.onnx", x_t, stream=True)      # x, h_mean, h_var -> mean, var, ...
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spgru.moments import Moments
from spgru.nn.output_scale import first_moments

__all__ = ["to_onnx"]

# What `Recurrent.step` calls its states.
_STATES = ("h", "c")


def to_onnx(
    module: nn.Module,
    path: str | Path,
    x: Tensor | Moments,
    *,
    stream: bool = False,
    fixed: tuple[int, ...] = (),
) -> Path:
    """Write a module as an ONNX program for any batch size and length, calibration included.

    Inputs are `x`, and `x_var` if the example is uncertain; outputs are `mean` and `var`. A stream
    has inputs `h_mean` and `h_var` besides, an LSTM's `c_mean` and `c_var` too, all zeros at the
    start, and outputs `next_h_mean`, ... that are the inputs of the next step.

    Args:
        module: called with `x`; of several results the first Moments are taken
        path: of a file ending in .onnx
        x: an example. Its first two dimensions, or the first alone if it has two, may have any
            size afterwards, but for those in `fixed`
        stream: one time step of a layer, by its `step`; x is (B, I)
        fixed: dimensions of `x` that keep the size of the example
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path} must end in .onnx")
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"to_onnx needs {package}; install it with pip install 'spgru[onnx]'", name=package
            )
    if stream and not hasattr(module, "step"):
        raise TypeError(
            f"{type(module).__name__} has no step; pass a recurrent layer, or stream=False"
        )
    was_training = module.training
    try:
        program = _export(module.eval(), x, stream, fixed)
    finally:
        module.train(was_training)
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path)
    return path


def _export(module: nn.Module, x: Tensor | Moments, stream: bool, fixed: tuple[int, ...]) -> Any:
    inputs = list(x) if isinstance(x, Moments) else [x]
    names = ["x", "x_var"][: len(inputs)]
    free = [0] if stream or x.ndim < 3 else [0, 1]
    shapes: list[Any] = [_dynamic([d for d in free if d not in fixed])] * len(inputs)
    outputs = ["mean", "var"]
    states: list[str] = []
    if not stream:
        with torch.no_grad():
            first_moments(module(x))  # refused here in a sentence, and not by the exporter
    else:
        with torch.no_grad():
            _, state = module.step(x)  # type: ignore[operator]
        parts = state if isinstance(state, tuple) else (state,)
        states = [f"{n}_{part}" for n in _STATES[: len(parts)] for part in ("mean", "var")]
        inputs += [torch.zeros_like(part) for value in parts for part in value]
        # (layers, B, H)
        shapes += [_dynamic([d + 1 for d in free if d not in fixed])] * len(states)
        outputs += [f"next_{name}" for name in states]
    call = _Call(module, len(names) == 2, stream).eval()
    with warnings.catch_warnings():
        # Of torch's own making: it copies tree specs and imports what onnxscript deprecates.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            call,
            tuple(inputs),
            input_names=[*names, *states],
            output_names=outputs,
            dynamic_shapes={"tensors": tuple(shapes)},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program


def _dynamic(dims: list[int]) -> dict[int, Any] | None:
    return dict.fromkeys(dims, torch.export.Dim.DYNAMIC) or None


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
