"""Everything the scheduler remembers, in objects that only its own package changes: what the
gateway has once (`GatewayState`, the owner's orders among it), and what a device has
(`DeviceState`).

An item waits in the gateway and is bound to a device when it starts. There is one device today, so
the scheduler holds one `DeviceState`; nothing in `GatewayState` knows of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field
from heapq import heappush
from math import inf
from typing import TYPE_CHECKING

from hearth.scheduling.actions import Action, Fail, Refusal, SwapReason
from hearth.scheduling.estimates import Arrivals, Estimates
from hearth.scheduling.inputs import MAX_CUT_FAILURES
from hearth.scheduling.leases import Leases
from hearth.scheduling.listing import Listing
from hearth.scheduling.residency import Residency
from hearth.scheduling.waiting import BANDS, NEVER, Entry, Since, WaitingRoom
from hearth.types import Band, DeviceId, Lane, QueueItem, Sequence, entity, value

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings
    from hearth.scheduling.waited import Waited

# a heap of (instant, item); what no longer applies is dropped when it comes up
Deadlines = list[tuple[float, Sequence]]


@value
class ModelHold:
    """A model stays in memory because an internal caller is likely to come back to it by
    `until`.
    """

    model: str
    caller: str
    until: float
    # the model that is kept away serves the caller as well, by an alias
    is_served_there: bool = False


@entity
class Turn:
    """External work has the memory for a while; see `scheduling.sharing`."""

    model: str
    length_s: float  # from when its model is loaded
    until: float | None = None  # None before that


@entity
class GatewayState:
    """What there is once, however many devices serve: who waits, what was ordered, the mode."""

    settings: SchedulerSettings
    arrivals: Arrivals
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    # what callers have asked for whom the owner has paused: nothing is decided for it
    set_aside: WaitingRoom = field(default_factory=WaitingRoom)
    # every accepted item that has not left, by sequence
    entries: dict[Sequence, Entry] = field(default_factory=dict)
    # when those that may not wait for ever are given up
    expiries: Deadlines = field(default_factory=list)
    aging: Deadlines = field(default_factory=list)  # when those that may rise by their age do
    promotions: int = 0
    active: bool = True  # within active hours, when internal work may interrupt
    draining: bool = False
    handing_over: bool = False  # to another model server, as soon as nothing runs
    paused: bool = False  # by the owner: external work waits, whatever is free
    # the model that the owner wants to come back to, installed or not
    pinned_name: str | None = None
    # the latest order of the owner for each model, ordered first first: is it to come into memory,
    # or to go?
    ordered: dict[str, bool] = field(default_factory=dict)
    # (instant, task type) of announced internal tasks, the soonest first
    announced: tuple[tuple[float, str], ...] = ()
    interruptions: int = 0  # numbers the interruptions, so that the latest goes first
    external_running: int = 0
    external_run_s: float = 0.0  # in which external work ran, up to when the last of it ended
    external_runs_since: float = 0.0  # where some runs
    # the first instant that this decision has asked to be woken at
    next_wake_at: float | None = None
    # candidates that were compared in all choices so far, which is what decisions cost
    looked_at: int = 0

    @property
    def priced(self) -> bool:
        """Internal work weighs what a swap costs; else it interrupts whatever is in its way."""
        return self.settings.scheduling.preemption == "priced"

    def unserved_s(self, now: float) -> float:
        """A clock that stands still while external work runs in the memory that is swapped: what an
        external request waits for then is not internal work.
        """
        under_way_s = now - self.external_runs_since if self.external_running else 0.0
        return now - self.external_run_s - under_way_s

    def since(self, now: float) -> Since:
        return Since(now, self.unserved_s(now))

    def external_began(self, now: float) -> None:
        if not self.external_running:
            self.external_runs_since = now
        self.external_running += 1

    def external_ended(self, now: float) -> None:
        self.external_running -= 1
        if not self.external_running:
            self.external_run_s += now - self.external_runs_since

    @property
    def running(self) -> list[Entry]:
        """Entries with an attempt under way, stopping ones included."""
        return [entry for entry in self.entries.values() if entry.place != "waiting"]

    @property
    def wanted(self) -> list[str]:
        """Models that the owner wants in memory as soon as nothing more urgent needs the room."""
        return [model for model, comes in self.ordered.items() if comes]

    @property
    def unwanted(self) -> list[str]:
        """Models that the owner wants unloaded as soon as no swap is under way; an arrival for one
        makes its order void.
        """
        return [model for model, comes in self.ordered.items() if not comes]

    def order(self, model: str, *, comes: bool) -> None:
        if self.ordered.get(model) is not comes:
            self.ordered.pop(model, None)
            self.ordered[model] = comes

    def settle(self, model: str) -> None:
        """Whatever was ordered for this model is done, void or in vain."""
        self.ordered.pop(model, None)

    def waits_for(self, model: str) -> int:
        """How many wait for exactly this model that may start."""
        return self.waiting.up_to(Band.BACKGROUND if self.paused else BANDS[-1], model)

    def near_tasks(self, now: float) -> Iterable[tuple[float, str]]:
        """The announced internal tasks so near that external work which could still run then is
        held back.
        """
        window_s = self.settings.scheduling.schedule_drain_minutes * 60
        return (each for each in self.announced if each[0] - window_s <= now < each[0])

    def wake_at(self, at: float) -> None:
        """Something may change at this instant without any other input."""
        if self.next_wake_at is None or at < self.next_wake_at:
            self.next_wake_at = at

    def accept(self, entry: Entry) -> None:
        """Let a new entry wait."""
        self.entries[entry.item.sequence] = entry
        entry.is_set_aside = self.is_paused(entry)
        self._join_shares(entry)
        self.enqueue(entry)

    def enqueue(self, entry: Entry) -> None:
        """Let an entry wait (again)."""
        entry.model = None
        if entry.forwarded:  # its caller has a part of what this model writes
            entry.choices = ()
            entry.has_begun = True
        entry.forwarded = False
        entry.for_lease = False
        entry.first_byte_at = None
        entry.cost_s = 0.0
        if not entry.is_set_aside and self.is_paused(entry):
            self._leave_shares(entry)
            entry.is_set_aside = True
        self._room_of(entry).add(entry)
        if not entry.external or entry.background:
            self.expect_promotion(entry)

    def is_paused(self, entry: Entry) -> bool:
        """Does it wait for the owner, whatever is free?"""
        return entry.item.caller in self.settings.queue.paused_callers

    def _room_of(self, entry: Entry) -> WaitingRoom:
        return self.set_aside if entry.is_set_aside else self.waiting

    def _join_shares(self, entry: Entry) -> None:
        """What is set aside is no work: else its caller would have less than all others when it
        goes on, and be served before them.
        """
        if self.waiting.shares is not None and not entry.is_set_aside:
            self.waiting.shares.joined(entry)

    def _leave_shares(self, entry: Entry) -> None:
        if self.waiting.shares is not None and not entry.is_set_aside:
            self.waiting.shares.left(entry)

    def note_waits(self, waited: Waited) -> None:
        """Have it count what all wait for, those set aside too."""
        self.waiting.waited = waited
        self.set_aside.waited = waited

    def set_aside_anew(self) -> None:
        """The owner has paused other callers: what waits changes its place with its order."""
        waiting = self.all_waiting()
        for entry in [each for each in waiting if each.is_set_aside is not self.is_paused(each)]:
            self._room_of(entry).remove(entry)
            self._leave_shares(entry)
            entry.is_set_aside = not entry.is_set_aside
            self._join_shares(entry)
            self._room_of(entry).add(entry)

    def all_waiting(self) -> list[Entry]:
        """Every waiting entry, those set aside too, in the order of arrival."""
        found = self.waiting.all_entries()
        if len(self.set_aside):
            found = sorted(
                [*found, *self.set_aside.all_entries()], key=lambda entry: entry.item.sequence
            )
        return found

    def expect_promotion(self, entry: Entry) -> None:
        """Note when waiting raises an entry."""
        at = self.promoted_at(entry)
        if at is not None:
            heappush(self.aging, (at, entry.item.sequence))

    def promoted_at(self, entry: Entry) -> float | None:
        """When an entry rises from the band that it is in, by its age; None for never.

        After Macaw's scheduling page, which promotes a batch request to realtime. Age never crosses
        the lanes: external work is in order of arrival anyway, and cannot be interrupted for ever.
        What a program asks for beside its user's turns rises among these. It counts from its last
        interruption: else one that has run for long would be back at once before the turn that it
        was interrupted for.
        """
        item = entry.item
        aging = self.settings.scheduling.aging
        may_rise = entry.background if entry.external else entry.band > aging.ceiling
        if not may_rise or aging.promote_after_s <= 0:
            return None
        if entry.external:
            return entry.waits_since.at + aging.promote_after_s
        return item.arrived_at + (item.band - entry.band + 1) * aging.promote_after_s

    def rise(self, entry: Entry) -> None:
        """Let a waiting entry wait one band higher."""
        room = self._room_of(entry)
        room.remove(entry)
        self._leave_shares(entry)
        entry.band = Band(entry.band - 1)
        self._join_shares(entry)
        room.add(entry)

    def give_up(self, entries: list[Entry], why: Refusal) -> list[Action]:
        """These wait no more and are done with; their callers get the reason."""
        for entry in entries:
            self.leave_queue(entry)
        return [Fail(sequence=entry.item.sequence, why=why) for entry in entries]

    def leave_queue(self, entry: Entry) -> None:
        """A waiting entry is done with."""
        self._room_of(entry).remove(entry)
        self.leave(entry)

    def leave(self, entry: Entry) -> None:
        """The entry is done with; it may not be waiting any more."""
        del self.entries[entry.item.sequence]
        if self.waiting.waited is not None:
            self.waiting.waited.over(entry.item.sequence)
        self._leave_shares(entry)
        if self.arrivals.learns:
            self.arrivals.left(entry.item.caller)


@entity
class DeviceState:
    """What one device has: its memory, and what was learned, tried and decided there.

    `gateway` is what it shares with all others, so that whoever decides for a device is given this
    one object.
    """

    id: DeviceId
    gateway: GatewayState
    estimates: Estimates
    residency: Residency
    listing: Listing  # the one that `residency` goes by
    # its model server has not answered since then; None while it does
    down_since: float | None = None
    # consecutive load or unload failures by model
    failures: dict[str, int] = field(default_factory=dict)
    # models that are left alone until an instant, after a failure
    not_before: dict[str, float] = field(default_factory=dict)
    # models that nobody waits for until an instant, since their server keeps failing
    left_alone: dict[str, float] = field(default_factory=dict)
    # models that failed to load, and until when another is taken by whoever has the choice
    avoided: dict[str, float] = field(default_factory=dict)
    idle_since: float | None = None  # since when nothing waits or runs; None while something does
    # what was in memory then, by name; None where the owner has loaded something since, to which no
    # habit applies
    idle_with: tuple[str, ...] | None = None
    home_failures: int = 0  # restores of the home model that failed in a row
    # `idle_since` of the idle time in which a model was loaded beforehand, so that it happens once
    # in each
    preloaded_at: float | None = None
    # the model for whose waiters memory is being cleared, and why; None once it is loaded, or
    # nobody waits for it
    cleared_for: tuple[str, SwapReason] | None = None
    # the policy holds the resident model until then, in the hope of more work for it; None while it
    # does not
    held_until: float | None = None
    hold: ModelHold | None = None  # what external work waits for, as of the last decision
    # for whom the slot of a model with one is kept, as of the last decision
    kept_slot: ModelHold | None = None
    turn: Turn | None = None  # the turn of external work that is under way
    turn_ended: Since = NEVER
    # a model server loads and unloads when it is asked; else nothing is ever swapped
    swaps: bool = True
    cuts_loads: bool = True  # a model server can end a load that is under way
    cut_failures: int = 0  # loads in a row that were not gone in time after they were cut
    replaced_at: float = -inf  # when the model server before this one was left
    # rounds of admission so far, by model and band
    rounds: dict[tuple[str, Band], int] = field(default_factory=dict)

    @property
    def starts_nothing(self) -> bool:
        """Whatever is free: no model server answers, or what runs is to be the last here."""
        gateway = self.gateway
        return self.down_since is not None or gateway.draining or gateway.handing_over

    @property
    def leases(self) -> Leases:
        return self.residency.leases

    @property
    def is_plain(self) -> bool:
        """Every model can be brought into the memory of the card now."""
        return self.listing.is_plain and not self.residency.keeps_out

    def forget(self, now: float) -> None:
        """Another model server has come: nothing that was learned, tried or decided holds for
        it.
        """
        self.listing.forget()
        self.residency.forget()
        self.estimates.forget()
        self.replaced_at = now
        self.cleared_for = None
        self.held_until = None
        self.preloaded_at = None
        self.turn = None
        self.hold = None
        self.cut_failures = 0
        self.home_failures = 0
        self.not_before.clear()
        self.left_alone.clear()
        self.avoided.clear()
        self.failures.clear()
        self.rounds.clear()

    def has(self, model: str) -> bool:
        """Whether a model server may have this model."""
        return self.listing.has(model)

    def loads(self, model: str) -> bool:
        """It can be brought into memory, and out of it."""
        return self.swaps and self.listing.loads(model)

    def can_serve(self, model: str | None) -> bool:
        """It is in memory, or can be brought there; None: some model. What waits for another one
        waits for its model server, or for memory that other programs have.
        """
        listing = self.listing
        if self.is_plain:
            return True
        if self.is_barred_to_all(model):
            return False
        if model is None:
            home = self.home
            return self.serves_any or (home is not None and not listing.is_away(home))
        is_there = model in self.residency.residents
        return listing.loads(model) or (is_there and not listing.is_away(model))

    def contends(self, model: str | None) -> bool:
        """What waits for it (None: any) may want something loaded, now or later."""
        if model is None:
            return self.can_serve(None)
        return self.listing.loads(model) and not self.is_barred_to_all(model)

    def is_barred(self, model: str | None, task_type: str | None = None) -> bool:
        """Is a model (None: any that serves those who name none) kept from items of a task, for as
        long as other programs have its memory? It is not in memory to stay there, and has no room.
        """
        if not self.residency.keeps_out:
            return False
        if model is None:
            home = self.home
            if self._stays_for_any(home):
                return False
            return bool(self.leases.taken) if home is None else self.is_barred(home, task_type)
        if not self.loads(model):
            return False
        resident = self.residency.residents.get(model)
        if resident is not None and not resident.is_leaving:
            return False
        return self.residency.has_no_room(model, self.residency.need_mib(model, task_type))

    def _stays_for_any(self, home: str | None) -> bool:
        """Is one in memory, and not on its way out, that serves those who name none?"""
        return any(
            not each.is_leaving
            and self.is_near(each.model)
            and (not each.embeds or home in {None, each.model})
            for each in self.residency.residents.values()
        )

    def is_barred_to_all(self, model: str | None) -> bool:
        """The same for items of any task, some of which may get by with less."""
        if not self.residency.keeps_out:
            return False
        tasks = (None, *self.gateway.settings.gpu.task_vram_gb)
        return all(self.is_barred(model, task) for task in tasks)

    def is_barred_to(self, entry: Entry) -> bool:
        """The same for a waiting item, which is bound to the best of its choices."""
        return self.is_barred(entry.wanted_model, entry.item.task_type)

    def is_near(self, model: str) -> bool:
        """It may serve those who name no model."""
        return not self.listing.is_off_card(model) or model == self.home

    @property
    def has_near(self) -> bool:
        """A model is in memory that may."""
        residents = self.residency.residents
        return bool(residents) and (not self.listing.off_card or any(map(self.is_near, residents)))

    @property
    def serves_any(self) -> bool:
        """One is in memory whose engine answers."""
        residents = self.residency.residents.values()
        return any(not each.is_away and self.is_near(each.model) for each in residents)

    @property
    def near_away(self) -> Collection[str]:
        """Those, in lower case, whose engine may bring one when it is back."""
        return self.listing.away.keys() - self.listing.off_card

    def beyond_reach(self, band: Band) -> int:
        """How many wait in this band or a more urgent one for what cannot be brought."""
        if self.is_plain:
            return 0
        lines = [
            line
            for each in self.gateway.waiting.lines[: band + 1]
            for model, line in each.items()
            if not self.can_serve(model)
        ]
        return sum(map(len, lines))

    @property
    def at_rest(self) -> bool:
        """Nothing runs, and nothing waits that may start, in the memory that is swapped."""
        gateway = self.gateway
        waiting = gateway.waiting
        if self.is_plain:
            asleep = waiting.count(Lane.EXTERNAL) if gateway.paused else 0
            return len(gateway.entries) == asleep + len(gateway.set_aside)
        if any(each.running for each in self.residency.residents.values() if each.may_go):
            return False
        able = waiting.lines[: Band.INTERRUPTED] if gateway.paused else waiting.lines
        return not any(self.contends(model) for lines in able for model in lines)

    @property
    def external_waits(self) -> bool:
        """Does external work wait for what is loaded that goes before what programs ask for beside
        their users' turns?
        """
        waiting = self.gateway.waiting
        if self.is_plain:
            return waiting.depth(Band.INTERRUPTED) + waiting.depth(Band.EXTERNAL) > 0
        ahead = waiting.lines[Band.INTERRUPTED : Band.EXTERNAL + 1]
        return any(self.contends(model) for lines in ahead for model in lines)

    def unanswered_since(self, entry: Entry) -> float | None:
        """Since when no model server has answered that could serve a waiting item; None while one
        does.
        """
        since = self._away_since(entry) if self.listing.away else None
        return self.down_since if since is None else since

    def _away_since(self, entry: Entry) -> float | None:
        """Since when the last of them has not answered, while others do."""
        away = self.listing.away
        if entry.wanted_model is not None:
            models = [each for each in entry.choices if self.has(each)] or [entry.wanted_model]
        elif self.serves_any:
            return None
        else:
            home = self.home_for(entry)
            models = list(self.near_away) if home is None else [home]
        times = [away.get(model.lower(), inf) for model in models]
        since = max(times, default=inf)
        return None if since == inf else since

    def can_cut(self, model: str) -> bool:
        """A load of it can be ended before it is there for work that needs the memory."""
        return self.gateway.priced and self.has_cuts(model)

    def has_cuts(self, model: str) -> bool:
        """Its engine can end a load of it before it is there, which leaves the memory free."""
        if not (self.cuts_loads and self.cut_failures < MAX_CUT_FAILURES):
            return False
        swap = self.residency.swap
        if swap is not None and swap.wakes is not None:  # it would have to be started anew
            return False
        whole_loads = self.listing.whole_loads
        return not (whole_loads and model.lower() in whole_loads)

    def never_fits(self, model: str, task_type: str | None = None) -> bool:
        """No eviction could make room for it; nobody asks that of what is there for good."""
        if not self.swaps or self.listing.stays(model):
            return False
        return self.residency.never_fits(model, task_type)

    @property
    def home(self) -> str | None:
        """The home model, None where there is none or it is not installed."""
        home = self.gateway.settings.gpu.home_model
        return home if home and self.has(home) else None

    @property
    def pinned(self) -> str | None:
        """The model that no external item's swap may evict, None where there is none or it is not
        installed.
        """
        name = self.gateway.pinned_name
        return name if name is not None and self.has(name) else None

    @property
    def comes_back(self) -> str | None:
        """The model that is loaded when there is nothing else to do: the pinned one, else the home
        model; of these, one whose model server answers.
        """
        pinned = self.pinned
        if pinned and not self.listing.is_away(pinned):
            return pinned
        home = self.home
        return home if home and not self.listing.is_away(home) else None

    def home_for(self, entry: Entry) -> str | None:
        """The home model, None where there is none or it could never be loaded for this item."""
        home = self.home
        if home is None or self.never_fits(home, entry.item.task_type):
            return None
        return home

    def is_there(self, model: str) -> bool:
        """Is this model in memory, and not on its way out?"""
        resident = self.residency.residents.get(model)
        if resident is None or resident.phase != "ready":
            return False
        return not resident.is_away and resident.yields_at is None

    def runs_on(self, model: str) -> bool:
        resident = self.residency.residents.get(model)
        return resident is not None and bool(resident.running)

    def service_s(self, entry: Entry, model: str) -> float:
        """Expected seconds from the dispatch of an entry on a resident model to its end."""
        item = entry.item
        cached_tokens = self.residency.caches.cached_tokens(item, model, entry.kept_tokens)
        return self.estimates.service_s(item, model, entry.kept_tokens, cached_tokens)

    def read_s(self, item: QueueItem, model: str) -> float:
        """Expected seconds of reading what is not cached of a prompt, the model being resident."""
        cached_s = self.residency.caches.cached_tokens(item, model) / self.estimates.reading.speed(
            model
        )
        return max(0.0, self.estimates.prompt_s(item, model) - cached_s)

    def held_for(self, entry: Entry, now: float) -> tuple[float, str] | None:
        """The announced task for which this waiting item is held back: an external one that could
        still run when that is due.
        """
        gateway = self.gateway
        near = list(gateway.near_tasks(now)) if gateway.announced and entry.external else []
        if not near:
            return None
        model = entry.wanted_model or self.home or ""
        cached_tokens = self.residency.caches.cached_tokens(entry.item, model, entry.kept_tokens)
        needed_s = self.estimates.longest_s(entry.item, model, entry.kept_tokens, cached_tokens)
        if entry.wanted_model is not None and self.residency.ready(model) is None:
            needed_s += self.estimates.longest_swap_s(self.residency.origin, model)
        return next((task for task in near if now + needed_s > task[0]), None)

    def is_held(self, entry: Entry, now: float) -> bool:
        """Is it held back for an announced task? Asks to be woken when that is due."""
        task = self.held_for(entry, now)
        if task is not None:
            self.gateway.wake_at(task[0])
        return task is not None

    def release(self, entry: Entry, now: float) -> None:
        """The entry's attempt is over: free its slot."""
        resident = self.residency.residents.get(entry.model or "")
        if resident is not None:
            resident.running.pop(entry.item.sequence, None)
            resident.last_used_at = now
            if resident.is_away and not resident.running:
                self.residency.unloaded(resident.model, now)
        if entry.delays_turns:
            entry.delays_turns = False
            self.gateway.external_ended(now)
        if self.gateway.waiting.shares is not None:
            self.gateway.waiting.shares.ended(entry)
