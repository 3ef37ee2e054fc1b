"""What is to be replaced in a network, and everything that stands in the way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize

from spgru.conversion.table import CONTAINERS, LAYERS, PASSING, remedy_for
from spgru.nn import Layer

__all__ = ["Plan", "make_plan"]

_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has; its children are among them."""


class Plan(NamedTuple):
    """Layers to replace by their first path, and what is wrong, a sentence each."""

    layers: dict[str, nn.Module]
    problems: list[str]


def make_plan(model: nn.Module, keep: Collection[str] = ()) -> Plan:
    """Look at the whole network without changing it.

    Args:
        keep: paths of modules that stay as they are, with all that is in them
    """
    paths = {path for path, _ in model.named_modules(remove_duplicate=False)}
    problems = [
        f"{path}: keep= names it, but the network has no such module"
        for path in keep
        if path not in paths
    ]
    layers: dict[str, nn.Module] = {}
    for path, module in _visited(model, "", set(keep), set()):
        found = list(_problems(module))
        problems += [f"{path or 'the network'}: {type(module).__name__} {text}" for text in found]
        if not found and type(module) in LAYERS and _has_weights(module):
            layers[path] = module
    problems += _shared(model, layers)
    if not layers and not problems:
        problems.append(
            f"the network ({type(model).__name__}) has no layer to convert; "
            f"layers are {', '.join(kind.__name__ for kind in LAYERS)}"
        )
    return Plan(layers, problems)


def _visited(
    module: nn.Module, path: str, keep: Collection[str], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    """Modules that decide about themselves, each once; what is refused is not looked into."""
    if id(module) in seen or path in keep:
        return
    seen.add(id(module))
    yield path, module
    if type(module) in LAYERS or isinstance(module, Layer) or _is_refused(module):
        return
    for name, child in module.named_children():
        yield from _visited(child, f"{path}.{name}" if path else name, keep, seen)


def _is_refused(module: nn.Module) -> bool:
    """Whether it is torch's, or inherits code of torch's, and torch's code cannot take Moments."""
    if isinstance(module, (*PASSING, *CONTAINERS, Layer)):
        return False
    bases = [kind for kind in type(module).__mro__ if issubclass(kind, nn.Module)]
    return any(kind.__module__.startswith("torch.") for kind in bases if kind is not nn.Module)


def _problems(module: Any) -> Iterator[str]:
    if isinstance(module, Layer):
        return
    # A parametrization gives its module a class of its own.
    if type(module) in LAYERS or parametrize.is_parametrized(module):
        yield from _problems_of_layer(module)
        return
    if isinstance(module, tuple(LAYERS)):
        base = next(kind.__name__ for kind in LAYERS if isinstance(module, kind))
        yield (
            f"is a class of its own, whose code a layer of ours does not have; let it hold an "
            f"nn.{base} instead of being one"
        )
    elif _is_refused(module):
        yield remedy_for(module)
    elif isinstance(module, nn.GELU) and module.approximate != "none":
        yield f"with approximate={module.approximate!r} has no rule; use approximate='none'"
    elif isinstance(module, nn.ELU) and module.alpha != 1:
        yield f"with alpha={module.alpha} has no rule; use alpha=1"
    elif isinstance(module, nn.LeakyReLU) and not 0 <= module.negative_slope <= 1:
        yield f"with negative_slope={module.negative_slope} has no rule; use one from 0 to 1"
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and (
        module.training or module.running_var is None
    ):
        yield (
            "normalises by the statistics of a batch; call model.eval() before, which takes the "
            "running ones, a linear map"
        )
    for name, value in vars(module).items():
        if name in _OWN:
            continue
        held = list(_held(value))
        if any(isinstance(entry, nn.Module) for entry in held):
            yield (
                f"holds modules in {name!r}, which torch does not know; use nn.ModuleList or "
                "nn.ModuleDict"
            )
        for method in held:
            if isinstance(method, MethodType) and type(method.__self__) in LAYERS:
                yield (
                    f"holds a method of a layer in {name!r}, which would stay that of torch's; "
                    "call the layer in forward instead"
                )


def _held(value: Any) -> Iterator[Any]:
    """What an attribute holds: itself, or the entries of containers, and of functools.partial."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif isinstance(value, partial):
        value = [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        for entry in value:
            yield from _held(entry)
    else:
        yield value


def _problems_of_layer(module: Any) -> Iterator[str]:
    if parametrize.is_parametrized(module):
        yield (
            "has a parametrization; take it away with "
            "torch.nn.utils.parametrize.remove_parametrizations, which keeps the weight"
        )
    elif any(name.endswith("_orig") for name in module._parameters):
        yield "is pruned; make it permanent with torch.nn.utils.prune.remove"
    elif module._forward_pre_hooks or module._forward_hooks:
        yield "has hooks (or an old weight_norm), which a new layer does not have; remove them"
    elif any(p is None or p.device.type == "meta" for p in _parameters(module)):
        yield "has no values yet; load the weights first"
    elif _has_weights(module):
        try:
            LAYERS[type(module)]._torch_arguments(module)
        except ValueError as error:
            yield f"cannot be converted: {error}"


def _parameters(module: nn.Module) -> list[Tensor]:
    return list(module.parameters(recurse=False))


def _has_weights(module: nn.Module) -> bool:
    """A LayerNorm without weights stays torch's own."""
    return bool(_parameters(module))


def _shared(model: nn.Module, layers: dict[str, nn.Module]) -> Iterator[str]:
    """Weights that several modules hold: each would become random by itself."""
    owners: dict[tuple[int, int], dict[int, str]] = {}
    for path, module in model.named_modules():
        for name, tensor in module.named_parameters(recurse=False):
            if tensor.numel() and tensor.device.type != "meta":
                key = tensor.data_ptr(), tensor.numel()
                full = f"{path}.{name}" if path else name
                owners.setdefault(key, {})[id(module)] = full
    converted = {id(module) for module in layers.values()}
    for found in owners.values():
        if len(found) > 1 and converted & set(found):
            names = ", ".join(found.values())
            yield (
                f"{names}: one weight in several modules, which would become independent random "
                "weights; give each a copy of its own, or name all but one in keep="
            )
