"""Embedding with random rows."""

from __future__ import annotations

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.checks import values_are_checked
from spgru.functional import Affine
from spgru.modes import Responding, watch, weight_mode
from spgru.moments import Moments
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape

__all__ = ["Embedding"]


class Embedding(Layer):
    """`torch.nn.Embedding` with random rows: integers in, Moments out.

    The arguments before `device` are `torch.nn.Embedding`'s, without those that change a row when
    it is read (`max_norm`) or its gradient only; for the others see `spgru.nn.Layer`. The row of
    `padding_idx` is certain, gets no gradient and does not count in `spgru.kl_divergence`.
    """

    torch_class = nn.Embedding

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"padding_idx is {padding_idx} but there are {num_embeddings} rows; "
                    f"pass one of 0 to {num_embeddings - 1}"
                )
            if not self._stores_means:
                raise ValueError(
                    "the row of padding_idx is certain, which Gaussian weights stored by moments "
                    "can be; leave family and parameterization out"
                )
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        # Rows are drawn from a standard normal distribution, as the prior of one input is.
        self._add_weights(
            [WeightShape("weight", (num_embeddings, embedding_dim), 1, 1.0, is_summed=False)]
        )

    def _initial_mean(self, spec: WeightShape, like: Tensor) -> Tensor:
        if self.family.name != "gaussian":
            return super()._initial_mean(spec, like)
        mean = like.new_empty(spec.shape).normal_()
        if self.padding_idx is not None:
            mean[self.padding_idx] = 0
        return mean

    def pruning_mask(self, name: str) -> Tensor | None:
        """0 for what is certain: entries pruned by `torch.nn.utils.prune`, and the padding."""
        mask = super().pruning_mask(name)
        if self.padding_idx is None:
            return mask
        shape = self.num_embeddings, self.embedding_dim
        mask = torch.ones(shape, device=self._like.device) if mask is None else mask.clone()
        mask[self.padding_idx] = 0
        return mask

    def forward(self, input: Tensor) -> Moments:
        """(*shape) of integers -> (*shape, embedding_dim)"""
        self._check_indices(input)
        rows = self._once(("weight", ""), self._rows)
        if isinstance(weight_mode(self), Responding):
            # The same by a product, whose uses can be followed.
            output = rows(F.one_hot(input.long(), self.num_embeddings).to(rows.weight.dtype))
        elif rows.weight_var is None:
            output = self._look_up(input, rows.weight)
        else:
            output = Moments(
                self._look_up(input, rows.weight), self._look_up(input, rows.weight_var)
            )
        self._record("", {"output": output}, None)
        watch(self, output)
        return self._leave(output)  # type: ignore[no-any-return]

    def _rows(self) -> Affine:
        """The map from one-hot vectors."""
        return Affine.of(self._value("weight").transpose(0, 1))

    def _look_up(self, index: Tensor, columns: Tensor) -> Tensor:
        return F.embedding(index, columns.transpose(0, 1), self.padding_idx)

    def _check_indices(self, index: Any) -> None:
        if not isinstance(index, Tensor):
            raise TypeError(f"input must be a Tensor of integers, got {type(index).__name__}")
        if index.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"input has dtype {index.dtype} but must be integers; use input.long()")
        if not index.numel() or not values_are_checked(index):
            return
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= self.num_embeddings:
            raise ValueError(
                f"input reaches from {low} to {high} but there are {self.num_embeddings} rows; "
                f"pass indices from 0 to {self.num_embeddings - 1}"
            )

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, name, None):
                raise ValueError(
                    f"{name}={getattr(module, name)} has no counterpart here; make an embedding "
                    "without it and load the same weight"
                )
        names = ("num_embeddings", "embedding_dim", "padding_idx")
        return {name: getattr(module, name) for name in names}

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f"padding_idx={self.padding_idx}, "
        return f"{self.num_embeddings}, {self.embedding_dim}, {padding}{self._options_repr()}"
