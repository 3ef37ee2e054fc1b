"""Run torch's own test inputs through torch's modules and ours; print what differs as JSON.

A process of its own, because importing torch's test helpers changes settings of the whole process.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import module_db

import spgru
from spgru import Moments

OURS: dict[type[nn.Module], Any] = {
    nn.Linear: spgru.Linear,
    nn.Conv1d: spgru.Conv1d,
    nn.Conv2d: spgru.Conv2d,
    nn.RNN: spgru.RNN,
    nn.GRU: spgru.GRU,
    nn.LSTM: spgru.LSTM,
    nn.RNNCell: spgru.RNNCell,
    nn.GRUCell: spgru.GRUCell,
    nn.LSTMCell: spgru.LSTMCell,
}


def tensors(value: Any) -> list[Tensor]:
    """All tensors of an output, means for moments, which must be certain."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Moments):
        if value.var.any():
            raise ValueError("certain weights gave a variance")
        return [value.mean]
    return [tensor for part in value for tensor in tensors(part)]


def difference(info: Any, sample: Any, training: bool) -> str | None:
    """What is wrong with our answer, None if nothing."""
    build, call = sample.constructor_input, sample.forward_input
    theirs = info.module_cls(*build.args, dtype=torch.float64, **build.kwargs).train(training)
    try:
        ours = OURS[info.module_cls](
            *build.args, dtype=torch.float64, weight_std=0.0, **build.kwargs
        )
        ours.train(training).load_state_dict(theirs.state_dict(), strict=False)
        want, got = (tensors(m(*call.args, **call.kwargs)) for m in (theirs, ours))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    except Exception as error:
        return f"{build.args} {build.kwargs}: {error}"
    return None


def main() -> None:
    report = {}
    for info in module_db:
        if info.module_cls not in OURS:
            continue
        results = [
            difference(info, sample, training)
            for training in (False, True)
            for sample in info.module_inputs_func(
                info, device="cpu", dtype=torch.float64, requires_grad=False, training=training
            )
        ]
        wrong = [result for result in results if result is not None]
        report[info.module_cls.__name__] = {"inputs": len(results), "wrong": wrong}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
