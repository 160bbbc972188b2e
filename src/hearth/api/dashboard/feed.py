"""What the dashboard shows as server-sent events: `state` once, then `patch` (RFC 7386) with what has changed, four times a second at most.
Where a picture is dear, as with ten thousand who wait, it is made so seldom that it takes a fiftieth of the time.

One picture is made for all listeners, and only while there are any. Every 5 s it is looked at without a reason, since some things change
by time alone; where nothing has, nothing is sent but a comment every 15 s. Nothing is kept for
a slow reader.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from hearth.admission.auth import Identity
from hearth.api.dashboard.jobs import JobsPart
from hearth.api.dashboard.view import View, bare, merge_patch
from hearth.api.status_stream import Listener, Listeners
from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    ConfigReloaded,
    DrainEnded,
    DrainStarted,
    Event,
    ItemEvent,
    JobEvent,
    JobsRecovered,
    ModeChanged,
    OrderGiven,
    RequestRejected,
)
from hearth.gateway import Gateway
from hearth.tasks import ChangeCounter, next_of

MIN_INTERVAL_S = 0.25
LOOK_EVERY_S = 5.0
HEARTBEAT_S = 15.0
SHARE = 0.02
"""Of the event loop's time, what pictures may take."""
CLOCK_STEP_S = 5.0
"""When the calendar has moved by more than this against the monotonic clock, all instants are told anew."""
_HEARTBEAT = b": still here\n\n"
_OF_JOBS = (JobEvent, JobsRecovered, ModeChanged, ConfigReloaded, OrderGiven, DrainStarted, DrainEnded, BackendWentDown, BackendCameUp)
_TOLD_BY_THE_QUEUE = (ItemEvent, RequestRejected)
_BARE_ALREADY = frozenset({"timeline"})

Picture = dict[str, object]


class DashboardFeed:
    """Feeds every listener from one picture, looked at through each one's rights."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.listeners = Listeners()
        self._view: View | None = None
        self._news = News()
        self._jobs = JobsPart(gateway)
        self._shift_s = 0.0
        self._picture: Picture = {}
        self._taken_at = float("-inf")
        self._pause_s = MIN_INTERVAL_S

    async def frames(self, listener: Listener) -> AsyncGenerator[bytes]:
        """SSE frames for one listener: `{"now": ..., "state": {...}}`, then `{"now": ..., "patch": {...}}`; comments as heartbeats."""
        identity, over = listener.identity, self.listeners.add(listener)
        self._gateway.events.subscribe(self._news)
        stirring = _Stirring(self._gateway.worker.changes(), self._news.changes.watch())
        ended = asyncio.ensure_future(over.wait())
        try:
            shown = await self._shown_to(identity)
            yield self._frame("state", shown)
            spoke_at, outdated = self._taken_at, False
            while not ended.done():
                await asyncio.wait({ended}, timeout=self._pause_s)
                await asyncio.wait({ended, *stirring.signs}, timeout=0 if outdated else LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() or not stirring.goes_on():
                    return
                asked_at = self._gateway.clock.monotonic()
                fresh = await self._shown_to(identity)
                outdated = self._taken_at < asked_at
                patch = merge_patch(shown, fresh)
                shown = fresh
                if patch:
                    yield self._frame("patch", patch)
                    spoke_at = self._taken_at
                elif self._taken_at - spoke_at >= HEARTBEAT_S:
                    yield _HEARTBEAT
                    spoke_at = self._taken_at
        finally:
            self.listeners.remove(over)
            stirring.end()
            ended.cancel()

    def _frame(self, kind: str, content: Mapping[str, object]) -> bytes:
        message = {"now": round(self._taken_at + self._shift_s, 2), kind: content}
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
        return b"event: %s\ndata: %s\n\n" % (kind.encode("ascii"), text.encode())

    async def _shown_to(self, identity: Identity) -> Picture:
        """The picture with what only concerns this listener; of ended items only its own, unless admin, as in the log."""
        picture = await self._current()
        began_at = self._gateway.clock.monotonic()
        jobs = await self._jobs.shown_to(None if identity.admin else identity.caller, self._news.of_jobs)
        self._pause_s = max(self._pause_s, (self._gateway.clock.monotonic() - began_at) / SHARE)
        picture = picture | {"you": {"caller": identity.caller, "admin": identity.admin}} | ({} if jobs is None else {"jobs": jobs})
        recent = picture.get("recent")
        if identity.admin or not isinstance(recent, dict):
            return picture
        return picture | {"recent": {number: item for number, item in recent.items() if item.get("caller") == identity.caller}}

    async def _current(self) -> Picture:
        now = self._gateway.clock.monotonic()
        if now - self._taken_at < self._pause_s / 2:
            return self._picture
        self._taken_at = now
        built = await self._renewed_view(now).build(now)
        self._picture = {key: value if key in _BARE_ALREADY else bare(value) for key, value in built.items() if value is not None}
        self._pause_s = max(MIN_INTERVAL_S, (self._gateway.clock.monotonic() - now) / SHARE)
        return self._picture

    def _renewed_view(self, now: float) -> View:
        shift_s = self._gateway.clock.wall() - now
        if self._view is None or abs(shift_s - self._shift_s) > CLOCK_STEP_S:
            self._shift_s, self._view = shift_s, View(self._gateway, shift_s)
        return self._view


class _Stirring:
    """Several streams of changes as one.

    Attributes:
        signs: one for each stream, done when it has something new; look at `goes_on` then.
    """

    def __init__(self, *streams: AsyncIterator[int]) -> None:
        self._streams = streams
        self.signs = [asyncio.ensure_future(next_of(stream)) for stream in streams]

    def goes_on(self) -> bool:
        """Take note of what is new; False where a stream has ended."""
        for index, sign in enumerate(self.signs):
            if sign.done():
                if not sign.result():
                    return False
                self.signs[index] = asyncio.ensure_future(next_of(self._streams[index]))
        return True

    def end(self) -> None:
        """Listen no more."""
        for sign in self.signs:
            sign.cancel()


class News:
    """A sink that keeps nothing but the fact.

    Attributes:
        changes: to be watched beside those of the queue.
        of_jobs: grows with everything that may change what is shown of jobs.
    """

    def __init__(self) -> None:
        self.changes = ChangeCounter()
        self.of_jobs = 0

    def emit(self, event: Event) -> None:
        """Note that something has happened."""
        if isinstance(event, _OF_JOBS):
            self.of_jobs += 1
        self.changes.note()

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return None if issubclass(kind, _TOLD_BY_THE_QUEUE) else self.emit
