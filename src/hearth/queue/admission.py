"""What may come into the queue: whether it is open, and whose share of its places is used up."""

from __future__ import annotations

from collections import OrderedDict

from hearth.errors import Draining, HearthError, QueueFull, ShuttingDown
from hearth.execution.runtime import Runtime
from hearth.queue.forecaster import Forecaster
from hearth.queue.mailbox import Mailbox
from hearth.types import Lane

DRAIN_RETRY_S = 30.0
"""Nobody can tell when a drain ends."""
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


class QueueAdmission:
    """Whether new work may come into the queue now: the one place where 503 for it is decided."""

    draining = False
    """The owner wants no new work."""
    back_in_s: float | None = None
    """The gateway ends, and may be back after so many seconds; None while it goes on."""

    def __init__(self, runtime: Runtime, mailbox: Mailbox, forecaster: Forecaster) -> None:
        self._runtime = runtime
        self._mailbox = mailbox
        self._forecaster = forecaster
        self._recent = RecentCallers()

    def check_open(self, *, accepted: bool = False) -> None:
        """Raises ShuttingDown or, for what was not `accepted` before, Draining."""
        if self.back_in_s is not None:
            raise ShuttingDown(retry_after_s=self.back_in_s)
        if self.draining and not accepted:
            raise Draining(retry_after_s=DRAIN_RETRY_S)

    def check_depth(
        self, lane: Lane, caller: str, user: str = "", model: str | None = None
    ) -> None:
        """Raises QueueFull where nothing more of this caller may wait in this lane.

        What waits for an engine that is down, while others answer, or whose caller is paused, takes
        no place from the rest: it has as many places of its own. `model`: None where it is not
        known yet.
        """
        arriving = [item for item in self._mailbox.arriving if item.lane is lane]
        view = self._runtime.view
        stranded = view.stranded(lane)
        is_away = model is not None and model.lower() in view.away
        is_stranded = is_away or caller in view.paused_callers

        def counted(all_waiting: int, apart: int) -> int:
            return apart if is_stranded else all_waiting - apart

        waiting = counted(view.pending(lane), len(stranded)) + len(arriving)
        limits = self._runtime.settings.queue
        is_internal = lane is Lane.INTERNAL
        depth = limits.max_internal_depth if is_internal else limits.max_external_depth
        apart = [item for item in stranded if item.caller == caller]
        if (limits.internal_sharing if is_internal else limits.sharing) == "fair":
            own_apart = sum(item.user == user for item in apart)
            own = counted(view.waiting_of(lane, caller, user), own_apart)
            own += sum(item.caller == caller and item.user == user for item in arriving)
            self._refuse_large_share(lane, user or caller, own, depth - waiting)
        if is_internal:
            self._refuse_full(lane, waiting, depth)
            return
        self._recent.note(caller, self._runtime.clock.monotonic())
        self._refuse_full(lane, waiting, depth)
        own = counted(view.external_of(caller), len(apart))
        own += sum(item.caller == caller for item in arriving)
        share = max(1, depth // 2)
        # A lone caller may fill the lane; its second half is kept for whoever else may come.
        if own >= share and (waiting > own or self._recent.others(caller)):
            raise self._full(
                lane,
                f"{own} requests of {caller} are waiting, which is half of the queue; the rest is"
                " for other callers",
                "queue.max_external_depth",
            )

    def _refuse_large_share(self, lane: Lane, name: str, own: int, free: int) -> None:
        """Nobody waits with more requests than there are places left: so there always is one for
        whoever comes next.
        """
        if 0 < free <= own:
            raise self._full(
                lane,
                f"{own} requests of {name} are waiting and {free} places are free; no caller waits"
                " with more requests than there are free places",
                "queue.sharing: fair",
            )

    def _refuse_full(self, lane: Lane, waiting: int, allowed: int) -> None:
        if waiting >= allowed:
            raise self._full(
                lane,
                f"the queue is full: {waiting} {lane.value} requests are waiting",
                f"queue.max_{lane.value}_depth",
            )

    def _full(self, lane: Lane, text: str, setting: str) -> HearthError:
        now = self._runtime.clock.monotonic()
        wait_s = self._forecaster.first_start_s(lane, now)
        return QueueFull(text, retry_after_s=wait_s, remedy=setting)
