"""MC dropout: folded draws are looped draws, and a draw is a plain network with weights removed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spgru.baselines import Deterministic, MCDropoutGRU, MCDropoutLSTM
from spgru.baselines.mc_dropout import Masks
from spgru.metrics import cross_entropy_per_frame
from spgru.objectives import Objective

SIZE: dict[str, Any] = {"height": 4, "width": 3}
KINDS = [MCDropoutGRU, MCDropoutLSTM]
MODES = pytest.mark.parametrize("recurrent", [True, False], ids=["recurrent", "fused"])


def pick(masks: Masks, rows: slice) -> Masks:
    """The masks of some of the networks."""
    return Masks(
        *(
            tuple(mask[rows] for mask in part) if isinstance(part, tuple) else part[rows]
            for part in masks
        )
    )


@MODES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_folded_draws_are_looped_draws(kind: Any, num_layers: int, recurrent: bool) -> None:
    model = kind(5, num_layers, 0.4, recurrent, dtype=torch.float64, **SIZE)
    frames, draws, batch = torch.rand(3, 2, 4, 3).double(), 6, 2
    generator = torch.Generator().manual_seed(3)
    masks = model.draw_masks(draws * batch, generator)
    folded = model(frames, masks, 4)
    looped = [
        model(frames, pick(masks, slice(d * batch, (d + 1) * batch)), 4) for d in range(draws)
    ]
    torch.testing.assert_close(folded, torch.cat(looped, 1))
    pixels = torch.sigmoid(torch.stack(looped))
    got = model.predict(frames, 4, draws, generator.manual_seed(3))
    torch.testing.assert_close(got.mean, pixels.mean(0))
    torch.testing.assert_close(got.var, pixels.var(0))
    assert (got.var > 0).all()


def thinned(layer: nn.RNNBase, inputs: Tensor, state: Tensor | None) -> nn.RNNBase:
    """The plain layer with the columns of missing units scaled away."""
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight_ih_l0 *= inputs
        if state is not None:
            layer.weight_hh_l0 *= state
    return layer


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_a_plain_network_without_some_weights(kind: Any, recurrent: bool) -> None:
    model = kind(5, 2, 0.4, recurrent, dtype=torch.float64, **SIZE)
    frames, masks = torch.rand(3, 1, 4, 3).double(), model.draw_masks(1)
    x, states = frames.flatten(2), []
    for k, layer in enumerate(model.encoder):
        mask = masks.encoder_states[k][0] if recurrent else None
        x, state = thinned(layer, masks.encoder_inputs[k][0], mask)(x)
        states.append(state)
    x = torch.zeros(3, 1, 1).double()
    inputs = (torch.ones(1).double(), *(mask[0] for mask in masks.decoder_inputs))
    for k, layer in enumerate(model.decoder):
        mask, state = masks.decoder_states[k][0], states[k]
        if not recurrent:
            state = (state[0] * mask, state[1]) if isinstance(state, tuple) else state * mask
        x, _ = thinned(layer, inputs[k], mask if recurrent else None)(x, state)
    want = model.readout(x * masks.output).view(3, 1, 4, 3)
    torch.testing.assert_close(model(frames, masks), want)


@MODES
@pytest.mark.parametrize(("kind", "cell"), [(MCDropoutGRU, "gru"), (MCDropoutLSTM, "lstm")])
def test_without_dropout_it_is_deterministic(kind: Any, cell: Any, recurrent: bool) -> None:
    model = kind(5, 1, 0.0, recurrent, dtype=torch.float64, **SIZE)
    plain = Deterministic(5, 1, cell, dtype=torch.float64, **SIZE)
    plain.encoder.load_state_dict(model.encoder[0].state_dict())
    plain.decoder.load_state_dict(model.decoder[0].state_dict())
    plain.readout.load_state_dict(model.readout.state_dict())
    frames = torch.rand(6, 2, 4, 3).double()
    got = model.predict(frames[:3], draws=3)
    torch.testing.assert_close(got.mean, plain.predict(frames[:3]).mean)
    assert (got.var < 1e-30).all()
    torch.testing.assert_close(
        model.loss(frames, Objective()).total, plain.loss(frames, Objective()).total
    )


def test_masks_keep_the_mean() -> None:
    masks = MCDropoutGRU(50, 2, 0.2, **SIZE).draw_masks(400)
    for mask in (*masks.encoder_inputs, *masks.decoder_states, *masks.decoder_inputs, masks.output):
        assert set(mask.unique().tolist()) == {0.0, 1.25}
        # variance p / (1 - p) = 1/4
        assert abs(mask.mean() - 1) < 5 * 0.5 / mask.numel() ** 0.5
    assert masks.encoder_inputs[0].shape == (400, 12)
    assert len(masks.decoder_inputs) == 1


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_mc_dropout_learns_a_tiny_batch(bars: Tensor, kind: Any, recurrent: bool) -> None:
    """Within 100 steps to half the score of the best constant frame. Over 3 seeds: 0.02 to 0.05."""
    model = kind(32, 1, 0.05, recurrent, height=8, width=8)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(100):
        optimiser.zero_grad()
        loss = model.loss(bars, Objective("elbo"))
        loss.total.backward()
        optimiser.step()
    constant = bars[3:].mean((0, 1)).expand(3, 2, 8, 8)
    limit = 0.5 * cross_entropy_per_frame(constant, bars[3:]).mean()
    assert cross_entropy_per_frame(model.predict(bars[:3]), bars[3:]).mean() < limit


def test_mc_dropout_under_autocast() -> None:
    frames = torch.rand(4, 2, 4, 3)
    for kind in KINDS:
        for recurrent in (True, False):
            model = kind(5, 2, 0.2, recurrent, **SIZE)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model.loss(frames, Objective()).total.backward()
                assert model.predict(frames[:2], draws=3).var.dtype == torch.float32


def test_mc_dropout_errors() -> None:
    model = MCDropoutLSTM(3, **SIZE)
    with pytest.raises(ValueError, match="draws must be at least 2"):
        model.predict(torch.rand(2, 1, 4, 3), draws=1)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\)"):
        MCDropoutLSTM(3, dropout=1.0)
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        MCDropoutGRU(3, 0)
