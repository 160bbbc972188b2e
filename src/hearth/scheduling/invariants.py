"""What must hold after every decision, checked in tests and in the simulator.

`check` looks at one state; `DecisionChecker` also watches the sequence of actions. Both raise `InvariantBroken` and name what broke.
"""

from __future__ import annotations

from math import inf

from hearth.scheduling.actions import Abort, Action, Cut, Dispatch, Expire, Fail, Load, Preempt, SwapReason, Unload
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.preemption import resumable
from hearth.scheduling.residency import Phase
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Band, Lane, Sequence


class InvariantBroken(AssertionError):
    """The scheduler contradicts itself."""


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as the sentence it is
    if not holds:
        raise InvariantBroken(what)


def check(state: State) -> None:
    """Conservation and exclusion in one state. Raises InvariantBroken."""
    _each_item_is_in_one_place(state)
    _counts_agree(state)
    _slots_and_memory(state)
    _one_swap(state)


def _each_item_is_in_one_place(state: State) -> None:
    waiting = {entry.item.sequence for entry in state.waiting.all_entries()}
    running = [sequence for resident in state.residency.residents.values() for sequence in resident.running]
    _require(len(running) == len(set(running)), "an item runs on two models")
    _require(not waiting & set(running), "an item waits and runs")
    for sequence, entry in state.entries.items():
        _require(entry.item.sequence == sequence, f"item {sequence} is filed under a foreign number")
        _require((entry.place is Place.WAITING) == (sequence in waiting), f"item {sequence} is {entry.place} but the lines disagree")
    _require(waiting <= state.entries.keys(), "a line holds an item that has left")


def _counts_agree(state: State) -> None:
    entries = list(state.waiting.all_entries())
    _require(len(entries) == len(state.waiting), "the waiting count drifted")
    for lane in Lane:
        _require(sum(entry.item.lane is lane for entry in entries) == state.waiting.count(lane), f"the {lane} count drifted")
    for model in {entry.item.model for entry in entries}:
        _require(sum(entry.item.model == model for entry in entries) == state.waiting.wants(model), f"the count for {model} drifted")


def _slots_and_memory(state: State) -> None:
    residents = list(state.residency.residents.values())
    for resident in residents:
        _require(resident.phase is Phase.READY or not resident.running, f"{resident.model} runs work while {resident.phase.value}")
        for entry in resident.running.values():
            _require(entry.model == resident.model, f"item {entry.item.sequence} runs on {entry.model}, not {resident.model}")
            _require(entry.item.model in {None, resident.model}, f"item {entry.item.sequence} runs on a model it did not ask for")
    reserved = [resident.reserved_mib for resident in residents]
    _require(all(mib is None or mib >= 0 for mib in reserved), "a reservation is negative")


def _one_swap(state: State) -> None:
    swap = state.residency.swap
    moving = {resident.model for resident in state.residency.residents.values() if resident.phase is not Phase.READY}
    expected = set() if swap is None else swap.pending | ({swap.target} if swap.target else set())
    _require(moving == expected, f"models {sorted(moving)} are on the move but the swap names {sorted(expected)}")


class DecisionChecker:
    """Runs a scheduler and judges every decision it takes. A drop-in for it in tests and in the simulator."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._attempts: dict[Sequence, int] = {}
        self._over: set[Sequence] = set()

    @property
    def state(self) -> State:
        """The state of the scheduler that is watched."""
        return self.scheduler.state

    def handle(self, fact: Input, now: float) -> list[Action]:
        """As `Scheduler.handle`, then judge. Raises InvariantBroken."""
        actions = self.scheduler.handle(fact, now)
        check(self.state)
        for action in actions:
            self._judge(action)
        self._no_external_start_past_waiting_internal(actions)
        self._no_external_start_while_paused(actions)
        self._never_idle_beside_ready_work(now)
        return actions

    def _judge(self, action: Action) -> None:
        state = self.state
        match action:
            case Dispatch(sequence=sequence, attempt=attempt, model=model):
                _require(sequence not in self._over, f"item {sequence} runs after its end")
                _require(attempt == self._attempts.get(sequence, 0) + 1, f"item {sequence}: attempt {attempt} is out of order")
                self._attempts[sequence] = attempt
                resident = state.residency.residents[model]
                _require(len(resident.running) <= state.settings.parallel(model), f"{model} runs more than it has slots")
            case Preempt(sequence=sequence) | Cut(sequence=sequence) | Abort(sequence=sequence):
                self._judge_stop(action, state.entries[sequence])
            case Load(model=model):
                self._judge_load(model)
            case Unload(model=model, why=why):
                _require(not state.residency.residents[model].running, f"{model} is unloaded under running work")
                self._judge_eviction_of_pinned(model, why)
            case Fail(sequence=sequence) | Expire(sequence=sequence):
                _require(sequence not in self._over, f"item {sequence} ends twice")
                self._over.add(sequence)
            case _:
                pass

    def _judge_stop(self, action: Preempt | Cut | Abort, entry: Entry) -> None:
        _require(entry.place is Place.STOPPING, f"item {action.sequence} is told to stop but not marked so")
        if isinstance(action, Preempt):
            _require(entry.external, f"internal item {action.sequence} is preempted")
            unnoticed = not entry.forwarded or resumable(self.state, entry)
            _require(unnoticed, f"item {action.sequence} is preempted though its caller has seen bytes")
        if isinstance(action, Cut):
            _require(entry.external and entry.forwarded, f"item {action.sequence} is cut though it could be put back")
        if not isinstance(action, Abort):
            often = entry.interrupts + entry.lost_loads
            _require(often < self.state.settings.queue.max_interrupt_count, f"protected item {action.sequence} is preempted")

    def _judge_eviction_of_pinned(self, model: str, why: SwapReason) -> None:
        state = self.state
        if model == state.pinned and why is not SwapReason.RELOAD:
            needs_room = any(entry.band <= Band.BACKGROUND and entry.item.model != model for entry in state.waiting.all_entries())
            _require(needs_room, f"{model} is unloaded though it is pinned and no internal work needs its room")

    def _judge_load(self, model: str) -> None:
        residency = self.state.residency
        others = [resident for name, resident in residency.residents.items() if name != model]
        capacity, need = residency.room_mib, residency.residents[model].reserved_mib
        if capacity == inf:
            return
        if capacity is None or need is None or any(resident.reserved_mib is None for resident in others):
            _require(not others, f"{model} is loaded beside others though sizes are unknown")
        elif need <= capacity:
            total = need + sum(resident.reserved_mib or 0.0 for resident in others)
            _require(total <= capacity, f"loading {model} reserves {total:.0f} MiB of {capacity:.0f}")

    def _no_external_start_past_waiting_internal(self, actions: list[Action]) -> None:
        started = [self.state.entries[action.sequence] for action in actions if isinstance(action, Dispatch)]
        for entry in started:
            if entry.external:
                ahead = self.state.waiting.up_to(Band.BACKGROUND, entry.model) + self.state.waiting.up_to(Band.BACKGROUND, None)
                _require(not ahead, f"external item {entry.item.sequence} starts on {entry.model} past internal work for it")

    def _no_external_start_while_paused(self, actions: list[Action]) -> None:
        if self.state.orders.paused:
            for action in actions:
                paused = isinstance(action, Dispatch) and self.state.entries[action.sequence].external
                _require(not paused, "an external item starts though the owner has paused them")

    def _never_idle_beside_ready_work(self, now: float) -> None:
        """If nothing runs, nothing moves and something waits, then there must be a named reason."""
        state = self.state
        able = {entry.item.model for entry in state.waiting.all_entries() if not (state.orders.paused and entry.external)}
        if not able or state.draining or state.down_since is not None or state.residency.swap is not None:
            return
        if any(resident.running for resident in state.residency.residents.values()):
            return
        held = (
            self._only_the_pin_holds()
            or bool(state.not_before)
            or state.held_until is not None
            or any(due > now for due, _ in state.announced)
        )
        homeless = state.home is None and able == {None}
        _require(held or homeless, f"the GPU idles at {now} while {len(state.waiting)} items wait")

    def _only_the_pin_holds(self) -> bool:
        """Everything that waits is external, and the first of each line could only have its model in place of the pinned one."""
        state, pinned = self.state, self.state.pinned
        if pinned not in state.residency.residents or state.waiting.count(Lane.INTERNAL):
            return False
        heads = (*state.waiting.heads(Band.INTERRUPTED), *state.waiting.heads(Band.EXTERNAL))
        needed = {(entry.item.model or state.home or "", entry.item.task_type) for entry in heads}
        room = [state.residency.eviction_for(model, (pinned,), task) for model, task in needed]
        return all(evict is None for evict in room)
