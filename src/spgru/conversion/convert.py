"""`convert`: the front, and how layers are put in place of torch's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from spgru.conversion.example import check_example, outputs_of
from spgru.conversion.laplace import laplace
from spgru.conversion.plan import make_plan
from spgru.conversion.table import LAYERS, PASSING
from spgru.moments.rows import CONVERTED, Converted
from spgru.nn import Layer
from spgru.nn.weight import check_standard_deviation
from spgru.runtime.errors import refuse

__all__ = ["convert"]

ModelT = TypeVar("ModelT", bound=nn.Module)

WeightStd = float | Mapping[str, float | Tensor] | None


def convert(
    model: ModelT,
    *,
    weight_std: WeightStd = None,
    data: Iterable[Any] | None = None,
    example: Any = None,
    keep: Collection[str] = (),
    inplace: bool = False,
    **laplace_options: Any,
) -> ModelT:
    """The network with random weights around those it was trained to: Moments out.

    Every Linear, Conv1d, Conv2d, Embedding, LayerNorm, GRU, LSTM, RNN and cell becomes that of
    `spgru.nn`, with the trained weights as means; modules of your own stay, and their forward runs
    on Moments, as do torch's activations, Dropout, Flatten and containers. With no variance the
    mean is that of `model`.

        twin = spgru.convert(model, weight_std=0.02)
        twin = spgru.convert(model, data=train_loader)       # variances by a Laplace approximation
        y = twin(x)                                          # y.mean, y.var

    Parameters that your own modules hold stay certain, and so do weights of a layer that your
    forward uses without calling the layer (a tied output), which `example=` finds and refuses. A
    module used in two places stays one module; a weight that two modules share is refused. Nothing
    is changed before all that cannot be converted is found: it is named in one error, each with its
    path and what to do.

    Args:
        model: an `nn.Module`, built from `torch.nn` or from modules of yours that are
        weight_std: standard deviation of the weights: a number; a mapping from names of parameters
            (`"lstm.weight_ih_l0"`) to numbers or tensors; None for a tenth of the range that
            `torch.nn` initialises within, for names that are missing too
        data: batches (input, target), the training data: `weight_std` is found by `spgru.laplace`
        example: an input (a tuple for several), on which the result is tried: what fails is named
            by its path, weights used outside their layer are refused, and its mean is compared
            with that of `model`
        keep: paths of modules that stay as they are, with all that is in them
        inplace: change `model` itself instead of a copy
        laplace_options: those of `spgru.laplace`
    """
    _check_arguments(model, weight_std, data, inplace, laplace_options)
    plan = make_plan(model, keep)
    stds, unknown = _by_layer(weight_std, plan.layers)
    refuse([*plan.problems, *unknown])
    expected = [] if example is None else outputs_of(model, example)
    twin = model if inplace else copy.deepcopy(model)
    layers = {path: twin.get_submodule(path) for path in plan.layers}
    made = {id(old): _made(old, stds[path]) for path, old in layers.items()}
    inside = {id(part) for path in keep for part in twin.get_submodule(path).modules()}
    others = [part for part in twin.modules() if id(part) not in inside]
    result = made.get(id(twin), twin)
    undo = [*_replace(others, made), *_forbid_writing(others), *_mark(others)]
    try:
        if example is not None:
            new = {path: made[id(old)] for path, old in layers.items()}
            check_example(result, example, expected, new)
        if data is not None:
            laplace(result, data, **laplace_options)
    except BaseException:
        for step in undo:
            step()
        raise
    return result  # type: ignore[return-value]


def _check_arguments(
    model: Any, weight_std: Any, data: Any, inplace: bool, options: dict[str, Any]
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    check_standard_deviation(weight_std)
    if isinstance(weight_std, Tensor):
        raise TypeError("weight_std is a Tensor; pass a number, or a mapping with one per name")
    if data is not None and weight_std is not None:
        raise ValueError("weight_std and data both give variances; pass one of them")
    if data is None and options:
        raise TypeError(f"{', '.join(options)} goes with data=, which is not given")
    if inplace and type(model) in LAYERS:
        raise ValueError(
            "a single layer cannot be changed in place; leave inplace out and use what is returned"
        )


def _by_layer(
    weight_std: WeightStd, layers: Mapping[str, nn.Module]
) -> tuple[dict[str, Any], list[str]]:
    """For each layer its own `weight_std`; and names that nothing has."""
    if not isinstance(weight_std, Mapping):
        return dict.fromkeys(layers, weight_std), []
    found: dict[str, Any] = {path: {} for path in layers}
    names: dict[str, tuple[str, str]] = {}
    for path, layer in layers.items():
        for name, _ in layer.named_parameters():
            names[f"{path}.{name}" if path else name] = path, name
    problems = []
    for full, std in weight_std.items():
        if full in names:
            path, name = names[full]
            found[path][name] = std
        else:
            problems.append(f"{full}: weight_std names it, but it is no weight of a layer")
    return found, problems


def _made(module: nn.Module, weight_std: Any) -> Layer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's layer was made with the same arguments
        layer = LAYERS[type(module)].from_torch(module, weight_std)
    for name, parameter in module.named_parameters():
        layer.get_parameter(name).requires_grad_(parameter.requires_grad)
    return layer


def _replace(
    modules: Iterable[nn.Module], made: Mapping[int, Layer]
) -> Iterator[Callable[[], None]]:
    """Put layers in place of those of torch; each step with what undoes it."""
    for module in modules:
        for name, child in list(module._modules.items()):
            if child is not None and id(child) in made:
                yield partial(module._modules.__setitem__, name, child)
                module._modules[name] = made[id(child)]


def _forbid_writing(modules: Iterable[nn.Module]) -> Iterator[Callable[[], None]]:
    """Moments are immutable: activations return what they would write."""
    for module in modules:
        if isinstance(module, PASSING) and getattr(module, "inplace", False):
            yield partial(setattr, module, "inplace", True)
            module.inplace = False  # type: ignore[assignment]


def _mark(modules: Iterable[nn.Module]) -> Iterator[Callable[[], None]]:
    """Have iteration over Moments give rows in their code, which was written for tensors."""
    for module in modules:
        if CONVERTED not in module.__dict__ and not isinstance(module, Layer):
            yield partial(module.__dict__.pop, CONVERTED)
            module.__dict__[CONVERTED] = Converted()
