"""Which of a model's waiting items go into its free slots together: admission in rounds, as in roseinfer's prefill admission packing.

A model that serves several requests at once reads the prompts of those that come together, so one long prompt keeps everybody's first
byte waiting. A round is so many prompt tokens (`packing.prefill_max_tokens`) of one band; the next begins when the prompts of those of its
own or a more urgent band are read: the first byte has come, or as much time has passed as reading takes.

`fifo` takes a round from the head of the line. `pack` looks at the first `lookahead` items and takes the smallest prompts first, as many as
fit, while more than one slot is free; every `force_fifo_every`-th round goes in order, so that a large prompt is not passed for ever.
Chosen items start in the order of the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.config.choices import PackingMode
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Band

if TYPE_CHECKING:
    from hearth.config.settings import PackingSettings

_PACK = PackingMode.PACK  # looked up once: in Python 3.11 that takes as long as calling a function
PACK_TOKENS = 2048  # a round of `pack` where the owner sets none: what a card reads in about a second


def budget_tokens(settings: PackingSettings) -> int | None:
    """Prompt tokens of one round; None where there are no rounds."""
    if settings.prefill_max_tokens is None and settings.mode is _PACK:
        return PACK_TOKENS
    return settings.prefill_max_tokens


def chosen(costs: Sequence[float], *, slots: int, budget: float, packs: bool) -> list[int]:
    """Indices of what fits into a round, ascending: the cheapest if it packs, else from the front; one alone always goes."""
    order = sorted(range(len(costs)), key=lambda index: costs[index]) if packs else range(len(costs))
    found, used = list[int](), 0.0
    for index in order[:slots]:
        if used + costs[index] > budget and (packs or found):
            break
        found.append(index)
        used += costs[index]
    return sorted(found) or [0]


def next_round(state: State, head: Entry, resident: Resident, now: float) -> list[Entry]:
    """What to start now of the line that `head` is first of, and may start, on a resident with a free slot; nothing during a round."""
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
    packs = settings.mode is _PACK and slots > 1 and not (every > 0 and number % every == 0)
    line = state.waiting.lines[head.band][head.item.model][: settings.lookahead if packs else slots]
    window = [entry for entry in line if entry is head or not state.is_held(entry, now)]
    costs = [state.estimates.prompt_tokens(entry.item, resident.model) for entry in window]
    return [window[index] for index in chosen(costs, slots=slots, budget=budget, packs=packs)]


def is_reading(state: State, resident: Resident, band: Band, now: float) -> bool:
    """Are prompts of this band or a more urgent one still being read? Asks to be woken when they ought to be done."""
    if resident.parallel == 1 or budget_tokens(state.settings.scheduling.packing) is None:
        return False
    unread = [entry for entry in resident.running.values() if entry.first_byte_at is None and entry.band <= band]
    until = max((entry.dispatched_at + state.estimates.prompt_s(entry.item, resident.model) for entry in unread), default=now)
    if until <= now:
        return False
    state.wake_at(until)
    return True
