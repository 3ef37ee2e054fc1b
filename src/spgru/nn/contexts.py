"""Blocks in which the layers of a module run in another way: see `spgru.modes`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from spgru.modes import (
    AtMean,
    Drawn,
    Record,
    WeightMode,
    enter_frozen,
    enter_recording,
    enter_weights,
)
from spgru.nn.layer import layers_of, refresh_weights

__all__ = ["at_mean", "frozen", "recording", "sampling", "shared_weights"]


@contextmanager
def sampling(
    module: nn.Module, generator: torch.Generator | None = None, every_step: bool = False
) -> Iterator[None]:
    """Within this block the module runs with weights drawn at random instead of moments.

    One draw serves the whole block, or, with `every_step`, recurrent layers draw again at each
    time step. Moments that enter a layer are drawn too, so that variance a module adds between our
    layers counts. Outputs are certain: one sample of the network that the moments describe. So this
    is what the closed form is to agree with:

        means = []
        for _ in range(300):
            with spgru.sampling(model):
                means.append(model(x).mean)
        true = torch.stack(means).var(0)    # plus model(x).var of the block, noise that it adds

    Nothing is differentiated.

    Args:
        generator: on the device of the weights; None for a new one, seeded by torch's own
    """
    if generator is None:
        device = next((layer._like.device for _, layer in layers_of(module)), None)
        seed = int(torch.randint(2**62, ()))
        generator = torch.Generator(device or "cpu").manual_seed(seed)
    with torch.no_grad():
        refresh_weights(module)
        modes: dict[nn.Module, WeightMode] = {
            layer: Drawn(
                generator,
                None
                if every_step
                else {
                    name: layer.family.sample(weight.moments(), generator)
                    for name, weight in layer.weights().items()
                },
            )
            for _, layer in layers_of(module)
        }
        with enter_weights(modes):
            yield


@contextmanager
def at_mean(module: nn.Module) -> Iterator[None]:
    """Within this block the module is a plain network: every weight is its mean, and certain.

    It costs what a plain network costs and gives gradients of the means, so training can begin
    here and turn to the variances later. Outputs have variance 0.
    """
    mode = AtMean()
    with enter_weights({layer: mode for _, layer in layers_of(module)}):
        yield


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Within this block the weights of `module` neither change nor learn.

    What they imply (variances, second moments, forms that kernels want) is then computed once
    instead of at every call, which is most of the work of a short call:

        with torch.no_grad(), spgru.frozen(model):
            for x_t in stream:
                y_t, state = model.step(x_t, state)

    Changes that torch counts (an optimiser's step, `load_state_dict`, `copy_`) are noticed all the
    same; after changes through `.data` the answer is that of the weights before. Gradients still
    reach the inputs. A CUDA graph captured within reads what is cached, and so has the weights of
    that time.

    On a GPU recurrent layers, and `predict` of `spgru.models`, go further: without gradients the
    third call with the same shapes is recorded as a CUDA graph, and from then on replayed
    (`spgru.nn.replay`), with memory for what a call computes, for at most 8 shapes.
    """
    with enter_frozen((layer for _, layer in layers_of(module)), learns=False):
        yield


@contextmanager
def shared_weights(module: nn.Module) -> Iterator[None]:
    """`frozen` for the calls of one pass that are differentiated together: weights learn.

    For a loop over time that calls layers at every step.
    """
    with enter_frozen((layer for _, layer in layers_of(module)), learns=True):
        yield


@contextmanager
def recording(module: nn.Module) -> Iterator[dict[str, list[Record]]]:
    """Collect every neuron of our layers inside `module`, by the layer's name in it."""
    layers = dict(layers_of(module))
    records: dict[str, list[Record]] = {name: [] for name in layers}
    with enter_recording({layer: records[name] for name, layer in layers.items()}):
        yield records
