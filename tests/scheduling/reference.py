"""A second scheduler, written from docs/scheduling.md and nothing else: one model at a time, one slot, sorted lists, no cleverness.

It shares no code with `hearth.scheduling` and predicts every start (instant, job, model) of a workload without faults. An unload takes
no time here. Used by `test_reference` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.workloads import Job, Workload
from hearth.types import Lane

SWAP_PRIOR_S = 10.0
Event = tuple[float, str, int, Any]  # (instant, what happens, which of several at one instant, to what)


@dataclass(kw_only=True)
class Item:
    """A job that has arrived. `rank` is minus the number of its interruption."""

    job: Job
    number: int
    arrived: float
    rank: int = 0
    interrupts: int = 0
    lost_loads: int = 0

    @property
    def band(self) -> int:
        if self.job.lane is Lane.INTERNAL:
            return int(self.job.priority)
        return 3 if self.interrupts else 4

    @property
    def place(self) -> tuple[int, int, int]:
        return (self.band, self.rank, self.number)


class Reference:
    """The house."""

    def __init__(self, workload: Workload, owner: SchedulerSettings, policy: PolicyName) -> None:
        self.workload, self.owner, self.affinity = workload, owner, policy is PolicyName.AFFINITY
        self.max_interrupts = owner.queue.max_interrupt_count
        self.now, self.active = 0.0, True
        self.waiting: list[Item] = []
        self.running: Item | None = None
        self.resident = next(iter(workload.resident), None)
        self.loaded_at, self.unsettled = 0.0, False
        self.loading: str | None = None
        self.numbers = self.interruptions = 0
        self.measured: set[str] = set()
        self.starts: list[tuple[float, int, str]] = []
        self.due: list[Event] = [(job.at, "arrive", job.id, job) for job in workload.jobs if job.after is None]
        self.due += [(at, "change_mode", 0, active) for at, active in workload.modes]

    def run(self) -> list[tuple[float, int, str]]:
        """All starts in order."""
        while self.due:
            event = min(self.due, key=lambda each: each[:3])
            self.due.remove(event)
            self.now = event[0]
            getattr(self, event[1])(event[3])
            self.decide()
        return self.starts

    def arrive(self, job: Job) -> None:
        self.numbers += 1
        item = Item(job=job, number=self.numbers, arrived=self.now)
        self.waiting.append(item)
        if job.cancel_after_s is not None:
            self.due.append((self.now + job.cancel_after_s, "leave", item.number, item))

    def change_mode(self, active: bool) -> None:
        self.active = active

    def leave(self, item: Item) -> None:
        if item in self.waiting:
            self.waiting.remove(item)
        self.end(item)

    def end(self, item: Item) -> None:
        if item is self.running:
            self.running = None
        self.due = [each for each in self.due if each[3] is not item]
        followers = [job for job in self.workload.jobs if job.after == item.job.id]
        self.due += [(max(self.now + job.think_s, job.at), "arrive", job.id, job) for job in followers]

    def come(self, model: str) -> None:
        self.resident, self.loaded_at, self.unsettled, self.loading = model, self.now, True, None
        self.measured.add(model)

    def decide(self) -> None:
        self.interrupt()
        if self.running is not None or self.loading is not None:
            return
        for band in range(5):
            items = [item for item in self.waiting if item.band == band]
            item = self.choose(items)
            if item is not None and item.job.model not in {None, self.resident} and self.insisted():
                item = self.choose([item for item in items if item.job.model is None])
            if item is None:
                continue
            model = item.job.model or self.resident or self.workload.home
            if model == self.resident:
                self.start(item)
            else:
                self.vacate()
                self.load(item)
            return

    def insisted(self) -> bool:
        """What was just loaded stays for an external item that has lost it, or been interrupted, often enough."""
        own = [item for item in self.waiting if item.job.model == self.resident]
        if not self.unsettled or self.resident is None or not own:
            return False
        first = min(own, key=lambda item: (item.band, item.place))
        return first.job.lane is Lane.EXTERNAL and first.interrupts + first.lost_loads >= self.max_interrupts

    def vacate(self) -> None:
        if self.unsettled:
            for item in self.waiting:
                item.lost_loads += item.job.model == self.resident
        self.resident, self.unsettled = None, False

    def load(self, item: Item) -> None:
        self.loading = item.job.model or self.workload.home
        self.due.append((self.now + self.workload.swap_s((), self.loading), "come", 0, self.loading))

    def interrupt(self) -> None:
        victim = self.running
        if (
            victim is None
            or victim.job.lane is Lane.INTERNAL
            or not self.active
            or victim.interrupts + victim.lost_loads >= self.max_interrupts
        ):
            return
        if any(item.job.lane is Lane.INTERNAL for item in self.waiting):
            self.interruptions += 1
            victim.interrupts += 1
            victim.rank = -self.interruptions
            self.running = None
            self.due = [each for each in self.due if each[1:] != ("end", 0, victim)]
            self.waiting.append(victim)

    def choose(self, band: list[Item]) -> Item | None:
        items = sorted(band, key=lambda item: item.place)
        if not items:
            return None
        own = [item for item in items if item.job.model == self.resident]
        if self.unsettled and self.resident is not None and own:
            return own[0]
        if not self.affinity:
            return items[0]
        served = [item for item in items if self.resident is not None and item.job.model in {None, self.resident}]
        overdue = self.overdue([item for item in items if item not in served and item.job.model is not None])
        return overdue or (served or items)[0]

    def overdue(self, items: list[Item]) -> Item | None:
        """Of the first in line for each absent model, the one that arrived first, if it has waited too long and the swap is earned."""
        heads = {item.job.model: item for item in reversed(items)}
        oldest = min(heads.values(), key=lambda item: item.number, default=None)
        if oldest is None or self.now - oldest.arrived < self.owner.scheduling.max_swap_wait_s:
            return None
        if self.resident is None:
            return oldest
        cost_s = max(self.cost_s(self.resident), self.cost_s(oldest.job.model or ""))
        return oldest if self.now - self.loaded_at >= self.owner.scheduling.residency_factor * cost_s else None

    def cost_s(self, model: str) -> float:
        return self.workload.swap_s((), model) if model in self.measured else SWAP_PRIOR_S

    def start(self, item: Item) -> None:
        assert self.resident is not None
        self.waiting.remove(item)
        self.running = item
        if item.job.model is not None or all(other.job.model != self.resident for other in self.waiting):
            self.unsettled = False
        self.due.append((self.now + item.job.service_s, "end", 0, item))
        self.starts.append((self.now, item.job.id, self.resident))
