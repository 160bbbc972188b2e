"""What the dashboard shows as server-sent events: `state` once, then `patch` (RFC 7386) with what
has changed, four times a second at most.

One view is made for all listeners, only while there are any, and so seldom that it takes at most a
fiftieth of the time, but never more than 5 s apart: one that took long, on a starved machine, would
stop the page for minutes. Every 5 s it is made without a reason, since some things change by time
alone.
A caller sees its own jobs and ended items, an admin all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable

from hearth.admission.auth import Identity
from hearth.api.dashboard.view import JOBS_SHOWN, View, bare, jobs_shown, merge_patch
from hearth.api.status_stream import Listener, Listeners
from hearth.errors import StorageUnavailable
from hearth.events import Event, ItemEvent, RequestRejected
from hearth.execution.tasks import ChangeCounter
from hearth.gateway import Gateway
from hearth.job_types import JobState
from hearth.types import JsonDict

FAILURES_SHOWN = 3
MIN_INTERVAL_S = 0.25
LOOK_EVERY_S = 5.0
SHARE = 0.02
"""Of the event loop's time, what snapshots may take."""
CLOCK_STEP_S = 5.0
"""When the calendar has moved by more than this against the monotonic clock, all instants are sent
anew.
"""
_COUNTED_BY_THE_QUEUE = (ItemEvent, RequestRejected)
_BARE_ALREADY = frozenset({"timeline"})


class DashboardFeed:
    """Feeds every listener from one snapshot, looked at through each one's rights.

    A sink that counts what happens besides requests.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.listeners = Listeners()
        self._happened = ChangeCounter()
        self._view: View | None = None
        self._shift_s = 0.0
        self._snapshot: JsonDict = {}
        self._jobs: dict[str | None, tuple[int, JsonDict]] = {}
        """What is shown of jobs to one owner, and the revision that it was made of."""
        self._taken_at = float("-inf")
        self._pause_s = MIN_INTERVAL_S

    def emit(self, _event: Event) -> None:
        """Note that something has happened, maybe to jobs."""
        self._happened.note()

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """See `ports.HandlingSink`; the queue counts requests itself."""
        return None if issubclass(kind, _COUNTED_BY_THE_QUEUE) else self.emit

    def frames(self, listener: Listener) -> AsyncGenerator[bytes]:
        """SSE frames for one listener: `{"now": ..., "state": {...}}`, then `{"now": ..., "patch":
        {...}}`; comments as heartbeats.
        """
        shown: JsonDict | None = None

        async def look(_changed: bool) -> tuple[bytes | None, bool]:  # noqa: FBT001
            nonlocal shown
            self._gateway.events.subscribe(self)  # once, with the first listener
            asked_at = self._gateway.clock.monotonic()
            before = shown
            shown = await self._shown_to(listener.identity)
            kind, content = (
                ("state", shown) if before is None else ("patch", merge_patch(before, shown))
            )
            if not content:
                return None, self._taken_at < asked_at
            message = {"now": round(self._taken_at + self._shift_s, 2), kind: content}
            text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
            frame = b"event: %s\ndata: %s\n\n" % (kind.encode("ascii"), text.encode())
            return frame, before is not None and self._taken_at < asked_at

        changes = [self._gateway.worker.changes(), self._happened.watch()]
        return self.listeners.frames(listener, changes, look, lambda: self._pause_s, LOOK_EVERY_S)

    async def _shown_to(self, identity: Identity) -> JsonDict:
        """The snapshot with what only concerns this listener."""
        snapshot = await self._current()
        began_at = self._gateway.clock.monotonic()
        jobs = await self._jobs_shown_to(None if identity.admin else identity.caller)
        self._pause_s = max(self._pause_s, self._pause_after(began_at))
        snapshot = (
            snapshot | {"you": _rights_of(identity)} | ({} if jobs is None else {"jobs": jobs})
        )
        if identity.admin:
            return snapshot
        for part in ("recent", "refused"):
            items = snapshot.get(part)
            found = items.items() if isinstance(items, dict) else ()
            snapshot[part] = {
                number: item for number, item in found if item.get("caller") == identity.caller
            }
        return snapshot

    async def _current(self) -> JsonDict:
        now = self._gateway.clock.monotonic()
        if now - self._taken_at < self._pause_s / 2:
            return self._snapshot
        self._taken_at = now
        shift_s = self._gateway.clock.wall() - now
        if self._view is None or abs(shift_s - self._shift_s) > CLOCK_STEP_S:
            self._shift_s = shift_s
            self._view = View(self._gateway, shift_s)
        built = await self._view.build(now)
        self._snapshot = {
            key: value if key in _BARE_ALREADY else bare(value)
            for key, value in built.items()
            if value is not None
        }
        self._pause_s = max(MIN_INTERVAL_S, self._pause_after(now))
        return self._snapshot

    def _pause_after(self, began_at: float) -> float:
        """Seconds until the next view, after work that began then."""
        took_s = self._gateway.clock.monotonic() - began_at
        return min(LOOK_EVERY_S, took_s / SHARE)

    async def _jobs_shown_to(self, owner: str | None) -> JsonDict | None:
        """What concerns one caller, or everything for None; None where there are no jobs.

        Kept until something has happened.
        """
        jobs = self._gateway.jobs
        revision = self._happened.count()
        if jobs is None:
            return None
        made_of, shown = self._jobs.get(owner, (-1, {}))
        if made_of == revision:
            return shown
        try:
            failed = await jobs.store.list_jobs(
                caller=owner, state=JobState.FAILED, limit=FAILURES_SHOWN
            )
            waiting = await jobs.store.waiting(owner, JOBS_SHOWN)
        except StorageUnavailable:
            known = 0 if owner else jobs.store.queued, None, ()
            return shown or jobs_shown(self._gateway, jobs, owner, known, ())
        self._jobs[owner] = revision, jobs_shown(self._gateway, jobs, owner, waiting, failed)
        return self._jobs[owner][1]


def _rights_of(identity: Identity) -> JsonDict:
    """Whose page it is, and which buttons are on it."""
    return {
        "caller": identity.caller,
        "admin": identity.admin,
        "may_set_mode": identity.may_set_mode,
    }
