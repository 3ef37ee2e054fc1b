"""Training by a plain loop: the evidence lower bound in one call, warm-up, early stopping.

Run:  python examples/training.py          (about 10 seconds on two cores)
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spgru
from spgru import Moments

PAST, NOISE = 24, 0.2
EPOCHS, BATCH, WARMUP = 12, 64, 40


class Network(nn.Module):
    """Any module of layers of `spgru`; the head gives a value and how noisy it is."""

    def __init__(self, hidden_size: int = 16) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, hidden_size, batch_first=True)
        self.head = spgru.nn.GaussianHead(hidden_size, 1)

    def forward(self, x: Tensor) -> Moments:
        """(B, PAST, 1) -> (B, 1)"""
        return self.head(self.gru(x)[0][:, -1])


def windows(count: int, seed: int) -> TensorDataset:
    """What came before (PAST, 1), and the next value (1), of noisy oscillations."""
    generator = torch.Generator().manual_seed(seed)
    phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
    series = torch.sin(torch.arange(PAST + 1) * 2 * math.pi / 12 + phase)
    series = series + NOISE * torch.randn(count, PAST + 1, generator=generator)
    return TensorDataset(series[:, :PAST, None], series[:, PAST:])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, kept, new = windows(1000, 1), windows(300, 2), windows(1000, 3)
    loader = DataLoader(data, BATCH, shuffle=True)
    model = Network()
    # No weight decay for spreads: the divergence is what holds them.
    optimiser = torch.optim.AdamW(spgru.parameter_groups(model), lr=1e-2, weight_decay=1e-4)
    steps, best, weights = 0, math.inf, copy.deepcopy(model.state_dict())
    loss = torch.tensor(math.nan)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for x, y in loader:
            loss = spgru.loss(
                model(x), y, model, data_size=data.tensors[1].numel(), step=steps, warmup=WARMUP
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            steps += 1
        model.eval()
        with torch.no_grad(), spgru.frozen(model):
            score = spgru.loss(model(kept.tensors[0]), kept.tensors[1], kind="nll").item()
        if score < best:
            best, weights = score, copy.deepcopy(model.state_dict())
        if epoch % 4 == 0:
            print(f"epoch {epoch:2d}  loss {loss.item():6.3f}  kept from training {score:6.3f}")
    model.load_state_dict(weights)

    with torch.no_grad():
        y = model(new.tensors[0])
    low, high = y.interval(0.9)
    inside = ((low <= new.tensors[1]) & (new.tensors[1] <= high)).double().mean()
    error = (y.mean - new.tensors[1]).square().mean().sqrt()
    print(f"error {error:.3f}, of which noise {NOISE}; 90 % intervals hold for {inside:.0%}")


if __name__ == "__main__":
    main()
