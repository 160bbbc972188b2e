"""From a submitted request to its last byte: stream the reply with its chunk boundaries, and free
the model when the caller disconnects.

The end of its connection is seen in every phase. A streaming caller to whom nothing was sent for a
while gets a keepalive in its dialect; from the first one on, errors can only be reported inside the
stream. Where the owner wants it, others get whitespace before their JSON.
"""

from __future__ import annotations

import asyncio

from hearth.api.request import Request, rendered
from hearth.dialects.errors import error_object
from hearth.dialects.frames import frame_end
from hearth.dialects.gojson import encode
from hearth.dialects.presence import PresenceSignals, stream_headers, whole_answer_headers
from hearth.dialects.routes import Route
from hearth.dialects.stream import error_text
from hearth.dialects.waits import WaitTexts
from hearth.errors import BackendError, HearthError
from hearth.execution.request import Ticket
from hearth.gateway import Gateway
from hearth.types import EMULATOR_HEADER, Headers

_WHITESPACE = b" "
"""JSON may begin with it (RFC 8259, 2)."""


class Relay:
    """One caller waiting for one reply; `model` is as the caller wrote it, `rewritten` what was
    changed in its body. `shows_wait`: its stream says how long it waits. `names_model`: the headers
    name the model that answers, as far as it is chosen. `verbatim`: nothing may be sent beside its
    bytes, which need be neither JSON nor frames.
    """

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        ticket: Ticket,
        route: Route,
        model: str,
        *,
        streaming: bool,
        rewritten: tuple[str, ...],
        shows_wait: bool = False,
        names_model: bool = False,
        verbatim: bool = False,
    ) -> None:
        self._worker = gateway.worker
        self._clock = gateway.clock
        self._keepalive = gateway.settings.keepalive
        self._request = request
        self._ticket = ticket
        self._route = route
        self._streaming = streaming
        self._rewritten = rewritten
        self._names_model = names_model
        self._pads = (
            not streaming
            and not verbatim
            and self._keepalive.whole_answers == "whitespace"
            and request.reads_chunks  # without chunks nothing of it would be sent before its end
        )
        """Whitespace may come yet: the answer does not stream, and nothing of it was sent."""
        self._disconnected = False
        self._sending = False
        self._complete = False
        self._was_sent = False
        """Something of the answer, since the last look."""
        self._has_length = False
        """The answer was begun with a declared length."""
        self._timer: asyncio.TimerHandle | None = None
        self._keeping_alive: asyncio.Task[None] | None = None
        self._presence = PresenceSignals(
            route,
            model,
            ticket.request_id.removeprefix("req_"),
            request.headers.text(b"user-agent"),
        )
        self._wait_texts = WaitTexts() if shows_wait else None
        self._frame_end = frame_end(route)
        self._tail = self._frame_end

    async def run(self) -> None:
        """Return when the reply has been sent, has failed visibly, or nobody wants it any more."""
        disconnected = self._request.disconnected
        disconnected.add_done_callback(self._abandon)
        try:
            await self._answer()
        except HearthError as error:
            await self._fail(error)
        finally:
            disconnected.remove_done_callback(self._abandon)
            if not self._complete:
                self._abandon()

    def _abandon(self, _: object = None) -> None:
        """Abandoning wakes `run` up, wherever it waits for the reply."""
        if not self._disconnected:
            self._disconnected = True
            self._ticket.reply.abandon()
            self._worker.leave(self._ticket.sequence)

    async def _answer(self) -> None:
        reply = self._ticket.reply
        answer = self._request.answer
        self._check_after(self._keepalive.after_s)
        try:
            head = await reply.head()
            if answer.started:
                if head.status >= 400:
                    raise BackendError(error_text(await reply.body()))
            else:
                self._has_length = b"content-length" in dict(head.headers)
                self._pads = False
                await answer.head(head.status, (*head.headers, *self._headers()))
                if reply.complete and self._has_length:
                    self._complete = True
                    await answer.end(reply.whole()[1])
                    return
            self._was_sent = True
            self._pads = False
            self._check_after(self._keepalive.every_s)
            await self._pass_chunks()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None  # it holds this relay
            if self._keeping_alive is not None:
                self._keeping_alive.cancel()

    async def _pass_chunks(self) -> None:
        reply = self._ticket.reply
        answer = self._request.answer
        last = False
        while not last:
            chunks = await reply.take()
            self._sending = True
            # asked once: it may become so while these are being sent, and then more has come
            last = not chunks or reply.complete
            chunks = self._presence.passed(chunks, last=last)
            for chunk in chunks[:-1] if last else chunks:
                await answer.chunk(chunk)
            if not last:
                self._sending = False
                self._was_sent = True
                self._tail = (self._tail + b"".join(chunks[-2:]))[-2:]
                self._presence.note(chunks)
        self._complete = True
        if reply.ends_with_error:
            await self._end_with_error(chunks[-1] if chunks else b"")
        else:
            await answer.end(*chunks[-1:])

    async def _end_with_error(self, last: bytes) -> None:
        """End a stream with these bytes, an error.

        On native routes the body is left without its last chunk, so that the server closes
        the connection: Open WebUI reads over an error line there and shows an answer that is empty,
        but reports a connection that broke.
        """
        if last:
            await self._request.answer.chunk(last)
        if not self._route.is_native:
            await self._request.answer.end()

    def _headers(self) -> Headers:
        """What is added to the backend's own headers; the request id comes first."""
        headers: Headers = (
            (b"x-request-id", self._ticket.request_id.encode("ascii")),
            *ticket_headers(self._ticket),
            *self._model_header(),
        )
        if self._ticket.served_by or not self._rewritten:
            return headers
        return (
            *headers,
            (b"x-hearth-rewrote", ",".join(self._rewritten).encode("ascii", "replace")),
        )

    def _model_header(self) -> Headers:
        model = None
        if self._names_model:
            model = self._worker.registry.model_of(self._ticket.sequence)
        return () if model is None else model_header(model)

    def _expected_mark(self) -> Headers:
        """The emulator's mark, before its head has come.

        Should a model server come first, a real answer has it, but no made-up one is without.
        """
        return (
            ((EMULATOR_HEADER, b"1"),)
            if self._worker.runtime.emulated and not self._ticket.served_by
            else ()
        )

    def _check_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._streaming or self._pads:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Now and then, instead of a timer per chunk: where nothing was sent since the last time, a
        keepalive is.
        """
        if not self._was_sent and (self._keeping_alive is None or self._keeping_alive.done()):
            self._keeping_alive = asyncio.ensure_future(self._keep_alive())
        self._was_sent = False
        self._check_after(self._keepalive.every_s)

    async def _keep_alive(self) -> None:
        """Only between frames: one that has been sent in part must go on with its own bytes.

        Nor while bytes of the answer wait, and of one that does not stream before its first byte.
        """
        answer = self._request.answer
        if self._disconnected or self._sending or not self._tail.endswith(self._frame_end):
            return
        if not self._streaming and not self._pads:
            return
        if not answer.started:
            headers = (whole_answer_headers if self._pads else stream_headers)(self._route)
            await answer.head(200, (*headers, *self._expected_mark(), *self._headers()))
        await answer.chunk(
            _WHITESPACE
            if self._pads
            else self._presence.signal(self._clock.wall(), self._wait_text())
        )

    def _wait_text(self) -> str:
        """What there is to say of the wait. Nothing once the answer has begun: within it, thinking
        would part a text into two.
        """
        if self._wait_texts is None or self._ticket.reply.started:
            return ""
        wait = self._worker.wait_of(self._ticket.sequence)
        return self._wait_texts.next(wait, self._clock.monotonic())

    async def _fail(self, error: HearthError) -> None:
        """Refuse with a status code while there still is one to choose; afterwards in the stream
        where the dialect has a way, or as the JSON behind whitespace.

        Else the body stays unfinished, which closes the connection: with a declared length, or as
        one JSON document that has begun, it has no room.
        """
        answer = self._request.answer
        if self._disconnected:
            return
        if not answer.started:
            reply = rendered(self._request, error, self._headers()[1:])
            await answer.whole(reply.status, reply.headers, reply.body)
        elif self._pads:
            shape = error_object(self._route.dialect, error, self._request.request_id)
            await answer.end(encode(shape))
        elif self._streaming and not self._has_length:
            lead = b"" if self._tail.endswith(self._frame_end) else self._frame_end
            await self._end_with_error(lead + self._presence.error(error, self._request.request_id))


def model_header(model: str) -> Headers:
    """Names the model that answers in place of an alias."""
    return ((b"x-hearth-model", model.encode("ascii", "replace")),)


def ticket_headers(ticket: Ticket) -> Headers:
    """What the headers of the answer say of an accepted request: its place, its wait, and who
    answers in place of the GPU.
    """
    headers: Headers = ((b"x-queue-position", b"%d" % ticket.position),)
    if ticket.estimated_wait_s is not None:
        headers = (*headers, (b"x-estimated-wait-seconds", b"%.1f" % ticket.estimated_wait_s))
    if ticket.wait_bound_s is not None:
        headers = (*headers, (b"x-wait-bound-seconds", b"%.1f" % ticket.wait_bound_s))
    if ticket.is_rough:
        headers = (*headers, (b"x-estimated-wait-rough", b"true"))
    return (
        (*headers, (b"x-hearth-served-by", ticket.served_by.encode("ascii")))
        if ticket.served_by
        else headers
    )
