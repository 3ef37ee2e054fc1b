"""Modules as folders: `config.json` and `model.safetensors`, as on the Hugging Face hub.

spgru.save_pretrained(gru, "my-gru")
gru = spgru.from_pretrained("my-gru")                        # or "user/name" on the hub

spgru.save_pretrained(model, "my-model", config={"hidden_size": 32})
model = spgru.from_pretrained("my-model", Model)             # Model(hidden_size=32)
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor, nn

import spgru.nn
from spgru.calibration import load_calibration
from spgru.nn import Layer
from spgru.nn.layer import layers_of
from spgru.runtime.storage import write_whole

__all__ = ["PretrainedError", "from_pretrained", "save_pretrained"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "spgru-pretrained-1"


class PretrainedError(ValueError):
    """A folder that cannot be read or written; the message is one sentence."""


def save_pretrained(
    module: nn.Module, folder: str | Path, config: Mapping[str, Any] | None = None
) -> Path:
    """Write a module's weights, calibration included, and how to build it.

    A module of your own that `spgru.convert` has changed is built by its class, and converted again
    when it is read. The class is built once now, too: what could not be read again is refused.

    A class whose arguments are no plain values, as those of `nn.Sequential`, needs two methods:
    `pretrained_config(self)` gives plain values, and the class method
    `from_pretrained_config(cls, config)` builds the module from them.

    Args:
        module: a layer or model of ours, which knows how it was built, or a module of your own
        folder: made if it does not exist; files in it are replaced
        config: of a module of your own, the keyword arguments that its class is built with, as
            plain values
    """
    known: Any = getattr(module, "pretrained_config", None)
    if config is None:
        if known is None:
            raise PretrainedError(
                f"{type(module).__name__} does not say how it was built; pass config=, the keyword "
                "arguments of its class"
            )
        config = known()
    document = {
        "format": FORMAT,
        "module": type(module).__module__,
        "class": type(module).__qualname__,
        "config": dict(config),
    }
    layers = _layers_inside(module) if known is None else {}
    if layers:
        document["layers"] = layers
    try:
        text = json.dumps(document, indent=2) + "\n"
    except TypeError as error:
        raise PretrainedError(
            f"config holds what JSON cannot ({error}); use plain values"
        ) from error
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise PretrainedError(f"{folder} is a file; give a folder")
    # Copied: tensors of one memory (tied weights) cannot be told apart in a file.
    state = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
    _check_readable(type(module), json.loads(text), state)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
    write_whole(folder / CONFIG, text.encode())
    return folder


def from_pretrained(
    source: str | Path, cls: type[nn.Module] | None = None, *, revision: str | None = None
) -> Any:
    """The module in a folder, on the CPU, in the dtypes it was saved in, ready to predict.

    Args:
        source: a folder, or where there is none the name of a repository on the Hugging Face hub
        cls: of a module of your own; layers and models of ours need none
        revision: of the repository
    """
    folder = _find(source, revision)
    document, state = _read(folder)
    if cls is None:
        cls = _own_class(document["module"], document["class"], str(source))
    elif cls.__qualname__ != document["class"]:
        named = f"{document['module']}.{document['class']}"
        raise PretrainedError(f"{source} holds a {named}, not a {cls.__qualname__}")
    return _rebuild(cls, document, state, str(source)).eval()


def _check_readable(
    cls: type[nn.Module], document: dict[str, Any], state: dict[str, Tensor]
) -> None:
    """Read what is about to be written: only then does one know that the class can be built."""
    try:
        # The caller's random numbers go on as if nothing had been built.
        with torch.random.fork_rng(devices=[]):
            _rebuild(cls, document, state, "not saved")
    except PretrainedError as error:
        raise PretrainedError(
            f"{error}; pass config= with which the class builds this module, give the class "
            "pretrained_config and from_pretrained_config, or save module.state_dict()"
        ) from error


def _rebuild(
    cls: type[nn.Module], document: dict[str, Any], state: dict[str, Tensor], source: str
) -> nn.Module:
    named = f"{document['module']}.{document['class']}"
    build: Any = getattr(cls, "from_pretrained_config", None)
    try:
        module = cls(**document["config"]) if build is None else build(document["config"])
    except (TypeError, ValueError) as error:
        raise PretrainedError(f"{source}: {named} cannot be built as saved ({error})") from error
    _convert_again(module, document.get("layers", {}), source)
    floating = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    if floating:
        module.to(floating[0])  # what is not saved, too
    for name, own in (*module.named_parameters(), *module.named_buffers()):
        if name in state and own.is_floating_point():
            own.data = own.data.to(state[name].dtype)
    try:
        load_calibration(module, state)
    except RuntimeError as error:
        reason = _misfit(module, state) or str(error)
        raise PretrainedError(f"{source}: weights do not fit {named} ({reason})") from error
    return module


def _misfit(module: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Which tensors are of one side alone or have another shape; torch fills a page with them."""
    ours, saved = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (module.state_dict(), state)
    )
    names = [name for name in {**saved, **ours} if saved.get(name) != ours.get(name)]
    if not names:
        return ""
    first, others = names[0], len(names) - 1
    return (
        f"{first}: {saved.get(first, 'none')} saved, {ours.get(first, 'none')} as built"
        + f", and {others} more" * bool(others)
    )


def _layers_inside(module: nn.Module) -> dict[str, Any]:
    """By path, how the layers are built that have a counterpart in `torch.nn`."""
    return {
        path: {"class": type(layer).__name__, "config": layer.pretrained_config()}
        for path, layer in layers_of(module)
        if _known_layer(type(layer).__name__) is type(layer) and layer.family.name == "gaussian"
    }


def _known_layer(name: str) -> type[Layer] | None:
    found = getattr(spgru.nn, name, None)
    is_layer = isinstance(found, type) and issubclass(found, Layer)
    return found if is_layer and hasattr(found, "torch_class") else None


def _convert_again(module: nn.Module, layers: Mapping[str, Any], source: str) -> None:
    """Put the saved layers where the class, as it is written, makes those of `torch.nn`."""
    made: dict[int, Layer] = {}
    for path, saved in layers.items():
        try:
            kind, place = _known_layer(saved["class"]), module.get_submodule(path)
            if kind is None or type(place) is not kind.torch_class:
                continue  # one of ours already; else the weights will not fit, which is said
            made[id(place)] = kind.from_pretrained_config(saved["config"])
        except AttributeError:
            continue  # likewise
        except (KeyError, TypeError, ValueError) as error:
            raise PretrainedError(f"{source}: {path} cannot be built as saved ({error})") from error
        for name, parameter in place.named_parameters():
            made[id(place)].get_parameter(name).requires_grad_(parameter.requires_grad)
    if not made:
        return
    for part in list(module.modules()):
        for name, child in list(part._modules.items()):
            if id(child) in made:
                part._modules[name] = made[id(child)]
        if getattr(part, "inplace", False) is True:  # Moments are immutable
            part.inplace = False  # type: ignore[assignment]


def _find(source: str | Path, revision: str | None) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    name = str(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PretrainedError(
            f"{source} is no folder; give one, or the name of a repository as user/name"
        )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise PretrainedError(
            f"{source} is no folder here; to look on the Hugging Face hub, "
            "pip install huggingface_hub"
        ) from error
    return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        document = json.loads((folder / CONFIG).read_text())
        state = read_tensors((folder / WEIGHTS).read_bytes())
    except OSError as error:
        raise PretrainedError(
            f"{error.filename} cannot be read ({error.strerror}); a folder holds {CONFIG} and "
            f"{WEIGHTS}"
        ) from error
    except (ValueError, SafetensorError) as error:
        raise PretrainedError(f"{folder} is damaged ({error}); save it again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PretrainedError(f"{folder / CONFIG} is not of {FORMAT}; save it with this version")
    return document, state


def _own_class(module: str, name: str, source: str) -> type[nn.Module]:
    # A file must not make Python import what it likes.
    if not module.startswith("spgru.") or not name.isidentifier():
        raise PretrainedError(
            f"{source} holds a {module}.{name}, which is not of this package; pass the class, "
            f"from_pretrained({source!r}, {name})"
        )
    found: Any = None
    with suppress(ModuleNotFoundError):
        found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise PretrainedError(f"{source} holds a {module}.{name}, which this version does not have")
    return found
