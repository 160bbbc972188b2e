"""The policies that follow one rule: `fifo`, `affinity`, `cost_aware` and `time_slice`.

The cost-aware coalescing policy of llmux's switching efficiency report: five checks, in its order, with its four parameters.

For work that needs a swap: 1. what has waited `max_wait_s` swaps; 2. an empty GPU, or room beside what is there, swaps; 3. a model serves
for at least what the swap costs, and for `min_active_s`; 4. a queue of `amortization_factor` times the swap's seconds swaps; 5. a smaller
one swaps after `coalesce_window_s`.

Two things are ours. A deferral is checked again when it ends, where the report swaps unconditionally. And a model that still has work
is left only after `residency_factor` times the cost of the swap, whichever check asks for it: without that, check 1 turns overload into
nothing but swapping, and check 4 spends half of it so.

Time slices, the last step that llmux's switching efficiency report recommends.

Each model serves for a slice in proportion to its waiting work, never below `min_slice_factor` times what the swap costs, and swaps come
only between slices.

The slices of a round add up to the least slices of all models that have work; so a model with most of the work gets most of the round,
and equals get the least slice each. A model that runs dry gives the rest of its slice away. What waits longest is next.
"""

from __future__ import annotations

from math import ceil, inf

from hearth.scheduling.policies.context import Candidate, Hold, Option, Situation


def fifo(situation: Situation) -> Candidate:
    """The item that is first in the band."""
    return min(situation.candidates, key=lambda candidate: candidate.entry.key)


def affinity(situation: Situation) -> Candidate:
    """The first item that needs no swap; where all need one, the first item of the band."""
    return min(situation.candidates, key=lambda candidate: (not candidate.resident, candidate.entry.key))


def cost_aware(situation: Situation) -> Candidate | Hold:
    """See the module docstring."""
    served = [candidate for candidate in situation.candidates if candidate.resident]
    options = [situation.option(candidate) for candidate in situation.candidates if not candidate.resident]
    options.sort(key=lambda option: option.candidate.entry.key)
    swap_at = inf
    for option in options:
        at = _swaps_at(situation, option)
        if at <= situation.now and (not served or not option.evicts or situation.earned(option)):
            return option.candidate
        swap_at = min(swap_at, at)
    if served:
        return min(served, key=lambda candidate: candidate.entry.key)
    return Hold(until=swap_at)


def _swaps_at(situation: Situation, option: Option) -> float:
    """The instant at which the checks let this swap happen, if nothing changes; now or earlier: at once.

    Check 1 comes first by being an upper bound of all that follows.
    """
    rules, now, arrived_at = situation.rules.cost_aware, situation.now, option.candidate.entry.item.arrived_at
    stale_at = arrived_at + rules.max_wait_s
    if not option.evicts:
        return now
    window_ends_at = now - situation.in_memory_s(option) + max(option.swap_s, rules.min_active_s)
    if now < window_ends_at:
        return min(stale_at, window_ends_at)
    if option.waiting >= max(1, ceil(rules.amortization_factor * option.swap_s)):
        return now
    return min(stale_at, arrived_at + rules.coalesce_window_s)


def time_slice(situation: Situation) -> Candidate:
    """See the module docstring."""
    served = [candidate for candidate in situation.candidates if candidate.resident]
    others = [situation.option(candidate) for candidate in situation.candidates if not candidate.resident]
    following = min(others, key=lambda option: option.candidate.entry.key, default=None)
    if not served:
        return situation.candidates[0] if following is None else following.candidate
    own = min(served, key=lambda candidate: candidate.entry.key)
    if following is None or (following.evicts and not _slice_is_over(situation, own, following, others)):
        return own
    return following.candidate


def _slice_is_over(situation: Situation, own: Candidate, following: Option, others: list[Option]) -> bool:
    factor, this = situation.rules.time_slice.min_slice_factor, situation.option(own)
    round_s = factor * (following.swap_s + sum(option.swap_s for option in others))
    share = this.work_s / max(this.work_s + sum(option.work_s for option in others), 1e-9)
    slice_s = max(factor * following.swap_s, share * round_s)
    return situation.earned(following) and situation.in_memory_s(following) >= slice_s
