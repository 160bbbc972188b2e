"""Thousands of random schedules, each drawn from its number alone: settings, and what happens in
which order.

`DecisionChecker` judges every decision. Three of four schedules know no faults: there nothing that
could start is left lying, and nothing starts past what is more urgent. In the fourth anything may
happen: attempts, loads and unloads that fail, a model server that goes or that somebody else uses,
new settings, a shutdown. At the end everything heals and comes to rest, and every item has ended
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar, get_args

import pytest

from hearth.config.settings import (
    AgingSettings,
    GpuSettings,
    ModelSettings,
    PackingSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, Dispatch, Load, Promote
from hearth.scheduling.inputs import Fault, Input
from hearth.scheduling.residency import Resident
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane, Priority, Sequence, Usage
from tests.scheduling.shell import Shell
from tests.support.examples import EXAMPLES

MODELS = ("a", "b", "c")
SIZES_GB = {"a": 10.0, "b": 10.0, "c": 18.0, "d": 99.0}
GAPS_S = (0.0, 0.0, 0.25, 1.0, 8.0, 40.0)
PROMPTS = (1, 20, 60, 100, 250)
LANES = (Lane.EXTERNAL, Lane.EXTERNAL, Lane.INTERNAL)
FAIR = ("", "", "external", "internal", "external and internal")
POOL = 96


def _settings(rng: Random, *, homeless: bool, fair: str) -> SchedulerSettings:
    """Any combination of the rules that a schedule is judged by; binary fractions, so that instants
    add up exactly.
    """
    shared = rng.random() < 0.5
    several = rng.choice((1, 1, 2, 3))
    return SchedulerSettings(
        scheduling=SchedulingSettings(
            policy=rng.choice(tuple(PolicyName)),
            max_swap_wait_s=rng.choice((4.0, 16.0)),
            preemption=rng.choice(("priced", "priced", "at_once")),
            others_share=rng.choice((0.25, 0.5)),
            residency_factor=rng.choice((0.5, 3.0)),
            schedule_drain_minutes=0.5,
            aging=AgingSettings(
                promote_after_s=rng.choice((0.0, 2.0, 16.0)), ceiling=rng.choice(tuple(Priority))
            ),
            packing=PackingSettings(
                mode=rng.choice(("fifo", "pack")),
                lookahead=rng.choice((2, 8)),
                prefill_max_tokens=rng.choice((None, 80, 200)),
                force_fifo_every=rng.choice((0, 2)),
            ),
        ),
        queue=QueueSettings(
            max_interrupt_count=rng.choice((1, 3)),
            sharing="fair" if "external" in fair else "fifo",
            internal_sharing="fair" if "internal" in fair else "fifo",
        ),
        gpu=GpuSettings(
            vram_gb=rng.choice((24.0, 24.0, 0.0)) if shared else None,
            home_model="" if homeless else rng.choice(("a", "b")),
            parallel=several,
            restore_home_delay_s=8.0,
            task_vram_gb={"small": 4.0} if rng.random() < 0.5 else {},
        ),
        models={name: ModelSettings(vram_gb=size) for name, size in SIZES_GB.items()}
        if shared
        else {},
    )


@cache
def all_settings() -> tuple[SchedulerSettings, ...]:
    """Drawn once: making them would cost more than a schedule."""
    rng = Random(0)
    return tuple(
        _settings(rng, homeless=number % 12 == 3, fair=FAIR[number % 5]) for number in range(POOL)
    )


class Schedule(Shell):
    """One schedule and its judge. `run` raises AssertionError where a rule is broken."""

    def __init__(self, number: int, *, judged: bool = True) -> None:
        super().__init__(all_settings()[number % POOL], judged=judged)
        self.rng = Random(number)
        self.asides = Random(number)  # of what is drawn beside what was drawn before
        self.pauses = Random(f"{number}, callers")
        self.is_faulty = number % 4 == 3
        self.read: set[int] = set()
        self.accepted = self.promotions = self.loads = self.starts = self.orders = 0
        self.paused = self.draining = False
        self.pinned: str | None = None
        self.begun: list[Sequence] = []

    def run(self) -> None:
        """Let it happen, then let it come to rest."""
        rng = self.rng
        if rng.random() < 0.7:
            self.tell(inputs.Loaded(model=rng.choice(MODELS)))
        for _ in range(rng.randrange(10, 50) if self.is_faulty else rng.randrange(4, 10)):
            if rng.random() < (0.3 if self.is_faulty else 0.55):
                self.arrives()
            elif self.is_faulty and rng.random() < 0.4:
                self.trouble()
            else:
                self.something()
        if self.is_faulty:
            self.heal()
        else:
            self.settle()

    # What happens.

    def arrives(self) -> None:
        rng = self.rng
        model = None if rng.random() < 0.1 else "d" if rng.random() < 0.03 else rng.choice(MODELS)
        task_type = "small" if rng.random() < 0.2 else None
        self.accepted += 1
        lane = rng.choice(LANES)
        is_aside = lane is Lane.EXTERNAL and self.asides.random() < 0.3
        self.arrive(
            model,
            lane=lane,
            background="title" if is_aside else "",
            caller=self.asides.choice(("one", "two", "three")),
            user=self.asides.choice(("", "ann", "bob")),
            priority=rng.choice(tuple(Priority)),
            task_type=task_type,
            prompt_tokens=rng.choice(PROMPTS),
            max_tokens=rng.choice((10, 400)),
            resumable=rng.random() < 0.5,
            max_wait_s=rng.choice((None, None, None, 15.0)) if self.is_faulty else None,
        )

    def something(self) -> None:
        """One thing that could be true now."""
        if self.pauses.random() < 0.1:
            self.pause_callers(*self.pauses.choice(((), ("one",), ("one", "two"))))
        chance = self.rng.random()
        rng = self.rng
        if chance < 0.35:
            self.at(self.now + rng.choice(GAPS_S))
        elif chance < 0.45 and self.running:
            sequence = rng.choice(list(self.running))
            self.read.add(sequence)
            self.first_byte(sequence, forwarded=rng.random() < 0.5)
        elif chance < 0.52 and self.accepted:
            sequence = rng.randrange(1, self.accepted + 1)
            if sequence not in self.ended or sequence in self.running:
                self.cancel(sequence)
        elif chance < 0.55:
            self.tell(inputs.Switched(what="active", on=rng.random() < 0.5))
        elif chance < 0.62:
            self.order()
        else:
            self.go_on()

    def order(self) -> None:
        """The owner orders something that the gateway would not refuse."""
        chance = self.rng.random()
        model = self.rng.choice(MODELS)
        self.orders += 1
        if chance < 0.4:
            self.pause(paused=not self.paused)
        elif chance < 0.7:
            self.pin(None if self.pinned is not None and chance < 0.5 else model)
        elif chance < 0.85:
            self.tell(inputs.ModelOrdered(model=model, comes=True))
        elif (
            model != self.pinned
            and not self.gateway.waits_for(model)
            and not self.device.runs_on(model)
        ):
            self.tell(inputs.ModelOrdered(model=model, comes=False))

    def pause(self, *, paused: bool) -> None:
        self.paused = paused
        self.tell(inputs.Switched(what="paused", on=paused))

    def pause_callers(self, *callers: str) -> None:
        queue = self.settings.queue.model_copy(update={"paused_callers": callers})
        self.tell(inputs.PolicyChanged(settings=replace(self.settings, queue=queue)))

    def pin(self, model: str | None) -> None:
        self.pinned = model
        self.tell(inputs.ModelPinned(model=model))

    def trouble(self) -> None:
        """Something fails, or somebody changes something."""
        rng = self.rng
        running = rng.choice(list(self.running)) if self.running else None
        match rng.randrange(9):
            case 0 if running is not None:
                self.fail(running, rng.choice(get_args(Fault)))
            case 1 if running is not None:
                self.started(running)
            case 2 if running is not None:
                self.tell(
                    inputs.Unresumable(sequence=Sequence(running), attempt=self.running[running])
                )
            case 3 if self.loading:
                self.load_failed(permanent=rng.random() < 0.5)
            case 4 if self.unloading:
                self.unload_failed()
            case 4 if self.cutting:
                self.load_cut(clean=False)
            case 5 if self.timer is not None:
                self.fire(early_s=1e-9)
            case 6 if self.accepted > 12 and not self.draining and rng.random() < 0.2:
                self.draining = True
                self.drain()
            case _:
                self.elsewhere(rng.choice((*MODELS, "x")))

    def elsewhere(self, model: str) -> None:
        rng = self.rng
        moving = {*self.unloading, *self.cutting, *(load.model for load in self.loading)}
        facts: tuple[Input, ...] = (
            *(
                ()
                if model in moving
                else (inputs.Loaded(model=model, vram_mib=2048.0), inputs.Unloaded(model=model))
            ),
            inputs.ModelsListed(names=frozenset(MODELS[: rng.choice((1, 3, 3))])),
            inputs.GpuSampled(
                capacity_mib=rng.choice((None, 24 * 1024.0)),
                foreign_mib=rng.choice((0.0, 14 * 1024.0)),
            ),
            rng.choice((inputs.BackendState(up=False), *[inputs.BackendState(up=True)] * 2)),
            inputs.PreemptRequested(),
            inputs.TimerFired(),
            inputs.Scheduled(task_type="digest", due_at=self.now + rng.choice((5.0, 20.0, 60.0))),
            inputs.ClockStepped(ahead_s=rng.choice((-30.0, 8.0))),
            inputs.PolicyChanged(settings=rng.choice(all_settings())),
        )
        self.tell(rng.choice(facts))

    def go_on(self, step_s: float = 1.0) -> bool:
        """Something that is under way comes to its end; False where nothing is."""
        if self.unloading:
            self.unloading.append(self.unloading.pop(self.rng.randrange(len(self.unloading))))
        elif not self.loading and not self.stopping and self.running:
            self.finish(self.rng.choice(list(self.running)), Usage())
            return True
        return super().go_on(self.rng.choice((0.5, 2.0)))

    # The end.

    def heal(self) -> None:
        """The faults stop: everything comes to rest, within a bound, and nothing is left behind."""
        self.tell(inputs.BackendState(up=True))
        self.pause_callers()
        self.pause(paused=False)
        self.pin(None)
        self.quiesce(bound=40 + 12 * len(self.gateway.entries))
        entries = self.gateway.entries
        residency = self.device.residency
        assert all(entry.model is None and self.draining for entry in entries.values()), (
            f"left behind: {entries}"
        )
        assert (self.running, self.loading, self.unloading, residency.swap) == (
            {},
            [],
            [],
            None,
        )
        assert self.timer is None, f"a timer is left for {self.timer}"
        assert not any(resident.running for resident in residency.residents.values())
        assert set(range(1, self.accepted + 1)) - entries.keys() == self.ended.keys(), (
            "without an ending"
        )

    def settle(self) -> None:
        bound = 40 + 12 * self.accepted
        undoes = (
            None,
            self.pause_callers,
            lambda: self.pause(paused=False),
            lambda: self.pin(None),
        )
        for undo in undoes:
            if undo is not None:
                undo()
            self.quiesce(bound=bound)
            self.orders_are_obeyed()
        assert not self.gateway.entries, f"left behind: {self.gateway.entries}"
        assert not self.gateway.wanted, f"never loaded: {self.gateway.wanted}"
        assert len(self.ended) == self.accepted
        assert self.loads <= self.starts + self.accepted + 2 + 2 * self.orders, (
            f"{self.loads} loads for {self.starts} starts"
        )

    def orders_are_obeyed(self) -> None:
        """Where nothing more happens, only a pause or the pin keeps anybody waiting, and the pinned
        model is there.
        """
        for entry in self.gateway.entries.values():
            if entry.is_set_aside:
                continue
            assert entry.external, f"{entry.item.sequence} is left behind"
            assert self.paused or self.is_barred(entry), f"{entry.item.sequence} is left behind"
        assert self.pinned is None or self.pinned in self.device.residency.residents, (
            f"{self.pinned} has not come back"
        )
        assert not self.gateway.unwanted

    def is_barred(self, entry: Entry) -> bool:
        """An external item whose line would need the pinned model's room for its head."""
        residency = self.device.residency
        if self.pinned not in residency.residents or not entry.external:
            return False
        item = min(
            (e for e in self.gateway.waiting.entries(entry.item.model) if e.band == entry.band),
            key=lambda e: e.key,
        ).item
        return (
            residency.eviction_for(
                item.model or self.device.home or "", (self.pinned,), item.task_type
            )
            is None
        )

    # The judge.

    def tell(self, fact: Input) -> list[str]:
        self.begun = []
        said = super().tell(fact)
        if not self.is_faulty:
            waiting = list(self.gateway.waiting.all_entries())
            self.nothing_is_left_lying(waiting)
            self.bands_come_first(
                waiting, [self.gateway.entries[sequence] for sequence in self.begun]
            )
        return said

    def _note(self, action: Action) -> None:
        super()._note(action)
        match action:
            case Dispatch(sequence=sequence):
                self.read.discard(sequence)
                self.begun.append(sequence)
                self.starts += 1
            case Load():
                self.loads += 1
            case Promote():
                self.promotions += 1
            case _:
                pass

    def bands_come_first(self, waiting: list[Entry], started: list[Entry]) -> None:
        """Rules 1 and 2: nothing starts beside a more urgent item that could have had the slot, or
        before one of its own line.
        """
        residents = self.device.residency.residents
        packs = self.settings.scheduling.packing.mode == "pack"
        absent = min(
            (entry.band for entry in waiting if entry.item.model not in residents), default=99
        )
        for entry in started:
            resident = residents[entry.model or ""]
            for other in waiting:
                if (
                    other.item.model == entry.item.model
                    and other.band == entry.band
                    and other.key < entry.key
                ):
                    assert packs, f"{entry.item.sequence} starts before {other.item.sequence}"
                if (
                    other.band < entry.band
                    and other.band < absent
                    and other.item.model in {None, resident.model}
                ):
                    # rounds keep the urgent item out, and with it everything less urgent
                    keeps_out = self.is_reading(resident, other.band, []) and not self.is_reading(
                        resident, entry.band, [entry]
                    )
                    assert keeps_out, f"{entry.item.sequence} starts past {other.item.sequence}"

    def is_reading(self, resident: Resident, band: Band, without: list[Entry]) -> bool:
        return any(
            entry.item.sequence not in self.read
            and entry.band <= band
            and entry.dispatched_at + entry.item.prompt_tokens / 1000.0 > self.now
            for entry in resident.running.values()
            if entry not in without
        )

    def nothing_is_left_lying(self, waiting: list[Entry]) -> None:
        """What could start has started; what waits for a round to end has the timer set for it."""
        residents = self.device.residency.residents
        able = [entry for entry in waiting if not (self.paused and entry.external)]
        absent = min(
            (
                entry.band
                for entry in able
                if entry.item.model not in residents and not self.is_barred(entry)
            ),
            default=99,
        )
        for entry in able:
            resident = residents.get(entry.item.model or "")
            if (
                entry.band >= absent
                or resident is None
                or resident.phase != "ready"
                or resident.free_slots < 1
            ):
                continue
            is_kept = self.device.kept_slot is not None
            assert is_kept or self.is_reading(resident, entry.band, []), (
                f"{entry.item.sequence} could have started at {self.now}"
            )
            assert self.timer is not None, "nobody looks when the round is over"
            assert self.timer <= self.now + sum(PROMPTS) / 1000.0, (
                "nobody looks when the round is over"
            )


BLOCK = 4_000
BLOCKS = 2 if EXAMPLES == 1 else 6 * EXAMPLES


S = TypeVar("S", bound=Schedule)


def played(make: Callable[[int], S], numbers: Iterable[int]) -> Iterator[S]:
    """Each schedule once it has run; a failure says its number."""
    for number in numbers:
        schedule = make(number)
        try:
            schedule.run()
        except Exception as broken:
            broken.add_note(f"schedule {number}")
            raise
        yield schedule


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_breaks_a_rule_and_they_contain_what_the_rules_are_about(block: int):
    seen: Counter[str] = Counter()
    for schedule in played(Schedule, range(block * BLOCK, block * BLOCK + BLOCK)):
        seen.update(
            {"starts": schedule.starts, "loads": schedule.loads, "promotions": schedule.promotions}
        )
    assert seen > Counter({"starts": 3 * BLOCK, "loads": 2 * BLOCK, "promotions": BLOCK // 12})
