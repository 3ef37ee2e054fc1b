"""Re-exported for the kernels; see `spgru.functional.activation_constants`."""

from spgru.functional.activation_constants import COSH, COSH_SLOPE, SCALED_ERFC

__all__ = ["COSH", "COSH_SLOPE", "SCALED_ERFC"]
