"""Training with Lightning: the network, the data and the loss of examples/training.py.

Run:  python examples/training_lightning.py          (about 15 seconds on two cores)
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

import spgru
from training import BATCH, EPOCHS, NOISE, WARMUP, Network, windows


class Probabilistic(lightning.LightningModule):
    """Nothing but the loss differs from a plain network.

    Args:
        data_size: entries of the targets in the whole training data, of all processes together
    """

    def __init__(self, data_size: int, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network, self.data_size, self.lr = Network(), data_size, lr

    def forward(self, x: Tensor) -> Any:
        return self.network(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        loss = spgru.loss(
            self(x), y, self, data_size=self.data_size, step=self.global_step, warmup=WARMUP
        )
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        x, y = batch
        self.log("kept", spgru.loss(self(x), y, kind="nll"), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = spgru.parameter_groups(self)
        return torch.optim.AdamW(groups, lr=self.lr, weight_decay=1e-4)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    data, kept, new = windows(1000, 1), windows(300, 2), windows(1000, 3)
    best = ModelCheckpoint("outputs/lightning", monitor="kept", save_weights_only=True)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", gradient_clip_val=1.0, logger=False,
        callbacks=[best, EarlyStopping("kept", patience=4)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Probabilistic(data.tensors[1].numel())
    trainer.fit(model, DataLoader(data, BATCH, shuffle=True), DataLoader(kept, 300))
    model.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])

    with torch.no_grad():
        y = model(new.tensors[0])
    low, high = y.interval(0.9)
    inside = ((low <= new.tensors[1]) & (new.tensors[1] <= high)).double().mean()
    error = (y.mean - new.tensors[1]).square().mean().sqrt()
    print(f"error {error:.3f}, of which noise {NOISE}; 90 % intervals hold for {inside:.0%}")


if __name__ == "__main__":
    main()
