"""Models of video: predictor, autoencoder and both, fully connected or convolutional.

Imported on demand (`import spgru.models`); `import spgru` leaves it alone.
"""

from spgru.models.config import ModelConfig
from spgru.models.conv_recurrent import ConvGRU, ConvGRUCell, ConvLSTM, ConvLSTMCell
from spgru.models.video import (
    Autoencoder,
    Composite,
    NextFrame,
    Prediction,
    Predictor,
    VideoModel,
    build,
)

__all__ = [
    "Autoencoder",
    "Composite",
    "ConvGRU",
    "ConvGRUCell",
    "ConvLSTM",
    "ConvLSTMCell",
    "ModelConfig",
    "NextFrame",
    "Prediction",
    "Predictor",
    "VideoModel",
    "build",
]
