"""`TrainConfig`: everything that determines a training run, from YAML and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spgru.models import ModelConfig
from spgru.objectives import Objective
from spgru.runtime.errors import ConfigError, refuse
from spgru.training.model import AnyModelConfig
from spgru.training.schema import flatten, from_mapping, to_mapping
from spgru.training.strict_yaml import parse_value, read_yaml

__all__ = [
    "DataConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainConfig",
    "differences",
    "load_config",
    "parse_override",
    "stored_form",
]


def _below(minimum: float, config: Any, *names: str) -> Iterator[str]:
    """A problem for each of these fields that is less than `minimum`."""
    for name in names:
        value = getattr(config, name)
        if not value >= minimum:
            yield f"{name} is {value}; give at least {minimum:g}"


@dataclass(frozen=True)
class DataConfig:
    """Which sequences to train on; see `spgru.data.MovingMNIST`.

    Args:
        path: `"random"` by the official protocol, or `"controlled"`, one straight line
        digits: in each sequence
        angle: in degrees; None draws it, or on the controlled path takes that of the study
        speed: fraction of 36 pixels per frame; None for that of the protocol or the study
        noise: b of Unif(0, b) added to every pixel
        directory: folder with your own MNIST files; None for the packaged ones
    """

    path: Literal["random", "controlled"] = "random"
    digits: int = 2
    angle: float | None = None
    speed: float | None = None
    noise: float = 0.0
    directory: str | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam, AdamW or Muon; weight matrices may decay, variances and biases never do.

    Args:
        name: `"adam"`, `"adamw"`, or `"muon"`: the means of weights from hidden units to hidden
            units move along orthogonal directions (`spgru.training.muon`), everything else as with
            `"adamw"`
        lr: highest learning rate, see `ScheduleConfig`
        beta1: forgetting of the gradient's mean
        beta2: forgetting of its square
        eps: added to the root of the square
        weight_decay: of `"adamw"` and `"muon"`
        clip: largest norm of the gradient; null for none
        rest_rate: factor of the learning rate for the means that `"muon"` leaves to `"adamw"`
        spread_rate: factor of the learning rate for the log-variances of weights, which have
            farther to go than means: from narrow to as wide as the prior
        mean_rate: factor of the learning rate for all means, whoever moves them; 0 leaves them as
            they are, and their gradients are not computed
    """

    name: Literal["adam", "adamw", "muon"] = "adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    rest_rate: float = 1.0
    spread_rate: float = 1.0
    mean_rate: float = 1.0

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _below(
            0, self, "lr", "eps", "weight_decay", "rest_rate", "spread_rate", "mean_rate"
        )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; give a number in [0, 1)"
        if self.name == "adam" and self.weight_decay:
            yield f"weight_decay is {self.weight_decay}; only adamw and muon have one"
        if self.name != "muon" and self.rest_rate != 1:
            yield (
                f"rest_rate is {self.rest_rate}; only muon has it, for the parameters that it "
                "leaves to adamw"
            )
        if self.clip is not None and not self.clip > 0:
            yield f"clip is {self.clip}; give a positive number, or null for none"


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the run, a function of the step alone.

    Args:
        warmup: steps over which it rises from 0
        decay: `"cosine"` down to `final` at the last step, or `"none"`
        final: fraction of the highest rate that is left at the end
    """

    warmup: int = 0
    decay: Literal["cosine", "none"] = "cosine"
    final: float = 0.0

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _below(0, self, "warmup")
        if not 0 <= self.final <= 1:
            yield f"final is {self.final}; give a number in [0, 1]"


@dataclass(frozen=True)
class TrainConfig:
    """A training run. Every field is overridden by `--set section.field=value`.

    Args:
        batch_size: sequences in a step, over all processes together
        steps: of the optimiser
        mean_steps: how many of them, from the first, train the means of the weights alone, with
            cross entropy as a plain network, at a plain network's price; the rest train all
        seed: of initial weights, data and everything drawn
        initial: weights to start from: a run's folder, a checkpoint, an exported file, the name of
            a packaged network, or a plain safetensors file of means alone, whose variances then
            start as `model.weight_std` says
        device: `"auto"` takes a GPU where there is one; `"cpu"`, `"cuda"`, `"cuda:1"`
        precision: `"float32"`; `"tf32"`, float32 that a GPU may multiply in TF32 (on a CPU the
            same as float32); `"bfloat16"`, products in 16 bits, states and weights in 32
        cuda_graph: capture the whole step in a CUDA graph; `"auto"` does on one GPU
        compile: `torch.compile` of the loss; unrolled over time, it takes minutes to start
        cudnn_benchmark: let cuDNN try its convolutions at the start and take the fastest. Another
            may win in the next call, and torch can neither tell which won nor ask for it again:
            a resumed run is not the same to the bit. Without it cuDNN takes, by a fixed rule, a
            convolution whose result is the same in every call, and a resumed run is the same to
            the bit, on the same GPU with the same versions
        output: folder of checkpoints, metrics and images
        checkpoint_every: steps between checkpoints; the last step is always kept
        keep: checkpoints to keep
        log_every: steps between lines of the log, with one more where `mean_steps` end; only then
            the host waits for a GPU
        image_every: steps between pictures of a prediction, 0 for none (needs `spgru[plot]`)
        validate_every: steps between scores on unseen digits, 0 for none
        validate_sequences: how many
        tensorboard: also log for TensorBoard (needs `spgru[tensorboard]`)
    """

    model: AnyModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    objective: Objective = field(default_factory=Objective)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batch_size: int = 64
    steps: int = 1000
    mean_steps: int = 0
    seed: int = 0
    initial: str | None = None
    device: str = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "tf32"
    cuda_graph: Literal["auto", "always", "never"] = "auto"
    compile: bool = False
    cudnn_benchmark: bool = False
    output: str = "outputs/train"
    checkpoint_every: int = 500
    keep: int = 2
    log_every: int = 20
    image_every: int = 0
    validate_every: int = 0
    validate_sequences: int = 500
    tensorboard: bool = False

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _below(
            1, self, "batch_size", "steps", "checkpoint_every", "keep", "log_every",
            "validate_sequences",
        )  # fmt: skip
        yield from _below(0, self, "seed", "image_every", "validate_every")
        if self.schedule.warmup > self.steps:
            yield (
                f"schedule.warmup is {self.schedule.warmup} but steps is {self.steps}; "
                "warm up within the run"
            )
        if not 0 <= self.mean_steps <= self.steps:
            yield f"mean_steps is {self.mean_steps}; give a number from 0 to steps, {self.steps}"
        if self.mean_steps and not isinstance(self.model, ModelConfig):
            yield (
                f"mean_steps is {self.mean_steps}, but a model of kind {self.model.kind!r} has no "
                "random weights; set it to 0"
            )
        if self.optimizer.mean_rate == 0:
            yield from self._still_means_problems()

    def _still_means_problems(self) -> Iterator[str]:
        still = "optimizer.mean_rate is 0, which trains variances alone"
        if not isinstance(self.model, ModelConfig):
            yield f"{still}, and a model of kind {self.model.kind!r} has none; set it to 1"
        elif self.mean_steps:
            yield f"{still}, and mean_steps is {self.mean_steps}; set one of them to another value"


# Fields that do not affect the weights and may change when a run is resumed.
_CHANGEABLE = {
    "output", "device", "cuda_graph", "compile", "cudnn_benchmark", "initial", "checkpoint_every",
    "keep", "log_every", "image_every", "validate_every", "validate_sequences", "tensorboard",
    "data.directory",
}  # fmt: skip


def stored_form(config: TrainConfig) -> dict[str, Any]:
    """The configuration as kept with weights: without its folder, which may move."""
    mapping: dict[str, Any] = to_mapping(config)
    del mapping["output"]
    return mapping


def differences(config: TrainConfig, stored: Mapping[str, Any]) -> list[str]:
    """Why a run with `config` would not continue the stored one, each as "name: old, now new".

    A field that the stored one does not have yet was what its default is.
    """
    before, now = flatten(stored), flatten(stored_form(config))
    defaults = flatten(stored_form(TrainConfig()))
    before = {name: defaults[name] for name in now if name in defaults} | before
    free = _CHANGEABLE | ({"steps"} if config.schedule.decay == "none" else set())
    return [
        f"{name} was {before.get(name)}, now {now.get(name)}"
        for name in dict.fromkeys([*before, *now])
        if name not in free and before.get(name) != now.get(name)
    ]


def load_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainConfig:
    """Read a YAML file.

    Args:
        overrides: values by dotted name, such as {"model.hidden_size": 64}

    Raises:
        ConfigError: it names every field that cannot be used, what was found, and the remedy.
    """
    mapping = read_yaml(path)
    if not overrides:
        try:
            return from_mapping(TrainConfig, mapping)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    for name, value in overrides.items():
        *sections, last = name.split(".")
        section = mapping
        for part in sections:
            # A value where a section should be is refused below, by from_mapping.
            inner = section.get(part)
            section[part] = section = inner if isinstance(inner, dict) else {}
        section[last] = value
    return from_mapping(TrainConfig, mapping)


def parse_override(text: str) -> tuple[str, Any]:
    """Name and value of "section.field=value", the value as it would be written in YAML."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            f"--set {text!r} is not of the form section.field=value, "
            "as in --set model.hidden_size=64"
        )
    return name.strip(), parse_value(value, f"--set {text!r}")
