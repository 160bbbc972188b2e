"""What changes on the page although nothing has moved in the queue: jobs, orders, alerts, the configuration, the card. Called by `feed`."""

from __future__ import annotations

from collections.abc import Callable

from hearth.changes import Changes
from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    ConfigReloaded,
    DrainEnded,
    DrainStarted,
    Event,
    ItemEvent,
    JobEvent,
    JobsRecovered,
    ModeChanged,
    OrderGiven,
    RequestRejected,
)

_OF_JOBS = (JobEvent, JobsRecovered, ModeChanged, ConfigReloaded, OrderGiven, DrainStarted, DrainEnded, BackendWentDown, BackendCameUp)
_TOLD_BY_THE_QUEUE = (ItemEvent, RequestRejected)


class News:
    """A sink that keeps nothing but the fact.

    Attributes:
        changes: to be watched beside those of the queue.
        of_jobs: grows with everything that may change what is shown of jobs.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self.of_jobs = 0

    def emit(self, event: Event) -> None:
        """Note that something has happened."""
        if isinstance(event, _OF_JOBS):
            self.of_jobs += 1
        self.changes.note()

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return None if issubclass(kind, _TOLD_BY_THE_QUEUE) else self.emit
