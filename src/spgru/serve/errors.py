"""Why a request is not answered: a status and a sentence that says what to do."""

from __future__ import annotations

__all__ = ["BusyError", "RefusedError", "TooSlowError"]


class RefusedError(ValueError):
    """The request asks for something that cannot be done."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class BusyError(RefusedError):
    """All workers compute, and the line is full."""

    def __init__(self) -> None:
        super().__init__("the server is computing for others; try again in a second", 429)


class TooSlowError(RefusedError):
    """A computation was ended because its time was up."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the computation was ended after {seconds:g} seconds, its limit; ask for less, such "
            "as fewer draws, fewer rows or a shorter horizon",
            408,
        )
