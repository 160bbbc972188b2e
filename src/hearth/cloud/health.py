"""Whether Claude takes work from this house at all: a refused key or an empty account is not asked again with every request."""

from __future__ import annotations

from hearth.errors import CloudUnavailable, HearthError
from hearth.events import CloudCameUp, CloudWentDown
from hearth.ports import EventSink

DOWN_S = 900.0
"""After such a refusal Claude is left alone for this long, or until the configuration is read again."""
_ADVICE = "Claude refuses the key or the account: look at cloud.api_key, and at the credit and the limits of the account"


class CloudHealth:
    """What the last calls have shown."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._down_at: float | None = None
        self._refused_at = 0.0
        self._until = 0.0

    def is_down(self, now: float) -> bool:
        """Whether it is left alone."""
        return now < self._until

    def forget(self) -> None:
        """Whatever was refused may be right now: try again."""
        self._until = 0.0

    def note(self, error: HearthError | None, now: float, *, began_at: float) -> None:
        """A call that was sent at `began_at` has ended; `error` None where Claude answered.

        Credit that runs out ends no answer under way, so one that began before the refusal does not take it back.
        """
        if isinstance(error, CloudUnavailable):
            if not self.is_down(now):
                self._events.emit(CloudWentDown(at=now, reason=error.reason, detail=_ADVICE, retry_s=DOWN_S))
            self._down_at = now if self._down_at is None else self._down_at
            self._refused_at, self._until = now, now + DOWN_S
        elif error is None and self._down_at is not None and began_at >= self._refused_at:
            self._events.emit(CloudCameUp(at=now, down_s=now - self._down_at))
            self._down_at, self._until = None, 0.0
