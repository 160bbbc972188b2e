"""Passes one backend answer on to its reply: as a whole, as a stream, or as the continuation of a stream that was interrupted.

Bytes go through as they came. What a caller of an interruptible stream has been given is remembered, so that a later run of the same
request can be compared with it before it goes on (`dialects.replay`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Self

from hearth.clock import Clock
from hearth.config.settings import Settings
from hearth.dialects.continuing import Continuation
from hearth.dialects.ollama import error_text, runner_died
from hearth.dialects.replay import Replay, Sent
from hearth.dialects.routes import Route
from hearth.dialects.stream import Ending, StreamTail, read_whole
from hearth.errors import BackendBusy, BackendError, BackendGone, BackendProtocolError, CallerGone, StreamDiverged
from hearth.execution.request import ActiveRequest, ReplyHead
from hearth.ports import Exchange
from hearth.scheduling.inputs import FirstByte, Input, Unresumable
from hearth.types import MIB, Way

HELD_UP_S = 0.1
"""A timer that comes later than this says that the loop stood still, and nothing about whoever is waited for."""
MOMENT_S = 1.0
"""What whoever is waited for is given after that: what came meanwhile has not been read yet."""
_BUSY, _BROKEN = HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INTERNAL_SERVER_ERROR
"""Looked up once: in Python 3.11 that takes as long as calling a function."""


class AnswerStream:
    """The way from a backend to a reply."""

    def __init__(self, *, clock: Clock, settings: Callable[[], Settings], post: Callable[[Input], None]) -> None:
        self._clock = clock
        self._settings = settings
        self._post = post

    async def whole(self, work: ActiveRequest, exchange: Exchange, route: Route) -> None:
        """Hand over a complete answer, so that an attempt that breaks off before can be redone without the caller noticing.

        Raises:
            BackendBusy: it has no room now, which passes.
            BackendProtocolError: it is empty.
            BackendGone: it does not say that it is complete, or says that the process of the model has ended.
            BackendError: an error, where the caller has the beginning of a stream already.
        """
        parts: list[bytes] = []
        while chunks := await exchange.take():
            parts.extend(chunks)
        body = b"".join(parts)
        if exchange.status == _BUSY:
            raise BackendBusy(error_text(body))
        if exchange.status == _BROKEN and runner_died(error_text(body)):
            raise BackendGone(error_text(body))
        if exchange.status >= 400 and work.reply.started:
            raise BackendError(f"the model server answered {exchange.status}: {error_text(body)}")
        if exchange.status < 400:
            if not body:
                raise BackendProtocolError("the model server sent an empty answer")
            said = read_whole(route, body)
            if not said.complete:
                raise BackendGone
            work.usage = said.usage
        work.forwarded, work.first_byte_at = True, self._clock.monotonic()  # no news to anybody: the end follows at once
        work.reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
        work.reply.push(body)
        work.reply.finish()

    async def stream(self, work: ActiveRequest, exchange: Exchange, route: Route, pace: IdleTimeout) -> None:
        """Pass chunks on as they come. An end without the dialect's own terminator is a truncation, whatever the framing says.

        Raises:
            BackendGone: truncated.
            CallerGone: the caller has stopped reading.
        """
        if work.item.ways:
            work.sent = Sent(limit_bytes=int(self._settings().scheduling.replay_limit_mib * MIB))
        tail = StreamTail(route)

        while chunks := await exchange.take():
            pace.progressed = True
            await self._reader_catches_up(work, pace)
            tail.feed(b"".join(chunks))
            if not work.forwarded:
                self._first_byte(work, forwarded=True)
                work.reply.start(ReplyHead(status=exchange.status, headers=exchange.headers))
            self._pass_on(work, chunks)
        self._finish(work, tail.ending())

    async def replay(self, work: ActiveRequest, exchange: Exchange, route: Route, pace: IdleTimeout) -> None:
        """Pass on what follows after this run has reproduced everything that its caller has; nothing before.

        Raises:
            StreamDiverged: it is another answer.
            BackendGone, CallerGone: as for `stream`.
        """
        if work.sent is None:
            raise StreamDiverged
        tail, replay, seen = StreamTail(route), Replay(route, work.sent), False
        work.resumed, work.again_tokens = Way.REPLAY, work.sent.frames
        while chunks := await exchange.take():
            pace.progressed = True
            if not seen:
                seen = True
                self._first_byte(work, forwarded=False)
            for chunk in chunks:
                tail.feed(chunk)
                passed = replay.feed(chunk)
                work.verified_chars = replay.verified_chars
                self._continue(work, passed)
            await self._reader_catches_up(work, pace)
        ending = tail.ending()
        if ending.complete:
            self._continue(work, replay.finish())
        self._finish(work, ending)

    async def rest(self, work: ActiveRequest, exchange: Exchange, rest: Continuation, pace: IdleTimeout) -> None:
        """Pass on what the model says after the text that its caller has.

        Raises:
            StreamDiverged: it does not go on from there; nothing was passed on.
            BackendError: the model server has ended it with an error.
            BackendGone, CallerGone: as for `stream`.
        """
        work.resumed, work.again_tokens = Way.CONTINUE, rest.tokens
        seen = False
        while chunks := await exchange.take():
            pace.progressed = True
            if not seen:
                seen = True
                self._first_byte(work, forwarded=False)
            for chunk in chunks:
                self._continue(work, rest.feed(chunk))
            await self._reader_catches_up(work, pace)
        self._continue(work, rest.finish(work.spent, self._clock.wall()))
        self._finish(work, Ending(complete=rest.complete, reported_error=False, usage=rest.usage))

    def _continue(self, work: ActiveRequest, chunk: bytes) -> None:
        if not chunk:
            return
        if not work.forwarded:
            self._first_byte(work, forwarded=True)
        self._pass_on(work, (chunk,))

    def _pass_on(self, work: ActiveRequest, chunks: tuple[bytes, ...]) -> None:
        work.reply.push_all(chunks)
        if work.sent is not None and work.sent.feed(b"".join(chunks)):
            self._post(Unresumable(sequence=work.item.sequence, attempt=work.attempt))

    def _finish(self, work: ActiveRequest, ending: Ending) -> None:
        work.sent = None
        work.usage = ending.usage
        if not ending.complete and not ending.reported_error:
            raise BackendGone
        if ending.reported_error:  # its caller has the model server's own words
            work.error = BackendError()
        work.reply.finish()

    def _first_byte(self, work: ActiveRequest, *, forwarded: bool) -> None:
        work.forwarded = forwarded
        if work.first_byte_at is None:
            work.first_byte_at = self._clock.monotonic()
        self._post(FirstByte(sequence=work.item.sequence, attempt=work.attempt, forwarded=forwarded))

    async def _reader_catches_up(self, work: ActiveRequest, pace: IdleTimeout) -> None:
        """Hold the backend back for a reader that is far behind, but not for long; meanwhile it is not the backend that is silent."""
        if not work.reply.full:
            return
        deadline_at = asyncio.get_running_loop().time() + self._settings().server.write_deadline_s
        pace.held = True
        try:
            with Deadline(deadline_at):
                await work.reply.writable()
        except TimeoutError as error:
            raise CallerGone("the caller stopped reading") from error
        finally:
            pace.held, pace.progressed = False, True


class Deadline:
    """An `asyncio.timeout` whose instant can be moved, and which comes a moment later where the loop was held up at it.

    To be made and entered by the task that it cancels. The block ends with TimeoutError then.
    """

    def __init__(self, at: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] = asyncio.current_task(self._loop)  # type: ignore[assignment]  # a task makes it
        self._cancelling = self._task.cancelling()
        self._over = self._expired = False
        self._timer = self._loop.call_at(at, self._due)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        self._over = True
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def lift(self) -> None:
        """Let time not end it any more; `end` still does."""
        self._timer.cancel()

    def end(self) -> None:
        """End the block now, where it has not ended yet."""
        self._timer.cancel()
        if not self._over:
            self._over = self._expired = True
            self._task.cancel()

    def _due(self) -> None:
        if self._loop.time() - self._timer.when() > HELD_UP_S:
            self._timer = self._loop.call_later(MOMENT_S, self.end)
        else:
            self.end()


class IdleTimeout:
    """Ends an exchange that sends nothing for too long; looks now and then instead of setting a timer per chunk.

    Attributes:
        progressed: something has come since the last look. held: nothing is read now, so nothing can come.
    """

    def __init__(self, limit: Deadline, idle_timeout_s: float) -> None:
        self.progressed = True
        self.held = False
        self._limit = limit
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(idle_timeout_s, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        if self.progressed or self.held:
            self.progressed = False
            self._timer = self._loop.call_later(self._idle_timeout_s, self._look)
        elif self._loop.time() - self._timer.when() > HELD_UP_S:
            self._timer = self._loop.call_later(MOMENT_S, self._look_again)
        else:
            self._limit.end()

    def _look_again(self) -> None:
        if self.progressed or self.held:
            self._look()
        else:
            self._limit.end()
