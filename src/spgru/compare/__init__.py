"""Our forecasts beside those of others, on the same data: `spgru compare`.

Every method learns from the same histories, with networks of one size and as many steps, and
forecasts the same windows; then all are judged by the same quantiles.

Imported on demand (`import spgru.compare`); `import spgru` leaves it alone.
"""

from spgru.compare.report import summary, write
from spgru.compare.run import CompareConfig, measure
from spgru.compare.scores import LEVELS, score
from spgru.compare.tasks import Task, packaged_tasks, read_tasks

__all__ = [
    "LEVELS",
    "CompareConfig",
    "Task",
    "measure",
    "packaged_tasks",
    "read_tasks",
    "score",
    "summary",
    "write",
]
