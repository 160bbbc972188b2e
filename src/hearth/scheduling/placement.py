"""Who starts now and which model is swapped in: one pass over the bands, most urgent first.

1. A band first uses free slots of resident models, in the order its policy chooses.
2. What it cannot place it reserves: a resident it is waiting for may not be evicted for anything less urgent (`claimed`), and a
   resident that must make room for it takes no more work (`evicting`).
3. One swap at a time. It begins when everything that must go is idle: unload, then (in the decision that sees the memory clear) load.
4. A model that was just loaded serves a waiter before a swap of equal or lower rank may take it away.
5. A waiting item that is older than `max_swap_wait_s` may force a swap, but only once the resident model has served
   `residency_factor` times what the swap costs: a bare age limit would turn overload into nothing but swapping.
"""

from __future__ import annotations

from hearth.scheduling.actions import Action, Dispatch, Load, SwapReason, Unload
from hearth.scheduling.policies import POLICIES, Candidate
from hearth.scheduling.preemption import yield_memory, yield_slots
from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Band, WorkKind

BANDS = tuple(Band)
EXTERNAL_BANDS = frozenset({Band.INTERRUPTED, Band.EXTERNAL})


class Placement:
    """One pass; made for one decision and thrown away."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        self._policy = POLICIES[state.settings.scheduling.policy]
        self._claimed: set[str] = set()
        self._evicting: set[str] = set()
        self._room_wanted = False
        self._actions: list[Action] = []

    def run(self) -> list[Action]:
        """Start, stop and swap what this decision calls for."""
        for band in BANDS:
            if self._state.waiting.any_in(band):
                self._serve_band(band)
        self._unload_suspects()
        return self._actions

    def make_room(self, model: str, why: SwapReason, waiter: Entry | None = None) -> None:
        """Bring a model in, or get closer to it: nothing happens while another swap is under way or its turn has not come."""
        residency = self._state.residency
        evict = residency.eviction_for(model, self._claimed)
        if self._room_wanted or evict is None or self._left_alone(model):
            return
        self._room_wanted = True
        self._evicting.update(evict)
        running = [entry for name in evict for entry in residency.residents[name].running.values()]
        if running:
            if waiter is not None:
                self._actions += yield_memory(self._state, waiter, running, self._now)
        elif residency.swap is None:
            self._begin(model, evict, why)

    def _begin(self, model: str, evict: tuple[str, ...], why: SwapReason) -> None:
        residency = self._state.residency
        if evict:
            if any(self._left_alone(name) for name in evict):
                return
            residency.begin_unload(evict, self._now, why)
            self._actions += [Unload(model=name, why=why) for name in evict]
        else:
            replaced = residency.begin_load(model, self._now, why)
            self._actions.append(Load(model=model, replaces=replaced, why=why))

    def _serve_band(self, band: Band) -> None:
        self._hold_unsettled(band)
        heads = {entry.item.model: entry for entry in self._state.waiting.heads(band)}
        while heads and not self._hopeless(band):
            chosen, why = self._choose(list(heads.values()))
            model = chosen.item.model
            head = self._state.waiting.head(band, model) if self._serve(band, chosen, why) else None
            if head is None:
                del heads[model]
            else:
                heads[model] = head

    def _hopeless(self, band: Band) -> bool:
        """Nothing external can start, or make anything yield, while every slot is taken."""
        return band in EXTERNAL_BANDS and self._state.residency.saturated(self._state.waiting.models())

    def _hold_unsettled(self, band: Band) -> None:
        for resident in self._state.residency.residents.values():
            if not resident.settled and resident.phase is Phase.READY:
                best = self._state.waiting.best_band(resident.model)
                if best is not None and best <= band:
                    self._claimed.add(resident.model)

    def _choose(self, heads: list[Entry]) -> tuple[Entry, SwapReason]:
        if not all(resident.settled for resident in self._state.residency.residents.values()):
            unsettled = [entry for entry in heads if self._unsettled(entry)]
            if unsettled:
                return min(unsettled, key=lambda entry: entry.key), SwapReason.WAITING
        candidates = [Candidate(entry=entry, resident=self._stays(entry.item.model)) for entry in heads]
        overdue = self._overdue(candidates) if self._policy.ages else None
        if overdue is not None:
            return overdue, SwapReason.OVERDUE
        return self._policy.choose(candidates).entry, SwapReason.WAITING

    def _unsettled(self, entry: Entry) -> bool:
        resident = self._state.residency.ready(entry.item.model or "")
        return resident is not None and not resident.settled and resident.model not in self._evicting

    def _stays(self, model: str | None) -> bool:
        residents = self._state.residency.residents
        names = tuple(residents) if model is None else (model,)
        return any(
            name not in self._evicting and not resident.suspect and resident.phase is not Phase.UNLOADING
            for name in names
            if (resident := residents.get(name)) is not None
        )

    def _overdue(self, candidates: list[Candidate]) -> Entry | None:
        """The longest waiting item that needs a swap, if it has waited too long and the residents have earned their keep."""
        needing = [candidate.entry for candidate in candidates if not candidate.resident and candidate.entry.item.model is not None]
        if not needing:
            return None
        oldest = min(needing, key=lambda entry: (entry.item.arrived_at, entry.item.sequence))
        waited_s = self._now - oldest.item.arrived_at
        if waited_s < self._state.settings.scheduling.max_swap_wait_s or not self._earned(oldest.item.model or ""):
            return None
        return oldest

    def _earned(self, target: str) -> bool:
        factor = self._state.settings.scheduling.residency_factor
        return all(
            self._now - resident.loaded_at >= factor * self._state.estimates.swap_s(resident.model, target)
            for resident in self._state.residency.residents.values()
            if resident.phase is Phase.READY
        )

    def _serve(self, band: Band, entry: Entry, why: SwapReason) -> bool:
        """Dispatch the head of a line if it can start now; else reserve what it waits for."""
        if band in EXTERNAL_BANDS and self._would_overrun(entry):
            return False
        model = entry.item.model
        if model is None:
            return self._serve_anywhere(band, entry)
        resident = self._state.residency.residents.get(model)
        if resident is None:
            self.make_room(model, why, entry)
        elif resident.phase is Phase.READY and not resident.suspect and model not in self._evicting:
            if self._state.residency.free_slots(resident) > 0:
                self._dispatch(entry, resident)
                return True
            self._claimed.add(model)
            self._take_slot(band, entry, [resident])
        elif resident.phase is Phase.LOADING:
            self._claimed.add(model)
        return False

    def _serve_anywhere(self, band: Band, entry: Entry) -> bool:
        home, residents = self._state.home, self._state.residency.residents.values()
        usable = [resident for resident in residents if self._usable(resident)]
        ready = [resident for resident in usable if not resident.embeds or home is None]
        free = [resident for resident in ready if self._state.residency.free_slots(resident) > 0]
        if free:
            self._dispatch(entry, max(free, key=lambda resident: (resident.last_used_at, resident.model)))
            return True
        if ready:
            self._take_slot(band, entry, ready)
        elif home is not None and all(resident.embeds for resident in residents):
            self.make_room(home, SwapReason.WAITING, entry)
        return False

    def _usable(self, resident: Resident) -> bool:
        return resident.phase is Phase.READY and not resident.suspect and resident.model not in self._evicting

    def _take_slot(self, band: Band, entry: Entry, residents: list[Resident]) -> None:
        self._actions += yield_slots(self._state, entry, residents, band, self._now)

    def _dispatch(self, entry: Entry, resident: Resident) -> None:
        self._state.waiting.remove(entry)
        entry.place = Place.RUNNING
        entry.attempts += 1
        entry.model = resident.model
        entry.dispatched_at = self._now
        entry.expected_end_at = self._now + self._state.estimates.service_s(entry.item, resident.model)
        resident.running[entry.item.sequence] = entry
        resident.settled = True
        if entry.item.model is not None:
            resident.embeds = entry.item.kind is WorkKind.EMBED
        resident.last_used_at = self._now
        self._actions.append(Dispatch(sequence=entry.item.sequence, attempt=entry.attempts, model=resident.model))

    def _would_overrun(self, entry: Entry) -> bool:
        """Would this external item still run when an announced internal task is due?"""
        window_s = self._state.settings.scheduling.schedule_drain_minutes * 60
        for due_at in self._state.announced.values():
            if due_at - window_s <= self._now < due_at and self._now + self._cost_s(entry) > due_at:
                self._state.wake_at(due_at)
                return True
        return False

    def _cost_s(self, entry: Entry) -> float:
        model = entry.item.model or self._state.home or ""
        estimates = self._state.estimates
        if self._state.residency.ready(model) is not None or entry.item.model is None:
            return estimates.service_s(entry.item, model)
        return estimates.swap_s(next(iter(self._state.residency.residents), ""), model) + estimates.service_s(entry.item, model)

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
