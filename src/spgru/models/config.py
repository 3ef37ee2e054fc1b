"""`ModelConfig`: a model as plain values that fit a configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from spgru.functional import Rule
from spgru.runtime.errors import refuse

__all__ = ["Architecture", "CellName", "Kind", "ModelConfig"]

Kind = Literal["predictor", "autoencoder", "composite", "next_frame"]
Architecture = Literal["fully_connected", "convolutional"]
CellName = Literal["gru", "lstm"]


@dataclass(frozen=True)
class ModelConfig:
    """What to build; see `spgru.models.build`. Every error names the field.

    Args:
        kind: `"predictor"` continues the sequence, `"autoencoder"` reconstructs it, newest frame
            first, `"composite"` does both from one encoder; `"next_frame"` is a predictor whose one
            network reads frames and goes on with its own
        architecture: `"fully_connected"`, or `"convolutional"` on patches
        height: of a frame
        width: of a frame
        hidden_size: units of a layer; of a convolutional one, channels (64 are slow)
        num_layers: layers of the encoder and of each decoder
        cell: `"gru"` or `"lstm"`
        reset_after: which GRU, see `spgru.GRU`
        feedback: feed the decoder the moments of the frame it predicted last, as a `"next_frame"`
            model always does; else it gets no input
        family: `"gaussian"`, the only one with logits of both signs
        rule: `"exact"`, or `"paper"` for the printed formulas
        weight_std: standard deviation of every weight at the start; None for a tenth of the range
            that `torch.nn` draws weights from (0.1 / sqrt(hidden_size) for the recurrent layers)
        initial_logit: mean of the readout's bias at the start. The logit of the frames' mean
            brightness, -3 for Moving MNIST, keeps a network from learning first that frames are
            dark, which may saturate it for good
        patch_size: of a convolutional model: this many pixels squared become one position
        kernel_size: of a convolutional model, odd
    """

    kind: Kind = "predictor"
    architecture: Architecture = "fully_connected"
    height: int = 64
    width: int = 64
    hidden_size: int = 1024
    num_layers: int = 1
    cell: CellName = "gru"
    reset_after: bool = True
    feedback: bool = False
    family: Literal["gaussian"] = "gaussian"
    rule: Rule = "exact"
    weight_std: float | None = None
    initial_logit: float = 0.0
    patch_size: int = 4
    kernel_size: int = 5

    def __post_init__(self) -> None:
        refuse(self._problems())

    @property
    def feeds_back(self) -> bool:
        """Whether the network reads its own frames."""
        return self.feedback or self.kind == "next_frame"

    def _problems(self) -> Iterator[str]:
        choices = {"kind": Kind, "architecture": Architecture, "cell": CellName, "rule": Rule}
        for name, literal in choices.items():
            if getattr(self, name) not in get_args(literal):
                listed = ", ".join(map(repr, get_args(literal)))
                yield f"{name} must be one of {listed}; got {getattr(self, name)!r}"
        if self.family != "gaussian":
            yield (
                f"family must be 'gaussian', got {self.family!r}: the logit of a dark pixel is "
                "negative, which the positive families cannot be"
            )
        sizes = ("height", "width", "hidden_size", "num_layers", "patch_size", "kernel_size")
        wrong = [name for name in sizes if not _is_size(getattr(self, name))]
        for name in wrong:
            yield f"{name} must be a whole number from 1, got {getattr(self, name)!r}"
        if self.weight_std is not None and not self.weight_std >= 0:
            yield f"weight_std must not be negative, got {self.weight_std}"
        if self.cell == "lstm" and not self.reset_after:
            yield "reset_after=False is a kind of GRU; use cell='gru' or leave it True"
        if self.architecture == "convolutional" and not wrong:
            yield from self._convolutional_problems()

    def _convolutional_problems(self) -> Iterator[str]:
        if self.kernel_size % 2 == 0:
            yield f"kernel_size must be odd to keep the size, got {self.kernel_size}"
        if self.height % self.patch_size or self.width % self.patch_size:
            yield (
                f"patch_size {self.patch_size} does not divide frames of {self.height} x "
                f"{self.width}; choose one that does"
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value >= 1
