"""Short random schedules, a thousand a second: the volume beside the state machine's depth. Used by `test_schedules`.

A schedule is drawn from its number alone: settings, arrivals, endings, swaps, first bytes, callers who leave, the owner's orders, and time.
It knows no faults (those are the state machine's). Each decision is judged by rules that are told here a second time, in the rules' own
words; at the end everything comes to rest and every item has ended once.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

from hearth.config.settings import (
    AgingSettings,
    GpuSettings,
    ModelSettings,
    PackingMode,
    PackingSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Cut, Dispatch, Expire, Fail, Load, Preempt, Promote, SwapReason, Unload, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane, Priority, QueueItem, RequestId, Sequence, Usage, Way
from tests.support.invariants import DecisionChecker

MODELS = ("a", "b", "c")
SIZES_GB = {"a": 10.0, "b": 10.0, "c": 18.0, "d": 99.0}
GAPS_S = (0.0, 0.0, 0.25, 1.0, 8.0, 40.0)
PROMPTS = (1, 20, 60, 100, 250)
LANES = (Lane.EXTERNAL, Lane.EXTERNAL, Lane.INTERNAL)
QUIET = Usage()
POLICIES = tuple(PolicyName)
SETTINGS = 96


def drawn_settings(rng: Random) -> SchedulerSettings:
    """Any combination of the rules that a schedule is judged by; binary fractions, so that instants add up exactly."""
    shared, several = rng.random() < 0.5, rng.choice((1, 1, 2, 3))
    return SchedulerSettings(
        scheduling=SchedulingSettings(
            policy=rng.choice(POLICIES),
            max_swap_wait_s=rng.choice((4.0, 16.0)),
            residency_factor=rng.choice((0.5, 3.0)),
            aging=AgingSettings(promote_after_s=rng.choice((0.0, 2.0, 16.0)), ceiling=rng.choice(tuple(Priority))),
            packing=PackingSettings(
                mode=rng.choice(tuple(PackingMode)),
                lookahead=rng.choice((2, 8)),
                prefill_max_tokens=rng.choice((None, 80, 200)),
                force_fifo_every=rng.choice((0, 2)),
            ),
        ),
        queue=QueueSettings(max_interrupt_count=rng.choice((1, 3))),
        gpu=GpuSettings(
            vram_gb=rng.choice((24.0, 24.0, 0.0)) if shared else None,
            home_model=rng.choice(("a", "b")),
            parallel=several,
            restore_home_delay_s=8.0,
            task_vram_gb={"small": 4.0} if rng.random() < 0.5 else {},
        ),
        models={name: ModelSettings(vram_gb=size) for name, size in SIZES_GB.items()} if shared else {},
    )


def all_settings() -> tuple[SchedulerSettings, ...]:
    """Drawn once: making them would cost more than a schedule."""
    rng = Random(0)
    return tuple(drawn_settings(rng) for _ in range(SETTINGS))


class Schedule:
    """One schedule and its judge. `run` raises AssertionError where a rule is broken."""

    def __init__(self, number: int, settings: SchedulerSettings) -> None:
        self.rng = Random(number)
        self.settings = settings
        scheduler = Scheduler(settings)
        self.brain = DecisionChecker(scheduler) if number % 16 == 0 else scheduler
        self.state = scheduler.state
        self.now = 0.0
        self.timer: float | None = None
        self.running: dict[Sequence, int] = {}
        self.read: set[Sequence] = set()
        self.stopping: set[Sequence] = set()
        self.loading: str | None = None
        self.unloading: list[str] = []
        self.ended: set[Sequence] = set()
        self.in_vain: Counter[Sequence] = Counter()
        self.accepted = 0
        self.promotions = self.loads = self.starts = self.orders = 0
        self.paused = False
        self.pinned: str | None = None
        self.reserved: dict[str, float | None] = {}

    def run(self) -> None:
        """Let it happen, then let it come to rest."""
        rng = self.rng
        if rng.random() < 0.7:
            self.tell(inputs.Loaded(model=rng.choice(MODELS)))
        for _ in range(rng.randrange(4, 10)):
            if rng.random() < 0.55:
                self.arrive()
            else:
                self.something()
        self.settle()

    def arrive(self) -> None:
        rng = self.rng
        self.accepted += 1
        sequence = Sequence(self.accepted)
        model = None if rng.random() < 0.1 else "d" if rng.random() < 0.03 else rng.choice(MODELS)
        item = QueueItem(
            sequence=sequence,
            request_id=RequestId(""),
            lane=rng.choice(LANES),
            priority=rng.choice(tuple(Priority)),
            caller="",
            model=model,
            arrived_at=self.now,
            task_type="small" if rng.random() < 0.2 else None,
            prompt_tokens=rng.choice(PROMPTS),
            max_tokens=rng.choice((10, 400)),
            ways=(Way.REPLAY,) if rng.random() < 0.5 else (),
        )
        refused = self.never_fits(item)
        self.tell(inputs.Arrived(item=item))
        assert (sequence in self.ended) == refused, f"{item} is refused: {sequence in self.ended}"

    def never_fits(self, item: QueueItem) -> bool:
        gpu = self.settings.gpu
        budget_gb = gpu.task_vram_gb.get(item.task_type or "", SIZES_GB.get(item.model or "", 0.0))
        known = item.model in self.settings.models or item.task_type in gpu.task_vram_gb
        return bool(gpu.vram_gb) and item.model is not None and known and budget_gb > (gpu.vram_gb or inf)

    def something(self) -> None:
        """One thing that could be true now."""
        chance, rng = self.rng.random(), self.rng
        if chance < 0.35:
            self.pass_time(rng.choice(GAPS_S))
        elif chance < 0.45 and self.running:
            sequence = rng.choice(list(self.running))
            self.read.add(sequence)
            self.tell(inputs.FirstByte(sequence=sequence, attempt=self.running[sequence], forwarded=rng.random() < 0.5))
        elif chance < 0.52 and self.accepted:
            self.cancel(Sequence(rng.randrange(1, self.accepted + 1)))
        elif chance < 0.55:
            self.tell(inputs.ModeChanged(active=rng.random() < 0.5))
        elif chance < 0.62:
            self.order()
        else:
            self.go_on()

    def order(self) -> None:
        """The owner orders something that the gateway would not refuse."""
        chance, model = self.rng.random(), self.rng.choice(MODELS)
        self.orders += 1
        if chance < 0.4:
            self.pause(paused=not self.paused)
        elif chance < 0.7:
            self.pin(None if self.pinned is not None and chance < 0.5 else model)
        elif chance < 0.85:
            self.tell(inputs.LoadOrdered(model=model))
        elif model != self.pinned and not self.state.is_asked_for(model):
            self.tell(inputs.UnloadOrdered(model=model))

    def pause(self, *, paused: bool) -> None:
        self.paused = paused
        self.tell(inputs.ExternalPaused(paused=paused))

    def pin(self, model: str | None) -> None:
        self.pinned = model
        self.tell(inputs.ModelPinned(model=model))

    def go_on(self) -> bool:
        """Something that is under way comes to its end; False where nothing is."""
        if self.unloading:
            self.tell(inputs.Unloaded(model=self.unloading.pop()))
        elif self.loading is not None:
            model, self.loading = self.loading, None
            self.pass_time(self.rng.choice((0.5, 2.0)))
            self.tell(inputs.Loaded(model=model))
        elif self.stopping:
            sequence = self.stopping.pop()
            self.in_vain[sequence] += 1
            self.tell(inputs.Stopped(sequence=sequence, attempt=self.running.pop(sequence)))
        elif self.running:
            sequence = self.rng.choice(list(self.running))
            self.ended.add(sequence)
            self.tell(inputs.Finished(sequence=sequence, attempt=self.running.pop(sequence), usage=QUIET))
        elif self.timer is not None:
            self.pass_time(self.timer - self.now)
        else:
            return False
        return True

    def settle(self) -> None:
        self.come_to_rest()
        self.orders_are_obeyed()
        if self.paused:
            self.pause(paused=False)
            self.come_to_rest()
            self.orders_are_obeyed()
        if self.pinned is not None:
            self.pin(None)
            self.come_to_rest()
        assert not self.state.entries, f"left behind: {self.state.entries}"
        assert not self.state.orders.wanted, f"never loaded: {self.state.orders.wanted}"
        assert len(self.ended) == self.accepted
        assert self.loads <= self.starts + self.accepted + 2 + 2 * self.orders, f"{self.loads} loads for {self.starts} starts"

    def come_to_rest(self) -> None:
        bound = 40 + 12 * self.accepted
        while self.go_on():
            bound -= 1
            assert bound, f"never at rest: {self.state.entries}"

    def orders_are_obeyed(self) -> None:
        """Where nothing more happens, only a pause or the pin keeps anybody waiting, and the pinned model is there."""
        for entry in self.state.entries.values():
            assert entry.external, f"{entry.item.sequence} is left behind"
            assert self.paused or self.is_barred(entry), f"{entry.item.sequence} is left behind"
        assert self.pinned is None or self.pinned in self.state.residency.residents, f"{self.pinned} has not come back"
        assert not self.state.orders.unwanted

    def is_barred(self, entry: Entry) -> bool:
        """An external item whose line would need the pinned model's room for its head."""
        residency = self.state.residency
        if self.pinned not in residency.residents or not entry.external:
            return False
        item = min((e for e in self.state.waiting.entries(entry.item.model) if e.band == entry.band), key=lambda e: e.key).item
        return residency.eviction_for(item.model or self.state.home or "", (self.pinned,), item.task_type) is None

    def cancel(self, sequence: Sequence) -> None:
        if sequence not in self.ended:
            self.ended.add(sequence)
            self.tell(inputs.Cancelled(sequences=(sequence,)))

    def pass_time(self, seconds: float) -> None:
        instant = self.now + seconds
        while self.timer is not None and self.timer <= instant:
            self.now, self.timer = max(self.now, self.timer), None
            self.tell(inputs.TimerFired())
        self.now = max(self.now, instant)

    def tell(self, fact: Input) -> None:
        actions = self.brain.handle(fact, self.now)
        for action in actions:
            self.note(action)
        self.judge(actions)

    def note(self, action: Action) -> None:
        match action:
            case Dispatch(sequence=sequence, attempt=attempt):
                assert sequence not in self.running
                self.running[sequence] = attempt
                self.read.discard(sequence)
                self.starts += 1
            case Preempt(sequence=sequence) | Cut(sequence=sequence) | Abort(sequence=sequence):
                self.stopping.add(sequence)
                if isinstance(action, Preempt):
                    assert self.in_vain[sequence] < self.settings.queue.max_interrupt_count, f"{sequence} is stopped too often"
                if isinstance(action, Cut):
                    self.cut(sequence)
            case Load(model=model):
                assert self.loading is None
                assert not self.unloading
                self.loading, self.loads = model, self.loads + 1
                self.reserved[model] = self.state.residency.residents[model].reserved_mib
            case Unload(model=model):
                self.unloading.append(model)
            case Fail(sequence=sequence) | Expire(sequence=sequence):
                self.ended.add(sequence)
            case Promote():
                self.promotions += 1
            case WakeAt(at=at):
                self.timer = at

    def cut(self, sequence: Sequence) -> None:
        assert self.state.entries[sequence].forwarded

    def judge(self, actions: list[Action]) -> None:
        waiting = list(self.state.waiting.all_entries())
        self.ages_are_right(waiting)
        self.nothing_is_left_lying(waiting)
        self.reservations_stay()
        started = [self.state.entries[action.sequence] for action in actions if isinstance(action, Dispatch)]
        assert not (self.paused and any(entry.external for entry in started)), "a pause lets external work start"
        if started:
            self.bands_come_first(waiting, started)
            self.rounds_are_right(waiting, started)
        for action in actions:
            if isinstance(action, Load):
                self.memory_holds(action.model)
                self.load_is_wanted(action, waiting)
            elif isinstance(action, Unload):
                self.swap_is_earned(action, waiting)
                self.pin_holds(action, waiting)

    def ages_are_right(self, waiting: list[Entry]) -> None:
        """Rule 5."""
        aging = self.settings.scheduling.aging
        for entry in waiting:
            item = entry.item
            if item.lane is Lane.EXTERNAL:
                assert entry.band >= Band.INTERRUPTED, f"external item {item.sequence} rose to {entry.band}"
            else:
                floor = min(int(item.band), int(aging.ceiling))
                band = int(item.band)
                while (
                    aging.promote_after_s and band > floor and item.arrived_at + (item.band - band + 1) * aging.promote_after_s <= self.now
                ):
                    band -= 1
                assert entry.band == band, f"item {item.sequence} is in {entry.band} and not {band} at {self.now}"
        assert self.promotions == self.state.promotions

    def bands_come_first(self, waiting: list[Entry], started: list[Entry]) -> None:
        """Rules 1 and 2: nothing starts beside a more urgent item that could have had the slot, or before one of its own line."""
        residents = self.state.residency.residents
        packs = self.settings.scheduling.packing.mode is PackingMode.PACK
        absent = min((entry.band for entry in waiting if entry.item.model not in residents), default=99)
        for entry in started:
            resident = residents[entry.model or ""]
            assert len(resident.running) <= self.settings.parallel(resident.model)
            assert entry.item.model in {None, resident.model}
            for other in waiting:
                if other.item.model == entry.item.model and other.band == entry.band and other.key < entry.key:
                    assert packs, f"{entry.item.sequence} starts before {other.item.sequence}"
                if other.band < entry.band and other.band < absent and other.item.model in {None, resident.model}:
                    assert self.is_full(resident, other, entry), f"{entry.item.sequence} starts past {other.item.sequence}"

    def is_full(self, resident: Resident, other: Entry, entry: Entry) -> bool:
        """Rounds keep the urgent item out, and with it everything less urgent."""
        return self.is_reading(resident, other.band, ()) and not self.is_reading(resident, entry.band, (entry,))

    def is_reading(self, resident: Resident, band: Band, without: tuple[Entry, ...] | list[Entry]) -> bool:
        return any(
            entry.item.sequence not in self.read
            and entry.band <= band
            and entry.dispatched_at + entry.item.prompt_tokens / 1000.0 > self.now
            for entry in resident.running.values()
            if entry not in without
        )

    def nothing_is_left_lying(self, waiting: list[Entry]) -> None:
        """What could start has started; what waits for a round to end has the timer set for it."""
        residents = self.state.residency.residents
        able = [entry for entry in waiting if not (self.paused and entry.external)]
        absent = min((entry.band for entry in able if entry.item.model not in residents and not self.is_barred(entry)), default=99)
        for entry in able:
            resident = residents.get(entry.item.model or "")
            if entry.band >= absent or resident is None or resident.phase is not Phase.READY or resident.free_slots < 1:
                continue
            assert self.is_reading(resident, entry.band, ()), f"{entry.item.sequence} could have started at {self.now}"
            assert self.timer is not None, "nobody looks when the round is over"
            assert self.timer <= self.now + sum(PROMPTS) / 1000.0, "nobody looks when the round is over"

    def reservations_stay(self) -> None:
        """Rule 8: what was reserved for a load is kept while the model stays, and gone with it."""
        residents = self.state.residency.residents
        for model in self.reserved.keys() - residents.keys():
            del self.reserved[model]
        for model, reserved_mib in self.reserved.items():
            assert residents[model].reserved_mib == reserved_mib, f"{model} was loaded with {reserved_mib} MiB"

    def rounds_are_right(self, waiting: list[Entry], started: list[Entry]) -> None:
        """Rule 9, where all that starts on a model comes from one line."""
        packing = self.settings.scheduling.packing
        budget = packing.prefill_max_tokens or (2048 if packing.mode is PackingMode.PACK else None)
        for name in {entry.model for entry in started}:
            mine = [entry for entry in started if entry.model == name]
            resident, slots = self.state.residency.residents[name or ""], self.settings.parallel(name or "")
            if budget is None or slots == 1:
                continue
            for entry in mine:
                others = [other for other in mine if other.band >= entry.band]
                assert not self.is_reading(resident, entry.band, others), f"{entry.item.sequence} starts into a round"
            if len({(entry.band, entry.item.model) for entry in mine}) == 1:
                free = slots - len(resident.running) + len(mine)
                expected = self.round_of(mine[0], mine + waiting, free, budget)
                assert [entry.item.sequence for entry in mine] == expected, f"a round of {expected} was to start"

    def round_of(self, head: Entry, entries: list[Entry], free: int, budget: int) -> list[int]:
        """Who is to start: the rule told once more, by trying one item after the other."""
        packing, model = self.settings.scheduling.packing, head.model or ""
        line = sorted((e for e in entries if (e.band, e.item.model) == (head.band, head.item.model)), key=lambda e: e.key)
        every, number = packing.force_fifo_every, self.state.rounds[model, head.band]
        forced = every > 0 and number % every == 0
        if packing.mode is PackingMode.FIFO or free == 1 or forced:
            chosen = line[:1]
            for entry in line[1:free]:
                if sum(e.item.prompt_tokens for e in [*chosen, entry]) > budget:
                    break
                chosen.append(entry)
            return [int(entry.item.sequence) for entry in chosen]
        chosen = []
        for entry in sorted(line[: packing.lookahead], key=lambda e: e.item.prompt_tokens):
            if len(chosen) < free and sum(e.item.prompt_tokens for e in [*chosen, entry]) <= budget:
                chosen.append(entry)
        return [int(entry.item.sequence) for entry in line if entry in (chosen or line[:1])]

    def memory_holds(self, model: str) -> None:
        """Rule 8: what is known fits, and what is unknown is alone."""
        residency = self.state.residency
        reserved = [resident.reserved_mib for resident in residency.residents.values()]
        if self.settings.gpu.vram_gb is None or None in reserved:
            assert len(reserved) == 1 or self.settings.gpu.vram_gb == 0, f"{model} is loaded beside others of unknown size"
        elif self.settings.gpu.vram_gb:
            total = sum(mib or 0.0 for mib in reserved)
            assert total <= self.settings.gpu.vram_gb * 1024, f"{model} makes it {total} MiB"
        assert all(mib is None or mib > 0 for mib in reserved)

    def load_is_wanted(self, action: Load, waiting: list[Entry]) -> None:
        """A swap for somebody who waits is for somebody who may start."""
        if self.paused and action.why in {SwapReason.WAITING, SwapReason.OVERDUE}:
            able = {entry.item.model or self.state.home for entry in waiting if not entry.external}
            assert action.model in able, f"{action.model} is loaded for nobody but paused work"

    def pin_holds(self, action: Unload, waiting: list[Entry]) -> None:
        if action.model == self.pinned:
            assert any(not entry.external for entry in waiting), f"{action.model} goes though it is pinned"

    def swap_is_earned(self, action: Unload, waiting: list[Entry]) -> None:
        """Rules 4 and 11: age forces a swap only when it is earned, and what was loaded serves first."""
        state, scheduling = self.state, self.settings.scheduling
        going = state.residency.residents[action.model]
        assert going.phase is Phase.UNLOADING
        assert not going.running, f"{action.model} goes under running work"
        wanted = [entry for entry in waiting if entry.item.model == action.model and not (self.paused and entry.external)]
        if not going.settled and wanted:
            first = min(wanted, key=lambda entry: (entry.band, entry.key))
            assert any(entry.band < first.band for entry in waiting), f"{action.model} goes before it has served"
            assert not first.external or self.in_vain[first.item.sequence] < self.settings.queue.max_interrupt_count
            self.in_vain.update(entry.item.sequence for entry in wanted)
        if action.why is SwapReason.OVERDUE:
            assert any(self.is_overdue(entry, waiting) for entry in waiting), f"nobody is old enough to force {action.model} out"
        assert scheduling.policy is not PolicyName.FIFO or action.why is not SwapReason.OVERDUE

    def is_overdue(self, entry: Entry, waiting: list[Entry]) -> bool:
        """Old enough, and what is in memory has earned its place; under `adaptive`, twice as old where that has no work in this band."""
        state, scheduling = self.state, self.settings.scheduling
        model = entry.item.model
        if model is None or self.now - entry.item.arrived_at < scheduling.max_swap_wait_s:
            return False
        served = [r for r in state.residency.residents.values() if r.phase is not Phase.LOADING]
        names = {resident.model for resident in served}
        dry = not any(other.band == entry.band and other.item.model in (None, *names) for other in waiting)
        if dry and scheduling.policy is PolicyName.ADAPTIVE and self.now - entry.item.arrived_at >= 2 * scheduling.max_swap_wait_s:
            return True
        return all(self.now - r.loaded_at >= scheduling.residency_factor * state.estimates.swap_s(r.model, model) for r in served)


def first_broken(numbers: range) -> tuple[int, AssertionError] | None:
    """The first schedule of these that breaks a rule, and how; None where none does."""
    pool = all_settings()
    for number in numbers:
        try:
            Schedule(number, pool[number % len(pool)]).run()
        except AssertionError as broken:
            return number, broken
        except Exception as crash:
            crash.add_note(f"schedule {number}")
            raise
    return None
