"""Changed copies: what gets noise and leaves steps out, how much, and what they do to a fit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru import Moments
from spgru.calibration.fit import divergence, fit_scale, log_distance, score
from spgru.calibration.forms import _choose
from spgru.calibration.layout import Place, find_layout
from spgru.calibration.perturb import Changes, changed_copies, with_noise, with_skips
from spgru.calibration.problem import pose
from spgru.calibration.truth import Own, Shape

NOTHING = Own(None, False, torch.zeros(()).double())
"""what a module adds that adds nothing"""
QUICK: dict[str, Any] = {"draws": 40, "steps": 20, "rate": 0.1, "progress": False}


FIRST, SECOND = (Place(0, 1),), (Place(1, 0),)
"""of one input, with sequences before steps and after them"""


def _noise(x: Any, *levels: float, place: Place = Place(1), seed: int = 0) -> Any:  # noqa: B008
    return with_noise(x, x, (place,), levels, seed)[0]


def test_noise_is_measured_in_standard_deviations_of_each_feature() -> None:
    x = torch.randn(200, 40, 2) * torch.tensor([1.0, 50.0]) + torch.tensor([0.0, 300.0])
    moved = _noise(x, 0.1, 0.3) - x
    for sequence, level in ((0, 0.1), (1, 0.3), (2, 0.1)):
        # 200 draws know a standard deviation to 5 %; the range cuts few of them.
        ratio = moved[:, sequence].std(0) / x.std((0, 1))
        assert ratio.tolist() == pytest.approx([level] * 2, rel=0.2)


def test_noise_is_the_same_for_all_pixels_and_within_the_range() -> None:
    """Dark pixels get it too, and do not become negative."""
    x = torch.zeros(3, 8, 16, 16)
    x[..., 4:12, 4:12] = torch.rand(3, 8, 8, 8)
    moved = _noise(x, 1.0)
    assert moved.min() == x.min()
    assert moved.max() == x.max()
    dark = moved[..., :4, :]
    assert (dark > 0).double().mean().item() == pytest.approx(0.5, abs=0.05)
    # Half of a Gaussian has a mean square of half of the variance.
    assert dark.square().mean().sqrt().item() == pytest.approx(x.std().item() / 2**0.5, rel=0.1)


def test_what_has_no_noise_stays_as_it_is() -> None:
    x = torch.randn(5, 6, 4)
    x[..., 1] = 7.25  # constant
    x[..., 2] = torch.randint(0, 2, (5, 6)).float()  # a mask
    moved = _noise(x, 0.5)
    assert torch.equal(moved[..., 1:3], x[..., 1:3])
    assert not torch.equal(moved[..., 0], x[..., 0])
    assert not torch.equal(moved[..., 3], x[..., 3])
    for still in (
        torch.randint(0, 9, (5, 6)),
        torch.ones(5, 6, 2),
        torch.eye(4).expand(5, 6, 4, 4),
    ):
        copy, changed = with_noise((still, "text"), (still, "text"), SECOND, (1.0,), 0)
        assert torch.equal(copy[0], still)
        assert copy[1] == "text"
        assert not changed
    uncertain = Moments(torch.randn(5, 6, 2), torch.rand(5, 6, 2))
    moved = _noise(uncertain, 0.5)
    assert torch.equal(moved.var, uncertain.var)
    assert not torch.equal(moved.mean, uncertain.mean)
    assert torch.equal(moved.mean, _noise(uncertain, 0.5).mean)
    assert not torch.equal(moved.mean, _noise(uncertain, 0.5, seed=1).mean)


def test_sequences_may_be_the_last_dimension() -> None:
    """Their values are of one feature then."""
    x = torch.randn(500, 2) * torch.tensor([1.0, 3.0])
    moved = _noise(x, 0.1) - x
    assert (moved.std(0) / x.std()).tolist() == pytest.approx([0.1, 0.1], rel=0.15)


def test_steps_are_no_features() -> None:
    """Where they come last the features are before them, or there is one only."""
    x = torch.randn(30, 2, 40) * torch.tensor([1.0, 50.0])[:, None]
    moved = _noise(x, 0.1, place=Place(0, 2)) - x
    assert (moved.std((0, 2)) / x.std((0, 2))).tolist() == pytest.approx([0.1] * 2, rel=0.15)
    one = torch.randn(40, 30) * torch.linspace(0.1, 3, 30)
    moved = _noise(one, 0.1, place=Place(0, 1)) - one
    assert (moved.std(0) / one.std()).tolist() == pytest.approx([0.1] * 30, rel=0.5)


@pytest.mark.parametrize("dim", [0, 1])
def test_copies_leave_steps_out(dim: int) -> None:
    count, steps = 40, 20
    clock = torch.arange(steps).float()[:, None, None].expand(steps, count, 2)
    tokens, state = clock[..., 0].long(), torch.randn(3, count, 2)
    given = [part if dim else part.transpose(0, 1) for part in (clock, tokens)]
    places = (Place(dim, 1 - dim), Place(dim, 1 - dim), Place(1))
    inputs = (Moments(given[0], given[0]), given[1], state)
    (ahead, words, kept), changed = with_skips(inputs, places, (0.1, 0.3), 0)
    assert changed
    assert torch.equal(kept, state)
    assert torch.equal(ahead.mean, ahead.var)
    # What has as many steps runs ahead with it.
    assert torch.equal(words, ahead.mean[..., 0].long())
    found = (ahead.mean if dim == 1 else ahead.mean.transpose(0, 1))[..., 0]
    strides = found.diff(dim=0)
    assert (found[0] == 0).all()
    assert (found[-1] == steps - 1).all()
    assert ((strides > 0) | (found[1:] == steps - 1)).all()
    for first, skipped in ((0, 2), (1, 6)):
        left_out = (strides[:, first::2] == 2).sum(0)
        # Fewer where some would come after the last step, but one in any case.
        assert left_out.max() == skipped
        assert left_out.min() >= 1
        assert left_out.double().mean() > 0.7 * skipped
    # At different places in different sequences.
    assert len({tuple(column.tolist()) for column in strides[:, 1::2].T}) > 10


@pytest.mark.parametrize("steps", [3, 4, 10])
def test_a_copy_leaves_out_one_step_at_least(steps: int) -> None:
    x = torch.arange(steps).float()[:, None, None].expand(steps, 400, 1)
    (ahead,), _ = with_skips((x,), SECOND, (0.01,), 0)
    assert ((ahead.diff(dim=0) == 2).sum(0) == 1).all()


def test_every_level_of_noise_and_every_share_is_met() -> None:
    """Though every other sequence has the other change."""
    x = torch.randn(100, 8, 2)
    (copy,), _ = changed_copies((x,), (x,), SECOND, Changes((0.01, 0.1), (0.1, 0.3)), 0)
    moved = (copy - x).std((0, 2))
    assert moved[::4].tolist() == pytest.approx([0.01] * 2, rel=0.3)
    assert moved[2::4].tolist() == pytest.approx([0.1] * 2, rel=0.3)
    clock = torch.arange(100).float()[:, None, None].expand(100, 8, 1)
    (ahead,), _ = changed_copies((clock,), (clock,), SECOND, Changes((), (0.1, 0.3)), 0)
    by_two = (ahead.diff(dim=0) == 2).sum(0).squeeze(-1)
    assert (by_two[::2] <= 10).all()
    assert (by_two[1::2] > 15).all()


def test_entries_of_what_has_no_steps_are_features() -> None:
    x = torch.randn(200, 3, 4) * torch.tensor([1.0, 50.0, 0.1])[:, None]
    moved = _noise(x, 0.1, place=Place(0)) - x
    assert torch.allclose(moved.std(0) / x.std(0), torch.full((3, 4), 0.1), rtol=0.3)


def test_noise_and_steps_left_out_take_turns() -> None:
    x = torch.randn(10, 8, 2)
    (copy,), changed = changed_copies((x,), (x,), SECOND, Changes((0.5,), (0.2,)), 0)
    assert changed
    values = {row for sequence in x.transpose(0, 1) for row in map(tuple, sequence.tolist())}
    for k, sequence in enumerate(copy.transpose(0, 1)):
        assert all(tuple(row) in values for row in sequence.tolist()) == bool(k % 2)
        assert not torch.equal(sequence, x[:, k])
    # Tokens have no noise, but an order.
    words = torch.randint(1000, (8, 10))
    (copy,), changed = changed_copies((words,), (words,), FIRST, Changes((0.5,), (0.2,)), 0)
    assert changed
    assert all(not torch.equal(copy[k], words[k]) for k in range(8))


def test_copies_do_not_depend_on_the_default_device() -> None:
    x, changes = torch.randn(10, 8, 2), Changes((0.5,), (0.2,))
    expected = changed_copies((x,), (x,), SECOND, changes, 0)[0][0]
    with torch.device("meta"):
        found = changed_copies((x,), (x,), SECOND, changes, 0)[0][0]
    assert torch.equal(found, expected)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = spgru.GRU(2, 6, weight_std=0.2), spgru.Linear(6, 1, weight_std=0.2)

    def forward(self, x: Tensor) -> Moments:
        return self.head(self.gru(x)[0])


def test_every_sequence_has_a_copy_in_its_own_part() -> None:
    network, x = Network(), torch.randn(4, 8, 2)
    problem = pose(network, x, None, 0.25, None, None, 0, [], Changes((0.5, 1.0)))
    assert problem.has_copies
    for part, numbers in zip(problem.parts, problem.numbers, strict=True):
        first, copies = part[0][:, ::2], part[0][:, 1::2]
        assert torch.equal(first, x[:, numbers])
        assert all(not torch.equal(first[:, k], copies[:, k]) for k in range(len(numbers)))
    assert problem.counts == (6, 2)
    # Each part has noise of its own.
    added = [part[0][:, 1] - part[0][:, 0] for part in problem.parts]
    assert not torch.allclose(*added)
    still = pose(network, x.round(), None, 0.25, None, None, 0, [], Changes((0.5, 1.0)))
    assert not still.has_copies
    assert still.parts[0][0].shape[1] == 6


def test_copies_count_as_much_as_sequences() -> None:
    """However much more variance they have."""
    true, var = torch.rand(3, 8, 5).double(), torch.rand(3, 8, 5).double()
    true[:, 1::2] *= 100
    var[:, 1::2] *= 100
    shape = Shape(0, 1)
    halves = score(true[:, ::2], var[:, ::2], shape) + score(true[:, 1::2], var[:, 1::2], shape)
    assert score(true, var, shape, has_copies=True).item() == pytest.approx(halves.item() / 2)


def test_factors_are_those_of_sequences() -> None:
    var = torch.rand(4, 6, 1).double().expand(4, 6, 3) + 0.5
    true = 2 * var
    true[:, 1::2] *= 5  # of copies
    shape = Shape(0, 1)
    for per_step in (False, True):
        scale = fit_scale(true, var, shape, NOTHING, per_step, False, has_copies=True)
        assert scale is not None
        assert torch.allclose(scale(var), 2 * var)


@pytest.mark.parametrize("time", [0, 1])
def test_a_power_for_every_step(time: int) -> None:
    """Known ones are found again, and later steps have that of the last."""
    level = torch.tensor([1.0, 10.0]).repeat(3)[None, :, None].double()
    factor, power = torch.rand(4, 1, 1) + 0.5, torch.linspace(-0.3, 0.4, 4)[:, None, None]
    var = level.expand(4, 6, 3)
    true = factor * var ** (1 + power)
    if time:
        true, var = true.transpose(0, 1), var.transpose(0, 1)
    scale = fit_scale(true, var, Shape(time, 1 - time), NOTHING, True, True, has_copies=True)
    assert scale is not None
    assert scale.power is not None
    assert torch.allclose(scale.power.flatten(), power.flatten(), atol=1e-5)
    assert torch.allclose(scale(var), true, rtol=1e-5)
    assert not scale(torch.zeros_like(var)).any()
    longer = scale(torch.cat([var, var], time)).narrow(time, 4, 4)
    last = true.narrow(time, 3, 1).expand_as(longer)
    assert torch.allclose(longer, last, rtol=1e-5)
    # Below the least level of the fit, 1, and above the largest, 10, factors stay.
    for beyond, nearest in ((0.01, 1.0), (500.0, 10.0)):
        found = scale(torch.full_like(var, beyond)) / beyond
        assert torch.allclose(found, scale(torch.full_like(var, nearest)) / nearest, rtol=1e-5)


def test_none_is_as_before_and_figures_are_of_sequences() -> None:
    """Without copies, or where there can be none, the result is the same to the last bit."""
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 12, 2)
    reports = {}
    for name, inputs, perturb, skip in (
        ("noise", x, (1.0, 2.0), ()),
        ("skips", x, (), 0.2),
        ("both", x, (1.0, 2.0), 0.2),
        ("none", x, (), ()),
        ("whole", x.round(), (1.0, 2.0), ()),
        ("whole, none", x.round(), (), ()),
    ):
        reports[name] = spgru.calibrate(network, inputs, perturb=perturb, skip=skip, **QUICK)
        spgru.uncalibrate(network)
    assert reports["whole"].to_dict() == reports["whole, none"].to_dict()
    assert [report.copies for report in reports.values()] == [True] * 3 + [False] * 3
    assert "and as many changed copies" in str(reports["both"])
    assert "copies" not in str(reports["none"])
    four = [reports[name] for name in ("noise", "skips", "both", "none")]
    assert len({report.scores["gains"] for report in four}) == 4
    for report in four:
        assert report.sequences == (9, 3)
        # The plain form on the sequences held out: the copies are not among them.
        assert torch.allclose(report.plain_var, reports["none"].plain_var)


def test_changes_that_make_no_sense_are_refused() -> None:
    network, x = Network(), torch.randn(4, 12, 2)
    for perturb in ((0.0,), (-1.0, 1.0), (float("inf"),)):
        with pytest.raises(ValueError, match="perturb"):
            spgru.calibrate(network, x, perturb=perturb, **QUICK)
    for wrong in ("1.0", True, (1.0, "2")):
        with pytest.raises(TypeError, match="perturb"):
            spgru.calibrate(network, x, perturb=wrong, **QUICK)
    for skip in (0.0, (1.0,), (-0.1, 0.1), (float("nan"),)):
        with pytest.raises(ValueError, match="skip"):
            spgru.calibrate(network, x, skip=skip, **QUICK)


class Reader(nn.Module):
    """Reads what comes in several layouts; the last state is the answer."""

    def __init__(self, how: str, features: int = 2) -> None:
        super().__init__()
        self.how = how
        self.conv = spgru.Conv1d(3, features, 3, padding=1, weight_std=0.1)
        self.gru = spgru.GRU(features, 4, batch_first=True, weight_std=0.2)
        self.cell = spgru.GRUCell(features, 4, weight_std=0.2)
        self.words = spgru.Embedding(20, features, weight_std=0.2)
        self.future = spgru.GRU(1, 4, batch_first=True, weight_std=0.2)
        self.deep = spgru.GRU(features, 4, 2, batch_first=True, weight_std=0.2)

    def forward(self, x: Any, other: Any = None) -> Any:
        if self.how == "channels first":
            return self.gru(self.conv(x).transpose(1, 2))[0][:, -1]
        if self.how == "words":
            return self.gru(self.words(x))[0][:, -1]
        if self.how == "masked":
            return self.gru(x * other[..., None])[0]
        if self.how == "state":
            return self.gru(x, other)[0]
        if self.how == "future":
            return self.future(other, self.gru(x)[1])[0]
        if self.how in ("cell", "ahead"):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            for _ in range(3 if self.how == "ahead" else 0):
                state = self.cell(state[:, :2], state)
            return state if other is None else state + other.mean(1, keepdim=True)
        if self.how == "deep":
            state = None
            for step in x.unbind(1):
                output, state = self.deep.step(step, state)
            return output
        if self.how == "packed":
            packed = pack_padded_sequence(x, other, batch_first=True)
            return self.gru(packed)[1][-1]
        if self.how == "padded":
            packed = pack_padded_sequence(x, other, batch_first=True, enforce_sorted=False)
            return spgru.pad_packed_moments(self.gru(packed)[0], batch_first=True)[0]
        if self.how == "rates":
            return self.gru(x / other.diff(dim=1, prepend=other[:, :1] - 1)[..., None])[0]
        assert self.how == "balanced"
        assert (x.sum(-1).abs() < 1e-5).all()
        return self.gru(x)[0]


@pytest.mark.parametrize(
    ("how", "inputs", "places"),
    [
        ("channels first", [torch.randn(8, 3, 9)], [Place(0, 2)]),
        ("words", [torch.randint(20, (8, 9))], [Place(0, 1)]),
        ("masked", [torch.randn(8, 9, 2), torch.ones(8, 9)], [Place(0, 1)] * 2),
        ("state", [torch.randn(8, 9, 2), torch.zeros(1, 8, 4)], [Place(0, 1), Place(1)]),
        ("future", [torch.randn(8, 9, 2), torch.randn(8, 5, 1)], [Place(0, 1)] * 2),
        ("cell", [torch.randn(8, 9, 2)], [Place(0, 1)]),
        ("ahead", [torch.randn(8, 9, 2)], [Place(0, 1)]),
        ("ahead", [torch.randn(8, 9, 2), torch.randn(8, 12)], [Place(0, 1), Place(0)]),
        ("deep", [torch.randn(8, 9, 2)], [Place(0, 1)]),
        ("packed", [torch.randn(8, 9, 2), torch.arange(9, 1, -1)], [Place(0, 1), Place(0)]),
    ],
)
def test_steps_are_what_recurrent_layers_run_over(
    how: str, inputs: list[Tensor], places: list[Place]
) -> None:
    module = Reader(how)
    assert list(find_layout(module, module, inputs, None, None).places) == places
    assert spgru.calibrate(module, tuple(inputs), perturb=(), **QUICK).copies


def test_what_is_no_sequence_leaves_nothing_out() -> None:
    """The second dimension of what no recurrent layer reads may be anything: channels, rows."""
    network = nn.Sequential(spgru.Linear(2, 4, weight_std=0.2), spgru.Linear(4, 1, weight_std=0.2))
    x = torch.randn(8, 5, 2)
    assert find_layout(network, network, (x,), 0, None).places == (Place(0),)
    assert pose(network, x, None, 0.25, 0, None, 0, [], Changes((), (0.2,))).has_copies is False

    class Described(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = spgru.GRU(2, 4, batch_first=True, weight_std=0.2)

        def forward(self, x: Tensor, rows: Tensor) -> Moments:
            return self.gru(x)[0] * (1 + rows.mean((1, 2)))[:, None, None]

    inputs = torch.randn(8, 9, 2), torch.randn(8, 12, 12)
    module = Described()
    assert find_layout(module, module, inputs, None, None).places == (Place(0, 1), Place(0))


def test_a_number_may_come_first() -> None:
    class Scaled(Network):
        def forward(self, scale: Tensor, x: Tensor) -> Moments:
            return super().forward(scale * x)

    inputs = torch.tensor(2.0), torch.randn(4, 12, 2)
    module = Scaled()
    places = find_layout(module, module, inputs, None, None).places
    assert places == (Place(None), Place(1, 0))
    assert spgru.calibrate(module, inputs, **QUICK).copies


def test_sorted_lengths_stay_sorted() -> None:
    """A copy follows its sequence, and packing that asks for an order takes both."""
    module, lengths = Reader("packed"), torch.arange(12, 0, -1).clamp(3, 9)
    assert spgru.calibrate(module, (torch.randn(12, 9, 2), lengths), **QUICK).copies


def test_an_output_that_is_padded_to_the_longest_is_refused_by_its_reason() -> None:
    module, x = Reader("padded"), torch.randn(8, 9, 2)
    for long in (0, 7):
        lengths = torch.full((8,), 5)
        lengths[long] = 9
        with pytest.raises(ValueError, match="total_length"):
            spgru.calibrate(module, (x, lengths), **QUICK)


def test_outcomes_of_what_is_padded_to_the_longest_are_no_matter() -> None:
    """A fit to them calls the module on all sequences at once."""
    module, x = Reader("padded"), torch.randn(12, 9, 2)
    lengths = torch.full((12,), 5)
    lengths[-1] = 9
    spgru.calibrate(module, (x, lengths), torch.randn(12, 9, 4))


def test_a_module_that_refuses_one_change_gets_the_other() -> None:
    module, x = Reader("balanced"), torch.randn(8, 9, 2)
    x[..., 1] = -x[..., 0]
    problem = pose(module, x, None, 0.25, None, None, 0, [], Changes((0.5,), (0.2,)))
    assert problem.has_copies
    assert torch.allclose(problem.parts[0][0].sum(-1), torch.zeros(()), atol=1e-5)


def test_a_module_that_refuses_copies_is_fitted_without() -> None:
    module, x = Reader("balanced"), torch.randn(8, 9, 2)
    x[..., 1] = -x[..., 0]
    with pytest.warns(UserWarning, match="not changed copies") as caught:
        report = spgru.calibrate(module, x, skip=(), **QUICK)
    assert not report.copies
    assert caught[0].filename == __file__


def test_copies_whose_output_is_not_finite_are_left_out() -> None:
    """A clock that stands still, as at the end of a copy that runs ahead, divides by 0."""
    module, clock = Reader("rates"), torch.arange(9.0).expand(12, 9).clone()
    x = torch.randn(12, 9, 2)
    report = spgru.calibrate(module, (x, clock), **QUICK)
    assert report.copies  # those with noise
    assert bool(report.var.isfinite().all())
    assert bool(module(x, clock).var.isfinite().all())
    with pytest.warns(UserWarning, match="NaN or infinite"):
        assert not spgru.calibrate(module, (x, clock), perturb=(), **QUICK).copies


def test_a_variance_that_is_not_finite_is_never_the_best() -> None:
    true, var = torch.rand(3, 4, 5).double(), torch.full((3, 4, 5), torch.nan)
    assert score(true, var, Shape(0, 1)).item() == math.inf
    with pytest.raises(ValueError, match="in every form"):
        _choose({"plain": math.inf, "gains": math.nan}, {"plain": math.inf, "gains": 0.0}, 100)


def test_outcomes_have_no_copies() -> None:
    """There are no outcomes for them."""
    network, x = Network(), torch.randn(4, 12, 2)
    y = torch.randn(4, 12, 1)
    first = spgru.calibrate(network, x, y, perturb=(1.0,)).to_dict()
    spgru.uncalibrate(network)
    assert spgru.calibrate(network, x, y, perturb=()).to_dict() == first


def test_a_form_is_not_chosen_for_copies_alone() -> None:
    scores = {"plain": 9.0, "simple": 1.0, "complex": 0.5}
    assert _choose(scores, {"plain": 9.0, "simple": 0.2, "complex": 0.28}, 100) == "complex"
    assert _choose(scores, {"plain": 9.0, "simple": 0.2, "complex": 0.4}, 100) == "simple"
    assert _choose({**scores, "complex": torch.nan}, {"simple": 0.2, "plain": 9.0}, 100) == "simple"
    assert _choose(scores, {"plain": 0.0, "simple": 0.002, "complex": 0.004}, 100) == "complex"


def test_what_the_closed_form_takes_for_certain_does_not_rule_a_fit() -> None:
    var = torch.tensor([1e-30, 1.0], requires_grad=True)
    loss = divergence(torch.tensor([1.0, 2.0]).double(), var)
    (grad,) = torch.autograd.grad(loss, var)
    assert grad.tolist() == pytest.approx([0.0, -0.25])
    assert loss.item() < 1e4
    distance = log_distance(torch.tensor([1.0, 2.0]).double(), var)
    (grad,) = torch.autograd.grad(distance, var)
    assert grad.tolist() == pytest.approx([0.0, -math.log(2) / 2])


@pytest.mark.parametrize("shape", [Shape(0, 1), Shape(1, 0), Shape(None, 0)])
def test_entries_count_alike_unless_they_are_faint(shape: Shape) -> None:
    """By t / (t + m / 10), m the mean of their step, whatever the layout."""
    generator = torch.Generator().manual_seed(0)
    true = torch.rand(3, 4, 5, generator=generator).double() ** 6
    var = torch.rand(3, 4, 5, generator=generator).double()
    steps = [true[k] for k in range(3)] if shape.time is None else [t for r in true for t in r]
    others = [var[k] for k in range(3)] if shape.time is None else [v for r in var for v in r]
    totals, weighted, weights = 0.0, 0.0, 0.0
    for t, v in zip(steps, others, strict=True):
        ratio = (t.mean() / v.mean()).item()
        totals += 0.5 * (ratio - 1 - math.log(ratio)) / len(steps)
        weight = t / (t + 0.1 * t.mean())
        weighted += (0.5 * weight * (t / v).log() ** 2).sum().item()
        weights += weight.sum().item()
    assert score(true, var, shape).item() == pytest.approx(totals + weighted / weights)
