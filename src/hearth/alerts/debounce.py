"""Which alerts become messages: at most one per type and caller in a window, one notice when a condition has ended.

Pure: every instant is an argument, in seconds on the monotonic clock. A condition that came back within the window, and is still there
when the window ends, is told then; the owner never believes for longer than a window that something is over which is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hearth.alerts.alert import Alert, AlertKey
from hearth.config.settings import AlertType

MAX_KEYS = 1000
"""Types times callers that are remembered; beyond it, what was quiet for longest is forgotten."""


@dataclass(slots=True)
class _Record:
    """What is known of one key. `standing`: the last alert of a condition that goes on; `told`: the owner believes that it goes on."""

    sent_at: float = float("-inf")
    suppressed: int = 0
    standing: Alert | None = None
    told: bool = False


class Debouncer:
    """The memory of what was sent, per key.

    Args:
        window_s: between two messages with one key; may be changed at any time.
        heard: whether messages of a type go anywhere now. What nobody hears is not told: where it goes on, it is told once somebody does.
    """

    def __init__(self, window_s: float, heard: Callable[[AlertType], bool] = lambda _: True) -> None:
        self.window_s = window_s
        self.suppressed = 0
        self._heard = heard
        self._records: dict[AlertKey, _Record] = {}

    @property
    def standing(self) -> tuple[Alert, ...]:
        """The conditions that go on, told or not."""
        return tuple(record.standing for record in self._records.values() if record.standing is not None)

    def is_standing(self, key: AlertKey) -> bool:
        """Whether a condition goes on."""
        record = self._records.get(key)
        return record is not None and record.standing is not None

    def take(self, alert: Alert) -> Alert | None:
        """The alert as it should be sent, with what was left out before it; None where it should not be."""
        if alert.resolved:
            return self._ended(alert)
        record = self._record(alert.key)
        record.standing = alert if alert.lasting else record.standing
        if not self._heard(alert.type):
            return None
        if alert.at < record.sent_at + self.window_s:
            record.suppressed += 1
            self.suppressed += 1
            return None
        return self._send(record, alert, alert.at)

    def due(self, now: float) -> list[Alert]:
        """Conditions whose return was left out, and whose window has ended while they still go on."""
        return [
            # It is the message now and no longer one of those left out.
            self._send(record, standing, now, told_late=1)
            for record, standing in self._untold()
            if now >= record.sent_at + self.window_s
        ]

    def next_due_at(self) -> float | None:
        """When `due` has something next."""
        return min((record.sent_at + self.window_s for record, _ in self._untold()), default=None)

    def _untold(self) -> list[tuple[_Record, Alert]]:
        """Conditions that go on, and of which the owner could know but does not."""
        known = ((record, record.standing) for record in self._records.values() if not record.told)
        return [(record, standing) for record, standing in known if standing is not None and self._heard(standing.type)]

    def _ended(self, alert: Alert) -> Alert | None:
        record = self._records.get(alert.key)
        if record is None or record.standing is None:
            return None
        told, record.standing, record.told = record.told, None, False
        return alert if told else None

    def _send(self, record: _Record, alert: Alert, at: float, told_late: int = 0) -> Alert:
        left_out = max(0, record.suppressed - told_late)
        record.sent_at, record.suppressed, record.told = at, 0, record.told or alert.lasting
        return replace(alert, suppressed=alert.suppressed + left_out)

    def _record(self, key: AlertKey) -> _Record:
        """The record of a key, made the youngest."""
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record
        if len(self._records) > MAX_KEYS:
            quiet = (known for known, each in self._records.items() if each.standing is None)
            del self._records[next(quiet, next(iter(self._records)))]
        return record
