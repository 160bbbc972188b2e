"""Turns of callers who are served by their shares: rules 5 to 7, rules 1 to 4 being in
`scheduling.shares`.

5. Turn. A model with work is left for a request whose clock is behind all that waits for what has
   to go by at least the swap, once that model was loaded for `residency_factor` times the round
   trip. Where no model in memory has work, a request that is so far behind goes before the one that
   the policy would choose. For who was given more than somebody who waits for it, no model is left.
6. Hold. A model that runs dry is held for a sharer who had it last, until it has been away for as
   long as its longest known pause, if that is a small part of the round trip, and somebody else is
   not behind it by the swap. The time counts as given to it.
7. Slot. In the same way the only slot of a model is kept for a sharer who is behind and always
   sends its next request at once: with one request at a time it would else be served in every
   second place, whatever the others' take.

Rule 5 bounds what turns cost to `1 / (1 + residency_factor)` of the time, and a request of a caller
who is behind waits for that residency at most.
"""

from __future__ import annotations

from hearth.scheduling.policies import (
    HOLD_SHARE,
    UNKNOWN_HOLD_S,
    UNKNOWN_SHARE,
    Candidate,
    Candidates,
)
from hearth.scheduling.residency import Resident
from hearth.scheduling.shares import LOOP_S
from hearth.scheduling.state import DeviceState, ModelHold
from hearth.scheduling.waiting import Entry

AT_ONCE_S = 0.05  # who is back within this has a slot kept for it


def kept_slot(device: DeviceState, head: Entry, resident: Resident) -> ModelHold | None:
    """Rule 7: for whom a free slot is kept, None where the first of the line starts."""
    shares = device.gateway.waiting.shares
    if shares is None or resident.parallel > 1 or head.sharer is None or head.key[0] < 0:
        return None
    kept = shares.keep_until(head, (resident.model,), longest_s=AT_ONCE_S)
    return None if kept is None else ModelHold(model=resident.model, caller=kept[0], until=kept[1])


def corrected(
    choice: Candidate | float, candidates: Candidates, device: DeviceState, now: float
) -> Candidate | float:
    """The policy's choice, or what rules 5 and 6 put in its place."""
    turn = _next_turn(candidates, choice, device)
    if turn is not None:
        return turn
    if isinstance(choice, float):
        return choice
    if candidates.served:
        return _instead_of(choice, candidates)
    until = _held_until(choice, device)
    return choice if until is None or until <= now else until


def _instead_of(choice: Candidate, candidates: Candidates) -> Candidate:
    """The policy's choice, or who would have to go for it and was given less."""
    evicts = choice.swap.evicts
    busy = [each for each in candidates.served if each.model in evicts]
    least = min(busy, key=lambda each: each.entry.key, default=choice)
    return least if least.entry.key[0] < choice.entry.key[0] else choice


def _held_until(choice: Candidate, device: DeviceState) -> float | None:
    """Rule 6: until when what would be unloaded is kept, None where it is not."""
    shares = device.gateway.waiting.shares
    swap = choice.swap
    is_moving = device.residency.swap is not None or any(map(device.runs_on, swap.evicts))
    if shares is None or not swap.evicts or is_moving:
        return None
    kept = shares.keep_until(
        choice.entry,
        swap.evicts,
        lead_s=swap.swap_s,
        longest_s=min(LOOP_S, HOLD_SHARE * swap.trip_s),
        unknown_s=min(UNKNOWN_HOLD_S, UNKNOWN_SHARE * swap.trip_s),
    )
    return None if kept is None else kept[1]


def _next_turn(
    candidates: Candidates, choice: Candidate | float, device: DeviceState
) -> Candidate | None:
    """Rule 5: the request that goes before the policy's choice, None where that stands."""
    others = [each for each in candidates.others if each.entry.wanted_model is not None]
    for other in sorted(others, key=lambda each: each.entry.key):
        if other is choice:
            return None
        evicts = other.swap.evicts
        ahead = [each for each in candidates.served if each.model in evicts]
        if not ahead and not candidates.served and not isinstance(choice, float):
            ahead = [choice]
        ahead_s = min([each.entry.key[0] for each in ahead], default=0.0)
        behind_s = ahead_s - other.entry.key[0]
        is_behind = bool(ahead) and 0 < behind_s >= other.swap.swap_s
        if is_behind and (not candidates.served or _has_stayed(other, device)):
            return other
    return None


def _has_stayed(other: Candidate, device: DeviceState) -> bool:
    """Has all that has to go been in memory for long enough?"""
    factor = device.gateway.settings.scheduling.residency_factor
    return other.in_memory_s() >= factor * other.swap.trip_s and other.may_evict()
