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
6. What a program asks for beside its user's turns begins no swap while other external work waits
   for a hold to end: the load would still be under way then.
7. Leases of other programs go before all of this (`scheduling.clearing`).
8. The pinned model is reserved before any external band; while the owner has external work paused,
   these bands are left out. The owner's own loads and unloads come last.

Into the free slots of a model go rounds of its line (`scheduling.rounds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from hearth.scheduling import clearing, fair_turns, sharing
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
from hearth.scheduling.bounding import bound
from hearth.scheduling.evictions import Evictions
from hearth.scheduling.obeying import obey
from hearth.scheduling.policies import POLICIES, Candidate, Candidates, first
from hearth.scheduling.preemption import protected, yield_card, yield_memory, yield_slots
from hearth.scheduling.residency import Resident
from hearth.scheduling.rounds import is_reading, next_round
from hearth.scheduling.sleeping import Becomes
from hearth.scheduling.slots import taker
from hearth.scheduling.state import DeviceState, ModelHold
from hearth.scheduling.waiting import BANDS, EXTERNAL_BANDS, Entry
from hearth.types import Band

# looked up once: in Python 3.11 that takes as long as calling a function
_INTERRUPTED = Band.INTERRUPTED
_BACKGROUND = Band.EXTERNAL_BACKGROUND

# so many of a line that are held back may be passed by another
PASSED = 100

Lines = Mapping[str | None, list[Entry]]


class Placement:
    """One pass; made for one decision and thrown away.

    The bands are served one after the other, and each leaves behind what less urgent ones have to
    respect: `_claimed`, `_evicting` and `_room_wanted` only grow in a pass. `_candidates` and
    `_evictions` are caches of what was reckoned from them, and are None once it no longer holds.
    """

    def __init__(self, device: DeviceState, now: float) -> None:
        device.held_until = None
        device.kept_slot = None
        self._device = device
        self._gateway = device.gateway
        self._residents = device.residency.residents
        self._now = now
        self._policy = POLICIES[device.gateway.settings.scheduling.policy]
        # models that may not be unloaded any more in this pass: more urgent work uses them
        self._claimed: set[str] = set()
        # models that have to go for more urgent work, and so are given nothing more to do
        self._evicting: set[str] = set()
        # the one swap there may be is somebody's: nothing else is brought in, now or later
        self._room_wanted = False
        self._actions: list[Action] = []
        # loaded for somebody whom they have not served (rule 4), as of the beginning
        self._unsettled: list[Resident] = []
        # the heads of the band that is being served
        self._candidates: Candidates | None = None
        # what would have to go for a model, while these are claimed
        self._evictions: Evictions | None = None
        self._hold_now: ModelHold | None = None
        self._least_mib: float | None = None  # see `_may_come`

    def clear_for_leases(self) -> None:
        """Free what other programs are to have, before anything else (`clearing`)."""
        device = self._device
        to_go = clearing.to_go(device)
        if not to_go:
            self._stop_sleepers()
            return
        self._room_wanted = True
        going = [each for each in to_go if each.yields_at is not None]
        for resident in going:
            self._actions += yield_card(self._gateway, resident, self._now)
        idle = tuple(
            each.model
            for each in going
            if each.phase == "ready" and not each.running and not self.left_alone(each.model)
        )
        loading = device.residency.loading
        if loading is not None:
            if (idle or self._residents[loading] in going) and device.has_cuts(loading):
                self._end_load(loading)
        elif idle and device.residency.swap is None:
            self.unload(idle[0], self._becoming(None, idle), "lease")

    def _stop_sleepers(self) -> None:
        """Where a lease needs no more than what sleepers keep of the card."""
        residency = self._device.residency
        if not (self._device.leases.taken and residency.sleepers.asleep):
            return
        becomes = self._becoming(None, ())
        if becomes:
            self._room_wanted = True
            if residency.swap is None:
                self.unload(next(iter(becomes)), becomes, "lease")

    def _becoming(
        self, target: str | None, evict: tuple[str, ...], task_type: str | None = None
    ) -> Becomes:
        """What has to sleep, or sleep deeper, or be stopped, so that a model can come."""
        residency = self._device.residency
        stuck = self.stuck_sleepers
        return residency.becoming(target, evict, self._now, task_type=task_type, stuck=stuck)

    @property
    def stuck_sleepers(self) -> set[str]:
        """Those that are left alone, since they would not give up more."""
        return set(filter(self.left_alone, self._device.residency.sleepers.asleep))

    def run(self) -> list[Action]:
        """Start, stop and swap what this decision calls for."""
        device = self._device
        gateway = self._gateway
        if device.cleared_for is not None:
            model = device.cleared_for[0]
            if not (gateway.waits_for(model) and device.contends(model)):
                device.cleared_for = None
        self._unsettled = [
            resident for resident in self._residents.values() if not resident.settled
        ]
        pinned = device.pinned
        if gateway.priced:
            self._take_turn()
        elif device.turn is not None:
            self._actions.append(NoteTurn(model=device.turn.model, turn_s=None))
            device.turn = None
        for band, lines in zip(BANDS, gateway.waiting.lines, strict=True):
            if band is _INTERRUPTED and pinned is not None:
                self._claim(pinned)
            if lines and not (gateway.paused and band in EXTERNAL_BANDS):
                self._serve_band(band, lines)
        device.hold = self._hold_now
        self._unload_suspects()
        if device.residency.sleepers.asleep:
            bound(device, self, self._now)
        if gateway.ordered:
            obey(device, self)
        return self._actions

    def _take_turn(self) -> None:
        """In a turn of external work, its model goes before everything else (rules 2 and 3 of
        `sharing`).
        """
        device = self._device
        before = device.turn
        turn = sharing.take_turns(device, self._now)
        if before is not None and turn is not before:
            self._actions.append(NoteTurn(model=before.model, turn_s=None))
        if turn is None:
            return
        if turn is not before:
            self._actions.append(NoteTurn(model=turn.model, turn_s=turn.length_s))
        if device.pinned is not None:
            self._claim(device.pinned)
        if turn.model in self._residents:
            self._claim(turn.model)
            return
        waiting = self._gateway.waiting.entries(turn.model)
        waiter = next((entry for entry in waiting if entry.external), None)
        if waiter is not None:
            self.make_room(turn.model, "turn", waiter)

    def make_room(self, model: str, why: SwapReason, waiter: Entry | None = None) -> None:
        """Bring a model in, or get closer to it: nothing happens while another swap is under way or
        its turn has not come.
        """
        if not self._device.loads(model):
            return
        residency = self._device.residency
        task_type = None if waiter is None else waiter.item.task_type
        evict = None if self._room_wanted else self._found_evictions.find(model, task_type)
        if evict is None or self.left_alone(model):
            return
        # From here on the next swap is this one's, however far it gets now: nobody less urgent may
        # begin another, or start anything on what has to go.
        self._room_wanted = True
        self._evicting.update(evict)
        self._candidates = None
        running = [entry for name in evict for entry in self._residents[name].running.values()]
        if running:
            if waiter is not None:
                self._actions += yield_memory(self._device, waiter, running, self._now)
        elif residency.swap is None:
            becomes = self._becoming(model, evict, task_type)
            if becomes:
                self.unload(model, becomes, why, waiter)
            else:
                self._load(model, why, waiter)
        elif waiter is not None and residency.loading in evict:
            self._cut(residency.loading or "", waiter)

    def _load(self, model: str, why: SwapReason, waiter: Entry | None) -> None:
        device = self._device
        device.cleared_for = None
        device.residency.swap_due(self._waits_since(waiter), (), self._now)
        task_type = None if waiter is None else waiter.item.task_type
        replaced = device.residency.begin_load(model, self._now, why, task_type)
        waiting = self._gateway.waiting
        if waiting.shares is not None:
            swap = device.residency.swap
            level = None if swap is None else swap.level
            expected_s = device.estimates.load_s(replaced[0] if replaced else "", model, level)
            has_work = any(waiting.wants(name) for name in replaced)
            waiting.shares.load_began(model, waiter, expected_s, replaces_work=has_work)
        self._actions.append(Load(device=device.id, model=model, replaces=replaced, why=why))

    def _cut(self, model: str, waiter: Entry) -> None:
        """End the load under way, where only work has asked for it that this waiter may
        interrupt.
        """
        device = self._device
        swap = device.residency.swap
        if not device.can_cut(model) or swap is None or swap.why == "owner":
            return
        waiting = [*self._gateway.waiting.entries(model), *self._gateway.waiting.entries(None)]
        if waiter.external and not waiting:
            return
        if not all(waiter.outranks(entry) for entry in waiting):
            return
        self._end_load(model)

    def _end_load(self, model: str) -> None:
        device = self._device
        device.residency.begin_cut(model, self._now)
        self._actions.append(Cut(device=device.id, model=model))

    def unload(
        self, target: str, becomes: Becomes, why: SwapReason, waiter: Entry | None = None
    ) -> None:
        """Begin a swap to the target: everything goes that is in its way, or sleeps."""
        device = self._device
        evict = tuple(name for name in becomes if name in self._residents)
        if any(self.left_alone(name) for name in evict):
            return
        is_waited_for = why in {"waiting", "overdue", "turn"}
        device.cleared_for = (target, why) if is_waited_for else None
        if is_waited_for:
            self._note_lost_loads(evict)
        waiting = self._gateway.waiting
        if waiter is not None and waiting.shares is not None:
            waiting.shares.makes_go(waiter, evict, waiting)
        device.residency.swap_due(self._waits_since(waiter), evict, self._now)
        device.residency.begin_unload(becomes, self._now, why)
        self._actions += [
            Unload(device=device.id, model=name, why=why, level=level)
            for name, level in becomes.items()
        ]

    def _waits_since(self, waiter: Entry | None) -> float:
        return self._now if waiter is None else waiter.waits_since.at

    def _note_lost_loads(self, evict: tuple[str, ...]) -> None:
        """Whoever still waits for what was loaded for them and goes again, has lost a load."""
        for resident in self._unsettled:
            if resident.model in evict and not resident.settled:
                for entry in self._gateway.waiting.entries(resident.model):
                    entry.lost_loads += 1

    def _unload_suspects(self) -> None:
        if self._device.residency.swap is not None:
            return
        suspects = [
            each.model for each in self._residents.values() if each.suspect and not each.running
        ]
        idle = tuple(
            model for model in suspects if self._device.loads(model) and not self.left_alone(model)
        )
        if idle:
            self.unload(idle[0], dict.fromkeys(idle), "reload")

    def _claim(self, model: str) -> None:
        """Nothing less urgent may have this model unloaded."""
        if model not in self._claimed:
            self._claimed.add(model)
            self._candidates = None
            self._evictions = None

    @property
    def _found_evictions(self) -> Evictions:
        if self._evictions is None:
            self._evictions = Evictions(self._device.residency, self._claimed)
        return self._evictions

    def _may_come(self, keep: Collection[str]) -> bool:
        """May a swap begin for anything that waits, if whatever else had to go could?"""
        if self._room_wanted or not self._device.swaps:
            return False
        if self._least_mib is None:
            waited_for = chain.from_iterable(self._gateway.waiting.lines)
            self._least_mib = self._device.residency.least_mib(waited_for)
        return self._device.residency.could_come(self._least_mib, keep)

    def _is_saturated(self, band: Band) -> bool:
        """Is every slot taken, so that no item of this external band can be served, interrupt
        another, evict a resident, or come beside it?
        """
        takes_any = None in self._gateway.waiting.lines[band]
        for resident in self._residents.values():
            if not (resident.may_go or takes_any):
                continue
            if not resident.running or resident.free_slots > 0:
                return False
            if band is not _BACKGROUND and _runs_background(resident):
                return False
        return bool(self._residents) and not self._may_come(self._residents.keys())

    def _serve_band(self, band: Band, lines: Lines) -> None:
        """Serve line by line, until each is empty or has to wait."""
        self._claim_unsettled(band)
        models = list(lines)  # of the lines that are still to be served
        if not self._device.is_plain:
            models = self._serve_beside(band, lines)
        self._candidates = None
        while models := self._servable(band, models):
            if self._candidates is None:
                self._candidates = self._heads(band, [lines[model] for model in models])
                models = [each.entry.wanted_model for each in self._candidates]
                if not models:
                    return
            candidates = self._candidates
            choice = self._choose(band, candidates)
            if self._candidates is not candidates:
                # To choose has claimed what the chosen one would have evicted: the policy holds it,
                # or an internal caller is about to return to it. Choose again, now that it cannot
                # go; each time round claims another model, so this ends.
                continue
            if choice is None:
                return
            chosen, why = choice
            model = chosen.entry.wanted_model
            # A line is done with when its head has to wait, or when nobody is left in it. To serve
            # may have changed what the candidates rest on; those that still hold are not reckoned
            # anew, which would make a decision cost the square of the number of models.
            if not self._serve(band, chosen.entry, why) or model not in lines:
                models.remove(model)
                if self._candidates is not None:
                    self._candidates.remove(chosen)

    def _serve_beside(self, band: Band, lines: Lines) -> list[str | None]:
        """Serve what waits for models that no swap is about: a policy has no choice there, and is
        not to count that work. Returns the other lines, as far as they can be served.
        """
        can_serve = self._device.can_serve
        contends = self._device.contends
        for model in [each for each in lines if not contends(each) and self._takes_work(each)]:
            while model in lines:
                head = first(self._heads(band, [lines[model]]))
                if head is None or not self._serve(band, head.entry, "waiting"):
                    break
        return [model for model in lines if can_serve(model) and contends(model)]

    def _claim_unsettled(self, band: Band) -> None:
        """What was just loaded stays for its own waiters, against bands that are not more urgent
        than theirs; for external ones that have lost it too often, against any (rule 4).
        """
        for resident in self._unsettled:
            if resident.settled or resident.phase != "ready" or resident.is_away:
                continue
            best = self._gateway.waiting.best_band(resident.model)
            if best is None:
                continue
            if best <= band or (best in EXTERNAL_BANDS and self._insists(resident.model)):
                self._claim(resident.model)

    def _takes_work(self, model: str | None) -> bool:
        """Its engine answers, and takes more."""
        device = self._device
        if not device.can_serve(model):
            return False
        is_off_card = model is not None and device.listing.is_off_card(model)
        return not is_off_card or not self.left_alone(model or "")

    def _servable(self, band: Band, models: list[str | None]) -> list[str | None]:
        """The models of those lines of a band that may be served now: where no swap can begin, of
        what is in memory.
        """
        if band in EXTERNAL_BANDS and self._is_saturated(band):
            return []
        if self._candidates is not None:
            return models
        waits_for_hold = self._device.held_until is not None and self._device.external_waits
        may_swap = band is not _BACKGROUND or not waits_for_hold
        if may_swap and self._may_come(self._claimed):
            return models
        return [model for model in models if model is None or model in self._residents]

    def _heads(self, band: Band, lines: list[list[Entry]]) -> Candidates:
        """The first of each line that may start."""
        evictions = self._found_evictions
        found = Candidates([], [])
        heads: Iterable[Entry] = [line[0] for line in lines]
        is_any_held = bool(self._gateway.announced) and band in EXTERNAL_BANDS
        if is_any_held or self._device.leases.taken:
            heads = self._not_held(lines)
        for entry in heads:
            resident = self._stays(entry.wanted_model)
            candidate = Candidate(entry, self._device, band, self._now, resident, evictions)
            (found.served if resident else found.others).append(candidate)
        return found

    def _not_held(self, lines: list[list[Entry]]) -> Iterator[Entry]:
        """The first of each line that is not held back for an announced task, or by leases for its
        own: what is short or small passes what may be long or large.
        """
        device = self._device
        now = self._now
        for line in lines:
            able = (
                entry
                for entry in line[:PASSED]
                if not (device.is_held(entry, now) or device.is_barred_to(entry))
            )
            entry = next(able, None)
            if entry is not None:
                yield entry

    def _insists(self, model: str) -> bool:
        """Does the first item that waits for what was just loaded, an external one, start whoever
        else wants the memory?
        """
        entry = self._gateway.waiting.entries(model)[0]
        return (
            protected(self._gateway, entry)
            and not self._gateway.paused
            and not self._device.is_held(entry, self._now)
        )

    def _choose(self, band: Band, candidates: Candidates) -> tuple[Candidate, SwapReason] | None:
        """The head to serve next, and why a swap for it would be due; None: what is in memory is
        held, and nothing that remains of the band is served.

        What was loaded, or cleared, for somebody is theirs before the policy is asked.
        """
        self._gateway.looked_at += len(candidates)
        settling = self._settling(candidates) if self._unsettled else None
        if settling is not None:
            return settling, "waiting"
        if self._device.cleared_for is not None:
            model, why = self._device.cleared_for
            expected = next((each for each in candidates if each.entry.wanted_model == model), None)
            if expected is not None:
                return expected, why
        overdue = self._overdue(candidates)
        choice = overdue or self._policy.choose(candidates, self._device, self._now)
        if self._gateway.waiting.is_shared(band):
            choice = fair_turns.corrected(choice, candidates, self._device, self._now)
        if not isinstance(choice, Candidate):
            self._hold(band, choice)
            return None
        if self._held_for_internal(band, choice):
            return None
        return choice, "overdue" if choice is overdue else "waiting"

    def _settling(self, candidates: Candidates) -> Candidate | None:
        """The first who waits for what was just loaded and has served nobody yet."""
        unsettled = {
            resident.model
            for resident in self._unsettled
            if not resident.settled and self._is_usable(resident)
        }
        return first(each for each in candidates.served if each.entry.wanted_model in unsettled)

    def _held_for_internal(self, band: Band, choice: Candidate) -> bool:
        """Does an external request's swap wait for an internal caller who is about to return? Then
        nothing external evicts that model.
        """
        device = self._device
        model = choice.entry.wanted_model
        if band not in EXTERNAL_BANDS or choice.resident or model is None:
            return False
        if not self._gateway.priced or device.turn is not None or device.residency.swap is not None:
            return False
        hold = sharing.hold_for(device, choice.entry, model, choice.swap.evicts, self._now)
        if hold is None:
            return False
        if self._hold_now is None:
            self._note_hold(hold)
        self._gateway.wake_at(hold.until)
        self._claim(hold.model)
        return True

    def _note_hold(self, hold: ModelHold) -> None:
        """Of several holds the first is shown; it is news where the last decision had another."""
        before = self._device.hold
        self._hold_now = hold
        self._device.held_until = hold.until
        if before is None or (before.model, before.caller) != (hold.model, hold.caller):
            hold_s = hold.until - self._now
            self._actions.append(NoteHold(model=hold.model, caller=hold.caller, hold_s=hold_s))

    def _overdue(self, candidates: Candidates) -> Candidate | None:
        """The longest waiting item that needs a swap, if it has waited too long by the owner's word
        and by the policy's.
        """
        forces = self._policy.forces
        if forces is None:
            return None
        needy = [each for each in candidates.others if each.entry.wanted_model is not None]
        if not needy:
            return None
        oldest = min(needy, key=lambda each: (each.entry.item.arrived_at, each.entry.item.sequence))
        limit_s = self._gateway.settings.scheduling.max_swap_wait_s
        if self._now - oldest.entry.item.arrived_at < limit_s:
            return None
        return oldest if forces(oldest, candidates, self._device, self._now) else None

    def _hold(self, band: Band, until: float) -> None:
        """What is held is not for less urgent work to swap away."""
        self._device.held_until = until
        self._gateway.wake_at(until)
        if band in EXTERNAL_BANDS:
            for model in self._residents:
                self._claim(model)
        else:
            # While internal work waits, nobody else uses what is held or loads beside it: that
            # would still be under way when the hold ends.
            held = [each.model for each in self._residents.values() if each.may_go]
            self._evicting.update(held)
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
        model = entry.wanted_model
        if model is None:
            return self._serve_anywhere(band, entry)
        resident = self._residents.get(model)
        if resident is None:
            if not self._has_grace(entry):
                self.make_room(model, why, entry)
        elif self._is_usable(resident):
            if resident.free_slots > 0:
                return self._take_slot(entry, resident)
            self._claim(model)
            self._actions += yield_slots(self._device, entry, [resident], band, self._now)
        elif resident.phase == "loading":
            self._claim(model)
        return False

    def _take_slot(self, head: Entry, resident: Resident) -> bool:
        """Start the head of a line, or whoever goes before it; False while the slot is kept for
        somebody.
        """
        kept = fair_turns.kept_slot(self._device, head, resident)
        chosen = kept or taker(self._device, head, resident, self._now)
        if isinstance(chosen, Entry):
            return self._admit(chosen, resident)
        self._device.kept_slot = chosen
        self._device.held_until = chosen.until
        self._gateway.wake_at(chosen.until)
        self._claim(resident.model)
        self._evicting.add(resident.model)  # nor does anything less urgent take the slot
        return False

    def _has_grace(self, entry: Entry) -> bool:
        """Does this internal request let external work go on before it evicts its model?"""
        if entry.external or not self._gateway.priced:
            return False
        evict = self._found_evictions.find(entry.wanted_model or "", entry.item.task_type)
        until = sharing.grace_until(self._device, entry, evict or (), self._now)
        if until <= self._now:
            return False
        self._gateway.wake_at(until)
        return True

    def _serve_anywhere(self, band: Band, entry: Entry) -> bool:
        """The same for the head of those that any model may serve, but for what runs on other
        machines: nobody has asked for that.
        """
        device = self._device
        home = device.home_for(entry)
        residents = [each for each in self._residents.values() if device.is_near(each.model)]
        ready = [
            each
            for each in residents
            if self._is_usable(each) and (not each.embeds or home in {None, each.model})
        ]
        free = [resident for resident in ready if resident.free_slots > 0]
        only_embed = all(each.embeds or each.is_away for each in residents)
        if free:
            now = self._now
            open_now = [each for each in free if not is_reading(device, each, band, now)]
            chosen = max(open_now, key=lambda each: (each.last_used_at, each.model), default=None)
            return chosen is not None and self._admit(entry, chosen)
        if ready:
            self._actions += yield_slots(device, entry, ready, band, self._now)
        elif home is not None and home not in self._residents and only_embed:
            self.make_room(home, "waiting", entry)
        return False

    def _admit(self, head: Entry, resident: Resident) -> bool:
        """Start the next round of a line; False while the prompts of the last one are being
        read.
        """
        chosen = next_round(self._device, head, resident, self._now)
        self._candidates = None
        self._evictions = None
        self._actions += [_start(self._device, entry, resident, self._now) for entry in chosen]
        if not chosen:
            self._claim(resident.model)
        return bool(chosen)

    def left_alone(self, model: str) -> bool:
        until = self._device.not_before.get(model)
        if until is None or until <= self._now:
            self._device.not_before.pop(model, None)
            return False
        self._gateway.wake_at(until)
        return True


def _runs_background(resident: Resident) -> bool:
    return any(entry.band is _BACKGROUND for entry in resident.running.values())


def _start(device: DeviceState, entry: Entry, resident: Resident, now: float) -> Dispatch:
    """Give a waiting entry a slot."""
    gateway = device.gateway
    item = entry.item
    model = resident.model
    gateway.waiting.remove(entry)
    entry.place = "running"
    entry.attempts += 1
    entry.model = model
    if gateway.waiting.shares is not None:
        gateway.waiting.shares.began(entry)
    entry.dispatched_at = now
    entry.expected_end_at = now + device.service_s(entry, model)
    if item.conversation:
        entry.remembered = device.residency.caches.remembered(entry, model)
    resident.running[item.sequence] = entry
    if entry.external and resident.may_go:
        entry.delays_turns = True
        gateway.external_began(now)
    if entry.wanted_model is not None or gateway.waiting.best_band(model) is None:
        resident.settled = True
    if item.kind == "embed":
        resident.embeds = True
    device.residency.used(resident, now)
    return Dispatch(device=device.id, sequence=item.sequence, attempt=entry.attempts, model=model)
