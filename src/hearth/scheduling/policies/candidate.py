"""What a policy may know of one line of a band."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.scheduling.waiting import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The head of a line. `resident`: its model is in memory, or on its way in, and stays."""

    entry: Entry
    resident: bool
