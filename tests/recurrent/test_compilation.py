"""The kernels through Triton's compiler and assembler, for a GPU that need not be there.

The interpreter runs what a compiler would refuse, and has all the memory it wants.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

HOPPER, ADA = 232_448, 101_376
"""bytes of shared memory that a program may have"""

SCRIPT = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spgru.data import kernels as drawing
from spgru.functional.kernels import squash
from spgru.nn.kernels import level
from spgru.recurrent.kernels.triton import gru, lstm, persistent, planning, rnn, step as steps

torch.set_float32_matmul_precision("high")
planning.room = lambda device: (132, {room})
CONSTANTS = (
    "size", "gates", "step", "block_rows", "units", "inner", "precision", "block", "joined",
    "held",
)
NUMBERS = ("steps", "first", "direction", "rows", "p_step", "count")
LOW = (
    "weight", "weight_moments", "p_mean", "p_var", "operand_mean", "operand_moments",
    "p_mean_grad", "p_var_grad", "x_mean", "x_var", "x_mean_grad", "x_var_grad",
)
# What a forward pass alone does without.
UNKEPT = {{torch.float32: ("operand_moments",), torch.bfloat16: ()}}


def build(
    kernel, step, gates, has_cell, low, rows, columns=16, precision="tf32", joined=True, size=1024,
    held=None, room={room}, gained=False,
):
    weight = torch.empty(gates * size, size, dtype=low)
    values = dict(
        size=size, gates=gates, step=step, block_rows=rows, units=16, block=256,
        inner=planning.inner_terms(weight, rows, columns), precision=precision, joined=joined,
        held=held,
    )
    if held is None:
        values["held"] = planning.held_terms(
            weight, planning.Plan(size // 16, rows), rows, columns
        )
    short = {{torch.float32: "*fp32", torch.bfloat16: "*bf16"}}[low]
    signature, constants = {{}}, {{}}
    for place, name in enumerate(kernel.arg_names):
        absent = ("c_mean", "c_var", "new_c_mean", "new_c_var", "first_c_mean", "first_c_var")
        if name in CONSTANTS or (name in absent and not has_cell):
            signature[name], constants[(place,)] = "constexpr", values.get(name)
        elif name in UNKEPT[low] and kernel is persistent._forward and not joined:
            signature[name], constants[(place,)] = "constexpr", None
        elif name == "gain" and not gained:
            signature[name], constants[(place,)] = "constexpr", None
        elif name == "operand_mean" and low == torch.float32:
            signature[name], constants[(place,)] = "constexpr", None
        elif name in NUMBERS:
            signature[name] = "i32"
        else:
            signature[name] = "*i32" if name == "arrived" else short if name in LOW else "*fp32"
    # As torch allocates them; else nothing could be copied while something else is computed.
    aligned = [place for place, kind in enumerate(signature.values()) if kind[0] == "*"]
    attributes = {{(place,): [["tt.divisibility", 16]] for place in aligned}}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=GPUTarget("cuda", 90, 32),
        options=dict(
            num_warps=planning.warps(rows, kernel is persistent._backward),
            num_stages=planning.STAGES,
        ),
    )
    assert compiled.metadata.shared <= room, (kernel, rows, compiled.metadata.shared)
    check_minima(compiled)


def check_minima(compiled):
    # A GPU's plain minimum drops NaN, which the interpreter does not show.
    assert "min.NaN.f32" in compiled.asm["ptx"] and "min.f32" not in compiled.asm["ptx"]


build(persistent._forward, gru._forward, 3, False, torch.float32, 16, 64, joined=False)
build(persistent._forward, gru._forward, 3, False, torch.bfloat16, 16, 64, joined=False)
build(persistent._forward, lstm._forward, 4, True, torch.bfloat16, 16, 64)
build(persistent._forward, gru._forward, 3, False, torch.float32, 16, 64, size=256)
build(persistent._backward, gru._backward, 3, False, torch.float32, 64)
build(persistent._forward, lstm._forward, 4, True, torch.bfloat16, 16, 64, gained=True)
build(persistent._backward, gru._backward, 3, False, torch.float32, 64, gained=True)
build(persistent._forward, gru._forward, 3, False, torch.float32, 32, 64, "ieee")
build(persistent._forward, lstm._forward, 4, True, torch.bfloat16, 32, 64)
build(persistent._backward, rnn._backward, 1, False, torch.bfloat16, 16)
build(persistent._forward, rnn._forward, 1, False, torch.float32, 128, 16)
# On a smaller chip without weights that stay, for which it has no room.
planning.room = lambda device: (128, {small})
build(
    persistent._forward, gru._forward, 3, False, torch.bfloat16, 16, 64, held=0, room={small}
)
build(steps._forward, gru._forward, 3, False, torch.float32, 16)
build(steps._backward, lstm._backward, 4, True, torch.bfloat16, 16)
sizes = dict(mean="*fp32", var="*fp32", new_mean="*fp32", new_var="*fp32", count="i32")
constants = dict(is_tanh="constexpr", block="constexpr")
compiled = triton.compile(
    ASTSource(squash._forward, sizes | constants, {{(5,): True, (6,): 256}}),
    target=GPUTarget("cuda", 90, 32),
)
check_minima(compiled)
sizes = dict.fromkeys(
    ("mean", "var", "out_mean", "out_var", "mean_grad", "var_grad"), "*fp32"
) | dict(count="i32")
compiled = triton.compile(
    ASTSource(squash._backward, sizes | constants, {{(7,): True, (8,): 256}}),
    target=GPUTarget("cuda", 90, 32),
)
check_minima(compiled)
pointers = dict.fromkeys(("var", "new_var", "factor", "power", "low", "high"), "*fp32")
numbers = dict.fromkeys(("factors", "powers", "batch", "steps"), "i32")
constants = dict.fromkeys(("size", "time_first", "block"), "constexpr")
compiled = triton.compile(
    ASTSource(
        level._scale_rows, pointers | numbers | constants,
        {{(10,): 4100, (11,): True, (12,): 4096}},
    ),
    target=GPUTarget("cuda", 90, 32),
)
check_minima(compiled)
sizes = dict(images="*u8", chosen="*i64", tops="*i64", lefts="*i64", frames="*u8", batch="i32")
constants = dict.fromkeys(("digits", "size", "canvas", "block"), "constexpr")
triton.compile(
    ASTSource(drawing._paste, sizes | constants, {{(6,): 2, (7,): 28, (8,): 64, (9,): 1024}}),
    target=GPUTarget("cuda", 90, 32),
)
print("compiled")
"""


def test_kernels_compile_and_fit() -> None:
    # In a process of its own: the switch for the interpreter is read when Triton is imported.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(room=HOPPER, small=ADA)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "compiled", done.stderr[-3000:]
