"""One conversation with Claude: asked, passed on in the caller's dialect as it comes, and metered.

Whatever ends it (the answer's end, an error, the caller, a stop) ends its task, and `service` closes the books when the task is over. Must
never touch money itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hearth.clock import Clock
from hearth.cloud.budget import Reservation
from hearth.cloud.routing import Why
from hearth.config.settings import CloudSettings
from hearth.dialects.claude.answering import Answer
from hearth.dialects.claude.asking import ClaudeRequest
from hearth.dialects.claude.stream import Meter
from hearth.errors import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    CloudUnavailable,
    HearthError,
)
from hearth.execution.request import ActiveRequest, ReplyHead
from hearth.ports import CloudBackend, CloudExchange
from hearth.queue.registry import Registry
from hearth.types import CloudCall, Headers, Price, Sequence, Usage, usd

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
LONGEST_ADVICE_S = 10.0
"""Where Claude asks for a longer pause, the caller is told instead of kept."""
_GOLDEN = 0.6180339887498949


def retry_delay_s(error: HearthError, attempt: int, *, max_retries: int, sequence: Sequence) -> float | None:
    """Seconds until the next attempt after `attempt` (from 1) failed; None for the end.

    To be asked only for what was refused before anything was charged.
    """
    if attempt > max_retries or not error.retryable or isinstance(error, CloudUnavailable):
        return None
    if type(error) not in (BackendBusy, BackendError, BackendUnreachable):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= LONGEST_ADVICE_S else None
    delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (attempt - 1))
    return delay_s * (0.75 + 0.5 * (sequence * _GOLDEN % 1.0))


_UNCLEAR: tuple[type[HearthError], ...] = (BackendGone, BackendTimeout)
"""After these nobody knows whether the prompt was charged."""
_NO_CACHE: Headers = ((b"cache-control", b"no-cache"),)


@dataclass(slots=True, eq=False)
class Call:
    """One item on its way through Claude.

    Attributes:
        path: the address that the caller used; shown_model: the model as the caller wrote it.
        sent: the request may have reached Claude, so its prompt may be charged.
        ending: why it was told to stop; None while it runs and where it ends by itself.
    """

    work: ActiveRequest
    path: str
    shown_model: str
    request: ClaudeRequest
    to_send: CloudCall
    price: Price
    prompt_bound: int
    meter: Meter
    why: Why
    reservation: Reservation
    task: asyncio.Task[None] | None = None
    sent: bool = False
    ending: HearthError | None = None

    @property
    def bill_nano_usd(self) -> int:
        """What it has cost up to now, or at most."""
        if not self.meter.started:
            return self.price.bound_nano_usd(self.prompt_bound, 0) if self.sent else 0
        tokens = self.meter.tokens
        return self.price.cost_nano_usd(tokens) if tokens.prompt else self.price.bound_nano_usd(self.prompt_bound, tokens.output)

    def note_sending(self) -> None:
        """From now on it may be charged."""
        self.sent = True

    def leave(self, error: HearthError) -> bool:
        """Stop it, for this reason; False where the answer was complete before."""
        if self.work.reply.complete or self.work.outcome is not None:
            return False
        if self.ending is None:
            self.ending = error
            self.work.reply.fail(error)
            if self.task is not None:
                self.task.cancel()
        return True


class Conversations:
    """Holds conversations; keeps nothing of them."""

    def __init__(self, *, backend: CloudBackend, clock: Clock, registry: Registry, settings: Callable[[], CloudSettings]) -> None:
        self._backend = backend
        self._clock = clock
        self._registry = registry
        self._settings = settings

    async def hold(self, call: Call) -> None:
        """Ask until there is an answer, and pass it on to its end.

        Raises:
            HearthError: there is none, or it broke off.
        """
        work = call.work
        while True:
            work.begin_attempt(work.attempt + 1, call.to_send.model, self._clock.monotonic())
            self._registry.dispatched(work, self._clock.monotonic())
            try:
                return await self._attempt(call)
            except HearthError as error:
                delay_s = self._delay_s(call, error)
                if delay_s is None:
                    raise
                work.error = error
            self._registry.resent(work, self._clock.monotonic())
            await asyncio.sleep(delay_s)

    def _delay_s(self, call: Call, error: HearthError) -> float | None:
        if call.sent or call.meter.started or call.work.reply.started:
            return None
        retries = self._settings().max_retries
        return retry_delay_s(error, call.work.attempt, max_retries=retries, sequence=call.work.item.sequence)

    async def _attempt(self, call: Call) -> None:
        timeout_s = self._settings().timeout_s
        unclear = _UNCLEAR
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    exchange = await self._backend.open(call.to_send, call.note_sending)
            except TimeoutError as error:
                raise BackendTimeout("Claude did not answer in time") from error
            unclear = (*_UNCLEAR, BackendProtocolError)  # it said yes
            try:
                await self._pass_on(call, exchange, timeout_s)
            finally:
                await exchange.aclose()
        except HearthError as error:
            # Claude said no before it began: then nothing is charged. Where nothing was said, nobody knows.
            call.sent = call.sent and (call.meter.started or isinstance(error, unclear))
            raise

    async def _pass_on(self, call: Call, exchange: CloudExchange, timeout_s: float) -> None:
        answer = Answer(
            call.path,
            call.request,
            call.meter,
            model=call.shown_model,
            request_id=call.work.item.request_id,
            created_wall_s=self._clock.wall(),
            started_at=self._clock.monotonic(),
        )
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._each(call, answer, exchange, limit, timeout_s)
        except TimeoutError as error:
            raise BackendTimeout("Claude stopped answering") from error
        if not call.meter.stopped:
            raise BackendGone("Claude's answer broke off before its end")
        self._finish(call, answer)

    async def _each(self, call: Call, answer: Answer, exchange: CloudExchange, limit: asyncio.Timeout, timeout_s: float) -> None:
        loop, reply = asyncio.get_running_loop(), call.work.reply
        async for event in exchange.events():
            data = answer.feed(event, self._clock.monotonic())
            if call.work.first_byte_at is None and call.meter.started:
                call.work.first_byte_at = self._clock.monotonic()
                self._registry.first_byte(call.work, call.work.first_byte_at)
            if data:
                reply.start(_head(answer, call.work, None))
                reply.push(data)
                limit.reschedule(None)  # a slow reader is its connection's business, not Claude's
                await reply.writable()
            if call.meter.stopped:
                return
            if event.get("type") != "ping" or limit.when() is None:
                limit.reschedule(loop.time() + timeout_s)

    def _finish(self, call: Call, answer: Answer) -> None:
        work, tokens = call.work, call.meter.tokens
        rest = answer.finish(self._clock.monotonic())
        work.usage = Usage(prompt_tokens=tokens.prompt, output_tokens=tokens.output)
        work.status = answer.status
        work.reply.start(_head(answer, work, None if work.item.streaming else len(rest)))
        work.reply.push(rest)
        work.reply.cost_usd = usd(call.bill_nano_usd)
        work.reply.finish()


def _head(answer: Answer, work: ActiveRequest, length: int | None) -> ReplyHead:
    headers: Headers = ((b"content-type", answer.content_type.encode("ascii")),)
    if length is not None:
        headers = (*headers, (b"content-length", b"%d" % length))
    elif work.item.streaming and answer.content_type.startswith("text/event-stream"):
        headers = (*headers, *_NO_CACHE)
    return ReplyHead(status=answer.status, headers=headers)
