from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spgru.models import ModelConfig
from spgru.objectives import Objective
from spgru.training import (
    ConfigError,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    load_config,
)
from spgru.training.config import differences, parse_override, stored_form
from spgru.training.model import (
    AnyModelConfig,
    DeepMarkovConfig,
    DeterministicConfig,
    DropoutConfig,
    make_model,
)
from spgru.training.schema import flatten, from_mapping, to_mapping
from spgru.training.update import learning_rate

CONFIGS = sorted((Path(__file__).parents[2] / "src/spgru/studies/configs").glob("*/*.yaml"))
MODELS: tuple[AnyModelConfig, ...] = (
    ModelConfig(kind="composite", hidden_size=8, weight_std=0.01),
    DeterministicConfig(hidden_size=8, cell="lstm"),
    DropoutConfig(kind="mc_dropout_gru", hidden_size=8, dropout=0.5),
    DeepMarkovConfig(state_size=4, hidden_size=8),
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_a_configuration_survives_json_and_yaml(model: AnyModelConfig, tmp_path: Path) -> None:
    config = TrainConfig(
        model=model,
        data=DataConfig(path="controlled", digits=1, angle=25.0),
        objective=Objective(beta=0.1, data_size=1e7),
        optimizer=OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, clip=3.5),
        schedule=ScheduleConfig(warmup=10, final=0.1),
    )
    text = json.dumps(to_mapping(config))
    assert from_mapping(TrainConfig, json.loads(text)) == config
    # JSON is YAML, so the config.json of a run can be trained from.
    assert load_config(write(tmp_path, text)) == config
    assert make_model(config.model).training


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_committed_configurations_load(path: Path) -> None:
    config = load_config(path)
    assert Path(config.output).name.endswith(path.stem)


def test_there_are_configurations() -> None:
    assert {path.parent.name for path in CONFIGS} == {"small", "paper"}
    assert {path.stem for path in CONFIGS} >= {"controlled_sp_gru", "two_digits"}


@pytest.mark.parametrize("overrides", [None, {"steps": 3}])
def test_an_empty_file_is_refused(tmp_path: Path, overrides: dict[str, Any] | None) -> None:
    path = write(tmp_path, "# nothing\n")
    with pytest.raises(ConfigError, match=r"config\.yaml is empty; write at least one field, such"):
        load_config(path, overrides)
    assert load_config(write(tmp_path, "{}")) == TrainConfig()


def test_everything_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    text = """
stepz: 3
steps: many
model: {hiden_size: 3, cell: rnn, height: 0.5}
optimizer: {lr: -1, beta1: 2, name: adam, weight_decay: 1}
schedule: {warmup: -1, color: red}
data: {digits: two}
"""
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    message = str(caught.value)
    assert ": 11 problems: (1) stepz is not a field" in message
    for name in (
        "stepz", "steps", "model.hiden_size", "model.cell", "model.height", "optimizer.lr",
        "optimizer.beta1", "optimizer.weight_decay", "schedule.warmup", "schedule.color",
        "data.digits",
    ):  # fmt: skip
        assert f") {name} is " in message, name
    assert "\n" not in message


def test_conflicts_are_named_beside_unknown_fields(tmp_path: Path) -> None:
    text = "steps: 5\nschedule: {warmup: 9, color: red}\nmean_steps: 7"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert str(caught.value).endswith(
        "3 problems: (1) schedule.color is not a field of schedule; its fields are warmup, decay, "
        "final; (2) schedule.warmup is 9 but steps is 5; warm up within the run; "
        "(3) mean_steps is 7; give a number from 0 to steps, 5"
    )


def test_a_model_names_all_that_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match=r"^2 problems: \(1\) cell .*; \(2\) hidden_size "):
        ModelConfig(cell="rnn", hidden_size=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3", "stepz is not a field of a configuration; did you mean steps?"),
        (
            "model: {hiden_size: 3}",
            "model.hiden_size is not a field of model; did you mean hidden_siz",
        ),
        ("model: {qqq: 3}", "model.qqq is not a field of model; its fields are kind, architecture"),
        ("3: 4", "3 is not a field of a configuration"),
        ("steps: many", "steps is the text 'many'; give a whole number"),
        ("steps: 3.5", "steps is 3.5; give a whole number"),
        ("steps: true", "steps is True; give a whole number"),
        ("steps: null", "steps is empty; give a whole number"),
        ("steps: [1, 2]", "steps is a list; give a whole number"),
        ("steps: {a: 1}", "steps is a section; give a whole number"),
        ("steps: 0", "steps is 0; give at least 1"),
        ("compile: 1", "compile is 1; give true or false"),
        ("compile: 'no'", "compile is the text 'no'; give true or false"),
        ("output: 3", "output is 3; give a text"),
        ("optimizer: {lr: fast}", "optimizer.lr is the text 'fast'; give a number"),
        ("optimizer: {lr: .nan}", "optimizer.lr is nan; give a number"),
        ("optimizer: {lr: .inf}", "optimizer.lr is inf; give a number"),
        ("optimizer: {lr: -1}", "optimizer.lr is -1.0; give at least 0"),
        ("optimizer: {clip: none}", "optimizer.clip is the text 'none'; give a number, or null"),
        ("optimizer: {rest_rate: 0.5}", "optimizer.rest_rate is 0.5; only muon has it"),
        ("optimizer: {clip: 0}", "optimizer.clip is 0.0; give a positive number, or null"),
        ("optimizer: {beta2: 1}", "optimizer.beta2 is 1.0; give a number in [0, 1)"),
        (
            "optimizer: {weight_decay: 0.1}",
            "optimizer.weight_decay is 0.1; only adamw and muon have one",
        ),
        ("schedule: {warmup: 2000}", "schedule.warmup is 2000 but steps is 1000"),
        ("mean_steps: 1001", "mean_steps is 1001; give a number from 0 to steps, 1000"),
        ("model: {kind: deterministic}\nmean_steps: 5", "has no random weights; set it to 0"),
        (
            "model: {kind: deterministic}\noptimizer: {mean_rate: 0}",
            "mean_rate is 0, which trains variances alone, and a model of kind 'deterministic' has",
        ),
        (
            "optimizer: {mean_rate: 0}\nmean_steps: 5",
            "variances alone, and mean_steps is 5; set one",
        ),
        ("schedule: {final: 2}", "schedule.final is 2.0; give a number in [0, 1]"),
        ("precision: float8", "precision is the text 'float8'; give one of float32, tf32, bfloat"),
        ("precision: true", "precision is True; give one of float32"),
        ("objective: {name: elbow}", "objective.name is the text 'elbow'; give one of elbo, pape"),
        ("objective: {beta: -1}", "objective.beta must not be negative"),
        ("model: {kind: oracle}", "model.kind is the text 'oracle'; give one of predictor, autoen"),
        ("model: {kind: [a]}", "model.kind is a list; give one of predictor"),
        ("model: {hidden_size: 0}", "model.hidden_size must be a whole number from 1, got 0"),
        ("model: {kind: deep_markov, rule: exact}", "model.rule is not a field of model"),
        ("model: predictor", "model is the text 'predictor'; give a section with fields of kind"),
        ("model:", "model is empty; give a section"),
        ("steps: 1\nsteps: 2", "is not valid YAML in line 2 (steps twice)"),
        ("model: {kind: a", "is not valid YAML in line 1"),
        ("\tsteps: 1", "is not valid YAML in line 1"),
        ("? [a]\n: 1", "is not valid YAML"),
        ("!!python/object:os.system {}", "is not valid YAML in line 1"),
        ("just words", "holds no fields; write lines such as steps: 1000"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_an_unreadable_file_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.yaml"
    if kind == "folder":
        path.mkdir()
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


def test_exponents_are_numbers(tmp_path: Path) -> None:
    text = "optimizer: {lr: 1e-5, eps: 2E-3}\nobjective: {data_size: 1.5e+6}"
    config = load_config(write(tmp_path, text))
    assert (config.optimizer.lr, config.optimizer.eps) == (1e-5, 2e-3)
    assert config.objective.data_size == 1.5e6


def test_every_field_can_be_overridden(tmp_path: Path) -> None:
    """Each on its own, by a value that is not the default."""
    path = write(tmp_path, "model: {num_layers: 2}\noptimizer: {name: muon}\n")
    before = flatten(to_mapping(load_config(path)))
    special: dict[str, Any] = {
        "model.kind": "composite", "model.architecture": "convolutional", "model.cell": "lstm",
        "model.rule": "paper", "model.weight_std": 0.5, "data.path": "controlled",
        "data.angle": 3.0, "data.speed": 0.1, "data.directory": "folder", "objective.name": "paper",
        "objective.prior_scale": "fan_in", "optimizer.name": "adam", "optimizer.clip": 2.0,
        "optimizer.beta1": 0.5, "optimizer.beta2": 0.5, "schedule.decay": "none",
        "schedule.final": 0.5, "initial": "weights.safetensors", "device": "cpu",
        "precision": "bfloat16", "cuda_graph": "never", "output": "elsewhere",
    }  # fmt: skip
    for name, value in before.items():
        if name == "model.family":  # there is one
            continue
        if name in special:
            new = special[name]
        else:
            new = not value if isinstance(value, bool) else value + 3
        field, parsed = parse_override(f"{name}={json.dumps(new)}")
        after = flatten(to_mapping(load_config(path, {field: parsed})))
        assert after == before | {name: new}, name


def test_overrides_may_mend_the_file_but_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: many\nmodel: {hidden_size: 4}")
    assert load_config(path, {"steps": 7}).steps == 7
    with pytest.raises(ConfigError, match=r"^model\.hidden is not a field of model"):
        load_config(path, {"steps": 7, "model.hidden": 3})
    with pytest.raises(ConfigError, match=r"^steps is a section"):
        load_config(path, {"steps.deep": 7})


@pytest.mark.parametrize("text", ["model.hidden_size", "=3", " = 3"])
def test_an_override_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form section\.field=value"):
        parse_override(text)


def test_what_decides_the_weights_may_not_change() -> None:
    config = TrainConfig()
    stored = json.loads(json.dumps(stored_form(config)))
    assert differences(config, stored) == []
    free = dataclasses.replace(config, output="b", device="cpu", checkpoint_every=3, log_every=9)
    assert differences(free, stored) == []
    changed = dataclasses.replace(config, seed=1, model=ModelConfig(hidden_size=8))
    assert differences(changed, stored) == [
        "model.hidden_size was 1024, now 8",
        "seed was 0, now 1",
    ]
    other_kind = dataclasses.replace(config, model=DropoutConfig())
    assert "model.rule was exact, now None" in differences(other_kind, stored)


def test_more_steps_continue_a_run_only_without_decay() -> None:
    for decay, reasons in (("none", 0), ("cosine", 1)):
        config = TrainConfig(schedule=ScheduleConfig(decay=decay))  # type: ignore[arg-type]
        longer = dataclasses.replace(config, steps=2000)
        assert len(differences(longer, stored_form(config))) == reasons


def test_learning_rate() -> None:
    schedule = ScheduleConfig(warmup=4, decay="cosine", final=0.1)
    rates = [learning_rate(2.0, schedule, step, 14) for step in range(15)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[9] == pytest.approx(2 * 0.55)  # half-way down a cosine
    assert rates[14] == pytest.approx(0.2)
    assert rates[6] == pytest.approx(2 * (0.1 + 0.9 * (1 + math.cos(math.pi / 5)) / 2))
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert learning_rate(2.0, ScheduleConfig(decay="none"), 10**6, 10) == 2.0
    assert learning_rate(2.0, ScheduleConfig(warmup=10), 9, 10) == 2.0


def test_a_run_from_before_a_field_existed_had_its_default() -> None:
    config = TrainConfig()
    stored = stored_form(config)
    del stored["optimizer"]["mean_rate"]
    assert differences(config, stored) == []
    changed = dataclasses.replace(config, optimizer=OptimizerConfig(mean_rate=0.5))
    assert differences(changed, stored) == ["optimizer.mean_rate was 1.0, now 0.5"]
