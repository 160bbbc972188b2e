"""Runs one attempt of one item against the backend and reports how it ended. Decides nothing.

Each attempt is a task that posts exactly one of `Finished`, `Failed` or `Stopped`; a cancelled one closes its connection without
awaiting anything, so the slot is free at once. Bytes are read from the backend as they come and held in the reply for the caller, so a
slow reader does not keep the model busy until the reply is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hearth.clock import Clock
from hearth.config.settings import Settings
from hearth.dialects.framing import StreamTail, whole_usage
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    CallerGone,
    FirstByteTimeout,
    HearthError,
)
from hearth.ports import Exchange, GenerationBackend
from hearth.reply import ReplyHead
from hearth.scheduling.inputs import BackendDown, Failed, Fault, Finished, FirstByte, Input, Started, Stopped
from hearth.types import Sequence
from hearth.work import Work

MIN_TIMEOUT_S = 30.0
"""No attempt is cut off before this (Macaw's scheduling page: max(30 s, 2 x estimate))."""
MIB = 1024 * 1024


class Executor:
    """Owns the attempts that are under way."""

    def __init__(
        self,
        *,
        backend: GenerationBackend,
        clock: Clock,
        settings: Callable[[], Settings],
        post: Callable[[Input], None],
        fault: Callable[[str, BaseException], None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._settings = settings
        self._post = post
        self._fault = fault
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}
        self._works: dict[Sequence, Work] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work, *, prompt_s: float, limit_s: float) -> None:
        """Begin the work's current attempt.

        Args:
            prompt_s: expected seconds until the first byte.
            limit_s: the most seconds that the whole answer can be expected to take.
        """
        sequence, attempt = work.item.sequence, work.attempt
        task = asyncio.get_running_loop().create_task(self._attempt(work, prompt_s, limit_s), name=f"item {sequence}")
        self._tasks[sequence], self._works[sequence] = task, work
        task.add_done_callback(lambda ended: self._forget(work, attempt, ended))

    def _forget(self, work: Work, attempt: int, ended: asyncio.Task[None]) -> None:
        """Let go of an attempt that is over, and report for one that could not report itself."""
        sequence = work.item.sequence
        if self._tasks.get(sequence) is ended:  # else a new attempt of the same item has taken its place
            del self._tasks[sequence], self._works[sequence]
        if ended.cancelled():  # stopped before its first step: nothing of it ever ran
            self._post(Stopped(sequence=sequence, attempt=attempt))
        elif (error := ended.exception()) is not None:
            self._fault("executor", error)
            work.error = HearthError()
            self._post(Failed(sequence=sequence, attempt=attempt, fault=Fault.FATAL))

    def preempt(self, sequence: Sequence) -> None:
        """Stop the attempt, unless its caller is there and has been given bytes since that was decided: then it goes on."""
        work = self._works.get(sequence)
        if work is not None and (work.outcome is not None or not work.forwarded):
            self.abort(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Stop the attempt. A task that has ended has already reported how."""
        task = self._tasks.get(sequence)
        if task is not None:
            task.cancel()

    async def drained(self, grace_s: float, hurry: asyncio.Event | None) -> None:
        """Wait until nothing runs, for `grace_s` at most and no longer than until `hurry` is set."""
        if not self._tasks:
            return
        running = asyncio.ensure_future(asyncio.wait(tuple(self._tasks.values())))
        hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
        await asyncio.wait((running, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        hurried.cancel()

    async def _attempt(self, work: Work, prompt_s: float, limit_s: float) -> None:
        sequence, attempt = work.item.sequence, work.attempt
        try:
            await self._run(work, prompt_s, limit_s)
            report: Input = Finished(sequence=sequence, attempt=attempt, usage=work.usage)
        except asyncio.CancelledError:
            report = Stopped(sequence=sequence, attempt=attempt)
        except HearthError as error:
            work.error = error
            if isinstance(error, BackendUnreachable):
                self._post(BackendDown())
            report = Failed(sequence=sequence, attempt=attempt, fault=_fault_of(error))
        self._post(report)

    async def _run(self, work: Work, prompt_s: float, limit_s: float) -> None:
        self._post(Started(sequence=work.item.sequence, attempt=work.attempt))
        began_at = asyncio.get_running_loop().time()
        end_at = began_at + max(MIN_TIMEOUT_S, 2 * limit_s)
        quiet_s = self._settings().ollama.first_byte_timeout_s + 2 * prompt_s
        call = work.call_on(work.model or "")
        try:
            async with asyncio.timeout_at(began_at + quiet_s if work.item.streaming else end_at):
                exchange = await self._backend.open(call)
        except TimeoutError as error:
            raise FirstByteTimeout from error
        try:
            async with asyncio.timeout_at(end_at) as limit:
                await self._forward(work, exchange, INFERENCE_ROUTES[call.path.partition("?")[0]], limit)
        except TimeoutError as error:
            raise BackendTimeout from error
        finally:
            exchange.close()

    async def _forward(self, work: Work, exchange: Exchange, route: Route, limit: asyncio.Timeout) -> None:
        work.status = exchange.status
        if work.item.streaming and exchange.status < 400:
            await self._stream(work, exchange, route, limit)
        else:
            await self._whole(work, exchange, route)

    async def _whole(self, work: Work, exchange: Exchange, route: Route) -> None:
        """Hand over a complete answer, so that an attempt that breaks off before can be redone without the caller noticing."""
        body = b"".join([chunk async for chunk in exchange.chunks()])
        if exchange.status < 400 and not body:
            raise BackendProtocolError("the model server sent an empty answer")
        self._report_first_byte(work, forwarded=True)
        if exchange.status < 400:
            work.usage = whole_usage(route, body)
        work.reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
        work.reply.push(body)
        work.reply.finish()

    async def _stream(self, work: Work, exchange: Exchange, route: Route, limit: asyncio.Timeout) -> None:
        """Pass chunks on as they come. An end without the dialect's own terminator is a truncation, whatever the framing says."""
        tail, reply, pace = StreamTail(route), work.reply, _Pace(limit, self._settings().ollama.idle_timeout_s)
        reserve = self._settings().server.write_buffer_mib * MIB
        try:
            async for chunk in exchange.chunks():
                pace.progressed = True
                if not work.forwarded:
                    self._report_first_byte(work, forwarded=True)
                    reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
                tail.feed(chunk)
                reply.push(chunk)
                if reply.unread_bytes >= reserve:
                    await self._reader_catches_up(work)
        finally:
            pace.stop()
        work.usage = tail.usage()
        if not tail.complete and not tail.reported_error:
            raise BackendGone
        reply.finish()

    def _report_first_byte(self, work: Work, *, forwarded: bool) -> None:
        work.forwarded = forwarded
        work.first_byte_at = self._clock.monotonic()
        self._post(FirstByte(sequence=work.item.sequence, attempt=work.attempt, forwarded=forwarded))

    async def _reader_catches_up(self, work: Work) -> None:
        """Hold the backend back for a reader that is far behind, but not for long."""
        try:
            async with asyncio.timeout(self._settings().server.write_deadline_s):
                await work.reply.writable()
        except TimeoutError as error:
            raise CallerGone("the caller stopped reading") from error

    async def aclose(self) -> None:
        """Stop everything and wait until it has stopped."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Pace:
    """Ends an exchange that sends nothing for too long; looks now and then instead of setting a timer per chunk."""

    def __init__(self, limit: asyncio.Timeout, idle_timeout_s: float) -> None:
        self.progressed = True
        self._limit = limit
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(idle_timeout_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self.progressed:
            self.progressed = False
            self._timer = self._loop.call_later(self._idle_timeout_s, self._look)
        else:
            self._limit.reschedule(self._loop.time())


def _fault_of(error: HearthError) -> Fault:
    if isinstance(error, FirstByteTimeout):
        return Fault.FIRST_BYTE_TIMEOUT
    if isinstance(error, BackendError) and not isinstance(error, BackendTimeout):
        return Fault.BACKEND_GONE
    return Fault.FATAL
