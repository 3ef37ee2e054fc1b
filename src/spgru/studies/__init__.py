"""The paper's experiments, each from data to report: `spgru reproduce NAME`.

Imported on demand (`import spgru.studies`); `import spgru` leaves it alone.
"""

from spgru.studies.reproduce import STUDIES, UnfinishedError, rebuild, reproduce
from spgru.studies.runs import Settings
from spgru.studies.scales import SCALES, Scale

__all__ = ["SCALES", "STUDIES", "Scale", "Settings", "UnfinishedError", "rebuild", "reproduce"]
