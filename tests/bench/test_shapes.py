from __future__ import annotations

import pytest

from spgru.bench.shapes import BARS, Bar, Case, Shape, growth_cases, preset_cases


def test_parsing() -> None:
    assert str(Shape.parse("30,20,4096,1024")) == "30,20,4096,1024"


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "1,2,3,x", "1,2,3,0", "1,2,3,-4"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match=r"--shape is .*; pass four positive integers B,T,I,H"):
        Shape.parse(text)


def test_presets_are_the_cases_of_the_bars() -> None:
    paper = Shape(30, 20, 4096, 1024)
    assert preset_cases("cpu") == [
        Case(paper), Case(Shape(32, 20, 128, 128)), Case(Shape(1, 20, 128, 128)),
    ]  # fmt: skip
    on_gpu = preset_cases("cuda")
    assert Case(paper, "bfloat16") in on_gpu
    assert len(on_gpu) == len(set(on_gpu)) == 6
    assert {case.dtype for case in preset_cases("cuda", ["bfloat16"])} == {"bfloat16"}


def test_bars_face_the_right_way() -> None:
    shape = Shape(1, 1, 1, 1)
    at_most = Bar("cpu", shape, "float32", "forward", "time over nn.GRU", 2)
    at_least = Bar("cpu", shape, "float32", "forward", "MC-LSTM over ours", 2)
    assert [at_most.is_met(ratio) for ratio in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [at_least.is_met(ratio) for ratio in (1.9, 2.0, 2.1)] == [False, True, True]
    assert len(set(BARS)) == len(BARS)


def test_growth_varies_one_size_at_a_time() -> None:
    for case in growth_cases("cpu"):
        sizes = {"B": case.shape.batch, "T": case.shape.steps, "H": case.shape.hidden}
        usual = {"B": 32, "T": 20, "H": 128}
        assert all(sizes[name] == usual[name] for name in usual if name != case.grows)
