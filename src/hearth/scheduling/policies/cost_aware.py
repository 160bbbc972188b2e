"""The cost-aware coalescing policy of llmux's switching efficiency report: five checks, in its order, with its four parameters.

For work that needs a swap: 1. what has waited `max_wait_s` swaps; 2. an empty GPU, or room beside what is there, swaps; 3. a model serves
for at least what the swap costs, and for `min_active_s`; 4. a queue of `amortization_factor` times the swap's seconds swaps; 5. a smaller
one swaps after `coalesce_window_s`.

Two things are ours. A deferral is checked again when it ends, where the report swaps unconditionally. And a model that still has work
is left only after `residency_factor` times the cost of the swap, whichever check asks for it: without that, check 1 turns overload into
nothing but swapping, and check 4 spends half of it so.
"""

from __future__ import annotations

from math import ceil, inf

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.situation import Hold, Option, Situation


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
