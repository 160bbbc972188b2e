"""Which model serves a request that any of several may serve: it is bound when it starts.

Such an entry waits in the line of the model that it is bound to for now. Before each decision in
which some wait, all of them are bound anew, in the order in which they are served. The first that
applies counts:

1. the model on which its caller's conversation is warm (`scheduling.warm`);
2. one that is in memory and has a slot for it, in the owner's order;
3. one that is in memory: the one that it is bound to already, else the one with the shortest queue.
   Where another would be loaded beside it sooner than a slot comes free, that one;
4. one that is being loaded, or that memory is being cleared for;
5. one that others wait for, and so comes anyway, unless the pinned model is in its way: the one
   that serves the most requests per second of swap and work;
6. the one with the cheapest swap, there and back, counting what runs on the models that must go,
   and what has to be read again there.

Models of an elastic engine are no part of rules 2 to 6 as long as there is another. They serve
where they would begin sooner than the model that these rules choose, and where an entry would have
waited longer for that one than the owner allows (`ModelsListed.spills`).

Models that are not installed, are too large, or have failed to load a short while ago, those whose
model server does not answer, and those whose memory other programs have, are left out as long as
there is another. An entry whose caller
has seen a part of its answer stays bound (`GatewayState.enqueue`).
"""

from __future__ import annotations

from collections import Counter
from math import inf

from hearth.scheduling.estimates import remaining_s
from hearth.scheduling.evictions import Evictions
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import BANDS, Entry, Key
from hearth.scheduling.warm import warm_on
from hearth.types import Band, QueueItem, entity

AVOIDED_S = 600.0
"""How long a model that cannot be loaded is left to those who have no other."""


def bind_waiting(device: DeviceState, now: float) -> None:
    """Bind every waiting entry that has the choice to the model that is best at this instant."""
    binding = Binding(device, now)
    for entry in sorted(device.gateway.waiting.unbound.values(), key=_place):
        binding.bind(entry)


def _place(entry: Entry) -> tuple[Band, Key]:
    return entry.band, entry.key


@entity
class _Group:
    """Entries that have the same choices and wait in the same band, at one instant."""

    usable: tuple[str, ...]  # the models that can serve them, as far as is known
    ready: tuple[str, ...]  # of these, those in memory
    spills: tuple[str, ...]  # models beside these that serve where these would take too long
    is_full: bool = False  # no slot is free that the entries before have not taken
    rest: str = ""  # the model of those who find none, unless they wait for one in memory already


class Binding:
    """What the models are worth to those who have the choice, at one instant.

    A free slot that an entry is bound to is not offered to those who are bound after it.
    """

    def __init__(self, device: DeviceState, now: float) -> None:
        self._device = device
        self._waiting = device.gateway.waiting
        self._residents = device.residency.residents
        self._now = now
        self._taken: Counter[str] = Counter()
        # of those who wait for a model by name, how many have the choice
        self._unbound = Counter(
            (entry.band, entry.wanted_model) for entry in self._waiting.unbound.values()
        )
        self._groups: dict[tuple[tuple[str, ...], str | None, Band], _Group] = {}
        self._evictions: dict[bool, Evictions] = {}

    def bind(self, entry: Entry) -> None:
        """Bind a waiting entry to the model that is best for it."""
        model = self.model_for(entry)
        if not (entry.external and self._device.gateway.paused):
            self._taken[model] += 1
        if model != entry.wanted_model:
            self._unbound[entry.band, entry.wanted_model] -= 1
            self._unbound[entry.band, model] += 1
            self._waiting.bind(entry, model)

    def model_for(self, entry: Entry) -> str:
        """The model that is best for an entry that has the choice."""
        group = self._group_of(entry)
        warm = self._warm(entry.item, (*group.ready, *group.spills))
        if warm is not None:
            return warm
        preferred = self._preferred(entry, group)
        return self._spilled(entry, group, preferred) if group.spills else preferred

    def _preferred(self, entry: Entry, group: _Group) -> str:
        """The best of those that are not only there for what would wait too long."""
        if not group.is_full:
            for model in group.ready:
                if self._free_slots(entry, model) > 0:
                    return model
            group.is_full = True
            group.rest = self._beside(entry, group) if group.ready else self._to_come(entry, group)
        if entry.wanted_model in group.ready and group.rest in group.ready:
            return entry.wanted_model
        return group.rest

    def has_another(self, entry: Entry) -> bool:
        """Could a model serve an entry that has not failed to load?"""
        there = self._loadable(entry.choices, entry.item.task_type)
        return any(map(self._is_trusted, there))

    def _group_of(self, entry: Entry) -> _Group:
        """Those for whom the models are worth the same."""
        key = (entry.choices, entry.item.task_type, entry.band)
        group = self._groups.get(key)
        if group is None:
            usable = self._sifted(entry.choices, entry.item.task_type)
            spills = tuple(filter(self._may_spill, usable)) if self._device.listing.spills else ()
            others = tuple(model for model in usable if model not in spills)
            if not others:
                others, spills = spills, ()
            ready = tuple(model for model in others if self._device.residency.ready(model))
            group = _Group(others, ready, spills)
            self._groups[key] = group
        return group

    def _may_spill(self, model: str) -> bool:
        """It is there for what would wait too long for others."""
        is_elastic = model.lower() in self._device.listing.spills
        return is_elastic and self._device.residency.ready(model) is not None

    def _sifted(self, choices: tuple[str, ...], task_type: str | None) -> tuple[str, ...]:
        """Those that can be loaded; of these the ones that did not fail, if there are any."""
        there = self._loadable(choices, task_type)
        if self._device.residency.keeps_out:
            barred = [each for each in there if self._device.is_barred(each, task_type)]
            there = [each for each in there if each not in barred] or there
        trusted = [model for model in there if self._is_trusted(model)]
        not_before = self._device.not_before
        ready = [model for model in trusted if not_before.get(model, -inf) <= self._now]
        away = list(filter(self._device.listing.is_away, choices))
        return tuple(ready or trusted or there or away or choices)

    def _loadable(self, choices: tuple[str, ...], task_type: str | None) -> list[str]:
        """Those that are installed and fit, and whose model server answers."""
        device = self._device
        never_fits = device.never_fits
        return [
            model
            for model in choices
            if (device.has(model) or model in self._residents)
            and device.can_serve(model)
            and not never_fits(model, task_type)
        ]

    def _is_trusted(self, model: str) -> bool:
        return self._device.avoided.get(model, -inf) <= self._now

    def _warm(self, item: QueueItem, ready: tuple[str, ...]) -> str | None:
        """The one of these models on which the conversation of an item is warm. What it is asked
        for at this moment is no earlier turn: such requests only begin alike.
        """
        key = item.conversation_key
        tables = self._device.residency.caches.tables
        if not item.conversation or not any(key in tables.get(model, ()) for model in ready):
            return None
        model = warm_on(self._device, *key)
        if model not in ready:
            return None
        running = self._residents[model].running.values()
        is_asked = any(other.item.conversation_key == key for other in running)
        return None if is_asked else model

    def _free_slots(self, entry: Entry, model: str) -> int:
        """Slots that nobody else takes who waits for exactly this model."""
        resident = self._residents[model]
        return resident.free_slots - self._waiting_for(entry, model) - self._taken[model]

    def _waiting_for(self, entry: Entry, model: str) -> int:
        """How many wait for exactly this model, in the band of an entry or a more urgent one."""
        unbound = [self._unbound[band, model] for band in BANDS[: entry.band + 1]]
        return self._waiting.up_to(entry.band, model) - sum(unbound)

    # In memory.

    def _beside(self, entry: Entry, group: _Group) -> str:
        """A model in memory, all slots of which are taken; or one that is loaded beside it before a
        slot comes free.
        """
        residents = self._residents
        waits_s = {model: self._wait_s(entry, residents[model]) for model in group.ready}
        shortest = min(waits_s, key=waits_s.__getitem__)
        if self._device.residency.swap is not None:
            return shortest
        loads_s = {
            absent: self._device.estimates.swap_s("", absent)
            for absent in group.usable
            if absent not in residents and self._evicted_by(entry, absent) == ()
        }
        soonest = min(loads_s, key=loads_s.__getitem__, default=shortest)
        return soonest if loads_s.get(soonest, inf) < waits_s[shortest] else shortest

    def _wait_s(self, entry: Entry, resident: Resident) -> float:
        """Expected seconds until a model has a slot for an entry."""
        running = resident.running.values()
        if any(self._interrupts(entry, other) for other in running):
            return 0.0
        run_s = self._device.estimates.run_s(resident.model)
        ahead = self._waiting_for(entry, resident.model) + self._taken[resident.model]
        first_end = min([other.expected_end_at for other in running], default=self._now)
        return max(0.0, first_end - self._now) + ahead * run_s / resident.parallel

    def _interrupts(self, entry: Entry, other: Entry) -> bool:
        return entry.outranks(other) and (entry.external or self._device.gateway.active)

    # Beside the card.

    def _spilled(self, entry: Entry, group: _Group, preferred: str) -> str:
        """The model that `preferred` is left for, where it would take too long; else itself."""
        at = max(entry.waits_since.at, entry.item.arrived_at)
        begins_s = self._begins_s(entry, preferred)
        spill_s = self._device.listing.spills
        sooner = {
            model: wait_s
            for model in group.spills
            if (wait_s := self._begins_s(entry, model)) < begins_s
        }
        late = [model for model in sooner if self._now - at + begins_s > spill_s[model.lower()]]
        for model in sooner:
            if model not in late:
                self._device.gateway.wake_at(at + spill_s[model.lower()])
        return min(late, key=sooner.__getitem__, default=preferred)

    def _begins_s(self, entry: Entry, model: str) -> float:
        """Expected seconds until a model begins with an entry."""
        resident = self._residents.get(model)
        run_s = self._device.estimates.run_s(model)
        ahead = self._waiting_for(entry, model) + self._taken[model]
        if resident is None or not resident.serves:
            parallel = self._device.gateway.settings.parallel(model)
            return self._comes_s(entry, model) + ahead // parallel * run_s
        running = resident.running.values()
        is_free = self._free_slots(entry, model) > 0
        if is_free or any(self._interrupts(entry, other) for other in running):
            return 0.0
        first_s = min([self._remaining_s(other) for other in running], default=0.0)
        return first_s + ahead * run_s / resident.parallel

    def _remaining_s(self, other: Entry) -> float:
        expected_s = other.expected_end_at - other.dispatched_at
        return remaining_s(other.dispatched_at, expected_s, self._now)

    # Not in memory.

    def _to_come(self, entry: Entry, group: _Group) -> str:
        usable = group.usable
        coming = self._coming()
        if coming in usable:
            return coming
        wanted = [
            model
            for model in usable
            if self._waiting_for(entry, model) > 0 and self._evicted_by(entry, model) is not None
        ]
        if wanted:
            return max(wanted, key=lambda model: self._rate(entry, model))
        return min(usable, key=lambda model: self._price_s(entry, model))

    def _coming(self) -> str:
        """The model that is being loaded or will be next, "" for none."""
        device = self._device
        loading = device.residency.loading
        if loading is not None:
            return loading
        if device.turn is not None:
            return device.turn.model
        return "" if device.cleared_for is None else device.cleared_for[0]

    def _rate(self, entry: Entry, model: str) -> float:
        """Requests that a model serves per second of swap and work, as the policies see it."""
        estimates = self._device.estimates
        waiting = self._waiting_for(entry, model)
        work_s = waiting * estimates.run_s(model) / self._device.gateway.settings.parallel(model)
        swap_s = self._swap_s(model, self._evicted_by(entry, model) or ())
        return waiting / max(2 * swap_s + work_s, 1e-9)

    def _price_s(self, entry: Entry, model: str) -> float:
        """Seconds of the swap to a model and back, after what runs on those that must go."""
        device = self._device
        back_s = sum(
            device.estimates.swap_s(model, name) + device.residency.reread_s(name, self._now)
            for name in self._evicted_by(entry, model) or ()
        )
        return self._comes_s(entry, model) + back_s

    def _comes_s(self, entry: Entry, model: str) -> float:
        """Seconds until a model that is not in memory is there, were its load to begin as soon as
        what runs on those that must go has ended; infinite where what must stay is in its way.
        """
        swap = self._device.residency.swap
        if swap is not None and self._device.residency.loading == model:
            load_s = self._device.estimates.swap_s(swap.origin, model)
            return remaining_s(swap.started_at, load_s, self._now)
        evicts = self._evicted_by(entry, model)
        if evicts is None:
            return inf
        running = [
            other.expected_end_at - self._now
            for name in evicts
            for other in self._residents[name].running.values()
            if not self._interrupts(entry, other)
        ]
        return max([0.0, *running]) + self._swap_s(model, evicts)

    def _swap_s(self, model: str, evicts: tuple[str, ...]) -> float:
        expected_s = self._device.estimates.swap_s
        return max(expected_s(origin, model) for origin in evicts or ("",))

    def _evicted_by(self, entry: Entry, model: str) -> tuple[str, ...] | None:
        """What must go so that a model can come; None where what must stay is in its way."""
        external = entry.external
        if external not in self._evictions:
            pinned = self._device.pinned
            keep = () if pinned is None or not external else (pinned,)
            self._evictions[external] = Evictions(self._device.residency, keep)
        return self._evictions[external].find(model, entry.item.task_type)
