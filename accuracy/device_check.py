"""The core on a GPU: correct against float64 on the CPU, gradients too, and never out of range.

Run on a machine with a CUDA device:  python accuracy/device_check.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from common import save

import spgru
import spgru.functional as F
from spgru import Moments


def out_of_range(name: str, dtype: torch.dtype, total: int) -> int:
    """Results that are negative, NaN or infinite among `total` random inputs."""
    generator = torch.Generator("cuda").manual_seed(0)
    chunk, bad = 5_000_000, 0
    for _ in range(total // chunk):
        uniform = torch.rand(5, chunk, device="cuda", generator=generator)
        sign = torch.where(uniform[0] < 0.5, -1.0, 1.0)
        mean = torch.where(uniform[1] < 0.5, 1e4 * uniform[2], 10 ** (9 * uniform[2] - 5))
        var = torch.where(uniform[4] < 0.5, 1e8 * uniform[3], 10 ** (20 * uniform[3] - 12))
        var = torch.where(uniform[3] < 0.01, 0.0, var)
        out = getattr(F, name)(Moments(sign * mean.clamp(max=1e4), var).to(dtype))
        fine = torch.isfinite(out.mean) & torch.isfinite(out.var) & (out.var >= 0)
        bad += int((~fine).sum())
    return bad


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.cpu().double() - want).norm() / want.norm()).item()


def layer_errors(name: str, options: dict[str, Any]) -> dict[str, float]:
    """Relative errors, device in float32 against CPU in float64, of outputs and gradients."""
    torch.manual_seed(0)
    reference = getattr(spgru, name)(33, 65, 2, dtype=torch.float64, **options)
    layer = getattr(spgru, name)(33, 65, 2, **options)
    layer.load_state_dict(reference.state_dict())
    layer.cuda()
    x = Moments(torch.randn(37, 5, 33).double(), torch.rand(37, 5, 33).double())
    results = []
    for module, value in ((reference, x), (layer, x.to("cuda", torch.float32))):
        out, _ = module(value)
        (out.mean.square() + out.var).mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in module.parameters()])
        results.append((out.mean.detach(), out.var.detach(), gradients))
    names = ("mean", "var", "gradient")
    return {key: relative_error(got, want) for key, want, got in zip(names, *results, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total", type=int, default=100_000_000, help="random activation inputs")
    total = parser.parse_args().total
    result: dict[str, Any] = {"out_of_range": {}, "relative_error": {}}
    for name in ("sigmoid", "tanh"):
        for dtype in (torch.float32, torch.bfloat16):
            start = time.perf_counter()
            bad = out_of_range(name, dtype, total)
            result["out_of_range"][f"{name} {dtype} of {total}"] = bad
            print(f"{name} {dtype}: {bad} of {total} ({time.perf_counter() - start:.0f} s)")
    for name in ("GRU", "LSTM", "RNN"):
        for options in ({}, {"bidirectional": True}, {"rule": "paper"}):
            errors = layer_errors(name, options)
            result["relative_error"][f"{name} {options}"] = errors
            print(name, options, {key: f"{value:.1e}" for key, value in errors.items()})
    worst = max(value for errors in result["relative_error"].values() for value in errors.values())
    save("device_check", f"python accuracy/device_check.py --total {total}", result)
    if worst > 1e-4 or any(result["out_of_range"].values()):
        raise SystemExit(f"FAILED: worst relative error {worst:.1e}")
    print(f"passed, worst relative error {worst:.1e}")


if __name__ == "__main__":
    main()
