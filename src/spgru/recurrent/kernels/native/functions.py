"""The functions of `cells.c`: their arguments by name, checked and passed on as pointers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.recurrent.kernels.native import library

__all__ = ["SIGNATURES", "Function"]

# A name that ends in "?" may be a null pointer.
_STEP = "x_mean x_var p_mean p_var bias? bias_var? h_mean h_var"
_NO_CELL, _CELL = "c_mean? c_var?", "c_mean c_var"
_NEW, _NO_NEW_CELL, _NEW_CELL = "new_mean new_var", "new_c_mean? new_c_var?", "new_c_mean new_c_var"
_INCOMING = "new_mean out_mean out_var by_operand_mean by_operand_moments"
_X_GRADS = "x_mean_grad x_var_grad"
_P_GRADS, _MAYBE_P_GRADS = "p_mean_grad p_var_grad", "p_mean_grad? p_var_grad?"
_CARRIED = "carried_mean carried_var"
_FORWARD = f"{_STEP} {_NO_CELL} {_NEW} {_NO_NEW_CELL} operand_moments"
_WHOLE = (
    "x_mean x_var? input_weight input_weight_var input_gain? input_bias? input_bias_var? "
    "weight weight_var gain? bias? bias_var? h_mean h_var"
)
_WHOLE_STEPS = f"{_WHOLE} {_NO_CELL} {_NEW} {_NO_NEW_CELL} scratch"
_WITH_THREADS = "rows size threads"
_WITH_TIME = "rows inputs size steps reverse"


class Signature(NamedTuple):
    """The arguments of a function in their order: pointers to float32, then whole numbers."""

    pointers: list[str]
    numbers: list[str]
    optional: set[str]
    """pointers that may be null"""


def _signature(pointers: str, numbers: str = _WITH_THREADS) -> Signature:
    names = pointers.split()
    optional = {name.removesuffix("?") for name in names if name.endswith("?")}
    return Signature([name.removesuffix("?") for name in names], numbers.split(), optional)


SIGNATURES = {
    "gru_forward": _signature(_FORWARD),
    "gru_backward": _signature(f"{_STEP} {_NO_CELL} {_INCOMING} {_X_GRADS} {_P_GRADS} {_CARRIED}"),
    "lstm_forward": _signature(f"{_STEP} {_CELL} {_NEW} {_NEW_CELL} operand_moments"),
    "lstm_backward": _signature(
        f"{_STEP} {_CELL} {_INCOMING} {_X_GRADS} {_MAYBE_P_GRADS} {_CARRIED}"
    ),
    "rnn_forward": _signature(_FORWARD),
    "rnn_backward": _signature(
        f"{_STEP} {_NO_CELL} {_INCOMING} {_X_GRADS} {_MAYBE_P_GRADS} {_CARRIED}"
    ),
    "reset_before_gates_forward": _signature(f"{_STEP} z_mean z_var reset_mean reset_moments"),
    "reset_before_update_forward": _signature(
        f"x_mean x_var q_mean q_var bias? bias_var? z_mean z_var h_mean h_var {_NEW} "
        "operand_moments"
    ),
    "reset_before_update_backward": _signature(
        f"x_mean x_var p_mean p_var q_mean q_var bias? bias_var? h_mean h_var {_INCOMING} "
        f"{_X_GRADS} {_P_GRADS} q_mean_grad q_var_grad {_CARRIED}"
    ),
    "reset_before_gates_backward": _signature(
        f"{_STEP} by_reset_mean by_reset_moments {_X_GRADS} {_P_GRADS} {_CARRIED}"
    ),
    "gru_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
    "gru_reset_before_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
    "lstm_steps": _signature(f"{_WHOLE} {_CELL} {_NEW} {_NEW_CELL} scratch", _WITH_TIME),
    "rnn_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
}

# Units up to which a step is not worth a second thread: 16 rows of 128, some 10 microseconds, which
# is what waking a thread can cost.
_ONE_THREAD = 16 * 128


class _Process:
    is_forked = False

    @classmethod
    def fork(cls) -> None:
        cls.is_forked = True


os.register_at_fork(after_in_child=_Process.fork)


@cache
def bind(name: str) -> Any:
    """The function of the compiled library with its arguments declared."""
    pointers, numbers, _ = SIGNATURES[name]
    function = getattr(library.load(), name)
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * len(pointers) + [ctypes.c_long] * len(numbers)
    return function


class Function:
    """A function of `cells.c` for one step, called by the names of its tensors.

    Args:
        name: of the function
        widths: numbers per row of its tensors in units of `size`, by name; others have 1
    """

    def __init__(self, name: str, widths: dict[str, int]) -> None:
        self.name = name
        pointers, _, self._optional = SIGNATURES[name]
        self._widths = [(argument, widths.get(argument, 1)) for argument in pointers]
        self._call: Callable[..., None] | None = None

    def __call__(self, *, rows: int, size: int, **tensors: Tensor | None) -> None:
        pointers: list[int | None] = []
        count = rows * size
        for name, width in self._widths:
            tensor = tensors.pop(name)
            if tensor is None:
                if name not in self._optional:
                    raise TypeError(f"{self.name} needs {name}")
                pointers.append(None)
                continue
            needed = width * (size if name in ("bias", "bias_var") else count)
            if (
                tensor.dtype is not torch.float32
                or not tensor.is_contiguous()
                or tensor.numel() < needed
                or not tensor.is_cpu
            ):
                raise ValueError(
                    f"{self.name} takes {name} as at least {needed} contiguous float32 numbers on "
                    f"the CPU, got {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device} with "
                    f"strides {tensor.stride()}"
                )
            pointers.append(tensor.data_ptr())
        if any(tensor is not None for tensor in tensors.values()):
            raise TypeError(f"{self.name} has no argument {', '.join(tensors)}")
        if self._call is None:
            self._call = bind(self.name)
        # A forked process has no threads to wake.
        alone = count <= _ONE_THREAD or _Process.is_forked
        self._call(*pointers, rows, size, 1 if alone else torch.get_num_threads())
