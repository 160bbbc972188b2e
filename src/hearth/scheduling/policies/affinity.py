"""Finish what the resident model can serve before swapping, as donna's LLM gateway does."""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.situation import Situation


def affinity(situation: Situation) -> Candidate:
    """The first item that needs no swap; where all need one, the first item of the band."""
    return min(situation.candidates, key=lambda candidate: (not candidate.resident, candidate.entry.key))
