"""The dashboard's pages, and what they show, as changes.

Durable jobs as the dashboard shows them: how many, the first that wait, what is on its way, what failed last.

A caller sees its own, an admin all, as in `GET /llm/jobs`; requests and results never.

What the dashboard shows as server-sent events: `state` once, then `patch` (RFC 7386) with what has changed, four times a second at most.
Where a picture is dear, as with ten thousand who wait, it is made so seldom that it takes a fiftieth of the time.

One picture is made for all listeners, and only while there are any. Every 5 s it is looked at without a reason, since some things change
by time alone; where nothing has, nothing is sent but a comment every 15 s. Nothing is kept for
a slow reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType

from hearth.admission.auth import Identity
from hearth.api.dashboard.view import View, bare, merge_patch
from hearth.api.request import Request
from hearth.api.status_stream import Listener, Listeners
from hearth.errors import NotFound, StorageUnavailable
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
from hearth.execution.runtime import ChangeCounter, next_of
from hearth.gateway import Gateway
from hearth.job_types import JobFilter, JobRecord, JobState, WaitingJob
from hearth.jobs.service import Jobs

_PAGE = "index.html"
_PREFIX = "/static/"
_TYPES: Mapping[str, bytes] = MappingProxyType(
    {
        ".html": b"text/html; charset=utf-8",
        ".js": b"text/javascript; charset=utf-8",
        ".css": b"text/css; charset=utf-8",
        ".svg": b"image/svg+xml",
    }
)
_JAVA = b"text/html, image/gif, image/jpeg, "
"""How the `Accept` of Java's URLConnection begins where its program has said nothing; no browser sends it."""
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


class DashboardPages:
    """Serves the files, each read once, when it is first asked for."""

    def __init__(self) -> None:
        self._folder = files("hearth.api").joinpath("static")
        self._names = frozenset(_served_names(self._folder))
        self._read: dict[str, tuple[bytes, bytes]] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The addresses of the files that a page may load."""
        return tuple(sorted(_PREFIX + name for name in self._names))

    async def page(self, request: Request, *_: object) -> None:
        """The page itself, which is the same at every address of it."""
        await self._send(request, _PAGE)

    async def file(self, request: Request, *_: object) -> None:
        """One of the files beside it. Raises NotFound."""
        name = request.path.removeprefix(_PREFIX)
        if name not in self._names:
            raise NotFound
        await self._send(request, name)

    async def _send(self, request: Request, name: str) -> None:
        body, tag = self._content(name)
        own = ((b"x-request-id", request.request_id.encode("ascii")), (b"etag", tag), (b"vary", b"accept"), *_HEADERS)
        if tag in request.headers.values.get(b"if-none-match", b""):
            await request.answer.head(304, own)
            await request.answer.end()
            return
        kind = (b"content-type", _TYPES[PurePosixPath(name).suffix])
        await request.answer.whole(200, (kind, *own), body)

    def _content(self, name: str) -> tuple[bytes, bytes]:
        found = self._read.get(name)
        if found is None:
            body = self._folder.joinpath(name).read_bytes()
            found = self._read[name] = (body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii"))
        return found


def _served_names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    """What a page may load: licences and lists beside it are for readers of the package."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _served_names(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _TYPES and entry.name != _PAGE:
            yield prefix + entry.name


def wants_page(request: Request) -> bool:
    """A browser asks for a page to show; every other program asks for what the address has always answered."""
    accept = request.headers.values.get(b"accept", b"").lower()
    return request.method in ("GET", "HEAD") and b"text/html" in accept and not accept.startswith(_JAVA)


ROWS_SHOWN = 6
FAILURES_SHOWN = 3
ERROR_CHARS = 200


class JobsPart:
    """Builds what is shown to one owner, and keeps it until something has happened to jobs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._kept: dict[str | None, tuple[int, object]] = {}

    async def shown_to(self, owner: str | None, revision: int) -> object:
        """What concerns one caller, or everything for None; None where there are no jobs.

        Args:
            revision: what was built for an earlier one is out of date.
        """
        jobs = self._gateway.jobs
        if jobs is None:
            return None
        known = self._kept.get(owner)
        if known is not None and known[0] == revision:
            return known[1]
        try:
            failed = await jobs.records.list_jobs(JobFilter(caller=owner, state=JobState.FAILED, limit=FAILURES_SHOWN))
        except StorageUnavailable:
            return bare(self._picture(jobs, owner, ()))
        shown = bare(self._picture(jobs, owner, failed))
        self._kept[owner] = (revision, shown)
        return shown

    def _picture(self, jobs: Jobs, owner: str | None, failed: Iterable[JobRecord]) -> dict[str, object]:
        line = [(ahead, job) for ahead, job in enumerate(jobs.in_line()) if owner in (None, job.caller)]
        running = [job for job in jobs.under_way() if owner in (None, job.caller)]
        return {
            "counts": {"queued": len(line), "running": len(running), **jobs.ended(owner)},
            "oldest": min((job.accepted_wall_s for _, job in line), default=None),
            "waiting": {job.job_id: self._waiting(jobs, job, ahead) for ahead, job in line[:ROWS_SHOWN]},
            "running": {job.job_id: _named(job) | {"sequence": jobs.item_of(job.job_id)} for job in running[:ROWS_SHOWN]},
            "failed": {record.job_id: _failed(record) for record in failed},
            "off_peak": self._off_peak(),
        }

    def _waiting(self, jobs: Jobs, job: WaitingJob, ahead: int) -> dict[str, object]:
        start_s, wall_s = jobs.start_s(job, ahead), self._gateway.clock.wall()
        return _named(job) | {
            "ahead": ahead,
            "start": None if start_s is None else round(wall_s + start_s),
            "not_before": job.not_before_wall_s,
            "off_peak": job.off_peak or None,
            "attempts": job.attempts or None,
        }

    def _off_peak(self) -> dict[str, object]:
        """Whether off-peak jobs may start now, and when that changes."""
        config, wall_s = self._gateway.config, self._gateway.clock.wall()
        return {"now": not config.is_active_hours(wall_s), "changes": config.next_mode_change(wall_s)}


def _named(job: WaitingJob | JobRecord) -> dict[str, object]:
    return {"caller": job.caller, "task_type": job.task_type, "model": job.model, "accepted": round(job.accepted_wall_s, 2)}


def _failed(record: JobRecord) -> dict[str, object]:
    return _named(record) | {
        "reason": record.reason,
        "status": record.status,
        "error": record.error[:ERROR_CHARS] or None,
        "attempts": record.attempts,
        "ended": record.ended_wall_s,
    }


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
