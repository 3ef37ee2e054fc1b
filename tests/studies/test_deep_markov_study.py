from __future__ import annotations

from spgru.studies.deep_markov import STUDY
from spgru.training.evaluation import CONTROLLED_SETS


def made_up(error: float) -> str:
    curves = [
        {
            "model": model,
            "seed": 0,
            "kind": kind,
            "value": value,
            "variance": float(k + 1) if model == "SP-GRU" else 1.0,
            "error": 10.0 if model == "SP-GRU" else error,
            "nats": 50.0,
            "spearman": None,
        }
        for model in ("SP-GRU", "deep Markov model")
        for kind, values in CONTROLLED_SETS.items()
        for k, value in enumerate(values)
    ]
    guesses = [{"guess": "mean", "error": 44.0, "nats": 170.0}]
    models = [
        {"model": "SP-GRU", "parameters": 1, "steps": 5},
        {"model": "deep Markov model", "parameters": 1, "steps": 5},
    ]
    return STUDY.conclude({"curves": curves, "guesses": guesses, "models": models}).to_markdown()


def test_the_report_says_yes_and_no() -> None:
    text = made_up(40.0)
    assert "by the measure above: yes; as well as SP-GRU: no (4 times its squared error)." in text
    assert "SP-GRU, noise: variance rises monotonically: yes" in text
    assert "deep Markov model, noise: variance rises monotonically: no" in text
    assert "Both had the same number of steps: yes." in text
    assert "by the measure above: no; as well as SP-GRU: no" in made_up(60.0)
    assert "by the measure above: yes; as well as SP-GRU: yes" in made_up(9.0)
