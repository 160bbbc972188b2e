"""The root of the tree."""

from __future__ import annotations

from typing import Self


class HearthError(Exception):
    """Something went wrong in Hearth."""

    status: int = 500
    retryable: bool = False
    reason: str = "internal_error"

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.retry_after_s = retry_after_s
        super().__init__(self.message)

    def again(self) -> Self:
        """The same error, not raised yet: for somebody else, or to be kept.

        One that is raised twice would mix its tracebacks, and one that was raised knows the frames that it came through: kept by what
        those know, it would be a circle, which only the garbage collector frees.
        """
        same = type(self).__new__(type(self), *self.args)
        vars(same).update(vars(self))
        return same
