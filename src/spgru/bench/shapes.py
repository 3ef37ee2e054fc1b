"""Which sizes are measured, and what they must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

__all__ = [
    "BARS", "MODES", "Bar", "Case", "Dtype", "Mode", "Shape", "growth_cases", "preset_cases",
]  # fmt: skip

Mode = Literal["forward", "training"]
"""no_grad with frozen weights in eval; or forward and backward"""
MODES: tuple[Mode, ...] = get_args(Mode)
Dtype = Literal["float32", "bfloat16"]
Quantity = Literal["time over nn.GRU", "MC-LSTM over ours", "memory over nn.GRU"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a layer and what it reads: B sequences of T steps, I inputs, H units."""

    batch: int
    steps: int
    inputs: int
    hidden: int

    @staticmethod
    def parse(text: str) -> Shape:
        """ "B,T,I,H" """
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 4 or min(sizes) < 1:
            raise ValueError(
                f"--shape is {text!r}; pass four positive integers B,T,I,H, as 30,20,4096,1024"
            )
        return Shape(*sizes)

    def __str__(self) -> str:
        return f"{self.batch},{self.steps},{self.inputs},{self.hidden}"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure all contenders on."""

    shape: Shape
    dtype: Dtype = "float32"
    grows: str = ""
    """which size a series of cases varies ("T", "B", "H"); "" for a case of its own"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio that must be reached: ours at most so much, or sampling at least so much."""

    device: Literal["cuda", "cpu"]
    shape: Shape
    dtype: Dtype
    mode: Mode
    quantity: Quantity
    limit: float

    def is_met(self, ratio: float) -> bool:
        at_least = self.quantity == "MC-LSTM over ours"
        return ratio >= self.limit if at_least else ratio <= self.limit


def _bars() -> tuple[Bar, ...]:
    """The table of the issue "Speed"; memory is that of training."""
    paper, wide = Shape(30, 20, 4096, 1024), Shape(128, 20, 4096, 1024)
    broad, small = Shape(512, 20, 1024, 1024), Shape(32, 20, 128, 128)
    long, single = Shape(64, 200, 256, 256), Shape(1, 20, 128, 128)
    bars = []
    for dtype in ("float32", "bfloat16"):
        bars += [
            Bar("cuda", paper, dtype, "forward", "MC-LSTM over ours", 10),
            Bar("cuda", paper, dtype, "forward", "time over nn.GRU", 1.5),
            Bar("cuda", paper, dtype, "training", "time over nn.GRU", 2.5),
            Bar("cuda", paper, dtype, "training", "memory over nn.GRU", 3),
        ]
    for shape, forward, training in ((wide, 2, 3), (broad, 2, 3), (small, 2, 2), (long, 1.5, 2.5)):
        bars += [
            Bar("cuda", shape, "float32", "forward", "time over nn.GRU", forward),
            Bar("cuda", shape, "float32", "training", "time over nn.GRU", training),
            Bar("cuda", shape, "float32", "training", "memory over nn.GRU", 3),
        ]
    for shape, plain, sampled in ((paper, 2.2, 27), (small, 3, 10), (single, 3, 1.3)):
        bars += [
            Bar("cpu", shape, "float32", "forward", "time over nn.GRU", plain),
            Bar("cpu", shape, "float32", "forward", "MC-LSTM over ours", sampled),
        ]
    return tuple(bars)


BARS = _bars()


def preset_cases(device: str, dtypes: Sequence[Dtype] | None = None) -> list[Case]:
    """The cases that have bars on this kind of device; or their shapes in these dtypes."""
    bars = [bar for bar in BARS if bar.device == device]
    if dtypes is None:
        cases = [Case(bar.shape, bar.dtype) for bar in bars]
    else:
        cases = [Case(bar.shape, dtype) for dtype in dtypes for bar in bars]
    return list(dict.fromkeys(cases))


def growth_cases(device: str, dtype: Dtype = "float32") -> list[Case]:
    """One size after the other varied around 32,20,128,128."""
    middle = Shape(32, 20, 128, 128)
    on_gpu = device == "cuda"
    steps = (5, 20, 80, 320) if on_gpu else (5, 20, 80)
    batches = (1, 8, 32, 128, 512) if on_gpu else (1, 8, 32, 128)
    hidden = (32, 128, 512, 2048) if on_gpu else (32, 128, 512)
    return [
        *(Case(replace(middle, steps=size), dtype, "T") for size in steps),
        *(Case(replace(middle, batch=size), dtype, "B") for size in batches),
        *(Case(replace(middle, hidden=size), dtype, "H") for size in hidden),
    ]
