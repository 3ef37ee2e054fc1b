"""The error of a configuration that cannot be used, which names all that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ConfigError", "problems_of", "refuse"]


class ConfigError(ValueError):
    """A configuration that cannot be used.

    Args:
        problems: a sentence each; several are numbered in the message
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        numbered = "; ".join(f"({number}) {text}" for number, text in enumerate(problems, 1))
        single = len(problems) == 1
        super().__init__(problems[0] if single else f"{len(problems)} problems: {numbered}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, ...]]:
        return ConfigError, self.problems


def refuse(problems: Iterable[str]) -> None:
    """Raise one error that names all problems, if there are any."""
    found = tuple(problems)
    if found:
        raise ConfigError(*found)


def problems_of(error: Exception) -> tuple[str, ...]:
    """The problems that an error names: those of a `ConfigError`, or the one of any other."""
    return error.problems if isinstance(error, ConfigError) else (str(error),)
