from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spgru.models import ModelConfig
from spgru.studies import SCALES, StudyConfig
from spgru.studies import networks as networks_module
from spgru.studies.networks import Networks, train_all
from spgru.studies.prediction import parameters
from spgru.studies.runs import CONFIGS, Member, members
from spgru.training import ConfigError, load_config, load_model
from spgru.training.model import make_model

MEMBER = Member("controlled_sp_gru", 0)


@pytest.mark.parametrize("scale", SCALES)
def test_configurations(scale: str) -> None:
    configs = {path.stem: load_config(path) for path in (CONFIGS / scale).glob("*.yaml")}
    assert len(configs) == 6
    ours, theirs = configs["controlled_sp_gru"], configs["controlled_mc_lstm"]
    assert isinstance(ours.model, ModelConfig)
    sizes = [parameters(make_model(config.model)) for config in (ours, theirs)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.002)
    # The LSTM is to have a similar error, the deep Markov model the same budget.
    assert configs["controlled_mc_lstm"].steps >= ours.steps
    assert configs["controlled_deep_markov"].steps == ours.steps
    for run in ("controlled_mc_lstm", "controlled_deep_markov"):
        assert configs[run].batch_size == ours.batch_size
        assert configs[run].data == ours.data
    assert len({config.output for config in configs.values()}) == len(configs)


def test_a_run_is_that_of_the_train_command(tmp_path: Path) -> None:
    settings = StudyConfig(SCALES["paper"], tmp_path, "cpu")
    config = Networks(settings).train_config(Member("two_digits", 4))
    same = load_config(CONFIGS / "paper" / "two_digits.yaml", {"seed": 4, "device": "cpu"})
    assert dataclasses.replace(config, output="") == dataclasses.replace(same, output="")
    assert config.output == str(tmp_path / "models" / "paper-two_digits-4")


def test_own_digits_reach_the_run(tiny) -> None:
    assert Networks(tiny(mnist="mine")).train_config(MEMBER).data.directory == "mine"


def test_overrides_of_one_run(tiny) -> None:
    changes = {
        "controlled_sp_gru.steps": 5,
        "controlled_sp_gru.mean_steps": 4,
        "steps": 3,
        "two_digits.mean_steps": 2,
    }
    settings = tiny(overrides=changes | {"schedule.warmup": 1})
    assert Networks(settings).train_config(MEMBER).steps == 5
    assert Networks(settings).train_config(MEMBER).mean_steps == 4
    assert Networks(settings).train_config(Member("controlled_mc_lstm", 0)).steps == 3
    with pytest.raises(ConfigError, match=r"three_digits"):
        Networks(tiny(overrides={"three_digits.steps": 3})).train_config(MEMBER)
    with pytest.raises(ConfigError, match="mean_steps is 2, but a model of kind 'mc_dropout_ls"):
        Networks(tiny(overrides={"mean_steps": 2})).train_config(Member("controlled_mc_lstm", 0))


def test_members(tiny) -> None:
    settings = tiny(given={"two_digits": Path("x")}, seeds=(5, 7))
    found = members(settings, ["controlled_sp_gru", "two_digits"], single=["two_digits_conv"])
    names = ["controlled_sp_gru-5", "controlled_sp_gru-7", "two_digits-5", "two_digits_conv-5"]
    assert [member.name for member in found] == names
    with pytest.raises(ConfigError, match="'three_digits' is not a run; give one of controlled_"):
        tiny(given={"three_digits": Path("x")})


def test_members_of_some_runs(tiny) -> None:
    settings = tiny(only=("two_digits_conv", "controlled_sp_gru"), seeds=(5, 7))
    found = members(settings, ["controlled_sp_gru", "two_digits"], single=["two_digits_conv"])
    names = ["controlled_sp_gru-5", "controlled_sp_gru-7", "two_digits_conv-5"]
    assert [member.name for member in found] == names
    # A folder of its own, whatever the order; networks are shared all the same.
    folder = settings.folder("x")
    assert folder == settings.output / "x-small-controlled_sp_gru-two_digits_conv"
    assert tiny(only=settings.only[::-1]).folder("x") == folder != tiny().folder("x")
    assert settings.run_folder(MEMBER) == tiny().run_folder(MEMBER)
    with pytest.raises(ConfigError, match="'three_digits' is not a run; give one of controlled_"):
        tiny(only=("three_digits",))


def test_training_stops_in_time_and_continues(tiny) -> None:
    settings = tiny()
    wanted = [MEMBER, Member("controlled_mc_lstm", 0)]
    stopped = train_all(Networks(settings), wanted, max_seconds=0, show="none")
    assert stopped == (MEMBER, 1, 2, 0)
    assert train_all(Networks(settings), wanted, max_seconds=None, show="none") is None
    assert all(load_model(settings.run_folder(member)).step == 2 for member in wanted)
    # The same weights as in one go.
    whole = tiny(output=settings.output / "whole")
    assert train_all(Networks(whole), [MEMBER], max_seconds=None, show="none") is None
    for name, tensor in Networks(settings).load(MEMBER).state_dict().items():
        assert tensor.equal(Networks(whole).load(MEMBER).state_dict()[name])


def test_what_is_trained_is_not_trained_again(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny()
    train_all(Networks(settings), [MEMBER], None, "none")
    weights = settings.run_folder(MEMBER) / "checkpoints" / "step-00000002.safetensors"
    before = weights.stat().st_mtime_ns
    assert train_all(Networks(settings), [MEMBER], 0, "none") is None
    assert weights.stat().st_mtime_ns == before


def test_a_given_network_is_used(tiny) -> None:
    source = tiny()
    train_all(Networks(source), [MEMBER], None, "none")
    given = {MEMBER.run: source.run_folder(MEMBER)}
    settings = tiny(output=source.output / "other", given=given)
    assert train_all(Networks(settings), [MEMBER], 0, "none") is None
    assert not settings.output.exists()
    assert Networks(settings).used_config(MEMBER)["model"]["hidden_size"] == 4
    assert parameters(Networks(settings).load(MEMBER)) == parameters(Networks(source).load(MEMBER))


def test_steps_are_those_made_and_not_those_planned(tiny) -> None:
    source = tiny()
    assert train_all(Networks(source), [MEMBER], max_seconds=0, show="none") == (MEMBER, 1, 2, 0)
    settings = tiny(given={MEMBER.run: source.run_folder(MEMBER)})
    assert Networks(settings).used_config(MEMBER)["steps"] == 2
    assert Networks(settings).steps(MEMBER) == Networks(settings).origin(MEMBER)["steps"] == 1


def test_where_the_packaged_network_was_trained(tiny) -> None:
    settings = tiny(given={"two_digits_conv": Path("two-digits-conv")})
    origin = Networks(settings).origin(Member("two_digits_conv", 0))
    expected = {"steps": 2600, "commit": "f404bd9", "hardware": "NVIDIA H200"}
    assert origin.items() >= expected.items()


def test_configurations_and_checkpoints_are_read_once(
    tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    networks = Networks(config)
    read: list[object] = []
    for name in ("load_config", "load_model"):
        real = getattr(networks_module, name)
        monkeypatch.setattr(
            networks_module, name, lambda *a, real=real: read.append(a[0]) or real(*a)
        )
    train_all(networks, [MEMBER], None, "none")
    for _ in range(2):
        model = networks.load(MEMBER)
        assert networks.load(MEMBER) is model
        assert networks.steps(MEMBER) == networks.origin(MEMBER)["steps"] == 2
        assert networks.used_config(MEMBER)["steps"] == 2
    assert read == [CONFIGS / "small" / "controlled_sp_gru.yaml", config.run_folder(MEMBER)]
