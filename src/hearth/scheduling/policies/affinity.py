"""Finish what the resident model can serve before swapping, as donna's LLM gateway does."""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate


def affinity(candidates: list[Candidate]) -> Candidate:
    """The first item that needs no swap; where all need one, the first item of the band."""
    return min(candidates, key=lambda candidate: (not candidate.resident, candidate.entry.key))
