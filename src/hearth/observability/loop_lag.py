"""Watches the event loop from inside: a timer that comes late means that everything came late.

Emits `LoopLagged`; changes nothing. One companion task of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hearth.clock import Clock
from hearth.config.settings import AlertSettings
from hearth.events import LoopLagged
from hearth.ports import EventSink

BEAT_S = 0.2
"""Between two looks; a hold-up is measured short by this at most."""


class LoopLagMonitor:
    """Says when the loop was held up.

    Args:
        settings: asked at each beat; from `loop_lag_warning_s` on, an event is emitted.
        note: told of every beat by how much it was late, in seconds.
    """

    def __init__(self, *, clock: Clock, events: EventSink, settings: Callable[[], AlertSettings], note: Callable[[float], None]) -> None:
        self._clock = clock
        self._events = events
        self._settings = settings
        self._note = note

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            began_at = self._clock.monotonic()
            await asyncio.sleep(BEAT_S)
            now = self._clock.monotonic()
            lag_s = now - began_at - BEAT_S
            self._note(lag_s)
            if lag_s >= self._settings().loop_lag_warning_s:
                self._events.emit(LoopLagged(at=now, lag_s=lag_s))
