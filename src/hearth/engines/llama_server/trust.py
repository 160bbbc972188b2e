"""Whether saving works for a server, and whether it pays."""

from __future__ import annotations

from hearth.types import entity

MOST_FAILURES = 2


class Trust:
    """Failures of one server with one model, over all its runs: two in a row of saving or of
    restoring switch both off.

    Attributes:
        has_saved: something was saved, so that a stop loses less.
    """

    def __init__(self) -> None:
        self.has_saved = False
        self._failures = {"save": 0, "restore": 0}

    @property
    def is_off(self) -> bool:
        return max(self._failures.values()) >= MOST_FAILURES

    def worked(self, step: str) -> None:
        self._failures[step] = 0
        self.has_saved = self.has_saved or step == "save"

    def failed(self, step: str) -> bool:
        """Count a failure; True for the one that switches it off."""
        was_off = self.is_off
        self._failures[step] += 1
        return self.is_off and not was_off


@entity
class Speed:
    """Learned seconds for a token; what was seen last counts most."""

    tokens: float = 0.0
    seconds: float = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        self.tokens = self.tokens / 2 + tokens
        self.seconds = self.seconds / 2 + seconds

    def is_slower_than(self, other: Speed) -> bool:
        """As far as both are known."""
        if not self.tokens or not other.tokens:
            return True
        return self.seconds / self.tokens > other.seconds / other.tokens
