"""The functions of `cells.c`: their arguments by name, checked and passed on as pointers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.recurrent.kernels.native import library

__all__ = ["SIGNATURES", "Function", "many_adjoints"]

# A name that ends in "?" may be a null pointer.
_STATE = "h_mean h_var"
_GATES = f"x_mean x_var p_mean p_var bias? bias_var? {_STATE}"
_STEP = f"x_mean x_var p_mean p_var bias? bias_var? coherence? {_STATE}"
_NO_CELL, _CELL = "c_mean? c_var?", "c_mean c_var"
_NEW, _NO_NEW_CELL, _NEW_CELL = "new_mean new_var", "new_c_mean? new_c_var?", "new_c_mean new_c_var"
_INCOMING = "new_mean out_mean out_var by_operand_mean by_operand_moments"
_X_GRADS = "x_mean_grad x_var_grad"
_P_GRADS, _MAYBE_P_GRADS = "p_mean_grad p_var_grad", "p_mean_grad? p_var_grad?"
_CARRIED = "carried_mean carried_var"
_PASSED = f"coherence_grad? {_CARRIED}"
_FORWARD = f"{_STEP} {_NO_CELL} {_NEW} {_NO_NEW_CELL} operand_moments"
_WHOLE = (
    "x_mean x_var? input_weight input_weight_var input_gain? input_bias? input_bias_var? "
    f"weight weight_var gain? bias? bias_var? coherence? {_STATE}"
)
_WHOLE_STEPS = f"{_WHOLE} {_NO_CELL} {_NEW} {_NO_NEW_CELL} scratch"
_WITH_THREADS = "rows size threads"
_WITH_TIME = "rows inputs size steps reverse"


_BY_UNIT = "bias", "bias_var", "coherence"
"""that do not have rows"""


class Signature(NamedTuple):
    """The arguments of a function in their order: pointers, then whole numbers."""

    pointers: list[str]
    numbers: list[str]
    optional: set[str]
    """pointers that may be null"""


def _signature(pointers: str, numbers: str = _WITH_THREADS) -> Signature:
    names = pointers.split()
    optional = {name.removesuffix("?") for name in names if name.endswith("?")}
    return Signature([name.removesuffix("?") for name in names], numbers.split(), optional)


SIGNATURES = {
    "sigmoids": _signature("mean var value value_var"),
    "gru_forward": _signature(_FORWARD),
    "gru_backward": _signature(f"{_STEP} {_NO_CELL} {_INCOMING} {_X_GRADS} {_P_GRADS} {_PASSED}"),
    "lstm_forward": _signature(f"{_STEP} {_CELL} {_NEW} {_NEW_CELL} operand_moments"),
    "lstm_backward": _signature(
        f"{_STEP} {_CELL} {_INCOMING} {_X_GRADS} {_MAYBE_P_GRADS} {_PASSED}"
    ),
    "rnn_forward": _signature(_FORWARD),
    "rnn_backward": _signature(
        f"{_STEP} {_NO_CELL} {_INCOMING} {_X_GRADS} {_MAYBE_P_GRADS} {_PASSED}"
    ),
    "reset_before_gates_forward": _signature(f"{_GATES} z_mean z_var reset_mean reset_moments"),
    "reset_before_update_forward": _signature(
        f"x_mean x_var q_mean q_var bias? bias_var? coherence? z_mean z_var {_STATE} {_NEW} "
        "operand_moments"
    ),
    "reset_before_update_backward": _signature(
        f"x_mean x_var p_mean p_var q_mean q_var bias? bias_var? coherence? {_STATE} {_INCOMING} "
        f"{_X_GRADS} {_P_GRADS} q_mean_grad q_var_grad {_PASSED}"
    ),
    "reset_before_gates_backward": _signature(
        f"{_GATES} by_reset_mean by_reset_moments {_X_GRADS} {_P_GRADS} {_CARRIED}"
    ),
    "gru_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
    "gru_reset_before_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
    "lstm_steps": _signature(f"{_WHOLE} {_CELL} {_NEW} {_NEW_CELL} scratch", _WITH_TIME),
    "rnn_steps": _signature(_WHOLE_STEPS, _WITH_TIME),
    "many_adjoints": _signature(
        "x_mean_c x_var_c p_mean_c p_var_c carried_mean_c carried_var_c h_mean h_var weight "
        "weight_moments slope out_mean out_var by_mean by_var cell_mean? cell_var? x_mean x_var? "
        "by_weight by_bias forms remainder scratch starts times sizes",
        "steps rows sequences outputs size gates columns threads",
    ),
}

# Units up to which a step is not worth a second thread: 16 rows of 128, some 10 microseconds, which
# is what waking a thread can cost.
_ONE_THREAD = 16 * 128


_HELD = 8  # HELD of adjoint.c


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
            needed = width * (size if name in _BY_UNIT else count)
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


def many_adjoints(
    steps: Any, last: int, *, coefficients: Any, h_mean: Tensor, h_var: Tensor, weight: Tensor,
    weight_moments: Tensor, slope: Tensor, out: tuple[Tensor, Tensor], states: list[Tensor],
    x_grads: list[Tensor], sums: tuple[Tensor, Tensor], forms: Tensor, remainder: Tensor,
) -> None:  # fmt: skip
    """Gradients of K outputs from step `last` to the first; see `spgru.recurrent.kernels.tapped`.

    Args:
        h_mean: (rows, H), before every step, in the order of steps
        slope: of W.var + W.mean^2 by W.mean, (gates H, H)
        out: (rows, K, H) in the order of time
        states: (B, K, H) each: mean and variance of h, and of an LSTM's cell; changed
        x_grads: (rows, K, gates H) each, filled: of x in the order of time, by its mean, or by its
            mean and variance
        sums: gradients by the weight (B, K, gates H, H) and its bias, to which those are added
        forms: (pairs, rows, H), see `spgru.recurrent.kernels.remainders`
        remainder: (B, K), to which theirs is added
    """
    outputs, size = states[0].shape[1:]
    rows, sequences, width = len(h_mean), len(states[0]), weight.shape[0]
    incoming = [part.expand(-1, outputs, -1) for part in out]
    fixed = [*coefficients, h_mean, h_var, weight, weight_moments, slope, *incoming]
    changed = [*states, *[None] * (4 - len(states)), *x_grads, *[None] * (2 - len(x_grads)), *sums]
    room = outputs * (2 * _HELD * width + 3 * size) + _HELD * width * size
    scratch = h_mean.new_empty(sequences * room)
    tensors = [*(part.contiguous() for part in fixed), *changed, forms.contiguous(), remainder]
    tensors.append(scratch)
    for part in tensors:
        if part is not None and not (
            part.dtype is torch.float32 and part.is_cpu and part.is_contiguous()
        ):
            raise ValueError(
                f"many_adjoints takes contiguous float32 on the CPU, got {part.dtype} on "
                f"{part.device} with strides {part.stride()}"
            )
    starts, by_time = [0, *accumulate(steps.sizes)], [0, *accumulate(steps.batch_sizes)]
    count = last + 1
    places = [
        (ctypes.c_long * count)(*values)
        for values in (
            starts[:count],
            [by_time[steps.times[k]] for k in range(count)],
            steps.sizes[:count],
        )
    ]
    alone = rows * outputs * size <= _ONE_THREAD or _Process.is_forked
    bind("many_adjoints")(
        *(None if part is None else part.data_ptr() for part in tensors), *places, count, rows,
        sequences, outputs, size, width // size, len(states),
        1 if alone else torch.get_num_threads(),
    )  # fmt: skip
