"""Forecasts of series, with intervals that hold: `Forecaster` in, `Forecast` out.

    from spgru.forecast import Forecaster, forecast_dataset

pandas is needed only where pandas objects come in or a table is asked for.
"""

from spgru.forecast.dataset import DatasetReport, forecast_dataset
from spgru.forecast.forecast import Forecast
from spgru.forecast.forecaster import Forecaster

__all__ = ["DatasetReport", "Forecast", "Forecaster", "forecast_dataset"]
