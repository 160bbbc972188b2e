"""The base of sinks that want some kinds of events only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hearth.events.items import Event


class HandlingSink:
    """An `EventSink` that hands each event to the handler of exactly its kind, and ignores kinds
    that have none: most want few.
    """

    _handlers: Mapping[type[Event], Callable[[Any], None]]

    def emit(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def handler_of(self, kind: type[Event]) -> Callable[[Any], None] | None:
        """What takes events of this kind as `emit` would, None where they are ignored; a sink that
        has this is asked once for each kind.
        """
        return self._handlers.get(kind)
