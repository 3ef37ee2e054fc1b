"""Training: configurations, checkpoints that survive, one process or many.

Imported on demand (`import spgru.training`); `import spgru` leaves it alone.
"""

from spgru.runtime.errors import ConfigError
from spgru.runtime.lock import FolderInUseError
from spgru.training.checkpoint import CheckpointError, CheckpointWarning
from spgru.training.config import (
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    load_config,
)
from spgru.training.evaluation import Score, score
from spgru.training.export import Loaded, export, load_exported, load_model
from spgru.training.loop import Result, train
from spgru.training.packaged import packaged_names
from spgru.training.run import TrainingError

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "DataConfig",
    "FolderInUseError",
    "Loaded",
    "OptimizerConfig",
    "Result",
    "ScheduleConfig",
    "Score",
    "TrainConfig",
    "TrainingError",
    "export",
    "load_config",
    "load_exported",
    "load_model",
    "packaged_names",
    "score",
    "train",
]
