"""The one error of dl_comm."""

from __future__ import annotations


class CommError(RuntimeError):
    """What is so, with the numbers, and (``hint``) what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message
