"""The demo's closing table: who asked how often, who waited how long, what the swaps cost. Counts events; called by `hearth.cli.demo`."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hearth.cli.demo_narrator import who
from hearth.cli.status_view import duration
from hearth.events import Event, ItemEnded, ItemInterrupted, SwapCompleted
from hearth.types import Outcome


@dataclass(slots=True, kw_only=True)
class CallerCount:
    """One caller so far; `queue_s` sums over its ended requests."""

    completed: int = 0
    failed: int = 0
    queue_s: float = 0.0
    interruptions: int = 0

    @property
    def mean_wait_s(self) -> float | None:
        """Seconds from acceptance to dispatch, swaps included; None before the first request has ended."""
        ended = self.completed + self.failed
        return self.queue_s / ended if ended else None


@dataclass(slots=True, kw_only=True)
class Tally:
    """An event sink that adds up. Work that is still running at the end is in no column."""

    callers: dict[str, CallerCount] = field(default_factory=dict)
    swaps: int = 0
    swap_s: float = 0.0
    backend_s: float = 0.0

    def emit(self, event: Event) -> None:
        """Count it."""
        match event:
            case ItemEnded():
                self._ended(event)
            case ItemInterrupted():
                self._of(event).interruptions += 1
                self.backend_s += event.ran_s
            case SwapCompleted():
                self.swaps += 1
                self.swap_s += event.swap_s

    @property
    def overhead_pct(self) -> float:
        """Swap time over swap and execution time, in percent; 0 before any of both."""
        busy_s = self.swap_s + self.backend_s
        return 100.0 * self.swap_s / busy_s if busy_s else 0.0

    def table(self) -> RenderableType:
        """What to print at the end."""
        table = Table("caller", box=None, pad_edge=False)
        for name in ("requests", "failed", "mean wait", "interruptions"):
            table.add_column(name, justify="right")
        for caller, count in sorted(self.callers.items()):
            requests = str(count.completed + count.failed)
            table.add_row(caller, requests, str(count.failed), duration(count.mean_wait_s), str(count.interruptions))
        return Group(table, Text(), Text(self._swaps_line()))

    def _swaps_line(self) -> str:
        plural = "" if self.swaps == 1 else "s"
        return f"{self.swaps} swap{plural} took {duration(self.swap_s)}: {self.overhead_pct:.0f} % of the GPU's working time"

    def _of(self, event: ItemEnded | ItemInterrupted) -> CallerCount:
        return self.callers.setdefault(who(event), CallerCount())

    def _ended(self, event: ItemEnded) -> None:
        count = self._of(event)
        count.completed += event.outcome is Outcome.COMPLETED
        count.failed += event.outcome is not Outcome.COMPLETED
        count.queue_s += event.queue_s
        self.backend_s += event.backend_s or 0.0
