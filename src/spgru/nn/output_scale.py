"""Factors on the variance of a module's output: what `spgru.calibrate` may add to a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.checks import has_triton, is_transformed
from spgru.modes import enter_gains, gains_of, unobserved, watch
from spgru.moments import Moments
from spgru.nn.contexts import at_mean
from spgru.nn.layer import layers_of

__all__ = [
    "CHILD", "OutputScale", "Scale", "at_their_means", "attach_scale", "detach_scale",
    "first_moments", "put_scale", "scales_of", "uncalibrated",
    "with_plain_mean",
]  # fmt: skip

CHILD = "output_scale"
"""Name of the child that `attach_scale` gives a module."""


class Scale(NamedTuple):
    """From the variance of an output to another one.

        var' = factor_t V^power_t (var - own) + noise

    Of the variance, `own` is what the module adds itself, and not its weights; V is the mean of the
    rest over the features of a step and sequence. The factor keeps the ranking of features; the
    power lets a sequence with more variance than others have a larger or smaller factor. Beyond the
    levels that the fit has seen it stays what it is at the nearest of them.
    """

    factor: Tensor
    """(S,) if time is the first dimension, (1, S) if it is the second; (1,) for all steps. Later
    steps have the factor of the last"""
    power: Tensor | None = None
    """() where features follow the sequences; where time is there too (1,) for all steps, or in the
    shape of the factor; None for 0"""
    own: Tensor | None = None
    """shape of the features; None for 0"""
    noise: Tensor | None = None
    """likewise"""
    noise_factor: Tensor | None = None
    """(), where `own` depends on the input: it is found by a pass with weights at their means, and
    `noise` is it times this factor"""
    low: Tensor | None = None
    """least V of the fit, in the shape of the power; None for no limit"""
    high: Tensor | None = None
    """largest V of the fit, likewise"""
    plain_mean: Tensor | None = None
    """(), there if the output has the mean of the plain closed form, which takes a pass of its own:
    gains change means, too, since that of an activation depends on the variance"""
    dims: Tensor | None = None
    """a number in as many dimensions as the output had in the fit, by which a single sequence is
    told from a batch; None where that is not known"""

    def __call__(self, var: Tensor) -> Tensor:
        """(T, B, *features), (B, T, *features) or (B, *features) -> the same, also without B"""
        if self.dims is not None and var.ndim == self.dims.ndim - 1:
            return self._of_batch(var.unsqueeze(self._batch_dim)).squeeze(self._batch_dim)
        return self._of_batch(var)

    @property
    def _batch_dim(self) -> int:
        """The other one than time, whose place a factor for each step or level tells."""
        has_time = self.factor.numel() > 1 or (self.power is not None and self.power.ndim > 0)
        return 1 if has_time and self.factor.ndim == 1 else 0

    def _of_batch(self, var: Tensor) -> Tensor:
        if self._one_kernel_does(var):
            from spgru.nn.kernels.level import scale_by_level

            assert self.power is not None
            time = self.factor.ndim - 1
            return scale_by_level(var, self.factor, self.power, self.low, self.high, time)
        factor = self._by_step(self.factor, var)
        # Rounding must not take more away than there is.
        rest = var if self.own is None else (var - self.own.to(var)).clamp(min=0)
        if self.power is not None:
            features = tuple(range(2 if self.power.ndim else 1, var.ndim))
            level = rest.mean(features, keepdim=True) if features else rest
            if self.low is not None and self.high is not None:
                level = level.clamp(self._by_step(self.low, var), self._by_step(self.high, var))
            # Where all is certain there is nothing to scale; the factor need only be finite.
            level = level.clamp(min=torch.finfo(level.dtype).tiny)
            factor = factor * level ** self._by_step(self.power, var)
        return factor * rest if self.noise is None else factor * rest + self.noise.to(var)

    def _one_kernel_does(self, var: Tensor) -> bool:
        """Whether a GPU can do it in one launch: of the eight otherwise, most are tiny."""
        return (
            var.is_cuda
            and self.power is not None
            and self.power.ndim > 0
            and self.own is None
            and self.noise is None
            and var.ndim > 2
            and var.dtype == torch.float32
            and not (var.requires_grad and torch.is_grad_enabled())
            and not is_transformed(var)
            and has_triton()
        )

    def _by_step(self, values: Tensor, var: Tensor) -> Tensor:
        """One for each step of the variance, or one for all, in a shape that broadcasts to it."""
        time = self.factor.ndim - 1
        if values.numel() > 1:
            if var.ndim <= time:
                raise ValueError(
                    f"the output has {var.ndim} dimensions but was calibrated with time as "
                    f"dimension {time}; calibrate the module again, or `spgru.uncalibrate` it"
                )
            # A compiler must not take the number of steps for a constant.
            if torch.compiler.is_compiling() or var.shape[time] != values.shape[time]:
                steps = torch.arange(var.shape[time], device=values.device)
                values = values.index_select(time, steps.clamp(max=values.shape[time] - 1))
        return values.reshape(values.shape + (1,) * (var.ndim - values.ndim)).to(var)


class OutputScale(nn.Module):
    """Moments to the same moments with their variance scaled; as they are before calibration.

    Args:
        owner: whose weights it goes with
        is_attached: whether a hook of the owner calls `scaled`. The owner's own code may call all
            of its children, as `nn.Sequential` does, and must find one that does nothing.
    """

    owner: tuple[nn.Module, ...] = ()
    """in a tuple, so that it is no child"""
    is_attached = False
    is_kept = False
    """whether a state dict is read that leaves some of the owner's weights as they are"""

    def __init__(self, owner: nn.Module | None = None, is_attached: bool = False) -> None:
        super().__init__()
        self.owner, self.is_attached = () if owner is None else (owner,), is_attached
        if owner is not None:
            # Not with the module as an argument, which torch would hold weakly: copies lose it.
            owner._register_load_state_dict_pre_hook(self.before_loading)  # type: ignore[no-untyped-call]
        for name in Scale._fields:
            self.register_buffer(name, None)

    @property
    def scale(self) -> Scale | None:
        """What calibration found, None before."""
        # Not by attribute: a small network on a GPU waits for every microsecond of the host.
        buffers = self._buffers
        if buffers["factor"] is None or gains_of(self) is not None:
            return None
        return Scale(*(buffers.get(name) for name in Scale._fields))  # type: ignore[arg-type]

    @property
    def keeps_mean(self) -> bool:
        """Whether whoever calls this has to put the mean of the plain closed form in place."""
        scale = self.scale
        return scale is not None and scale.plain_mean is not None

    def set_(self, scale: Scale | None) -> None:
        for name in Scale._fields:
            value = None if scale is None else getattr(scale, name)
            setattr(self, name, None if value is None else value.detach().clone())

    def forward(self, x: Any) -> Any:
        return x if self.is_attached else self.scaled(x)

    def scaled(self, x: Moments, own: Tensor | None = None) -> Moments:
        """(T, B, ...) or (B, T, ...) -> the same, packed too; `own` where it depends on the input.

        Of packed moments, `own` is packed.
        """
        scale, found = self.scale, x
        if scale is not None:
            var: Any = x.var
            if isinstance(var, PackedSequence):
                batch_first = scale.factor.ndim > 1
                own = own if own is None else _padded(own, batch_first)[0]
                padded, lengths = _padded(var, batch_first)
                scaled = _with_own(scale, own)(padded)
                rows, _ = torch._VF._pack_padded_sequence(scaled, lengths, batch_first)
                found = Moments(x.mean, var._replace(data=rows))  # type: ignore[arg-type]
            else:
                found = Moments(x.mean, _with_own(scale, own)(var))
        watch(self, found)
        return found

    def make_room(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Have the buffers that the state dict has."""
        for name in Scale._fields:
            loaded = state_dict.get(prefix + name)
            setattr(self, name, None if loaded is None else torch.empty_like(loaded))

    def before_loading(self, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
        """Hook of the owner: whether some of its weights are left as they are."""
        names = (name for owner in self.owner for name, _ in owner.named_parameters())
        self.is_kept = any(prefix + name not in state_dict for name in names)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Weights without a scale have none; some of the weights say nothing of it.
        if prefix + "factor" in state_dict or not self.is_kept:
            self.make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _with_own(scale: Scale, own: Tensor | None) -> Scale:
    if own is None or scale.noise_factor is None:
        return scale
    return scale._replace(own=own, noise=scale.noise_factor.to(own) * own)


def _padded(packed: Any, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences from the longest on, as they are packed, and their lengths."""
    found: tuple[Tensor, Tensor] = torch._VF._pad_packed_sequence(
        packed.data, packed.batch_sizes, batch_first, 0.0, len(packed.batch_sizes)
    )
    return found


def first_moments(output: Any) -> Moments:
    """The first Moments of what a module returns: its output, before states and the like."""
    for leaf in pytree.tree_leaves(output, is_leaf=_is_moments):
        if isinstance(leaf, Moments):
            return leaf
    raise TypeError(
        f"the module returns {type(output).__name__} without Moments; return the Moments, or pass "
        "call=, a function of the inputs that does"
    )


def _is_moments(value: Any) -> bool:
    return isinstance(value, Moments)


def _scale(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
    """The hook: the first Moments scaled, everything else as it is."""
    child: Any = module._modules[CHILD]
    if not any(map(_is_moments, pytree.tree_leaves(output, is_leaf=_is_moments))):
        return output  # a loss, or an object that holds Moments
    first, own = first_moments(output), None
    if child.scale is not None and child.scale.noise_factor is not None:
        # A pass of its own, which nobody who records or watches asked for.
        with unobserved(), at_mean(module):
            # Not the module's call, which would come here again.
            arguments_, keywords_ = at_their_means((arguments, keywords))
            own = first_moments(module.forward(*arguments_, **keywords_)).var
    scaled = child.scaled(first, own)
    if child.keeps_mean:
        # Not the module's call here either.
        scaled = with_plain_mean(module, scaled, lambda: module.forward(*arguments, **keywords))
    return pytree.tree_map(
        lambda value: scaled if value is first else value, output, is_leaf=_is_moments
    )


def at_their_means(inputs: Any) -> Any:
    """The same inputs, all certain: what a module adds itself does not come with them."""

    def certain(value: Any) -> Any:
        if not isinstance(value, Moments):
            return value
        mean: Any = value.mean
        if isinstance(mean, PackedSequence):
            return Moments(value.mean, mean._replace(data=torch.zeros_like(mean.data)))  # type: ignore[arg-type]
        return Moments(mean, torch.zeros_like(mean))

    return pytree.tree_map(certain, inputs, is_leaf=_is_moments)


def scales_of(module: nn.Module) -> list[OutputScale]:
    return [child for child in module.modules() if isinstance(child, OutputScale)]


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
    if hasattr(module, CHILD):
        raise ValueError(
            f"{type(module).__name__} has an attribute {CHILD!r}, the name of what a calibration "
            "adds to a module; rename it"
        )
    scale = OutputScale(module, is_attached=True)
    module.add_module(CHILD, scale)
    module.register_forward_hook(_scale, with_kwargs=True)
    return scale


def put_scale(module: nn.Module, place: OutputScale | None, scale: Scale, dimensions: int) -> None:
    """Put it where it was tried, or on the module's own output if that is not there any more.

    Args:
        dimensions: of the output in the fit
    """
    is_there = any(one is place for one in scales_of(module))
    scale = scale._replace(dims=scale.factor.new_ones([1] * dimensions))
    (place if place is not None and is_there else attach_scale(module)).set_(scale)


def detach_scale(module: nn.Module) -> None:
    """Take away what `attach_scale` gave."""
    for key in [key for key, hook in module._forward_hooks.items() if hook is _scale]:
        del module._forward_hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)
    scale = module._modules.get(CHILD)
    if isinstance(scale, OutputScale):
        waiting: Any = module._load_state_dict_pre_hooks
        own = [key for key, hook in waiting.items() if hook.hook == scale.before_loading]
        for key in own:
            del waiting[key]
        del module._modules[CHILD]
