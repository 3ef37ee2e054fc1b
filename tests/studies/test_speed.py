from __future__ import annotations

import pytest
import torch

from spgru.baselines import MCDropoutLSTM
from spgru.studies.speed import STUDY, predict_in_a_loop, time_calls

SIZE = {"height": 4, "width": 4}


@torch.no_grad()
def test_a_loop_predicts_what_folding_predicts() -> None:
    model = MCDropoutLSTM(6, dropout=0.3, recurrent_dropout=False, **SIZE)
    seen = torch.rand(3, 2, 4, 4)
    draws = 4000
    looped, folded = predict_in_a_loop(model, seen, draws), model.predict(seen, draws=draws)
    error = 5 * (folded.var / draws).sqrt() * 2**0.5
    assert bool(((looped.mean - folded.mean).abs() <= error).all())
    assert (looped.var.sum() / folded.var.sum()).item() == pytest.approx(1, abs=0.05)


def test_the_first_call_is_not_counted() -> None:
    calls = []
    assert len(time_calls(lambda: calls.append(1), 3, torch.device("cpu"))) == 3
    assert len(calls) == 4


def made_up(seconds: dict[str, float]) -> str:
    names = {
        "ours": "SP-GRU",
        "folded": "MC-LSTM, draws folded into the batch",
        "masked": "MC-LSTM, folded, state masked at every step",
        "looped": "MC-LSTM, one draw after the other",
        "plain": "GRU without uncertainty",
    }
    rows = [
        {
            "what": names[name],
            "parameters": 1,
            "draws": 1,
            "seconds": value,
            "least": value,
            "largest": value,
            "bytes": 1000,
        }
        for name, value in seconds.items()
    ]
    return STUDY.conclude({"cost": rows}).to_markdown()


def test_the_fastest_form_of_sampling_is_what_counts() -> None:
    text = made_up({"ours": 1.0, "folded": 20.0, "masked": 30.0, "looped": 0.9, "plain": 0.1})
    assert "fastest form of sampling (MC-LSTM, one draw after the other): no." in text
    assert "of 13.3 is reached against the fastest form: no; against the slowest" in text
    assert "(MC-LSTM, folded, state masked at every step): yes." in text
    text = made_up({"ours": 1.0, "folded": 20.0, "masked": 30.0, "looped": 40.0, "plain": 0.1})
    assert "is reached against the fastest form: yes;" in text
    assert "MC-LSTM, draws folded into the batch: 20 times the time and 1 times the mem" in text
