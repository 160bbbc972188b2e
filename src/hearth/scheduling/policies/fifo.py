"""First come, first served, whatever it costs in swaps: the baseline."""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate


def fifo(candidates: list[Candidate]) -> Candidate:
    """The item that is first in the band."""
    return min(candidates, key=lambda candidate: candidate.entry.key)
