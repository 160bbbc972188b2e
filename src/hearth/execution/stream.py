"""Passes one backend answer on to its reply: as a whole, as a stream, or as the continuation of a
stream that was interrupted.

Bytes go through as they came. What a caller of an interruptible stream has been given is
remembered, so that a later run of the same request can be compared with it before it goes on
(`dialects.replay`).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from hearth.dialects.gojson import LARGE_BYTES
from hearth.dialects.routes import MEDIA_ROUTES, Route, route_of
from hearth.dialects.stream import (
    DeathNotice,
    Ending,
    StreamTail,
    error_text,
    proxy_failure,
    read_whole,
    runner_died,
)
from hearth.dialects.usage import HiddenUsage
from hearth.engines.port import Exchange, LaterRun
from hearth.errors import (
    AnswerCut,
    BackendBusy,
    BackendError,
    BackendGone,
    BackendProtocolError,
    CallerGone,
    RunnerDied,
)
from hearth.execution.request import ActiveRequest, ReplyHead
from hearth.execution.runtime import Runtime
from hearth.scheduling.inputs import FirstByte, Unresumable
from hearth.types import BackendCall

HELD_UP_S = 0.1
"""A timer that comes later than this says that the loop stood still, and nothing about whoever is
waited for.
"""
MOMENT_S = 1.0
"""What whoever is waited for is given after that at least: what came meanwhile has not been read
yet.
"""


class Deadline:
    """As `asyncio.timeout`, but it can turn into a limit on silence, and where the loop was held up
    it comes as much later, its own length at most: the model server may have stood still, too.

    Attributes:
        progressed: something has come since the last look. held: nothing is read now, so nothing
        can come.
    """

    def __init__(self, limit_s: float) -> None:
        self.progressed = False
        self.held = False
        self._expired = False
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(self._limit_s, self._due)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        # only our own cancellation is a timeout: one that came from outside, too, goes on as such
        if (
            self._expired
            and self._task is not None
            and not self._task.uncancel()
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def limit_silence(self, limit_s: float) -> None:
        """From now on it takes a stretch of this length without progress; looked at now and then,
        not timed chunk by chunk.
        """
        self._timer.cancel()
        self.progressed = True
        self._limit_s = limit_s
        self._timer = self._loop.call_later(limit_s, self._due)

    def _due(self, *, was_held_up: bool = False) -> None:
        if self.progressed or self.held:
            self.progressed = False
            self._timer = self._loop.call_later(self._limit_s, self._due)
        elif not was_held_up and (late_s := self._loop.time() - self._timer.when()) > HELD_UP_S:
            more_s = max(MOMENT_S, min(late_s, self._limit_s))
            self._timer = self._loop.call_later(more_s, lambda: self._due(was_held_up=True))
        elif self._task is not None:
            self._expired = True
            self._task.cancel()


class AnswerStream:
    """The way from a backend to a reply."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._post = runtime.post

    async def whole(self, work: ActiveRequest, exchange: Exchange, route: Route) -> None:
        """Hand over a complete answer, so that an attempt that breaks off before can be redone
        without the caller noticing.

        Raises:
            ProxyFailed: it is no answer of the model server's. BackendBusy: it has no room now,
            which passes. BackendProtocolError: it is empty. BackendGone: it does not say that it is
            complete, or says that the process of the model has ended. BackendError: an error, where
            the caller has the beginning of a stream already.
        """
        failed = proxy_failure(exchange.status, exchange.headers)
        if failed is not None:
            raise failed
        parts: list[bytes] = []
        while chunks := await exchange.take():
            parts.extend(chunks)
        body = b"".join(parts)
        if exchange.status == 503:
            raise BackendBusy(error_text(body))
        if exchange.status == 500 and runner_died(error_text(body)):
            raise BackendGone(error_text(body))
        if exchange.status >= 400 and work.reply.started:
            raise BackendError(f"the model server answered {exchange.status}: {error_text(body)}")
        if exchange.status < 400:
            if not body:
                raise BackendProtocolError("the model server sent an empty answer")
            is_large = len(body) > LARGE_BYTES
            read = (
                await asyncio.to_thread(read_whole, route, body)
                if is_large
                else read_whole(route, body)
            )
            if not read.complete:
                raise BackendGone
            work.attempt.usage = read.usage
        # no news to anybody: the end follows at once
        work.attempt.forwarded = True
        work.attempt.first_byte_at = self._clock.monotonic()
        work.reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
        work.reply.push(body)
        work.reply.finish()

    async def stream(
        self, work: ActiveRequest, exchange: Exchange, call: BackendCall, limit: Deadline
    ) -> None:
        """Pass chunks on as they come. An end without the dialect's own terminator is a truncation,
        whatever the framing says.

        Raises:
            RunnerDied: the process of the model ended within the answer.
            AnswerCut: truncated in an orderly way.
            BackendGone: the connection broke.
            CallerGone: the caller has stopped reading.
        """
        route = route_of(call.path)
        if route.path in MEDIA_ROUTES:
            await self._verbatim(work, exchange, limit)
            return
        sent = work.sent
        tail = StreamTail(route)
        notice = DeathNotice(route)
        usage = HiddenUsage(route) if call.hides_usage else None
        while chunks := await exchange.take():
            limit.progressed = True
            if work.reply.full:
                await self._reader_catches_up(work, limit)
            tail.feed(b"".join(chunks))
            if usage is not None:
                chunks = tuple(filter(None, map(usage.without, chunks)))
            if sent is not None:
                chunks = notice.without(sent.whole(chunks))
            self._forward(work, exchange, chunks)
        ending = tail.ending()
        self._check(work, ending)
        self._forward(work, exchange, () if usage is None else (usage.rest(),))
        self._forward(work, exchange, () if sent is None else (sent.held(),))
        self._finish(work, ending)

    async def _verbatim(self, work: ActiveRequest, exchange: Exchange, limit: Deadline) -> None:
        """Pass on an answer of any bytes, such as audio, as it comes; its framing tells its end.

        Raises BackendProtocolError: it is empty. BackendGone, CallerGone: as for `stream`.
        """
        while chunks := await exchange.take():
            limit.progressed = True
            if work.reply.full:
                await self._reader_catches_up(work, limit)
            self._forward(work, exchange, chunks)
        if not work.attempt.forwarded:
            raise BackendProtocolError("the model server sent an empty answer")
        work.reply.finish()

    def _forward(self, work: ActiveRequest, exchange: Exchange, chunks: tuple[bytes, ...]) -> None:
        """Pass on what there is; the head goes before the first chunk, where its caller has none
        from an earlier run.
        """
        if not any(chunks):
            return
        if not work.attempt.forwarded:
            self._first_byte(work, forwarded=True)
            work.reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
        work.reply.push(*chunks)
        if work.sent is not None and work.sent.feed(b"".join(chunks)):
            self._post(Unresumable(sequence=work.item.sequence, attempt=work.attempt.number))

    async def resume(
        self,
        run: LaterRun,
        work: ActiveRequest,
        exchange: Exchange,
        _: BackendCall,
        limit: Deadline,
    ) -> None:
        """Pass on what a later run says behind the text that its caller has; nothing before.

        Raises:
            StreamDiverged: it is another answer; nothing of it was passed on.
            BackendError: the model server has ended it with an error.
            BackendGone, CallerGone: as for `stream`.
        """
        work.attempt.resumed = run
        seen = False
        while chunks := await exchange.take():
            limit.progressed = True
            if not seen and any(chunks):
                seen = True
                self._first_byte(work, forwarded=False)
            passed = list[bytes]()
            wall_s = self._clock.wall()
            try:
                for chunk in chunks:
                    passed.append(run.feed(chunk, wall_s))
            finally:  # what came before an error is the caller's
                self._forward(work, exchange, tuple(passed))
            if work.reply.full:
                await self._reader_catches_up(work, limit)
        ending, last = run.end(self._clock.wall())
        self._check(work, ending)
        self._forward(work, exchange, (last,))
        self._finish(work, ending)

    @staticmethod
    def _check(work: ActiveRequest, ending: Ending) -> None:
        """Raises AnswerCut, RunnerDied.

        An error that the model server reports may be the end of an answer, too; but not that the
        model has died, where its caller has not been sent that and can be sent the rest.
        """
        sent = work.sent
        was_held_back = ending.died and sent is not None
        if ending.complete or (ending.reported_error and not was_held_back):
            return
        says_nothing = ending.died and not ending.error
        if not ending.died or (says_nothing and sent is not None and sent.repeats_itself):
            raise AnswerCut
        raise RunnerDied(ending.error or None)

    def _finish(self, work: ActiveRequest, ending: Ending) -> None:
        work.end_stream()
        work.attempt.usage = ending.usage
        if ending.reported_error:  # its caller has the model server's own words
            work.attempt.error = BackendError()
        work.reply.finish(with_error=ending.reported_error)

    def _first_byte(self, work: ActiveRequest, *, forwarded: bool) -> None:
        attempt = work.attempt
        attempt.forwarded = forwarded
        if attempt.first_byte_at is None:
            attempt.first_byte_at = self._clock.monotonic()
        self._post(
            FirstByte(sequence=work.item.sequence, attempt=attempt.number, forwarded=forwarded)
        )

    async def _reader_catches_up(self, work: ActiveRequest, limit: Deadline) -> None:
        """Hold the backend back for a reader that is far behind, but not for long; meanwhile it is
        not the backend that is silent.
        """
        limit.held = True
        work.attempt.held_up = True
        try:
            with Deadline(self._runtime.settings.server.write_deadline_s):
                await work.reply.writable()
        except TimeoutError as error:
            raise CallerGone("the caller stopped reading") from error
        finally:
            limit.held = False
            limit.progressed = True
