"""Who starts now and which model is swapped in: one pass over the bands, most urgent first.

1. A band first uses free slots of resident models, in the order its policy chooses.
2. What it cannot place it reserves: a resident it is waiting for may not be evicted for anything less urgent (`claimed`), and a
   resident that must make room for it takes no more work (`evicting`).
3. One swap at a time. It begins when everything that must go is idle: unload, then (in the decision that sees the memory clear) load.
   Memory that was cleared for the waiters of a model is theirs, unless a more urgent band needs it: else what was just unloaded could
   come back at once.
4. A model that was just loaded serves a waiter before a swap of equal or lower rank may take it away; one of any rank, where an external
   item has lost it, or been interrupted, `max_interrupt_count` times. Else work that comes more often than a swap takes would have the
   model loaded again and again for nobody.
5. A waiting item that is older than `max_swap_wait_s` may force a swap, but only once the resident model has served
   `residency_factor` times what the swap costs: a bare age limit would turn overload into nothing but swapping.
6. The pinned model is reserved before any external band; while the owner has external work paused, these bands are left out. The owner's
   own loads and unloads come last.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.scheduling.actions import Action, Dispatch, Load, SwapReason, Unload
from hearth.scheduling.packing import is_reading, next_round
from hearth.scheduling.policies import POLICIES, Candidate, Hold, Situation
from hearth.scheduling.preemption import protected, yield_memory, yield_slots
from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import BANDS, Entry, Line, Place
from hearth.types import Band, WorkKind

WAITED_FOR = frozenset({SwapReason.WAITING, SwapReason.OVERDUE})
EXTERNAL_BANDS = frozenset({Band.INTERRUPTED, Band.EXTERNAL})
_READY, _UNLOADING, _WAITING, _INTERRUPTED = Phase.READY, Phase.UNLOADING, SwapReason.WAITING, Band.INTERRUPTED
_RUNNING, _EMBED = Place.RUNNING, WorkKind.EMBED
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a function."""


class Placement:
    """One pass; made for one decision and thrown away."""

    __slots__ = ("_actions", "_claimed", "_evicting", "_now", "_policy", "_room_wanted", "_state", "_unsettled")

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        state.held_until = None
        self._now = now
        self._policy = POLICIES[state.settings.scheduling.policy]
        self._claimed: set[str] = set()
        self._evicting: set[str] = set()
        self._room_wanted = False
        self._actions: list[Action] = []
        self._unsettled: list[Resident] = []

    def run(self) -> list[Action]:
        """Start, stop and swap what this decision calls for."""
        state, suspicious = self._state, False
        if state.cleared_for is not None and not state.waits_for(state.cleared_for[0]):
            state.cleared_for = None
        for resident in state.residency.residents.values():
            suspicious |= resident.suspect
            if not resident.settled:
                self._unsettled.append(resident)
        self._serve_bands()
        if suspicious:
            self._unload_suspects()
        if state.orders.wanted or state.orders.unwanted:
            self._obey()
        return self._actions

    def _serve_bands(self) -> None:
        orders, pinned = self._state.orders, self._state.pinned
        for band, lines in zip(BANDS, self._state.waiting.lines, strict=True):
            if band is _INTERRUPTED and pinned is not None:
                self._claimed.add(pinned)
            if lines and not (orders.paused and band in EXTERNAL_BANDS):
                self._serve_band(band, lines)

    def _obey(self) -> None:
        """Do what the owner has ordered, as far as nothing that waits is in its way."""
        state, orders = self._state, self._state.orders
        for model in orders.unwanted:
            if model not in state.residency.residents or state.is_asked_for(model):
                orders.settle(model)
        idle = tuple(model for model in orders.unwanted if state.is_there(model) and not self._left_alone(model))
        if idle and state.residency.swap is None and state.cleared_for is None:
            self._begin(idle[0], idle, SwapReason.OWNER)
            for model in idle:
                orders.settle(model)
        for model in orders.wanted:
            beside = state.cleared_for is None and state.residency.eviction_for(model, ()) == ()
            if model not in state.residency.residents and (beside or state.at_rest):
                self.make_room(model, SwapReason.OWNER)

    def make_room(self, model: str, why: SwapReason, waiter: Entry | None = None) -> None:
        """Bring a model in, or get closer to it: nothing happens while another swap is under way or its turn has not come."""
        residency = self._state.residency
        task_type = None if waiter is None else waiter.item.task_type
        evict = residency.eviction_for(model, self._claimed, task_type)
        if self._room_wanted or evict is None or self._left_alone(model):
            return
        self._room_wanted = True
        self._evicting.update(evict)
        running = [entry for name in evict for entry in residency.residents[name].running.values()]
        if running:
            if waiter is not None:
                self._actions += yield_memory(self._state, waiter, running, self._now)
        elif residency.swap is None:
            self._begin(model, evict, why, task_type)

    def _begin(self, model: str, evict: tuple[str, ...], why: SwapReason, task_type: str | None = None) -> None:
        residency = self._state.residency
        if evict:
            if any(self._left_alone(name) for name in evict):
                return
            self._state.cleared_for = (model, why) if why in WAITED_FOR else None
            if self._unsettled and why in WAITED_FOR:
                self._count_lost_loads(evict)
            residency.begin_unload(evict, self._now, why)
            self._actions += [Unload(model=name, why=why) for name in evict]
        else:
            self._state.cleared_for = None
            replaced = residency.begin_load(model, self._now, why, task_type)
            self._actions.append(Load(model=model, replaces=replaced, why=why))

    def _count_lost_loads(self, evict: tuple[str, ...]) -> None:
        for resident in self._unsettled:
            if resident.model in evict and not resident.settled:
                for entry in self._state.waiting.entries(resident.model):
                    entry.lost_loads += 1

    def _serve_band(self, band: Band, lines: Mapping[str | None, Line]) -> None:
        """Serve line by line, until each is empty or has to wait."""
        if self._unsettled:
            self._hold_unsettled(band)
        going = dict(lines)
        is_external = band in EXTERNAL_BANDS
        while going and not (is_external and self._hopeless()):
            chosen, why = self._choose(band, [line.head for line in going.values() if line.head is not None])
            if chosen is None:
                break
            model = chosen.item.model
            if not self._serve(band, chosen, why) or model not in lines:
                del going[model]

    def _hopeless(self) -> bool:
        """Nothing external can start, or make anything yield, while every slot is taken."""
        return self._state.residency.saturated(self._state.waiting.lines_of)

    def _hold_unsettled(self, band: Band) -> None:
        for resident in self._unsettled:
            if not resident.settled and resident.phase is _READY:
                best = self._state.waiting.best_band(resident.model)
                if best is not None and (best <= band or (best in EXTERNAL_BANDS and self._insists(resident.model))):
                    self._claimed.add(resident.model)

    def _insists(self, model: str) -> bool:
        """Does the first item that waits for what was just loaded, an external one, start whoever else wants the memory?"""
        first = self._state.waiting.entries(model)[0]
        return protected(self._state, first) and not self._state.orders.paused and self._may_start(first)

    def _choose(self, band: Band, heads: list[Entry]) -> tuple[Entry | None, SwapReason]:
        """The head to serve next; None: the policy holds what is in memory, and nothing that remains of the band is served."""
        if self._unsettled:
            served_first = [entry for entry in heads if self._is_unsettled(entry)]
            if served_first:
                return min(served_first, key=lambda entry: entry.key), _WAITING
        if self._state.cleared_for is not None:
            model, why = self._state.cleared_for
            expected = next((entry for entry in heads if entry.item.model == model), None)
            if expected is not None:
                return expected, why
        candidates = [Candidate(entry=entry, resident=self._stays(entry.item.model)) for entry in heads]
        situation = Situation(self._state, band, candidates, self._now, self._claimed)
        overdue = self._overdue(situation)
        if overdue is not None:
            return overdue, SwapReason.OVERDUE
        choice = self._policy.choose(situation)
        if isinstance(choice, Hold):
            self._hold(band, choice)
            return None, _WAITING
        return choice.entry, _WAITING

    def _hold(self, band: Band, hold: Hold) -> None:
        """What is held is not for less urgent work to swap away; while the house's own work waits, nobody else uses it or loads beside it.

        A load beside it would still be under way when the hold ends.
        """
        self._state.held_until = hold.until
        self._state.wake_at(hold.until)
        if band in EXTERNAL_BANDS:
            self._claimed.update(self._state.residency.residents)
        else:
            self._evicting.update(self._state.residency.residents)
            self._room_wanted = True

    def _is_unsettled(self, entry: Entry) -> bool:
        resident = self._state.residency.ready(entry.item.model or "")
        return resident is not None and not resident.settled and resident.model not in self._evicting

    def _stays(self, model: str | None) -> bool:
        residents = self._state.residency.residents
        if model is not None:
            resident = residents.get(model)
            return resident is not None and model not in self._evicting and not resident.suspect and resident.phase is not _UNLOADING
        return any(self._goes_on(resident) for resident in residents.values())

    def _goes_on(self, resident: Resident) -> bool:
        return resident.model not in self._evicting and not resident.suspect and resident.phase is not _UNLOADING

    def _overdue(self, situation: Situation) -> Entry | None:
        """The longest waiting item that needs a swap, if it has waited too long by the owner's word and by the policy's."""
        forces, now, limit_s = self._policy.forces, self._now, self._state.settings.scheduling.max_swap_wait_s
        if forces is None:
            return None
        late: list[Candidate] = []
        for each in situation.candidates:
            item = each.entry.item
            if not each.resident and item.model is not None and now - item.arrived_at >= limit_s:
                late.append(each)
        if not late:
            return None
        oldest = min(late, key=lambda each: (each.entry.item.arrived_at, each.entry.item.sequence))
        return oldest.entry if forces(situation, oldest) else None

    def _serve(self, band: Band, entry: Entry, why: SwapReason) -> bool:
        """Dispatch the head of a line if it can start now; else reserve what it waits for."""
        if self._state.announced and band in EXTERNAL_BANDS and self._would_overrun(entry):
            return False
        model = entry.item.model
        if model is None:
            return self._serve_anywhere(band, entry)
        resident = self._state.residency.residents.get(model)
        if resident is None:
            self.make_room(model, why, entry)
        elif resident.phase is _READY and not resident.suspect and model not in self._evicting:
            if len(resident.running) < resident.parallel:
                return self._admit(entry, resident)
            self._claimed.add(model)
            self._actions += yield_slots(self._state, entry, [resident], band, self._now)
        elif resident.phase is Phase.LOADING:
            self._claimed.add(model)
        return False

    def _serve_anywhere(self, band: Band, entry: Entry) -> bool:
        home, residents = self._state.home_for(entry), self._state.residency.residents.values()
        usable = [resident for resident in residents if self._usable(resident)]
        ready = [resident for resident in usable if not resident.embeds or home in (None, resident.model)]
        free = [resident for resident in ready if self._state.residency.free_slots(resident) > 0]
        if free:
            open_now = [resident for resident in free if not is_reading(self._state, resident, band, self._now)]
            chosen = max(open_now, key=lambda resident: (resident.last_used_at, resident.model), default=None)
            return chosen is not None and self._admit(entry, chosen)
        if ready:
            self._actions += yield_slots(self._state, entry, ready, band, self._now)
        elif home is not None and home not in self._state.residency.residents and all(resident.embeds for resident in residents):
            self.make_room(home, _WAITING, entry)
        return False

    def _admit(self, head: Entry, resident: Resident) -> bool:
        """Start the next round of a line; False while the prompts of the last one are being read."""
        chosen = next_round(self._state, head, resident, self._now, self._may_start)
        for entry in chosen:
            self._actions.append(_start(self._state, entry, resident, self._now))
        if not chosen:
            self._claimed.add(resident.model)
        return bool(chosen)

    def _may_start(self, entry: Entry) -> bool:
        return not (entry.external and self._would_overrun(entry))

    def _usable(self, resident: Resident) -> bool:
        return resident.phase is _READY and not resident.suspect and resident.model not in self._evicting

    def _would_overrun(self, entry: Entry) -> bool:
        """Would this external item still run when an announced internal task is due?"""
        window_s = self._state.settings.scheduling.schedule_drain_minutes * 60
        for due_at, _ in self._state.announced:
            if due_at - window_s <= self._now < due_at and self._now + self._cost_s(entry) > due_at:
                self._state.wake_at(due_at)
                return True
        return False

    def _cost_s(self, entry: Entry) -> float:
        model = entry.item.model or self._state.home or ""
        estimates = self._state.estimates
        if self._state.residency.ready(model) is not None or entry.item.model is None:
            return estimates.service_s(entry.item, model, entry.kept_tokens)
        swap_s = estimates.swap_s(next(iter(self._state.residency.residents), ""), model)
        return swap_s + estimates.service_s(entry.item, model, entry.kept_tokens)

    def _left_alone(self, model: str) -> bool:
        until = self._state.not_before.get(model)
        if until is None or until <= self._now:
            self._state.not_before.pop(model, None)
            return False
        self._state.wake_at(until)
        return True

    def _unload_suspects(self) -> None:
        residency = self._state.residency
        if residency.swap is None:
            idle = [r.model for r in residency.residents.values() if r.suspect and not r.running and not self._left_alone(r.model)]
            if idle:
                self._begin(idle[0], tuple(idle), SwapReason.RELOAD)


def _start(state: State, entry: Entry, resident: Resident, now: float) -> Dispatch:
    """Give a waiting entry a slot."""
    item, model = entry.item, resident.model
    state.waiting.remove(entry)
    entry.place = _RUNNING
    entry.attempts += 1
    entry.model = model
    entry.dispatched_at = now
    entry.expected_end_at = now + state.estimates.service_s(item, model, entry.kept_tokens)
    resident.running[item.sequence] = entry
    if item.model is not None or state.waiting.best_band(model) is None:
        resident.settled = True
    if item.kind is _EMBED:
        resident.embeds = True
    state.residency.used(resident, now)
    return Dispatch(sequence=item.sequence, attempt=entry.attempts, model=model)
