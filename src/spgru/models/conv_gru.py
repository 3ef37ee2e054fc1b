"""A GRU whose products are convolutions: the state is an image of channels."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.checks import check_choice
from spgru.functional import Affine
from spgru.moments import Moments, cat, certain, stack
from spgru.nn.layer import Layer, Options, Record
from spgru.recurrent import BACKENDS, Backend, Scan, make_gru_step, run
from spgru.recurrent.kernels.products import add_bias

__all__ = ["ConvGRU", "ConvGRUCell"]

# Inside, channels come last: the steps of spgru.recurrent split gates along the last dimension, and
# it is the memory format in which convolutions are fastest. Outside it is (B, C, height, width).


def _channels_last(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.movedim(-3, -1)
    return Moments(x.mean.movedim(-3, -1), x.var.movedim(-3, -1))


def _channels_first(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.movedim(-1, -3)
    return Moments(x.mean.movedim(-1, -3), x.var.movedim(-1, -3))


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(*batch, height, width, I) -> (*batch, height, width, O), the size kept."""
    *batch, height, width, channels = x.shape
    images = x.reshape(-1, height, width, channels).movedim(-1, 1)
    output = F.conv2d(images, weight, padding=weight.shape[-1] // 2).movedim(1, -1)
    output = output.reshape(*batch, height, width, len(weight))
    return output if bias is None else add_bias(output, bias)


class ConvGRUCell(Layer):
    """One layer of a convolutional GRU with random weights. Tensor or Moments in, Moments out.

    The equations are those of `spgru.recurrent.gru` with every product a convolution that keeps
    height and width. Moments are exact but for the independence of r, z, c and h, of units, of
    positions and of steps. `spgru.audit` measures what that costs.

    Args:
        in_channels: of the input; 0 for a cell that runs on its state alone
        hidden_channels: of the state
        kernel_size: odd
        reset_after: see `spgru.GRU`
        backend: see `spgru.GRU`

    For the others see `spgru.nn.Layer`.
    """

    torch_class = nn.Module
    gates = 3

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        kernel_size: int = 5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        backend: Backend = "auto",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        check_choice("backend", backend, BACKENDS)
        self.backend = backend
        if in_channels < 0 or hidden_channels < 1:
            raise ValueError(
                f"in_channels is {in_channels} and hidden_channels {hidden_channels}; they must be "
                "at least 0 and 1"
            )
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd to keep the size, got {kernel_size}")
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.kernel_size, self.reset_after = kernel_size, reset_after
        rows, window = self.gates * hidden_channels, (kernel_size, kernel_size)
        # Without an input, its bias is drawn like that of the state.
        fan_ih = (in_channels or hidden_channels) * kernel_size**2
        fan_hh = hidden_channels * kernel_size**2
        bound_ih, bound_hh = 1 / math.sqrt(fan_ih), 1 / math.sqrt(fan_hh)
        if in_channels:
            self._add_weight("weight_ih", (rows, in_channels, *window), fan_ih, bound_ih)
        self._add_weight("weight_hh", (rows, hidden_channels, *window), fan_hh, bound_hh)
        self._add_weight("bias_ih", (rows,), fan_ih, bound_ih)
        self._add_weight("bias_hh", (rows,), fan_hh, bound_hh)

    def forward(self, x: Tensor | Moments, hx: Tensor | Moments | None = None) -> Moments:
        """One step.

        Args:
            x: (B, in_channels, height, width)
            hx: the state before, (B, hidden_channels, height, width); None for zeros

        Returns:
            the state after, (B, hidden_channels, height, width)
        """
        return self.run(x.unsqueeze(0), hx)[1]

    def run(
        self, x: Tensor | Moments, hx: Tensor | Moments | None = None
    ) -> tuple[Moments, Moments]:
        """All steps, the input's convolution done for all at once.

        Args:
            x: (T, B, in_channels, height, width)
            hx: (B, hidden_channels, height, width); None for zeros

        Returns:
            the state after every step (T, B, hidden_channels, height, width), and after the last
        """
        self._check("x", x)
        if x.ndim != 5 or x.shape[2] != self.in_channels or x.shape[0] == 0:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; pass (T, B, {self.in_channels}, height, width) "
                "with at least one step"
            )
        _, batch, _, *size = x.shape
        shape = (batch, self.hidden_channels, *size)
        if hx is None:
            hx = torch.zeros(shape, dtype=x.dtype, device=x.device)
        self._check("hx", hx)
        if tuple(hx.shape) != shape:
            raise ValueError(f"hx has shape {tuple(hx.shape)} but x asks for {shape}")
        state = self._enter(hx)
        if isinstance(state, Tensor) and not self._weights()["weight_hh"].is_certain:
            state = certain(state)
        output, (final,), neurons = self._run(
            _channels_last(self._enter(x)), (_channels_last(state),)
        )
        if self._records is not None:
            laid_out = {name: _channels_first(value) for name, value in neurons.items()}
            self._records.append(Record("", laid_out, 0))
        return self._leave(_channels_first(output)), self._leave(_channels_first(final))

    def _run(self, x: Any, state: tuple[Any]) -> Scan:
        if x.shape[0] > 1 and self._weights()["weight_hh"].redraws_every_step:
            outputs, history = [], []
            for t in range(x.shape[0]):
                output, state, neurons = self._run(x[t : t + 1], state)
                outputs.append(output)
                history.append(neurons)
            joined = {name: cat([step[name] for step in history]) for name in history[0]}
            return cat(outputs), state, joined
        hidden = self._filters("hh")
        step = make_gru_step(
            hidden, self.hidden_channels, self.reset_after, self.family, self.rule, _convolve
        )
        obstacle = None if self.reset_after else "there is no kernel for reset_after=False"
        return run(
            "gru", step, self._inputs(x), state, hidden, self.family, self.rule, self.backend,
            obstacle, _convolve, record=self._records is not None,
        )  # fmt: skip

    def _filters(self, part: str) -> Affine:
        def make() -> Affine:
            # In the memory format of the images once, and not again at every step.
            weight = self._value(f"weight_{part}").to(memory_format=torch.channels_last)
            return Affine.of(weight, self._value(f"bias_{part}"))

        return self._once(part, make)

    def _inputs(self, x: Any) -> Any:
        """(T, B, height, width, in_channels) -> the products with x, bias included."""
        if self.in_channels:
            return self._filters("ih")(x, _convolve)
        bias = self._value("bias_ih")
        shape = (*x.shape[:-1], 3 * self.hidden_channels)
        if isinstance(bias, Tensor):
            return bias.expand(shape)
        return Moments(bias.mean.expand(shape), bias.var.expand(shape))

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        raise TypeError("torch.nn has no convolutional GRU to convert from or to")

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.hidden_channels}, kernel_size={self.kernel_size}, "
            f"{self._options_repr()}"
        )


class ConvGRU(nn.Module):
    """Layers of `ConvGRUCell`, each reading the states of the one below.

    Args:
        in_channels: of the input; 0 for a network that runs on its state alone
        hidden_channels: of every layer's state
        num_layers: how many
        kernel_size: odd
        options: `reset_after`, `device`, `dtype` and the options of `ConvGRUCell`
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int = 1,
        kernel_size: int = 5,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        self.cells = nn.ModuleList(
            ConvGRUCell(
                hidden_channels if k else in_channels, hidden_channels, kernel_size, **options
            )
            for k in range(num_layers)
        )

    def forward(
        self, x: Tensor | Moments, hx: Tensor | Moments | None = None
    ) -> tuple[Moments, Moments]:
        """Run along a sequence.

        Args:
            x: (T, B, in_channels, height, width)
            hx: (num_layers, B, hidden_channels, height, width); None for zeros

        Returns:
            the last layer's state after every step (T, B, hidden_channels, height, width), and
            every layer's after the last (num_layers, B, hidden_channels, height, width)
        """
        if hx is not None and hx.shape[0] != len(self.cells):
            raise ValueError(f"hx holds {hx.shape[0]} layers but the network has {len(self.cells)}")
        finals, output = [], x
        for k, cell in enumerate(self.cells):
            assert isinstance(cell, ConvGRUCell)
            output, final = cell.run(output, None if hx is None else hx[k])
            finals.append(final)
        assert isinstance(output, Moments)
        return output, stack(finals)
