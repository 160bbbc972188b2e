"""What the rest of Hearth holds of the owner's file: an immutable value; a reload makes a new one. Never reads a file or a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from hearth.config import active_hours
from hearth.config.settings import Announcement, SchedulerSettings, Settings
from hearth.types import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """A checked configuration.

    Attributes:
        source: the file it was read from; None for defaults and for text that came from elsewhere. `digest`: SHA-256 of its bytes in hex.
        notes: what its owner may want to write in another way.
    """

    settings: Settings = field(default_factory=Settings)
    source: Path | None = None
    digest: str = field(default="", compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def priority_for_task_type(self, task_type: str | None) -> Priority:
        """The internal band of a task type; NORMAL for one that `priority_map` does not list, and for none."""
        return self.settings.priority_map.get(task_type or "", Priority.NORMAL)

    def is_active_hours(self, wall_s: float) -> bool:
        """Whether internal work preempts external work at an instant (seconds since 1970-01-01 UTC)."""
        return active_hours.is_active(self.settings.scheduling.active_hours, self._zone, wall_s)

    def next_mode_change(self, wall_s: float) -> float | None:
        """The first instant after `wall_s` at which `is_active_hours` changes; None where the window is the whole day."""
        return active_hours.next_change(self.settings.scheduling.active_hours, self._zone, wall_s)

    def day_of(self, wall_s: float) -> tuple[float, float]:
        """The calendar day in `scheduling.time_zone` that an instant belongs to, as instants [start, end)."""
        return active_hours.day_of(self._zone, wall_s)

    def next_announcements(self, wall_s: float) -> tuple[tuple[Announcement, ...], float] | None:
        """The announced tasks that come first after `wall_s`, with their common instant; None where nothing is announced."""
        return active_hours.next_occurrences(self.settings.scheduling.announcements, self._zone, wall_s)

    def rpm_for_caller(self, caller: str) -> int:
        """Requests that a caller may make in any 60 seconds."""
        return self.settings.rate_limits.of_caller(caller)[0]

    def rph_for_caller(self, caller: str) -> int:
        """Requests that a caller may make in any 3600 seconds."""
        return self.settings.rate_limits.of_caller(caller)[1]

    @property
    def scheduler_settings(self) -> SchedulerSettings:
        """The part that the scheduler decides by."""
        return SchedulerSettings.of(self.settings)

    @property
    def _zone(self) -> tzinfo:
        return active_hours.zone_of(self.settings.scheduling.time_zone)
