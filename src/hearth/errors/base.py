"""The root of the tree."""

from __future__ import annotations


class HearthError(Exception):
    """Something went wrong in Hearth."""

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.retry_after_s = retry_after_s
        super().__init__(self.message)
