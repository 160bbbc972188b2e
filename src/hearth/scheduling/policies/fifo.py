"""First come, first served, whatever it costs in swaps: the baseline."""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.situation import Situation


def fifo(situation: Situation) -> Candidate:
    """The item that is first in the band."""
    return min(situation.candidates, key=lambda candidate: candidate.entry.key)
