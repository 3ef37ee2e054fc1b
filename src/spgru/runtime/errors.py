"""The error that is raised wherever a setting cannot be used."""

from __future__ import annotations

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one sentence for the user."""
