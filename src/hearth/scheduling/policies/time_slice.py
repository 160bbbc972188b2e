"""Time slices, the last step that llmux's switching efficiency report recommends.

Each model serves for a slice in proportion to its waiting work, never below `min_slice_factor` times what the swap costs, and swaps come
only between slices.

The slices of a round add up to the least slices of all models that have work; so a model with most of the work gets most of the round,
and equals get the least slice each. A model that runs dry gives the rest of its slice away. What waits longest is next.
"""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.situation import Option, Situation


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
