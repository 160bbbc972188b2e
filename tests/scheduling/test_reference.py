"""The scheduler against an independent one, and its lines against a plain list: on random
workloads, the same starts at the same instants.

`Reference` was written from docs/scheduling/rules.md and nothing else: one model at a time, one
slot, sorted lists, no cleverness. It shares no code with `hearth.scheduling` and predicts every
start (instant, job, model) of a workload without faults. An unload takes no time here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from hearth.config.settings import (
    GpuSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling.actions import Dispatch
from hearth.scheduling.waiting import BANDS, Entry, WaitingRoom
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Band, Lane, Priority, QueueItem, RequestId, Sequence
from tests.support.examples import EXAMPLES
from tests.support.workloads import Mix, random_workload

SWAP_PRIOR_S = 10.0
# (instant, what happens, which of several at one instant, to what)
Event = tuple[float, str, int, Any]


@dataclass(kw_only=True)
class Item:
    """A job that has arrived. `rank` is minus the number of its interruption."""

    job: WorkloadJob
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
        self.workload = workload
        self.owner = owner
        self.affinity = policy is PolicyName.AFFINITY
        self.max_interrupts = owner.queue.max_interrupt_count
        self.now = 0.0
        self.active = True
        self.waiting: list[Item] = []
        self.running: Item | None = None
        self.resident = next(iter(workload.resident), None)
        self.loaded_at = 0.0
        self.unsettled = False
        self.loading: str | None = None
        self.numbers = self.interruptions = 0
        self.measured: set[str] = set()
        self.starts: list[tuple[float, int, str]] = []
        self.due: list[Event] = [
            (job.at, "arrive", job.id, job) for job in workload.jobs if job.after is None
        ]
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

    def arrive(self, job: WorkloadJob) -> None:
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
        self.due += [
            (max(self.now + job.think_s, job.at), "arrive", job.id, job) for job in followers
        ]

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
        """What was just loaded stays for an external item that has lost it, or been interrupted,
        often enough.
        """
        own = [item for item in self.waiting if item.job.model == self.resident]
        if not self.unsettled or self.resident is None or not own:
            return False
        first = min(own, key=lambda item: (item.band, item.place))
        return (
            first.job.lane is Lane.EXTERNAL
            and first.interrupts + first.lost_loads >= self.max_interrupts
        )

    def vacate(self) -> None:
        if self.unsettled:
            for item in self.waiting:
                item.lost_loads += item.job.model == self.resident
        self.resident = None
        self.unsettled = False

    def load(self, item: Item) -> None:
        self.loading = item.job.model or self.workload.home
        self.due.append(
            (self.now + self.workload.swap_s((), self.loading), "come", 0, self.loading)
        )

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
        served = [
            item
            for item in items
            if self.resident is not None and item.job.model in {None, self.resident}
        ]
        overdue = self.overdue(
            [item for item in items if item not in served and item.job.model is not None]
        )
        return overdue or (served or items)[0]

    def overdue(self, items: list[Item]) -> Item | None:
        """Of the first in line for each absent model, the one that arrived first, if it has waited
        too long and the swap is earned.
        """
        heads = {item.job.model: item for item in reversed(items)}
        oldest = min(heads.values(), key=lambda item: item.number, default=None)
        if oldest is None or self.now - oldest.arrived < self.owner.scheduling.max_swap_wait_s:
            return None
        if self.resident is None:
            return oldest
        cost_s = max(self.cost_s(self.resident), self.cost_s(oldest.job.model or ""))
        return (
            oldest
            if self.now - self.loaded_at >= self.owner.scheduling.residency_factor * cost_s
            else None
        )

    def cost_s(self, model: str) -> float:
        return self.workload.swap_s((), model) if model in self.measured else SWAP_PRIOR_S

    def start(self, item: Item) -> None:
        assert self.resident is not None
        self.waiting.remove(item)
        self.running = item
        if item.job.model is not None or all(
            other.job.model != self.resident for other in self.waiting
        ):
            self.unsettled = False
        self.due.append((self.now + item.job.service_s, "end", 0, item))
        self.starts.append((self.now, item.job.id, self.resident))


MIX = Mix(jobs=40, shared_gpu=0.0, parallel=0.0, streaming=0.0, mean_gap_s=1.2)


def rules() -> SchedulerSettings:
    """Nothing that depends on estimates of service, no price of a swap, and no restoring of the
    home model.
    """
    return SchedulerSettings(
        scheduling=SchedulingSettings(
            preemption="at_once",
            max_swap_wait_s=15.0,
            residency_factor=1.5,
            preempt_min_remaining_s=0.0,
        ),
        queue=QueueSettings(max_interrupt_count=2),
        gpu=GpuSettings(restore_home_delay_s=3e7),
    )


def drawn(seed: int) -> Workload:
    return replace(random_workload(Random(seed), MIX), unload_s={})


def starts_of(workload: Workload, policy: PolicyName) -> list[tuple[float, int, str]]:
    settings = workload.settings(rules(), policy)
    run = simulate(workload, settings)
    numbers = {record.sequence: record.job.id for record in run.records}
    return [
        (at, numbers[action.sequence], action.model)
        for at, action in run.decisions
        if isinstance(action, Dispatch)
    ]


@pytest.mark.parametrize("policy", [PolicyName.FIFO, PolicyName.AFFINITY])
@pytest.mark.parametrize("block", range(4 * EXAMPLES))
def test_the_scheduler_starts_what_the_reference_starts_when_it_starts_it(
    policy: PolicyName, block: int
):
    for seed in range(block * 25, block * 25 + 25):
        workload = drawn(seed)
        assert starts_of(workload, policy) == Reference(workload, rules(), policy).run(), (
            f"seed {seed}"
        )


@pytest.mark.parametrize("seed", [814])
def test_the_reference_agrees_where_it_once_did_not(seed: int):
    """814: while somebody insists on what was loaded, the house's work for any model goes by
    band.
    """
    assert (
        starts_of(drawn(seed), PolicyName.FIFO)
        == Reference(drawn(seed), rules(), PolicyName.FIFO).run()
    )


def test_the_random_workloads_contain_what_the_reference_is_there_for():
    """Otherwise agreement would mean little."""
    runs = [
        simulate(workload, workload.settings(rules(), PolicyName.AFFINITY))
        for workload in map(drawn, range(25))
    ]
    assert sum(record.interrupts for run in runs for record in run.records) > 20
    assert sum(len(run.swaps) for run in runs) > 100
    assert (
        sum(
            action.why == "overdue"
            for run in runs
            for _, action in run.decisions
            if hasattr(action, "why")
        )
        > 5
    )


def drawn_entry(rng: Random, number: int) -> Entry:
    band = rng.choice(BANDS)
    lane = Lane.INTERNAL if band < Band.INTERRUPTED else Lane.EXTERNAL
    item = QueueItem(
        sequence=Sequence(number),
        request_id=RequestId("r"),
        lane=lane,
        priority=Priority(min(band, 2)),
        caller="c",
        model=rng.choice(("a", "b", None)),
        arrived_at=float(rng.randint(0, 20)),
    )
    key = (-number if band is Band.INTERRUPTED else 0, item.arrived_at, item.sequence)
    return Entry(item, band, key, item.model)


def test_lines_counts_and_orders_are_those_of_a_sorted_list():
    for seed in range(20 * EXAMPLES):
        rng = Random(seed)
        room = WaitingRoom()
        inside = list[Entry]()
        for number in range(1, 80):
            if inside and rng.random() < 0.4:
                room.remove(inside.pop(rng.randrange(len(inside))))
            else:
                inside.append(drawn_entry(rng, number))
                room.add(inside[-1])
            inside.sort(key=lambda entry: (entry.band, entry.key))
            assert list(room.in_order()) == inside
            assert room.first(5) == inside[:5]
            assert {entry.item.sequence for entry in room.all_entries()} == {
                entry.item.sequence for entry in inside
            }
            assert [room.count(lane) for lane in Lane] == [
                sum(entry.item.lane is lane for entry in inside) for lane in Lane
            ]
            assert set(room.models()) == {entry.item.model for entry in inside}
            for band in BANDS:
                assert room.up_to(band, "a") == sum(
                    entry.item.model == "a" for entry in inside if entry.band <= band
                )
                assert room.ahead_of(band) == sum(entry.band <= band for entry in inside)
            assert room.best_band("a") == min(
                (entry.band for entry in inside if entry.item.model == "a"), default=None
            )
            assert room.entries("b") == [entry for entry in inside if entry.item.model == "b"]
            newcomer = drawn_entry(rng, 100)
            key = (0, newcomer.item.arrived_at, newcomer.item.sequence)
            assert room.behind(newcomer.item) == [
                entry for entry in inside if entry.band is newcomer.item.band and entry.key > key
            ]
