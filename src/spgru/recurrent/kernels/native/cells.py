"""The kernels of GRU, LSTM and RNN in C, by the name of the cell."""

from __future__ import annotations

from spgru.recurrent.kernels.interface import CellKernels
from spgru.recurrent.kernels.native.functions import Function

__all__ = ["KERNELS", "RESET_BEFORE", "SIGMOIDS"]

_GATES = ("x_mean", "x_var", "p_mean", "p_var", "bias", "bias_var", "x_mean_grad", "x_var_grad",
          "p_mean_grad", "p_var_grad")  # fmt: skip
_MOMENTS = ("operand_moments", "by_operand_moments", "reset_moments", "by_reset_moments")


def _kernels(name: str, gates: int, has_cell: bool, one_gradient: bool) -> CellKernels:
    widths = dict.fromkeys(_GATES, gates) | dict.fromkeys(_MOMENTS, 2)
    forward, backward = (Function(f"{name}_{way}", widths) for way in ("forward", "backward"))
    return CellKernels(forward, backward, has_cell, one_gradient)


SIGMOIDS = Function("sigmoids", {})
"""of any tensors"""

KERNELS = {
    "gru": _kernels("gru", 3, has_cell=False, one_gradient=False),
    "lstm": _kernels("lstm", 4, has_cell=True, one_gradient=True),
    "rnn": _kernels("rnn", 1, has_cell=False, one_gradient=True),
}

_RESET_WIDTHS = (
    dict.fromkeys(_GATES, 3)
    | dict.fromkeys(("p_mean", "p_var", "p_mean_grad", "p_var_grad"), 2)
    | dict.fromkeys(_MOMENTS, 2)
)
RESET_BEFORE = {
    name: Function(f"reset_before_{name}", _RESET_WIDTHS)
    for name in ("gates_forward", "update_forward", "update_backward", "gates_backward")
}
"""the two halves of a step of the GRU that resets before the product, and their adjoints"""
