"""`calibrate`: make the closed form's variance agree with drawn networks, or with outcomes.

What the closed form ignores, covariance between units and weights shared over time, is put back
where it is lost: as a gain for every row of a matrix, W.var + g W^2, and as a factor for every step
of the output. Both are found once, on some inputs, and cost nothing afterwards.
"""

from spgru.calibration.calibrate import calibrate
from spgru.calibration.report import CalibrationReport, OutcomeReport
from spgru.calibration.state import (
    calibration_state,
    is_calibrated,
    load_calibration,
    uncalibrate,
    uncalibrated,
)

__all__ = [
    "CalibrationReport",
    "OutcomeReport",
    "calibrate",
    "calibration_state",
    "is_calibrated",
    "load_calibration",
    "uncalibrate",
    "uncalibrated",
]
