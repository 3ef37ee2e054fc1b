"""`Forecaster.to_onnx`: the program gives what `predict` gives, at any number of windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import spgru
from spgru import Moments
from spgru.forecast import Forecaster

runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HORIZON, CONTEXT, SEASON = 2, 14, 4


def fitted(y: Any, X: Any = None, **options: Any) -> Forecaster:  # noqa: N803
    sizes = {"context": CONTEXT, "season": SEASON, "hidden_size": 4}
    forecaster = Forecaster(HORIZON, **sizes, steps=2, progress=False, **options).fit(y, X)
    # So short a training may end where it began, at a plain forecast that reads no state.
    with torch.no_grad():
        for name, parameter in forecaster.network.named_parameters():
            if name.split(".")[0] in ("head", "noise", "known", "effect") and "spread" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return forecaster


def series(count: int, length: int) -> list[np.ndarray]:
    noise = np.random.default_rng(0)
    t = np.arange(length)
    return [
        (k + 1) * (3 + np.sin(t * np.pi / 2 + k) + 0.2 * noise.standard_normal(length))
        for k in range(count)
    ]


def check(forecaster: Forecaster, path: Path, y: Any, X: Any = None) -> dict[str, Any]:  # noqa: N803
    session = runtime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    got = dict(zip(names, session.run(None, forecaster.onnx_inputs(y, X)), strict=True))
    expected = forecaster.predict(y, X, parts=False)
    np.testing.assert_allclose(got["mean"], np.atleast_2d(expected.mean), rtol=1e-5)
    np.testing.assert_allclose(got["var"], np.atleast_2d(expected.var), rtol=1e-4)
    return got


def test_direct_with_calendar_covariates_and_missing_values(tmp_path: Path) -> None:
    index = pd.date_range("2024-01-01", periods=59, freq="D")
    y = pd.DataFrame(dict(enumerate(series(3, 57))), index=index[:57])
    x = pd.DataFrame({"load": np.random.default_rng(1).normal(50, 9, 59)}, index=index)
    forecaster = fitted(y, x, mode="direct")
    assert forecaster.report is not None  # it is calibrated
    path = forecaster.to_onnx(tmp_path / "direct.onnx")
    y.iloc[-1, 0] = np.nan
    y.iloc[50:55, 1] = np.nan
    check(forecaster, path, y, x)
    check(forecaster, path, y[2].iloc[-9:], x.iloc[-11:])  # shorter than the context


def test_fed_back_of_positive_data(tmp_path: Path) -> None:
    y = series(3, 57)
    forecaster = fitted(y, mode="fed-back", positive=True)
    path = forecaster.to_onnx(tmp_path / "fed_back.onnx")
    y[1][-5] = np.nan
    got = check(forecaster, path, y)
    check(forecaster, path, y[0])
    high = got["unit"] * np.expm1(got["log_mean"] + 1.2815515655446004 * np.sqrt(got["log_var"]))
    np.testing.assert_allclose(high, forecaster.predict(y).quantile(0.9), rtol=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    forecaster = Forecaster(HORIZON)
    with pytest.raises(RuntimeError, match="has not been fitted"):
        forecaster.to_onnx(tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="got Forecaster, which has its own method"):
        spgru.to_onnx(forecaster, tmp_path / "m.onnx", torch.zeros(1))  # type: ignore[arg-type]
    x = torch.randn(59, 1)
    forecaster = fitted(series(1, 57)[0], Moments(x, torch.ones_like(x)), mode="direct")
    with pytest.raises(ValueError, match="covariates of this forecaster are uncertain"):
        forecaster.to_onnx(tmp_path / "m.onnx")
