"""Who starts now and which model is swapped in: one pass over the bands, most urgent first.

1. A band first uses free slots of resident models, in the order its policy chooses.
2. What it cannot place it reserves: a resident it is waiting for may not be evicted for anything
   less urgent (`claimed`), and a resident that must make room for it takes no more work
   (`evicting`).
3. One swap at a time. It begins when everything that must go is idle: unload, then (in the decision
   that sees the memory clear) load. Memory that was cleared for the waiters of a model is theirs,
   unless a more urgent band needs it: else what was just unloaded could come back at once.
4. A model that was just loaded serves a waiter before a swap of equal or lower rank may take it
   away; one of any rank, where an external item has lost it, or been interrupted,
   `max_interrupt_count` times. Else work that comes more often than a swap takes would have the
   model loaded again and again for nobody.
5. A waiting item that is older than `max_swap_wait_s` may force a swap, but only once the resident
   model has served `residency_factor` times what the swap costs: a bare age limit would turn
   overload into nothing but swapping.
6. The pinned model is reserved before any external band; while the owner has external work paused,
   these bands are left out. The owner's own loads and unloads come last.

Into the free slots of a model go rounds of its line, as in roseinfer's prefill admission packing: a
model that serves several requests at once reads the prompts of those that come together, so one
long prompt keeps everybody's first byte waiting. A round is so many prompt tokens
(`packing.prefill_max_tokens`) of one band; the next begins when the prompts of those of its own or
a more urgent band are read: the first byte has come, or as much time has passed as reading takes.
`fifo` takes a round from the head of the line. `pack` looks at the first `lookahead` items and
takes the smallest prompts first, as many as fit, while more than one slot is free; every
`force_fifo_every`-th round goes in order, so that a large prompt is not passed for ever. Chosen
items start in the order of the line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from hearth.scheduling import sharing
from hearth.scheduling.actions import (
    Action,
    Cut,
    Dispatch,
    Load,
    NoteHold,
    NoteTurn,
    SwapReason,
    Unload,
)
from hearth.scheduling.policies import POLICIES, Candidate, Candidates, first
from hearth.scheduling.preemption import protected, yield_memory, yield_slots
from hearth.scheduling.residency import Evictions, Resident
from hearth.scheduling.state import ModelHold, State
from hearth.scheduling.waiting import BANDS, EXTERNAL_BANDS, Entry
from hearth.types import Band

if TYPE_CHECKING:
    from hearth.config.settings import PackingSettings

# looked up once: in Python 3.11 that takes as long as calling a function
_INTERRUPTED = Band.INTERRUPTED

# so many of a line that are held back for an announced task may be passed by a short one
PASSED = 100
# a round of `pack` where the owner sets none: what a card reads in about a second
PACK_TOKENS = 2048

Lines = Mapping[str | None, list[Entry]]


class Placement:
    """One pass; made for one decision and thrown away."""

    __slots__ = (
        "_actions",
        "_candidates",
        "_claimed",
        "_evicting",
        "_evictions",
        "_hold_now",
        "_least_mib",
        "_now",
        "_policy",
        "_residents",
        "_room_wanted",
        "_state",
        "_unsettled",
    )

    def __init__(self, state: State, now: float) -> None:
        state.held_until = None
        self._state = state
        self._residents = state.residency.residents
        self._now = now
        self._policy = POLICIES[state.settings.scheduling.policy]
        self._claimed: set[str] = set()
        self._evicting: set[str] = set()
        self._room_wanted = False
        self._actions: list[Action] = []
        self._unsettled: list[Resident] = []
        # of the band that is being served; None once what they rest on has changed
        self._candidates: Candidates | None = None
        # while these are claimed; None once that or a resident has changed
        self._evictions: Evictions | None = None
        self._hold_now: ModelHold | None = None
        self._least_mib: float | None = None  # see `_may_come`

    def run(self) -> list[Action]:
        """Start, stop and swap what this decision calls for."""
        state = self._state
        if state.cleared_for is not None and not state.waits_for(state.cleared_for[0]):
            state.cleared_for = None
        self._unsettled = [
            resident for resident in self._residents.values() if not resident.settled
        ]
        pinned = state.pinned
        if state.priced:
            self._take_turn()
        elif state.turn is not None:
            self._actions.append(NoteTurn(model=state.turn.model, turn_s=None))
            state.turn = None
        for band, lines in zip(BANDS, state.waiting.lines, strict=True):
            if band is _INTERRUPTED and pinned is not None:
                self._claim(pinned)
            if lines and not (state.paused and band in EXTERNAL_BANDS):
                self._serve_band(band, lines)
        state.hold = self._hold_now
        self._unload_suspects()
        if state.ordered:
            self._obey()
        return self._actions

    def _take_turn(self) -> None:
        """In a turn of external work, its model goes before everything else (rules 2 and 3 of
        `sharing`).
        """
        state, before = self._state, self._state.turn
        turn = sharing.take_turns(state, self._now)
        if turn is not before:
            ended = [] if before is None else [NoteTurn(model=before.model, turn_s=None)]
            begun = [] if turn is None else [NoteTurn(model=turn.model, turn_s=turn.length_s)]
            self._actions += [*ended, *begun]
        if turn is None:
            return
        if state.pinned is not None:
            self._claim(state.pinned)
        waiting = next(
            (entry for entry in state.waiting.entries(turn.model) if entry.external), None
        )
        if turn.model in self._residents:
            self._claim(turn.model)
        elif waiting is not None:
            self.make_room(turn.model, "turn", waiting)

    def make_room(self, model: str, why: SwapReason, waiter: Entry | None = None) -> None:
        """Bring a model in, or get closer to it: nothing happens while another swap is under way or
        its turn has not come.
        """
        residency, task_type = (
            self._state.residency,
            None if waiter is None else waiter.item.task_type,
        )
        evict = None if self._room_wanted else self._found_evictions.find(model, task_type)
        if evict is None or self._left_alone(model):
            return
        self._room_wanted = True
        self._evicting.update(evict)
        self._candidates = None
        running = [entry for name in evict for entry in self._residents[name].running.values()]
        if running:
            if waiter is not None:
                self._actions += yield_memory(self._state, waiter, running, self._now)
        elif residency.swap is None and evict:
            self._unload(model, evict, why)
        elif residency.swap is None:
            self._state.cleared_for = None
            replaced = residency.begin_load(model, self._now, why, task_type)
            self._actions.append(Load(model=model, replaces=replaced, why=why))
        elif waiter is not None and not waiter.external and residency.loading in evict:
            self._cut(residency.loading or "")

    def _cut(self, model: str) -> None:
        """End the load under way, which only external work has asked for; never twice in a row for
        the same request.
        """
        state, swap = self._state, self._state.residency.swap
        waiting = [*state.waiting.entries(model), *state.waiting.entries(None)]
        if not state.can_cut or swap is None or swap.why == "owner":
            return
        if any(entry.load_cut or not entry.external for entry in waiting):
            return
        for entry in waiting:
            entry.load_cut = True
        state.residency.begin_cut(model, self._now)
        self._actions.append(Cut(model=model))

    def _unload(self, target: str, evict: tuple[str, ...], why: SwapReason) -> None:
        """Begin a swap to the target: everything goes that is in its way."""
        if any(self._left_alone(name) for name in evict):
            return
        is_waited_for = why in {"waiting", "overdue", "turn"}
        self._state.cleared_for = (target, why) if is_waited_for else None
        for resident in self._unsettled if is_waited_for else ():
            if resident.model in evict and not resident.settled:
                for entry in self._state.waiting.entries(resident.model):
                    entry.lost_loads += 1
        self._state.residency.begin_unload(evict, self._now, why)
        self._actions += [Unload(model=name, why=why) for name in evict]

    def _unload_suspects(self) -> None:
        suspects = [
            each.model for each in self._residents.values() if each.suspect and not each.running
        ]
        if not suspects or self._state.residency.swap is not None:
            return
        if idle := tuple(model for model in suspects if not self._left_alone(model)):
            self._unload(idle[0], idle, "reload")

    def _obey(self) -> None:
        """Do what the owner has ordered, as far as nothing that waits is in its way."""
        state = self._state
        for model in state.unwanted:
            if model not in self._residents or state.waits_for(model) or state.runs_on(model):
                state.settle(model)
        idle = tuple(
            model
            for model in state.unwanted
            if state.is_there(model) and not self._left_alone(model)
        )
        if idle and state.residency.swap is None and state.cleared_for is None:
            self._unload(idle[0], idle, "owner")
            for model in idle:
                state.settle(model)
        for model in state.wanted:
            beside = state.cleared_for is None and state.residency.eviction_for(model, ()) == ()
            if model not in self._residents and (beside or state.at_rest):
                self.make_room(model, "owner")

    def _claim(self, model: str) -> None:
        """Nothing less urgent may have this model unloaded."""
        if model not in self._claimed:
            self._claimed.add(model)
            self._candidates = self._evictions = None

    @property
    def _found_evictions(self) -> Evictions:
        if self._evictions is None:
            self._evictions = Evictions(self._state.residency, self._claimed)
        return self._evictions

    def _may_come(self, keep: Collection[str]) -> bool:
        """May a swap begin for anything that waits, if whatever else had to go could?"""
        if self._room_wanted:
            return False
        if self._least_mib is None:
            self._least_mib = self._state.residency.least_mib(
                chain.from_iterable(self._state.waiting.lines)
            )
        return self._state.residency.could_come(self._least_mib, keep)

    def _is_saturated(self) -> bool:
        """Is every slot taken, so that no external item can be served, evict a resident, or come
        beside it?
        """
        for resident in self._residents.values():
            if not resident.running or resident.free_slots > 0:
                return False
        return bool(self._residents) and not self._may_come(self._residents.keys())

    def _serve_band(self, band: Band, lines: Lines) -> None:
        """Serve line by line, until each is empty or has to wait.

        Once no swap can begin, only what is in memory is looked at.
        """
        for resident in self._unsettled:
            if not resident.settled and resident.phase == "ready":
                best = self._state.waiting.best_band(resident.model)
                if best is not None and (
                    best <= band or (best in EXTERNAL_BANDS and self._insists(resident.model))
                ):
                    self._claim(resident.model)
        models, self._candidates = list(lines), None
        while models := self._servable(band, models):
            candidates = self._candidates
            if candidates is None:
                candidates = self._candidates = self._heads(
                    band, [lines[model] for model in models]
                )
                models = [each.entry.item.model for each in candidates]
            chosen, why = self._choose(band, candidates) if models else (None, "waiting")
            if self._candidates is not candidates:
                continue  # what was to go is held: choose again without it
            if chosen is None:
                break
            model = chosen.entry.item.model
            if not self._serve(band, chosen.entry, why) or model not in lines:
                models.remove(model)
                if self._candidates is not None:
                    self._candidates.remove(chosen)

    def _servable(self, band: Band, models: list[str | None]) -> list[str | None]:
        """The models of those lines of a band that may be served now: where no swap can begin, of
        what is in memory.
        """
        if band in EXTERNAL_BANDS and self._is_saturated():
            return []
        if self._candidates is not None or self._may_come(self._claimed):
            return models
        return [model for model in models if model is None or model in self._residents]

    def _heads(self, band: Band, lines: list[list[Entry]]) -> Candidates:
        """The first of each line that may start."""
        evictions, found = self._found_evictions, Candidates([], [])
        heads = (
            self._not_held(lines)
            if self._state.announced and band in EXTERNAL_BANDS
            else [line[0] for line in lines]
        )
        for entry in heads:
            resident = self._stays(entry.item.model)
            candidate = Candidate(
                entry, self._state, band, self._now, resident=resident, evictions=evictions
            )
            (found.served if resident else found.others).append(candidate)
        return found

    def _not_held(self, lines: list[list[Entry]]) -> Iterator[Entry]:
        """The first of each line that is not held back for an announced task: what is short passes
        what may be long.
        """
        state, now = self._state, self._now
        for line in lines:
            entry = next((entry for entry in line[:PASSED] if not state.is_held(entry, now)), None)
            if entry is not None:
                yield entry

    def _insists(self, model: str) -> bool:
        """Does the first item that waits for what was just loaded, an external one, start whoever
        else wants the memory?
        """
        entry = self._state.waiting.entries(model)[0]
        return (
            protected(self._state, entry)
            and not self._state.paused
            and not self._state.is_held(entry, self._now)
        )

    def _choose(self, band: Band, candidates: Candidates) -> tuple[Candidate | None, SwapReason]:
        """The head to serve next; None: the policy holds what is in memory, and nothing that
        remains of the band is served.
        """
        self._state.looked_at += len(candidates)
        if self._unsettled:
            unsettled = {
                resident.model
                for resident in self._unsettled
                if not resident.settled and self._is_usable(resident)
            }
            served_first = first(
                each for each in candidates.served if each.entry.item.model in unsettled
            )
            if served_first is not None:
                return served_first, "waiting"
        if self._state.cleared_for is not None:
            model, why = self._state.cleared_for
            expected = next((each for each in candidates if each.entry.item.model == model), None)
            if expected is not None:
                return expected, why
        overdue = self._overdue(candidates)
        choice = overdue or self._policy.choose(candidates, self._state, self._now)
        if isinstance(choice, Candidate):
            if not self._held_for_internal(band, choice):
                return choice, "waiting" if overdue is None else "overdue"
        else:
            self._hold(band, choice)
        return None, "waiting"

    def _held_for_internal(self, band: Band, choice: Candidate) -> bool:
        """Does an external request's swap wait for an internal caller who is about to return? Then
        nothing external evicts that model.
        """
        state, model = self._state, choice.entry.item.model
        if band not in EXTERNAL_BANDS or choice.resident or model is None or not state.priced:
            return False
        if state.turn is not None or state.residency.swap is not None:
            return False
        hold, before = sharing.hold_for(state, model, choice.swap.evicts, self._now), state.hold
        if hold is None:
            return False
        if self._hold_now is None:
            self._hold_now = hold
            state.held_until = hold.until
            if before is None or (before.model, before.caller) != (hold.model, hold.caller):
                self._actions.append(
                    NoteHold(model=hold.model, caller=hold.caller, hold_s=hold.until - self._now)
                )
        state.wake_at(hold.until)
        self._claim(hold.model)
        return True

    def _overdue(self, candidates: Candidates) -> Candidate | None:
        """The longest waiting item that needs a swap, if it has waited too long by the owner's word
        and by the policy's.
        """
        forces, limit_s = self._policy.forces, self._state.settings.scheduling.max_swap_wait_s
        if forces is None:
            return None
        needy = (each for each in candidates.others if each.entry.item.model is not None)
        oldest = min(
            needy,
            key=lambda each: (each.entry.item.arrived_at, each.entry.item.sequence),
            default=None,
        )
        if oldest is None or self._now - oldest.entry.item.arrived_at < limit_s:
            return None
        return oldest if forces(oldest, candidates, self._state, self._now) else None

    def _hold(self, band: Band, until: float) -> None:
        """What is held is not for less urgent work to swap away; while internal work waits, nobody
        else uses it or loads beside it.

        A load beside it would still be under way when the hold ends.
        """
        self._state.held_until = until
        self._state.wake_at(until)
        if band in EXTERNAL_BANDS:
            for model in self._residents:
                self._claim(model)
        else:
            self._evicting.update(self._residents)
            self._room_wanted = True

    def _stays(self, model: str | None) -> bool:
        """Is the model (None: any) in memory or on its way in, and does it go on?"""
        if model is None:
            return any(
                not each.is_leaving and each.model not in self._evicting
                for each in self._residents.values()
            )
        resident = self._residents.get(model)
        return resident is not None and not resident.is_leaving and model not in self._evicting

    def _is_usable(self, resident: Resident) -> bool:
        return resident.serves and resident.model not in self._evicting

    def _serve(self, band: Band, entry: Entry, why: SwapReason) -> bool:
        """Dispatch the head of a line if it can start now; else reserve what it waits for."""
        model = entry.item.model
        if model is None:
            return self._serve_anywhere(band, entry)
        resident = self._residents.get(model)
        if resident is None:
            if not self._has_grace(entry):
                self.make_room(model, why, entry)
        elif self._is_usable(resident):
            if resident.free_slots > 0:
                return self._admit(entry, resident)
            self._claim(model)
            self._actions += yield_slots(self._state, entry, [resident], band, self._now)
        elif resident.phase == "loading":
            self._claim(model)
        return False

    def _has_grace(self, entry: Entry) -> bool:
        """Does this internal request let external work go on before it evicts its model?"""
        if entry.external or not self._state.priced:
            return False
        evict = self._found_evictions.find(entry.item.model or "", entry.item.task_type)
        until = sharing.grace_until(self._state, entry, evict or (), self._now)
        if until <= self._now:
            return False
        self._state.wake_at(until)
        return True

    def _serve_anywhere(self, band: Band, entry: Entry) -> bool:
        home, residents = self._state.home_for(entry), self._residents.values()
        ready = [
            each
            for each in residents
            if self._is_usable(each) and (not each.embeds or home in {None, each.model})
        ]
        free = [resident for resident in ready if resident.free_slots > 0]
        if free:
            open_now = [
                resident
                for resident in free
                if not is_reading(self._state, resident, band, self._now)
            ]
            chosen = max(
                open_now, key=lambda resident: (resident.last_used_at, resident.model), default=None
            )
            return chosen is not None and self._admit(entry, chosen)
        if ready:
            self._actions += yield_slots(self._state, entry, ready, band, self._now)
        elif (
            home is not None
            and home not in self._residents
            and all(resident.embeds for resident in residents)
        ):
            self.make_room(home, "waiting", entry)
        return False

    def _admit(self, head: Entry, resident: Resident) -> bool:
        """Start the next round of a line; False while the prompts of the last one are being
        read.
        """
        chosen = next_round(self._state, head, resident, self._now)
        self._candidates = self._evictions = None
        self._actions += [_start(self._state, entry, resident, self._now) for entry in chosen]
        if not chosen:
            self._claim(resident.model)
        return bool(chosen)

    def _left_alone(self, model: str) -> bool:
        until = self._state.not_before.get(model)
        if until is None or until <= self._now:
            self._state.not_before.pop(model, None)
            return False
        self._state.wake_at(until)
        return True


def _start(state: State, entry: Entry, resident: Resident, now: float) -> Dispatch:
    """Give a waiting entry a slot."""
    item, model = entry.item, resident.model
    state.waiting.remove(entry)
    entry.place = "running"
    entry.attempts += 1
    entry.load_cut = False
    entry.model = model
    entry.dispatched_at = now
    entry.expected_end_at = now + state.estimates.service_s(item, model, entry.kept_tokens)
    resident.running[item.sequence] = entry
    if entry.external:
        if not state.external_running:
            state.external_runs_since = now
        state.external_running += 1
    if item.model is not None or state.waiting.best_band(model) is None:
        resident.settled = True
    if item.kind == "embed":
        resident.embeds = True
    state.residency.used(resident, now)
    return Dispatch(sequence=item.sequence, attempt=entry.attempts, model=model)


def budget_tokens(settings: PackingSettings) -> int | None:
    """Prompt tokens of one round; None where there are no rounds."""
    if settings.prefill_max_tokens is None and settings.mode == "pack":
        return PACK_TOKENS
    return settings.prefill_max_tokens


def chosen(costs: Sequence[float], *, slots: int, budget: float, packs: bool) -> list[int]:
    """Indices of what fits into a round, ascending: the cheapest if it packs, else from the front;
    one alone always goes.
    """
    order = (
        sorted(range(len(costs)), key=lambda index: costs[index]) if packs else range(len(costs))
    )
    found, used = list[int](), 0.0
    for index in order[:slots]:
        if used + costs[index] > budget and (packs or found):
            break
        found.append(index)
        used += costs[index]
    return sorted(found) or [0]


def next_round(state: State, head: Entry, resident: Resident, now: float) -> list[Entry]:
    """What to start now of the line that `head` is first of, and may start, on a resident with a
    free slot; nothing during a round.
    """
    if resident.parallel == 1:
        return [head]
    settings = state.settings.scheduling.packing
    budget = budget_tokens(settings)
    if budget is None:
        return [head]
    if is_reading(state, resident, head.band, now):
        return []
    place = (resident.model, head.band)
    number = state.rounds[place] = state.rounds.get(place, 0) + 1
    slots, every = resident.free_slots, settings.force_fifo_every
    packs = settings.mode == "pack" and slots > 1 and not (every > 0 and number % every == 0)
    line = state.waiting.from_entry(head, settings.lookahead if packs else slots)
    window = [entry for entry in line if entry is head or not state.is_held(entry, now)]
    costs = [state.estimates.prompt_tokens(entry.item, resident.model) for entry in window]
    return [window[index] for index in chosen(costs, slots=slots, budget=budget, packs=packs)]


def is_reading(state: State, resident: Resident, band: Band, now: float) -> bool:
    """Are prompts of this band or a more urgent one still being read? Asks to be woken when they
    ought to be done.
    """
    if resident.parallel == 1 or budget_tokens(state.settings.scheduling.packing) is None:
        return False
    unread = [
        entry
        for entry in resident.running.values()
        if entry.first_byte_at is None and entry.band <= band
    ]
    until = max(
        (
            entry.dispatched_at + state.estimates.prompt_s(entry.item, resident.model)
            for entry in unread
        ),
        default=now,
    )
    if until <= now:
        return False
    state.wake_at(until)
    return True
