"""What the server accepts, and how much of the machine it takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FRAMES", "HALF", "MEGABYTE", "SIZE", "Limits"]

MEGABYTE = 1_000_000
SIZE = 64
"""Height and width of a frame in pixels."""
HALF = 10
"""Frames that a network reads, and frames that it predicts."""
FRAMES = 2 * HALF


@dataclass(frozen=True)
class Limits:
    """All limits of a server. The page is told those that a user can meet."""

    scene_bytes: int = 64_000
    """of a described sequence, drawings included"""
    sequence_bytes: int = 8 * MEGABYTE
    """of an uploaded .npy file"""
    table_bytes: int = 2 * MEGABYTE
    """of an uploaded CSV table"""
    table_rows: int = 20_000
    table_columns: int = 200
    horizon: int = 200
    draws: int = 200
    digits: int = 3
    quick: int = 2
    """predictions at once"""
    long: int = 1
    """forecasts at once, since each is a training"""
    waiting: int = 4
    """requests that may wait for their turn, of each kind"""
    patience: float = 1.0
    """seconds that they wait before they are turned away"""
    quick_seconds: float = 20.0
    """for one prediction"""
    long_seconds: float = 180.0
    """for one forecast"""
    upload_seconds: float = 30.0
    """for the body of a request to arrive"""
    uploads: int = 8
    """bodies larger than `scene_bytes` that arrive at once"""
    header_seconds: float = 10.0
    """for the head of a request to arrive"""
    connections: int = 256
    """at once; a new one beyond them ends the oldest that has nothing computed for it"""
