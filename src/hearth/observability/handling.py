"""What a sink with a handler for each kind of event has in common. Handlers are found by type: most sinks want few kinds of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hearth.events import Event


class HandlingSink:
    """A `SelectiveSink` that hands each event to the handler of exactly its kind, and ignores kinds that have none."""

    _handlers: Mapping[type[Event], Callable[[Any], None]]

    def emit(self, event: Event) -> None:
        """As `EventSink` says."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def handler_of(self, kind: type[Event]) -> Callable[[Any], None] | None:
        """As `SelectiveSink` says."""
        return self._handlers.get(kind)
