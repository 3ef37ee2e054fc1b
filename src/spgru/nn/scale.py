"""`Scale`: from the variance of an output to another one, as a calibration finds it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.checks import has_triton, is_transformed

__all__ = ["Scale"]


class Scale(NamedTuple):
    """From the variance of an output to another one.

        var' = factor_t V^power_t (var - own) + noise

    Of the variance, `own` is what the module adds itself, and not its weights; V is the mean of the
    rest over the features of a step and sequence. The factor keeps the ranking of features; the
    power lets a sequence with more variance than others have a larger or smaller factor. Beyond the
    levels that the fit has seen it stays what it is at the nearest of them.
    """

    factor: Tensor
    """(S,) if time is the first dimension, (1, S) if it is the second; (1,) for all steps. Later
    steps have the factor of the last"""
    power: Tensor | None = None
    """() where features follow the sequences; where time is there too (1,) for all steps, or in the
    shape of the factor; None for 0"""
    own: Tensor | None = None
    """shape of the features; None for 0"""
    noise: Tensor | None = None
    """likewise"""
    noise_factor: Tensor | None = None
    """(), where `own` depends on the input: it is found by a pass with weights at their means, and
    `noise` is it times this factor"""
    low: Tensor | None = None
    """least V of the fit, in the shape of the power; None for no limit"""
    high: Tensor | None = None
    """largest V of the fit, likewise"""
    plain_mean: Tensor | None = None
    """(), there if the output has the mean of the plain closed form, which takes a pass of its own:
    gains change means, too, since that of an activation depends on the variance"""
    dims: Tensor | None = None
    """in the fit the first input and the output had as many dimensions as this is long and wide, by
    which a single sequence is told from a batch (a shape, so that no GPU is asked for numbers); no
    length where the inputs are not known, None where nothing is"""

    @property
    def form(self) -> str:
        """In words."""
        steps = self.factor.numel()
        found = "one factor" if steps == 1 else f"factors for {steps} steps"
        if self.power is not None:
            found += " by level"
        apart = self.noise is not None or self.noise_factor is not None
        return found + ", noise apart" * apart

    def with_own(self, own: Tensor | None) -> Scale:
        """The same for one call, if `own` depends on the input; it has the shape of the output."""
        if own is None or self.noise_factor is None:
            return self
        return self._replace(own=own, noise=self.noise_factor.to(own) * own)

    def with_dims(self, inputs: int | None, outputs: int) -> Scale:
        """The same for these dimensions of the first input and of the output; see `dims`."""
        return self._replace(dims=self.factor.new_zeros(inputs or 0, outputs))

    def apply(self, var: Any, own: Any = None, input_dims: int | None = None) -> Any:
        """The scaled variance, packed too.

        Args:
            own: what the module adds for this input, packed if the variance is
        """
        if not isinstance(var, PackedSequence):
            return self.with_own(own)(var, input_dims)
        batch_first = self.factor.ndim > 1
        own = own if own is None else _padded(own, batch_first)[0]
        padded, lengths = _padded(var, batch_first)
        scaled = self.with_own(own)(padded)
        rows, _ = torch._VF._pack_padded_sequence(scaled, lengths, batch_first)
        return var._replace(data=rows)

    def __call__(self, var: Tensor, input_dims: int | None = None) -> Tensor:
        """(T, B, *features), (B, T, *features) or (B, *features) -> the same, also without B

        Args:
            input_dims: dimensions of the first input, by which an output without B is known
        """
        if self.dims is not None and self._knows_batch and var.ndim == self.dims.shape[1] - 1:
            if input_dims is None or input_dims != self.dims.shape[0] - 1:
                raise ValueError(
                    f"the output has {var.ndim} dimensions but had {self.dims.shape[1]} when the "
                    "module was calibrated, for inputs like these; calibrate this output, by call= "
                    "or in a module of its own, or `spgru.uncalibrate` it"
                )
            dim, scale = self._batch_dim, self
            if self.own is not None and self.own.ndim == var.ndim:  # of this call
                assert self.noise is not None
                own, noise = self.own.unsqueeze(dim), self.noise.unsqueeze(dim)
                scale = self._replace(own=own, noise=noise)
            return scale._of_batch(var.unsqueeze(dim)).squeeze(dim)
        return self._of_batch(var)

    @property
    def _knows_batch(self) -> bool:
        """Whether it is another one for other steps or sequences."""
        return self.factor.numel() > 1 or self.power is not None

    @property
    def _batch_dim(self) -> int:
        """The other one than time, whose place a factor for each step or level tells."""
        has_time = self.factor.numel() > 1 or (self.power is not None and self.power.ndim > 0)
        return 1 if has_time and self.factor.ndim == 1 else 0

    def _of_batch(self, var: Tensor) -> Tensor:
        if self._one_kernel_does(var):
            from spgru.nn.kernels.level import scale_by_level

            assert self.power is not None
            time = self.factor.ndim - 1
            return scale_by_level(var, self.factor, self.power, self.low, self.high, time)
        # Half precision has no room for small variances, nor for their powers.
        wide = var.to(torch.promote_types(var.dtype, torch.float32))
        # Rounding must not take more away than there is.
        rest = wide if self.own is None else (wide - self.own.to(wide)).clamp(min=0)
        factor = self._by_step(self.factor, wide)
        if self.power is not None:
            features = tuple(range(2 if self.power.ndim else 1, var.ndim))
            level = rest.mean(features, keepdim=True) if features else rest
            if self.low is not None and self.high is not None:
                level = level.clamp(self._by_step(self.low, wide), self._by_step(self.high, wide))
            # Where all is certain there is nothing to scale; the factor need only be finite.
            level = level.clamp(min=torch.finfo(level.dtype).tiny)
            factor = factor * level ** self._by_step(self.power, wide)
        scaled = factor * rest if self.noise is None else factor * rest + self.noise.to(wide)
        return scaled.to(var.dtype)

    def _one_kernel_does(self, var: Tensor) -> bool:
        """Whether a GPU can do it in one launch: of the eight otherwise, most are tiny."""
        return (
            var.is_cuda
            and self.power is not None
            and self.power.ndim > 0
            and self.own is None
            and self.noise is None
            and var.ndim > 2
            and var.dtype == torch.float32
            and not (var.requires_grad and torch.is_grad_enabled())
            and not is_transformed(var)
            and has_triton()
        )

    def _by_step(self, values: Tensor, var: Tensor) -> Tensor:
        """One for each step of the variance, or one for all, in a shape that broadcasts to it."""
        time = self.factor.ndim - 1
        if values.numel() == 1:
            return values.reshape(()).to(var)
        if var.ndim <= time:
            raise ValueError(
                f"the output has {var.ndim} dimensions but was calibrated with time as "
                f"dimension {time}; calibrate the module again, or `spgru.uncalibrate` it"
            )
        # A compiler must not take the number of steps for a constant.
        if torch.compiler.is_compiling() or var.shape[time] != values.shape[time]:
            steps = torch.arange(var.shape[time], device=values.device)
            values = values.index_select(time, steps.clamp(max=values.shape[time] - 1))
        return values.reshape(values.shape + (1,) * (var.ndim - values.ndim)).to(var)


def _padded(packed: Any, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences from the longest on, as they are packed, and their lengths."""
    found: tuple[Tensor, Tensor] = torch._VF._pad_packed_sequence(
        packed.data, packed.batch_sizes, batch_first, 0.0, len(packed.batch_sizes)
    )
    return found
