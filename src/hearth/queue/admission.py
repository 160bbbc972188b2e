"""What may come into the queue: whether it takes new work, and whose share of its places is used
up.
"""

from __future__ import annotations

from collections import OrderedDict

from hearth.errors import Draining, ShuttingDown

DRAIN_RETRY_S = 30.0
"""Nobody can tell when a drain ends."""


class AdmissionState:
    """Whether new work may come in."""

    draining = False
    """The owner wants no new work."""
    back_in_s: float | None = None
    """The gateway ends, and may be back after so many seconds; None while it goes on."""

    def check(self, *, accepted: bool = False) -> None:
        """Raises ShuttingDown or, for what was not `accepted` before, Draining."""
        if self.back_in_s is not None:
            raise ShuttingDown(retry_after_s=self.back_in_s)
        if self.draining and not accepted:
            raise Draining(retry_after_s=DRAIN_RETRY_S)


RECENTLY_S = 600.0
"""A caller who has asked within so long is likely to ask again."""


class RecentCallers:
    """Who has asked for a place in the external queue of late, whether there was one or not."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, float] = OrderedDict()

    def note(self, caller: str, now: float) -> None:
        self._asked[caller] = now
        self._asked.move_to_end(caller)
        while now - next(iter(self._asked.values())) > RECENTLY_S:
            self._asked.popitem(last=False)

    def others(self, caller: str) -> bool:
        """Whether anybody else has asked lately, as of the last note."""
        return len(self._asked) > (caller in self._asked)
