"""What waits for one target: bounded, one alert per key, gathered for a moment so that a bad minute is one message and not twenty.

Pure: every instant is an argument, in seconds on the monotonic clock.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.alerts.alert import Alert, AlertKey, Message

CAPACITY = 200
GATHER_S = 2.0
"""From the first alert to the message: what one cause sets off comes within this time."""
DIGEST_ABOVE = 3
"""More alerts than this that wait at once become one message."""


class Outbox:
    """The alerts on their way to one target."""

    def __init__(self) -> None:
        self._waiting: dict[AlertKey, Alert] = {}
        self._first_at = 0.0
        self._untold = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, alert: Alert, now: float) -> None:
        """Queue an alert. It takes the place of an older one with its key; where there is no room, the oldest of the least bad goes."""
        older = self._waiting.pop(alert.key, None)
        if older is not None:
            repeated = 0 if alert.resolved or older.resolved else 1
            alert = replace(alert, suppressed=alert.suppressed + older.suppressed + repeated)
        elif len(self._waiting) >= CAPACITY:
            least = min(self._waiting.values(), key=lambda each: each.severity)
            del self._waiting[least.key]
            self.lose(1)
        if not self._waiting:
            self._first_at = now
        self._waiting[alert.key] = alert

    def due_at(self) -> float | None:
        """When the next message may be taken; None where nothing waits."""
        return self._first_at + GATHER_S if self._waiting else None

    def take(self, wall_at: float) -> Message | None:
        """The next message: the oldest alert, or all of them where they are many; None where nothing waits."""
        count = len(self._waiting) if len(self._waiting) > DIGEST_ABOVE else 1
        return self._taken(count, wall_at)

    def take_all(self, wall_at: float) -> Message | None:
        """Everything in one message; None where nothing waits."""
        return self._taken(len(self._waiting), wall_at)

    def clear(self) -> None:
        """Give up everything that waits."""
        self.lose(len(self._waiting))
        self._waiting.clear()

    def lose(self, count: int) -> None:
        """Count alerts that will never arrive; the next message says how many."""
        self.dropped += count
        self._untold += count

    def give_up(self, message: Message) -> None:
        """A message that was taken will never arrive, nor will what it would have said of earlier losses."""
        self.lose(len(message.alerts))
        self._untold += message.dropped

    def put_back(self, message: Message) -> None:
        """A message that was taken will never arrive, but the state of a condition still has to: it waits again, behind the others."""
        news = [each for each in message.alerts if each.lasting or each.resolved]
        self.lose(len(message.alerts) - len(news))
        self._untold += message.dropped
        for alert in news:
            newer = self._waiting.pop(alert.key, None)
            self.put(alert, self._first_at)
            if newer is not None:
                self.put(newer, self._first_at)

    def _taken(self, count: int, wall_at: float) -> Message | None:
        alerts = tuple(self._waiting.values())[:count]
        if not alerts:
            return None
        for each in alerts:
            del self._waiting[each.key]
        dropped, self._untold = self._untold, 0
        return Message(alerts=alerts, dropped=dropped, wall_at=wall_at)
