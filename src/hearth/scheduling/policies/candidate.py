"""What a policy may know of one line of a band."""

from __future__ import annotations

from hearth.scheduling.waiting import Entry
from hearth.types import value


@value
class Candidate:
    """The head of a line. `resident`: its model is in memory, or on its way in, and stays."""

    entry: Entry
    resident: bool
