"""Networks of the studies with their calibration, and what the studies report of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spgru.calibration import calibration_state, is_calibrated
from spgru.models import VideoModel
from spgru.nn.layer import layers_of
from spgru.nn.scale import Scale
from spgru.studies import StudyConfig, calibrated, reproduce
from spgru.studies.calibrated import FILE, OWN
from spgru.studies.controlled import measure_model
from spgru.studies.controlled_audit import measure_audit
from spgru.studies.networks import Networks, train_all
from spgru.studies.runs import Member
from spgru.studies.sequences import DEVIATIONS, controlled_pairs
from spgru.studies.study import read_results
from spgru.studies.two_digits import digits_of, evaluation_set
from spgru.training import export, load_exported, load_model

MEMBER, BASELINE = Member("controlled_sp_gru", 0), Member("controlled_mc_lstm", 0)
FORM = "made up"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Fits cost nothing and give gains and a factor for every step; the sizes asked for."""
    asked: list[dict[str, Any]] = []

    def fit(model: VideoModel, data: Any, **sizes: Any) -> SimpleNamespace:
        asked.append(sizes)
        for _, layer in layers_of(model):
            gains = {
                name: torch.full((weight.spec.shape[0],), 1.5)
                for name, weight in layer.weights().items()
                if weight.spec.gain is not None
            }
            layer.set_gains_(gains)
        model.pixel_scale.set_(Scale(torch.linspace(2, 3, 10)))
        return SimpleNamespace(chosen=FORM)

    monkeypatch.setattr(calibrated, "calibrate_as_trained", fit)
    return asked


def trained(settings: StudyConfig, *members: Member) -> Networks:
    assert train_all(Networks(settings), members, None, "none") is None
    return Networks(settings)


def variance(model: Any, seen: torch.Tensor) -> torch.Tensor:
    """(T, B), summed over pixels"""
    found: torch.Tensor = model.predict(seen).var.double().sum((-2, -1))
    return found


def same(a: VideoModel, b: VideoModel) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(first[k].equal(second[k]) for k in first)


def test_a_fit_is_kept_and_used_again(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]]
) -> None:
    settings = tiny()
    networks = trained(settings, MEMBER)
    model = networks.calibrated(MEMBER)
    assert model is not None
    assert is_calibrated(model)
    assert networks.calibrated(MEMBER) is model
    assert networks.calibration(MEMBER) == FORM
    # The other one stays in the plain closed form.
    assert same(networks.load(MEMBER), load_model(settings.run_folder(MEMBER)).model)
    again = Networks(settings)
    found = again.calibrated(MEMBER)
    assert found is not None
    assert same(found, model)
    assert again.calibration(MEMBER) == FORM
    sizes = {"sequences": 4, "draws": 3, "steps": 1, "progress": False}
    assert fits == [sizes]
    seen = torch.rand(10, 2, 64, 64)
    torch.testing.assert_close(variance(found, seen), variance(model, seen), rtol=0, atol=0)


def test_a_file_of_something_else_is_not_used(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]]
) -> None:
    settings = tiny()
    model = trained(settings, MEMBER).calibrated(MEMBER)
    assert model is not None
    larger = dataclasses.replace(settings.scale, calibration_draws=5)
    assert Networks(tiny(scale=larger)).calibrated(MEMBER) is not None
    assert [size["draws"] for size in fits] == [3, 5]
    # As many steps, and other weights; more steps; damage.
    path = settings.run_folder(MEMBER) / FILE
    other = tiny(overrides={**settings.overrides, "seed": 7}, output=settings.output / "other")
    trained(other, Member(MEMBER.run, 1)).calibrated(Member(MEMBER.run, 1))
    for content in (other.run_folder(Member(MEMBER.run, 1)) / FILE).read_bytes(), b"nothing":
        path.write_bytes(content)
        before = len(fits)
        found = Networks(settings).calibrated(MEMBER)
        assert found is not None
        assert same(found, model)
        assert len(fits) == before + 1
        assert Networks(settings).calibration(MEMBER) == FORM
        assert len(fits) == before + 1
    longer = {**settings.overrides, "steps": 3}
    networks = trained(tiny(overrides=longer, output=settings.output / "longer"), MEMBER)
    before = len(fits)
    (settings.output / "longer" / "models" / "small-controlled_sp_gru-0" / FILE).write_bytes(
        path.read_bytes()
    )
    networks.calibrated(MEMBER)
    assert len(fits) == before + 1


def test_a_network_keeps_the_calibration_it_came_with(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]], tmp_path: Path
) -> None:
    source = tiny()
    networks = trained(source, MEMBER)
    model, path = networks.calibrated(MEMBER), tmp_path / "own.safetensors"
    assert model is not None
    export(source.run_folder(MEMBER), path, calibration=calibration_state(model))
    given = Networks(tiny(output=tmp_path / "other", given={MEMBER.run: path}))
    found = given.calibrated(MEMBER)
    assert found is not None
    assert same(found, load_exported(path))
    assert same(given.load(MEMBER), networks.load(MEMBER))
    assert not is_calibrated(given.load(MEMBER))
    assert given.calibration(MEMBER) == OWN
    assert len(fits) == 1
    # One that came without is fitted, and nothing is left in its folder.
    (source.run_folder(MEMBER) / FILE).unlink()
    given = Networks(tiny(output=tmp_path / "other", given={MEMBER.run: source.run_folder(MEMBER)}))
    assert given.calibration(MEMBER) == FORM
    assert not (source.run_folder(MEMBER) / FILE).exists()


def test_baselines_are_not_calibrated(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]]
) -> None:
    settings, markov = tiny(), Member("controlled_deep_markov", 0)
    networks = trained(settings, BASELINE, markov)
    for member in (BASELINE, markov):
        assert networks.calibrated(member) is None
        assert networks.calibration(member) == "none"
        assert not (settings.run_folder(member) / FILE).exists()
    assert not fits


def test_a_fit_is_to_sequences_of_the_training(tiny: Callable[..., StudyConfig]) -> None:
    """Without anything replaced: a fit of the size of the scale, on the path of the training."""
    settings = tiny()
    networks = trained(settings, MEMBER)
    model = networks.calibrated(MEMBER)
    assert model is not None
    expected = load_model(settings.run_folder(MEMBER)).model
    config = networks.train_config(MEMBER).data
    report = calibrated.calibrate_as_trained(
        expected, config, sequences=4, draws=3, steps=1, progress=False
    )
    assert report.sequences == (3, 1)
    assert report.chosen == networks.calibration(MEMBER)
    assert same(model, expected)


def test_the_controlled_study_before_and_after(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]]
) -> None:
    settings = tiny()
    networks = trained(settings, MEMBER)
    plain, after = networks.load(MEMBER), networks.calibrated(MEMBER)
    pairs = {d: controlled_pairs(settings, d, 3) for d in DEVIATIONS}
    curves, _ = measure_model(plain, pairs, 2, after)
    sets = {d: pair.seen[:, :1] for d, pair in pairs.items()}
    audit, by_frame = measure_audit(after, sets, draws=2)
    assert [(row["kind"], row["value"]) for row in audit] == DEVIATIONS
    for deviation, row, audited in zip(DEVIATIONS, curves, audit, strict=True):
        frames = [r for r in by_frame if (r["kind"], r["value"]) == deviation]
        assert [frame["frame"] for frame in frames] == list(range(11, 21))
        for model, column in ((plain, "closed"), (after, "calibrated")):
            expected = variance(model, pairs[deviation].seen)
            shown = row["variance" if column == "closed" else column]
            assert shown == pytest.approx(expected.mean().item(), rel=1e-5)
            found = torch.tensor([frame[column] for frame in frames], dtype=torch.float64)
            torch.testing.assert_close(found, expected[:, 0], rtol=1e-5, atol=0)
            assert audited[column] == pytest.approx(expected[:, 0].mean().item(), rel=1e-5)
        for each in (audited, *frames):
            assert each["ratio"] == pytest.approx(each["closed"] / each["true"])
            assert each["calibrated_ratio"] == pytest.approx(each["calibrated"] / each["true"])
        error = audited["calibrated_ratio"] * audited["true_error"] / audited["true"]
        assert audited["calibrated_ratio_error"] == pytest.approx(error)


def test_two_digits_and_out_of_domain_before_and_after(
    tiny: Callable[..., StudyConfig], fits: list[dict[str, Any]]
) -> None:
    settings, member = tiny(seeds=(0,), only=("two_digits",)), Member("two_digits", 0)
    names = ("two-digits", "out-of-domain")
    texts = [report.path.read_text() for report in reproduce(names, settings, show="none")]
    assert len(fits) == 1
    tables = read_results(settings.folder(names[0]))["results"]
    domains = read_results(settings.folder(names[1]))["results"]["domains"]
    networks = Networks(settings)
    (scored,), rows = tables["scores"], tables["audit_by_distance"]
    for model, column, closed in (
        (networks.load(member), "variance", "closed"),
        (networks.calibrated(member), "calibrated", "calibrated"),
    ):
        ((frames,), (_, (of_test,))) = digits_of(settings, 2, 1), evaluation_set(settings)
        expected = variance(model, frames.chunk(2)[0])[:, 0]
        found = torch.tensor([row[closed] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        assert tables["audit"][0][closed] == pytest.approx(expected.mean().item(), rel=1e-5)
        by_frame = variance(model, of_test.chunk(2)[0])
        assert scored[column] == pytest.approx(by_frame.mean().item(), rel=1e-5)
        error = by_frame.mean(0).std().item() / 3**0.5
        assert scored[f"{column}_standard_error"] == pytest.approx(error, rel=1e-4)
        for row, values in zip(tables["by_distance"], by_frame, strict=True):
            assert row[column] == pytest.approx(values.mean().item(), rel=1e-5)
        for row in domains:
            (frames,) = digits_of(settings, row["digits"], 3)
            expected = variance(model, frames.chunk(2)[0])
            assert row[column] == pytest.approx(expected.mean().item(), rel=1e-5)
    for row in rows:
        assert row["calibrated_ratio"] == pytest.approx(row["calibrated"] / row["true"])
    assert (
        "| model | distance | closed | calibrated | true | ratio | calibrated ratio |" in texts[0]
    )
    assert "SP-GRU, three digits, calibrated: " in texts[1]
    assert "| calibrated variance | over two digits | AUROC |" in texts[1]
    for text in texts:
        assert f"| CPU | {FORM} |" in text
        assert "uncertainty calibrated" in text
