"""Factors on the variance of a module's output: what `spgru.calibrate` may add to a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from spgru.modes import enter_gains, gains_of, unobserved, watch
from spgru.moments import Moments
from spgru.moments.nested import at_their_means, dims_of, first_moments, is_moments
from spgru.nn.contexts import at_mean
from spgru.nn.layer import layers_of
from spgru.nn.scale import Scale

__all__ = [
    "CHILD", "OutputScale", "attach_scale", "detach_scale", "named_scales", "own_scale", "place_of",
    "scales_of", "uncalibrated", "with_plain_mean",
]  # fmt: skip

CHILD = "output_scale"
"""Name of the child that `attach_scale` gives a module."""

_OUTCOMES = "outcome_"
"""Begins the names of the buffers of a fit to outcomes."""


class OutputScale(nn.Module):
    """Moments to the same moments with their variance scaled; as they are before calibration.

    Once by a fit to drawn networks, and then by a fit to outcomes, which another may replace.

    Args:
        is_attached: whether a hook of the module that has this child calls `scaled`. The module's
            own code may call all of its children, as `nn.Sequential` does, and must find one that
            does nothing.
    """

    is_attached = False
    is_kept = False
    """whether a state dict is read that leaves the module's weights as they are"""

    def __init__(self, is_attached: bool = False) -> None:
        super().__init__()
        self.is_attached = is_attached
        for prefix in ("", _OUTCOMES):
            for name in Scale._fields:
                self.register_buffer(prefix + name, None)

    @property
    def scale(self) -> Scale | None:
        """What a fit to drawn networks found, None before."""
        return self._scale_of("")

    @property
    def outcomes(self) -> Scale | None:
        """What a fit to outcomes found, None before."""
        return self._scale_of(_OUTCOMES)

    def _scale_of(self, prefix: str) -> Scale | None:
        # Not by attribute: a small network on a GPU waits for every microsecond of the host.
        buffers = self._buffers
        if buffers[prefix + "factor"] is None or gains_of(self) is not None:
            return None
        return Scale(*(buffers.get(prefix + name) for name in Scale._fields))  # type: ignore[arg-type]

    @property
    def keeps_mean(self) -> bool:
        """Whether whoever calls this has to put the mean of the plain closed form in place."""
        scale = self.scale
        return scale is not None and scale.plain_mean is not None

    @property
    def wants_own(self) -> bool:
        """Whether `scaled` takes the variance that the module adds for the input at hand."""
        scales = self.scale, self.outcomes
        return any(scale is not None and scale.noise_factor is not None for scale in scales)

    def set_(self, scale: Scale | None) -> None:
        """Take this in place of all that any fit found."""
        self._put("", scale)
        self._put(_OUTCOMES, None)

    def set_outcomes_(self, scale: Scale | None) -> None:
        """Take this in place of what a fit to outcomes found."""
        self._put(_OUTCOMES, scale)

    def _put(self, prefix: str, scale: Scale | None) -> None:
        for name in Scale._fields:
            value = None if scale is None else getattr(scale, name)
            setattr(self, prefix + name, None if value is None else value.detach().clone())

    def extra_repr(self) -> str:
        named = {"calibrated to drawn networks": self.scale, "to outcomes": self.outcomes}
        return ", ".join(f"{name}: {scale.form}" for name, scale in named.items() if scale)

    def forward(self, x: Any) -> Any:
        return x if self.is_attached else self.scaled(x)

    def scaled(
        self, x: Moments, own: Tensor | None = None, input_dims: int | None = None
    ) -> Moments:
        """(T, B, ...) or (B, T, ...) -> the same, packed too.

        Args:
            own: what the module adds for this input, packed if the moments are
            input_dims: dimensions of the module's first input
        """
        found = x
        for scale in (self.scale, self.outcomes):
            if scale is None:
                continue
            found = Moments(found.mean, scale.apply(found.var, own, input_dims))
            if own is not None:  # the next one finds it scaled, too
                own = scale.apply(own, own, input_dims)
        watch(self, found)
        return found

    def make_room(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Have the buffers that the state dict has."""
        for name in self._buffers:
            loaded = state_dict.get(prefix + name)
            setattr(self, name, None if loaded is None else torch.empty_like(loaded))

    def before_loading(self, owner: nn.Module, state_dict: Mapping[str, Any], prefix: str) -> None:
        """To be called by the module that has this child, before it loads its weights.

        A state dict without a scale takes it out, but for one that leaves out some weights and
        changes none: so the scale of a module stays where a part of it is loaded again.
        """
        weights = dict(owner.named_parameters())
        given = {name: state_dict[prefix + name] for name in weights if prefix + name in state_dict}
        self.is_kept = (
            len(given) < len(weights)
            and not _loses_gains(owner, state_dict, prefix)
            and all(_is_same(weights[name], value) for name, value in given.items())
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        has_scale = any(prefix + name in state_dict for name in self._buffers)
        if has_scale or not self.is_kept:
            self.make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _is_same(weight: Tensor, value: Tensor) -> bool:
    if weight.is_meta or value.is_meta or weight.shape != value.shape:
        return False
    return torch.equal(weight.detach(), value.to(weight))


def _loses_gains(owner: nn.Module, state_dict: Mapping[str, Any], prefix: str) -> bool:
    """Whether gains go with weights that are loaded without any."""
    return any(
        any(key.startswith(f"{prefix}{name}.") for key in state_dict)
        and not all(f"{prefix}{name}.{buffer}" in state_dict for buffer in layer.gain_state())
        for name, layer in layers_of(owner)
        if layer.gains()
    )


def _scale(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
    """The hook: the first Moments scaled, everything else as it is."""
    child: Any = module._modules.get(CHILD)
    if child is None:
        raise RuntimeError(
            f"the child {CHILD!r} that a calibration added to {type(module).__name__} was taken "
            "away; call `spgru.uncalibrate` before you change the module"
        )
    if not any(map(is_moments, pytree.tree_leaves(output, is_leaf=is_moments))):
        return output  # a loss, or an object that holds Moments
    first, own = first_moments(output), None
    if child.wants_own:
        # A pass of its own, which nobody who records or watches asked for.
        with unobserved(), at_mean(module):
            # Not the module's call, which would come here again.
            arguments_, keywords_ = at_their_means((arguments, keywords))
            own = first_moments(module.forward(*arguments_, **keywords_)).var
    scaled = child.scaled(first, own, dims_of((arguments, keywords)))
    if child.keeps_mean:
        # Not the module's call here either.
        scaled = with_plain_mean(module, scaled, lambda: module.forward(*arguments, **keywords))
    return pytree.tree_map(
        lambda value: scaled if value is first else value, output, is_leaf=is_moments
    )


def named_scales(module: nn.Module) -> Iterator[tuple[str, OutputScale]]:
    """Those that act, by name: one that was attached to another module, of which this one has taken
    over the children (`nn.Sequential(*m)`, `m[:]`), does not."""
    for parent_name, parent in module.named_modules():
        for name, child in parent.named_children():
            is_scale = isinstance(child, OutputScale)
            if is_scale and (not child.is_attached or child is own_scale(parent)):
                yield f"{parent_name}.{name}" if parent_name else name, child


def own_scale(module: nn.Module) -> OutputScale | None:
    """That which `attach_scale` gave to this module."""
    child = module._modules.get(CHILD)
    is_attached = _scale in module._forward_hooks.values()
    return child if isinstance(child, OutputScale) and is_attached else None


def scales_of(module: nn.Module) -> list[OutputScale]:
    """Without their names."""
    return [scale for _, scale in named_scales(module)]


def with_plain_mean(module: nn.Module, scaled: Moments, run: Callable[[], Any]) -> Moments:
    """The variance of `scaled`, with the mean that `run` gives in the plain closed form."""
    with unobserved(), uncalibrated(module):
        return Moments(first_moments(run()).mean, scaled.var)


@contextmanager
def uncalibrated(module: nn.Module) -> Iterator[None]:
    """Within this block the module runs in the plain closed form."""
    layers: list[nn.Module] = [layer for _, layer in layers_of(module)]
    with enter_gains({child: {} for child in (*layers, *scales_of(module))}):
        yield


def attach_scale(module: nn.Module) -> OutputScale:
    """Give a module of any class a scale of its own output."""
    there = getattr(module, CHILD, None)
    if isinstance(there, OutputScale) and own_scale(module) is None:
        del module._modules[CHILD]  # taken over from another module with the rest of its children
    elif hasattr(module, CHILD):
        raise ValueError(
            f"{type(module).__name__} has an attribute {CHILD!r}, the name of what a calibration "
            "adds to a module; rename it"
        )
    scale = OutputScale(is_attached=True)
    module.add_module(CHILD, scale)
    module.register_forward_hook(_scale, with_kwargs=True)
    # As a method of an object that knows the module: one that torch would hold weakly is lost in
    # copies.
    module._register_load_state_dict_pre_hook(_Loading(module).begins)  # type: ignore[no-untyped-call]
    return scale


class _Loading:
    """Tells the scale of a module that the module is about to load its weights."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def begins(self, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
        scale = self.module._modules.get(CHILD)
        if isinstance(scale, OutputScale):
            scale.before_loading(self.module, state_dict, prefix)


def place_of(module: nn.Module, place: OutputScale | None) -> OutputScale:
    """Where a scale was tried, or the module's own output if that is not there any more."""
    is_there = any(one is place for one in scales_of(module))
    return place if place is not None and is_there else attach_scale(module)


def detach_scale(module: nn.Module) -> None:
    """Take away what `attach_scale` gave."""
    for key in [key for key, hook in module._forward_hooks.items() if hook is _scale]:
        del module._forward_hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)
    waiting: Any = module._load_state_dict_pre_hooks
    for key in [
        k for k, v in waiting.items() if isinstance(getattr(v.hook, "__self__", None), _Loading)
    ]:
        del waiting[key]
    if isinstance(module._modules.get(CHILD), OutputScale):
        del module._modules[CHILD]
