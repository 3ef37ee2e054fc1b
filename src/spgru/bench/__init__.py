"""What uncertainty costs: ours beside `torch.nn`, sampling and other libraries. `spgru bench`.

A contender is first compared with a float64 truth; one that fails is listed as wrong, without a
time. All that remain take turns in one process, so that their ratios are fair.

Imported on demand (`import spgru.bench`); `import spgru` leaves it alone.
"""

from spgru.bench.report import summary, write
from spgru.bench.run import BenchConfig, measure
from spgru.bench.shapes import Case, Shape, preset_cases

__all__ = ["BenchConfig", "Case", "Shape", "measure", "preset_cases", "summary", "write"]
