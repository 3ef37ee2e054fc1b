from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru import Moments, modes


class Forecaster(nn.Module):
    """A user's module: two of our layers, plain code in between."""

    def __init__(self, layer: type = spgru.GRU) -> None:
        super().__init__()
        self.encoder = layer(3, 4, 2, bidirectional=True, batch_first=True)
        self.head = spgru.Linear(8, 1)

    def forward(self, x: torch.Tensor | Moments) -> Moments:
        output, _ = self.encoder(x)
        return self.head(spgru.functional.relu(output[:, -1]))


def test_names_and_layout() -> None:
    trace = spgru.trace(Forecaster(), torch.randn(2, 5, 3))
    assert list(trace) == [
        "encoder.l0",
        "encoder.l0_reverse",
        "encoder.l1",
        "encoder.l1_reverse",
        "head",
    ]
    assert list(trace["encoder.l0"]) == ["r", "z", "candidate", "state"]
    assert trace["encoder.l1"]["z"].shape == (2, 5, 4)
    assert trace["head"]["output"].shape == (2, 1)
    assert "encoder.l0_reverse: r, z, candidate, state  (2, 5, 4)" in repr(trace)


def test_neurons_of_a_gru() -> None:
    gru = spgru.GRU(3, 4, 2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    out, _ = gru(x)
    trace = spgru.trace(gru, x)
    torch.testing.assert_close(trace["l1"]["state"].var, out.var[..., :4])
    torch.testing.assert_close(trace["l1_reverse"]["state"].mean, out.mean[..., 4:])
    neurons = trace["l0"]
    for t in range(1, 5):
        h = spgru.functional.lerp(neurons["candidate"][t], neurons["state"][t - 1], neurons["z"][t])
        torch.testing.assert_close(h.var, neurons["state"][t].var)
    assert not modes.records_of(gru)  # nothing is kept afterwards


def test_neurons_of_lstm_rnn_and_cells() -> None:
    x = torch.randn(5, 3)
    lstm = spgru.trace(spgru.LSTM(3, 4, proj_size=2), x)["l0"]
    assert list(lstm) == ["i", "f", "o", "candidate", "state", "cell"]
    assert lstm["state"].shape == (5, 2)
    assert lstm["cell"].shape == (5, 4)
    assert list(spgru.trace(spgru.RNN(3, 4), x)["l0"]) == ["state"]

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = spgru.GRUCell(3, 4)

        def forward(self, x: torch.Tensor) -> Moments:
            state = None
            for x_t in x:
                state = self.cell(x_t, state)
            return state

    loop = Loop()
    cell = spgru.trace(loop, x)["cell"]
    assert cell["z"].shape == (5, 4)
    torch.testing.assert_close(cell["state"][-1].var, loop(x).var)


def test_packed_batches_come_back_in_their_own_order() -> None:
    lengths = [3, 5, 2]
    gru = spgru.GRU(3, 4, bidirectional=True)
    x = torch.randn(5, 3, 3)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, _ = spgru.pad_packed_moments(gru(packed)[0])
    traced = spgru.trace(gru, packed)
    for part, columns in (("l0", slice(0, 4)), ("l0_reverse", slice(4, 8))):
        state = traced[part]["state"]
        torch.testing.assert_close(state.mean, output.mean[..., columns])
        torch.testing.assert_close(state.var, output.var[..., columns])


def test_repeated_calls_of_other_shapes_are_numbered() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = spgru.GRU(3, 4)

        def forward(self, x: torch.Tensor) -> Moments:
            self.gru(x[:, :2])
            return self.gru(x)[0]

    trace = spgru.trace(Twice(), torch.randn(5, 6, 3))
    assert trace["gru.l0 (call 1)"]["state"].shape == (5, 2, 4)
    assert trace["gru.l0 (call 2)"]["state"].shape == (5, 6, 4)
