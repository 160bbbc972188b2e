"""From a submitted request to its last byte: stream the reply, and free the model the moment the caller leaves.

One task per request watches for the caller's disconnect, in every phase: queued, loading, prefill, streaming or not. Nothing else happens
per chunk than sending it, so chunk boundaries come out as they went in. A streaming caller who has heard nothing for a while is sent a sign
of life in its dialect; from the first one on, errors can only be told inside the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime

from hearth.api.asgi import wait_gone
from hearth.api.errors import rendered
from hearth.api.request import Request
from hearth.clock import Clock
from hearth.config.settings import KeepaliveSettings
from hearth.dialects.errors import stream_error
from hearth.dialects.ollama import error_text
from hearth.dialects.replay_reading import frame_end
from hearth.dialects.routes import Route
from hearth.dialects.stream import Signs, stream_headers
from hearth.errors import BackendError, HearthError
from hearth.execution.request import ReplyHead
from hearth.queue.item import Ticket
from hearth.queue.worker import LLMQueueWorker
from hearth.types import Headers, value


@value
class Relayed:
    """What a relay is about: the route, the model as the caller wrote it, whether it streams, and what was changed in its body."""

    route: Route
    model: str
    streaming: bool
    rewritten: tuple[str, ...]


class Relay:
    """One caller waiting for one reply."""

    __slots__ = (
        "_clock",
        "_complete",
        "_frame_end",
        "_gone",
        "_left",
        "_of",
        "_quiet",
        "_request",
        "_sending",
        "_settings",
        "_signs",
        "_tail",
        "_ticket",
        "_worker",
    )

    def __init__(
        self, worker: LLMQueueWorker, clock: Clock, settings: KeepaliveSettings, request: Request, ticket: Ticket, of: Relayed
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._settings = settings
        self._request = request
        self._ticket = ticket
        self._of = of
        self._gone = False
        self._left = False
        self._sending = False
        self._complete = False
        self._quiet: _Quiet | None = None
        name = ticket.request_id.removeprefix("req_")
        self._signs = Signs(of.route, of.model, name, request.headers.text(b"user-agent"))
        self._frame_end = frame_end(of.route)
        self._tail = self._frame_end

    async def run(self) -> None:
        """Return when the reply has been sent, has failed visibly, or nobody wants it any more; the item has ended for us in each case."""
        stop_watching, sent = self._watch_caller(), None
        try:
            head = await self._head()
            sent = None if self._request.answer.started else head
            await self._answer(head)
        except HearthError as error:
            await self._fail(error, sent)
        finally:
            stop_watching()
            if not self._complete:
                self._leave()

    def _watch_caller(self) -> Callable[[], object]:
        disconnect = self._request.disconnect
        if disconnect is None:
            return asyncio.ensure_future(self._wait_gone()).cancel
        disconnect.expect(self._departed)
        return disconnect.forget

    async def _wait_gone(self) -> None:
        await wait_gone(self._request.receive)
        self._departed()

    def _departed(self) -> None:
        self._gone = True
        self._leave()

    def _leave(self) -> None:
        """Abandoning wakes `run` up, wherever it waits for the reply."""
        if self._left:
            return
        self._left = True
        self._ticket.reply.abandon()
        self._worker.leave(self._ticket.sequence)

    async def _answer(self, head: ReplyHead) -> None:
        if not self._request.answer.started:
            headers = (*head.headers, *self._headers())
            if self._ticket.reply.complete and _has_length(head):
                self._complete = True
                await self._request.answer.measured(head.status, headers, self._ticket.reply.whole()[1])
                return
            await self._request.answer.head(head.status, headers)
        elif head.status >= 400:
            raise BackendError(error_text(await self._ticket.reply.body()))
        await self._pass_chunks()

    async def _head(self) -> ReplyHead:
        if not self._of.streaming:
            return await self._ticket.reply.head()
        wait_s = self._settings.after_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    return await self._ticket.reply.head()
            except TimeoutError:
                await self._sign_of_life()
                wait_s = self._settings.every_s

    def _headers(self) -> Headers:
        """What is added to the backend's own headers; the request id comes first."""
        ticket, rewritten = self._ticket, self._of.rewritten
        headers: Headers = ((b"x-request-id", ticket.request_id.encode("ascii")), *told_of(ticket))
        if ticket.served_by or not rewritten:
            return headers
        return (*headers, (b"x-hearth-rewrote", ",".join(rewritten).encode("ascii", "replace")))

    async def _pass_chunks(self) -> None:
        reply, answer = self._ticket.reply, self._request.answer
        self._quiet = quiet = _Quiet(self._settings.every_s, self._sign_of_life) if self._of.streaming else None
        try:
            while chunks := await reply.take():
                self._sending = True
                last = reply.complete  # asked once: it may become so while these are being sent, and then more has come
                chunks = self._signs.passed(chunks, last=last)
                for chunk in chunks[:-1] if last else chunks:
                    await answer.chunk(chunk)
                if last:
                    self._complete = True
                    await answer.end(*chunks[-1:])
                    return
                self._sending = False
                self._note_sent(chunks)
            self._complete = True
            await answer.end(*self._signs.passed((), last=True))
        finally:
            self._quiet = None  # it holds this relay
            if quiet is not None:
                quiet.stop()

    def _note_sent(self, chunks: tuple[bytes, ...]) -> None:
        self._tail = (self._tail + b"".join(chunks[-2:]))[-2:]
        self._signs.note(chunks)
        if self._quiet is not None:
            self._quiet.heard = True

    async def _sign_of_life(self) -> None:
        """Only between frames: one that has been sent in part must go on with its own bytes.

        Nor while bytes of the answer wait for room. What comes while a sign waits for it is sent behind the sign.
        """
        answer = self._request.answer
        if self._gone or self._sending or not self._tail.endswith(self._frame_end):
            return
        if not answer.started:
            await answer.head(200, (*stream_headers(self._of.route), *self._headers()))
        await answer.chunk(self._signs.sign(wire_time(self._clock), self._clock.wall()))

    async def _fail(self, error: HearthError, sent: ReplyHead | None) -> None:
        """Refuse with a status code while there still is one to choose. `sent`: the head of the answer; None for Hearth's own, or for none.

        Afterwards say so in the stream where the dialect has a way; else leave the body unfinished, which closes the connection: one with
        a declared length, or a single JSON document, has no room for a second one.
        """
        if self._gone:
            return
        answer = self._request.answer
        if not answer.started:
            reply = rendered(self._request, error, self._headers()[1:])
            await answer.whole(reply.status, reply.headers, reply.body)
        elif self._of.streaming and not _has_length(sent):
            lead = b"" if self._tail.endswith(self._frame_end) else self._frame_end
            await answer.chunk(lead + stream_error(self._of.route, error, self._request.request_id))
            await answer.end()


class _Quiet:
    """Sends signs of life while nothing else is sent; looks now and then instead of setting a timer per chunk."""

    def __init__(self, every_s: float, say: Callable[[], Coroutine[None, None, None]]) -> None:
        self.heard = True
        self._every_s = every_s
        self._say = say
        self._saying: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(every_s, self._look)

    def _look(self) -> None:
        if not self.heard and (self._saying is None or self._saying.done()):
            self._saying = asyncio.ensure_future(self._say())
        self.heard = False
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()
        if self._saying is not None:
            self._saying.cancel()


def told_of(ticket: Ticket) -> Headers:
    """What the headers of the answer say of an accepted request: its place, its wait, and who answers in place of the GPU."""
    told: Headers = ((b"x-queue-position", b"%d" % ticket.position),)
    if ticket.estimated_wait_s is not None:
        told = (*told, (b"x-estimated-wait-seconds", b"%.1f" % ticket.estimated_wait_s))
    if ticket.is_rough:
        told = (*told, (b"x-estimated-wait-rough", b"true"))
    return (*told, (b"x-hearth-served-by", ticket.served_by.encode("ascii"))) if ticket.served_by else told


def wire_time(clock: Clock) -> str:
    """Now as Ollama writes it: RFC 3339 in UTC."""
    return datetime.fromtimestamp(clock.wall(), UTC).isoformat().replace("+00:00", "Z")


def _has_length(head: ReplyHead | None) -> bool:
    return head is not None and b"content-length" in dict(head.headers)
