"""Rounds of admission: how many waiting requests of a line start together on one model.

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

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.scheduling.residency import Resident
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry
from hearth.types import Band

if TYPE_CHECKING:
    from hearth.config.settings import PackingSettings

# a round of `pack` where the owner sets none: what a card reads in about a second
PACK_TOKENS = 2048


def budget_tokens(settings: PackingSettings) -> int | None:
    """Prompt tokens of one round; None where there are no rounds."""
    if settings.prefill_max_tokens is None and settings.mode == "pack":
        return PACK_TOKENS
    return settings.prefill_max_tokens


def chosen(costs: Sequence[float], *, slots: int, budget: float, packs: bool) -> list[int]:
    """Indices of what fits into a round, ascending: the cheapest if it packs, else from the front;
    one alone always goes.
    """
    order = list(range(len(costs)))
    if packs:
        order.sort(key=lambda index: costs[index])
    found = list[int]()
    used = 0.0
    for index in order[:slots]:
        if used + costs[index] > budget and (packs or found):
            break
        found.append(index)
        used += costs[index]
    return sorted(found) or [0]


def next_round(device: DeviceState, head: Entry, resident: Resident, now: float) -> list[Entry]:
    """What to start now of the line that `head` is first of, and may start, on a resident with a
    free slot; nothing during a round.
    """
    settings = device.gateway.settings.scheduling.packing
    budget = None if resident.parallel == 1 else budget_tokens(settings)
    if budget is None:
        return [head]
    if is_reading(device, resident, head.band, now):
        return []
    place = (resident.model, head.band)
    number = device.rounds.get(place, 0) + 1
    device.rounds[place] = number
    slots = resident.free_slots
    every = settings.force_fifo_every
    packs = settings.mode == "pack" and slots > 1 and not (every > 0 and number % every == 0)
    line = device.gateway.waiting.from_entry(head, settings.lookahead if packs else slots)
    window = [entry for entry in line if entry is head or not device.is_held(entry, now)]
    costs = [device.estimates.prompt_tokens(entry.item, resident.model) for entry in window]
    return [window[index] for index in chosen(costs, slots=slots, budget=budget, packs=packs)]


def is_reading(device: DeviceState, resident: Resident, band: Band, now: float) -> bool:
    """Are prompts of this band or a more urgent one still being read? Asks to be woken when they
    ought to be done.
    """
    gateway = device.gateway
    if resident.parallel == 1 or budget_tokens(gateway.settings.scheduling.packing) is None:
        return False
    read_at = [
        entry.dispatched_at + device.read_s(entry.item, resident.model)
        for entry in resident.running.values()
        if entry.first_byte_at is None and entry.band <= band
    ]
    until = max(read_at, default=now)
    if until <= now:
        return False
    gateway.wake_at(until)
    return True
