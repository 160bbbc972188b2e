"""The policies that follow one rule: `fifo`, `affinity`, `cost_aware` and `time_slice`.

`cost_aware` is the coalescing policy of llmux's switching efficiency report: five checks, in its order, with its four parameters. For work
that needs a swap: 1. what has waited `max_wait_s` swaps; 2. an empty GPU, or room beside what is there, swaps; 3. a model serves for at
least what the swap costs, and for `min_active_s`; 4. a queue of `amortization_factor` times the swap's seconds swaps; 5. a smaller one
swaps after `coalesce_window_s`. A deferral is checked again when it ends, and a model that still has work is left only after
`residency_factor` times the cost of the swap: else overload would be nothing but swapping.

`time_slice` is the report's last recommendation. Each model serves for a slice in proportion to its waiting work, never below
`min_slice_factor` times what the swap costs, and swaps come only between slices, for what waits longest. The slices of a round add up to
the least slices of all models that have work. A model that runs dry gives the rest of its slice away.
"""

from __future__ import annotations

from math import ceil, inf

from hearth.scheduling.policies.candidates import Candidate, Candidates, earned, first, split
from hearth.scheduling.residency import Phase
from hearth.scheduling.state import State


def fifo(candidates: Candidates, _state: State, _now: float) -> Candidate:
    """The item that is first in the band."""
    return min(candidates, key=lambda candidate: candidate.entry.key)


def affinity(candidates: Candidates, _state: State, _now: float) -> Candidate:
    """The first item that needs no swap; where all need one, the first item of the band."""
    return min(candidates, key=lambda candidate: (not candidate.resident, candidate.entry.key))


def all_earned(oldest: Candidate, _candidates: Candidates, state: State, now: float) -> bool:
    """What `affinity` is forced by: all that is in memory has earned its place, whether or not it has to go."""
    residents = state.residency.residents.values()
    return all(earned(state, each.model, oldest.model, now) for each in residents if each.phase is Phase.READY)


def cost_aware(candidates: Candidates, state: State, now: float) -> Candidate | float:
    """See the module docstring."""
    served, others = split(candidates)
    swap_at = inf
    for other in sorted(others, key=lambda candidate: candidate.entry.key):
        at = _swaps_at(other, state, now)
        if at <= now and (not served or not other.cost.evicts or other.may_evict()):
            return other
        swap_at = min(swap_at, at)
    return first(served) or swap_at


def _swaps_at(candidate: Candidate, state: State, now: float) -> float:
    """The instant at which the checks let this swap happen, if nothing changes; now or earlier: at once.

    Check 1 comes first by being an upper bound of all that follows.
    """
    rules, arrived_at = state.settings.scheduling.cost_aware, candidate.entry.item.arrived_at
    stale_at = arrived_at + rules.max_wait_s
    if not candidate.cost.evicts:
        return now
    window_ends_at = now - candidate.in_memory_s() + max(candidate.cost.swap_s, rules.min_active_s)
    if now < window_ends_at:
        return min(stale_at, window_ends_at)
    if candidate.cost.waiting >= max(1, ceil(rules.amortization_factor * candidate.cost.swap_s)):
        return now
    return min(stale_at, arrived_at + rules.coalesce_window_s)


def time_slice(candidates: Candidates, state: State, _now: float) -> Candidate:
    """See the module docstring."""
    served, others = split(candidates)
    own, following = first(served), first(others)
    if own is None or following is None:
        return own or following or candidates[0]
    if not following.cost.evicts:
        return following
    factor = state.settings.scheduling.time_slice.min_slice_factor
    round_s = factor * (following.cost.swap_s + sum(other.cost.swap_s for other in others))
    share = own.cost.work_s / max(own.cost.work_s + sum(other.cost.work_s for other in others), 1e-9)
    is_over = following.in_memory_s() >= max(factor * following.cost.swap_s, share * round_s)
    return following if is_over and following.may_evict() else own
