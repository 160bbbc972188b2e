"""When each caller was last here."""

from __future__ import annotations

from hearth.clock import Clock


class LastSeen:
    """Since the start of this process; what was before is in the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_s: dict[str, float] = {}
        """By names that the configuration has or had, so that nobody outside can add any."""

    def note(self, caller: str) -> None:
        """The caller has sent a request, of whatever kind, with its key."""
        self._wall_s[caller] = self._clock.wall()

    def of(self, caller: str) -> float | None:
        """Seconds since 1970; None for a caller that was not here yet."""
        return self._wall_s.get(caller)
