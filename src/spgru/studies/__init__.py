"""The paper's experiments, each from data to report: `spgru reproduce NAME`.

Imported on demand (`import spgru.studies`); `import spgru` leaves it alone.
"""

from spgru.studies.reproduce import STUDIES, UnfinishedError, reproduce, rewrite_reports
from spgru.studies.runs import StudyConfig
from spgru.studies.scales import SCALES, Scale
from spgru.studies.study import WrittenReport

__all__ = [
    "SCALES", "STUDIES", "Scale", "StudyConfig", "UnfinishedError", "WrittenReport", "reproduce",
    "rewrite_reports",
]  # fmt: skip
