"""GRU and LSTM whose products are convolutions: a state is an image of channels."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from spgru.checks import check_value
from spgru.functional import Affine
from spgru.functional.products import SAME_CONVOLUTION
from spgru.modes import watch
from spgru.moments import Moments, stack
from spgru.nn.recurrent_layer import RecurrentLayer, RecurrentOptions
from spgru.nn.weight import WeightShape
from spgru.recurrent import Cell, Trajectory, gru_cell, lstm_cell, run

__all__ = ["ConvCell", "ConvGRU", "ConvGRUCell", "ConvLSTM", "ConvLSTMCell", "ConvNetwork"]

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


class ConvCell(RecurrentLayer):
    """Base of the cells, each one layer with random weights. Tensor or Moments in, Moments out.

    Every product of the equations is a convolution that keeps height and width. Moments are exact
    but for the independence of gates and states among each other, of units, of positions and of
    steps. `spgru.audit` measures what that costs.

    Args:
        in_channels: of the input; 0 for a cell that runs on its state alone
        hidden_channels: of the state
        kernel_size: odd

    For the others see `spgru.nn.Layer` and `spgru.nn.recurrent_layer.RecurrentLayer`.
    """

    torch_class = nn.Module

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        kernel_size: int = 5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(device, dtype, **options)
        if in_channels < 0 or hidden_channels < 1:
            raise ValueError(
                f"in_channels is {in_channels} and hidden_channels {hidden_channels}; they must be "
                "at least 0 and 1"
            )
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd to keep the size, got {kernel_size}")
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.kernel_size = kernel_size
        rows, window = self.gates * hidden_channels, (kernel_size, kernel_size)
        # Without an input, its bias is drawn like that of the state.
        fan_ih = (in_channels or hidden_channels) * kernel_size**2
        fan_hh = hidden_channels * kernel_size**2
        bound_ih, bound_hh = 1 / math.sqrt(fan_ih), 1 / math.sqrt(fan_hh)
        specs = [
            WeightShape("weight_ih", (rows, in_channels, *window), fan_ih, bound_ih),
            WeightShape(
                "weight_hh",
                (rows, hidden_channels, *window),
                fan_hh,
                bound_hh,
                passed_on=self._passed_on(hidden_channels),
            ),
            WeightShape("bias_ih", (rows,), fan_ih, bound_ih),
            WeightShape("bias_hh", (rows,), fan_hh, bound_hh),
        ]
        self._add_weights(specs if in_channels else specs[1:])

    def forward(self, x: Tensor | Moments, hx: Any = None) -> Any:
        """One step.

        Args:
            x: (B, in_channels, height, width)
            hx: the state before, (B, hidden_channels, height, width), for an LSTM a pair of those;
                None for zeros

        Returns:
            the state after, likewise
        """
        return self.run(x.unsqueeze(0), hx)[1]

    def run(self, x: Tensor | Moments, hx: Any = None) -> tuple[Moments, Any]:
        """All steps, the input's convolution done for all at once.

        Args:
            x: (T, B, in_channels, height, width)
            hx: (B, hidden_channels, height, width), for an LSTM a pair of those; None for zeros

        Returns:
            h after every step (T, B, hidden_channels, height, width), and the state after the last
        """
        self._check("x", x)
        if x.ndim != 5 or x.shape[2] != self.in_channels or x.shape[0] == 0:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; pass (T, B, {self.in_channels}, height, width) "
                "with at least one step"
            )
        _, batch, _, *size = x.shape
        shapes = ((batch, self.hidden_channels, *size),) * len(self.state_names)
        given = self._initial_state(hx, shapes, x, "batch, hidden_channels, height, width")
        state = tuple(_channels_last(value) for value in given)
        output, final, neurons = self._run_part("", _channels_last(self._enter(x)), state)
        if self._is_recorded:
            laid_out = {name: _channels_first(value) for name, value in neurons.items()}
            self._record("", laid_out, 0)
        output, *after = (self._leave(_channels_first(value)) for value in (output, *final))
        return output, self._pack_state(tuple(after))

    def _hidden_map(self, part: str) -> Affine:
        return self._filters("hh")

    def _input_map(self, part: str) -> Affine:
        return self._filters("ih")

    def _run_part(
        self,
        part: str,
        x: Any,
        state: tuple[Any, ...],
        reverse: bool = False,
        batch_sizes: Tensor | None = None,
    ) -> Trajectory:
        if self.in_channels or (self._redraws and x.shape[0] > 1):
            return super()._run_part(part, x, state, reverse, batch_sizes)
        inputs = self._without_input(x.shape[:-1])
        found = run(self._cell(part), inputs, state, backend=self.backend, record=self._is_recorded)
        watch(self, found.output)
        return found

    def _filters(self, part: str) -> Affine:
        name, bias = f"weight_{part}", f"bias_{part}"

        def make() -> Affine:
            # In the memory format of the images once, and not again at every step.
            weight = self._value(name).to(memory_format=torch.channels_last)
            gains = self._gain(name), self._coherence(name)
            return Affine.of(weight, self._value(bias), SAME_CONVOLUTION, *gains)

        return self._once((name, bias), make)

    def _without_input(self, places: torch.Size) -> Any:
        """What a cell that runs on its state alone has for the products with x: their bias."""
        bias = self._value("bias_ih")
        shape = (*places, self.gates * self.hidden_channels)
        if isinstance(bias, Tensor):
            return bias.expand(shape)
        return self._tell_bias("bias_ih", bias.mean.expand(shape), bias.var.expand(shape))

    def _constructor_arguments(self) -> dict[str, Any]:
        names = ("in_channels", "hidden_channels", "kernel_size")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        raise TypeError("torch.nn has no convolutional GRU or LSTM to convert from or to")

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.hidden_channels}, kernel_size={self.kernel_size}, "
            f"{self._options_repr()}"
        )


class ConvGRUCell(ConvCell):
    """One layer of a convolutional GRU. See `spgru.recurrent.gru` for the equations.

    For `reset_after` see `spgru.GRU`, for the other arguments `ConvCell`.
    """

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
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(in_channels, hidden_channels, kernel_size, device, dtype, **options)
        self.reset_after = reset_after

    def _cell(self, part: str) -> Cell:
        hidden = self._hidden_map(part)
        return gru_cell(hidden, self.hidden_channels, self.family, self.rule, self.reset_after)


class ConvLSTMCell(ConvCell):
    """One layer of a convolutional LSTM. See `spgru.recurrent.lstm` for the equations.

    The state is the pair (h, c). For the arguments see `ConvCell`.
    """

    gates = 4
    state_names = ("h", "c")

    def _cell(self, part: str) -> Cell:
        return lstm_cell(self._hidden_map(part), self.family, self.rule)


class ConvNetwork(nn.Module):
    """Layers of a cell, each reading the states h of the one below.

    Args:
        in_channels: of the input; 0 for a network that runs on its state alone
        hidden_channels: of every layer's state
        num_layers: how many
        kernel_size: odd
        options: `device`, `dtype` and the options of the cell
    """

    cell: type[ConvCell]

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
            self.cell(
                hidden_channels if k else in_channels, hidden_channels, kernel_size, **options
            )
            for k in range(num_layers)
        )

    def forward(self, x: Tensor | Moments, hx: Any = None) -> tuple[Moments, Any]:
        """Run along a sequence.

        Args:
            x: (T, B, in_channels, height, width)
            hx: (num_layers, B, hidden_channels, height, width), for an LSTM a pair of those; None
                for zeros

        Returns:
            the last layer's h after every step (T, B, hidden_channels, height, width), and every
            layer's state after the last, shaped like `hx`
        """
        output, states = self.run(x, self.by_layer(hx))
        parts = zip(*map(self.cell._unpack_state, states), strict=True)
        return output, self.cell._pack_state(tuple(stack(list(layers)) for layers in parts))

    def run(self, x: Tensor | Moments, states: list[Any]) -> tuple[Moments, list[Any]]:
        """`forward` with a state for each layer, which a loop over time need not stack."""
        after, output = [], x
        for cell, state in zip(self.cells, states, strict=True):
            assert isinstance(cell, ConvCell)
            output, final = cell.run(output, state)
            after.append(final)
        assert isinstance(output, Moments)
        return output, after

    def by_layer(self, hx: Any) -> list[Any]:
        """`hx` of `forward` as the states that `run` takes."""
        count = len(self.cells)
        if hx is None:
            return [None] * count
        state = self.cell._unpack_state(hx)
        for name, value in zip(self.cell.state_names, state, strict=True):
            check_value(f"hx ({name})", value, next(self.parameters()))
            if value.ndim != 5 or value.shape[0] != count:
                raise ValueError(
                    f"hx ({name}) has shape {tuple(value.shape)} but the network has {count} "
                    "layers; pass (num_layers, B, hidden_channels, height, width)"
                )
        # Unbound and not indexed: the adjoint of an index fills a whole stack with zeros.
        layers = zip(*(value.unbind(0) for value in state), strict=True)
        return [self.cell._pack_state(layer) for layer in layers]


class ConvGRU(ConvNetwork):
    """Layers of `ConvGRUCell`. For the arguments see there and `ConvNetwork`."""

    cell = ConvGRUCell


class ConvLSTM(ConvNetwork):
    """Layers of `ConvLSTMCell`; the state is the pair (h, c). For the arguments see there."""

    cell = ConvLSTMCell
