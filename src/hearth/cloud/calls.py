"""One call of Claude: its model, what it can cost at most, and its run: asked, passed on in the
caller's dialect, and metered.

Whatever ends it (the answer's end, an error, the caller, a stop) ends its task, and `service`
settles its cost when the task is over. Must never touch money itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from hearth.clock import Clock
from hearth.config.settings import CloudPriceSettings, CloudSettings
from hearth.dialects.claude_answer import Answer, Meter
from hearth.dialects.claude_request import ClaudeRequest
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
from hearth.types import CloudCall, Headers, JsonMapping, Price, Rates, Sequence, usd

Why: TypeAlias = Literal["asked_for", "not_local", "backend_down", "card_taken", "long_wait"]
"""Why Claude answers.

Only the first two leave no other way: with the others, the queue takes what Claude may not.
"""

SERVED_BY = "claude"
OVERHEAD_TOKENS = 4096
"""For what the API itself adds to a prompt: instructions for tools (up to 700 tokens) and for
structured answers.
"""
IMAGE_TOKENS = 8192
"""More than one image can be: the largest that any model takes is below 5,000 tokens."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
LONGEST_ADVICE_S = 10.0
"""Where Claude asks for a longer pause, the caller gets the error instead of waiting."""
_GOLDEN = 0.6180339887498949
_UNCLEAR: tuple[type[HearthError], ...] = (BackendGone, BackendTimeout)
"""After these nobody knows whether the prompt was charged."""


def asks_for_claude(model: str | None) -> bool:
    """Whether a caller names one of Claude's own models."""
    return model is not None and model.lower().startswith("claude-")


def claude_model(model: str | None, cloud: CloudSettings, canonical: Callable[[str], str]) -> str:
    """The Claude model for what a caller asked for: its entry in `cloud.models`, Claude's own name
    as it is, else `cloud.model`.
    """
    if model is None:
        return cloud.model
    names = (model, canonical(model))
    for pattern, chosen in cloud.models.items():
        if any(fnmatchcase(name, pattern) for name in names) or canonical(pattern) == names[1]:
            return chosen
    return model if asks_for_claude(model) else cloud.model


def price_in(given: CloudPriceSettings) -> Price:
    """The owner's own price of a model; what it leaves out is in the usual ratio to the price of
    input.
    """
    usual = Rates.in_usd(
        input_usd=given.input_usd,
        output_usd=given.output_usd,
        cache_read_usd=given.cache_read_usd,
        cache_write_usd=given.cache_write_usd,
    )
    return Price(usual=usual)


def encoded(model: str, body: JsonMapping) -> bytes:
    """The body to send; it always asks for a stream."""
    return json.dumps(
        {"model": model, **body, "stream": True}, ensure_ascii=False, separators=(",", ":")
    ).encode("utf-8", "replace")


def prompt_bound_tokens(body: JsonMapping, encoded_bytes: int) -> int:
    """The most tokens that Claude can count for a body of so many bytes."""
    images, image_bytes = _images([body.get("messages")])
    return encoded_bytes - image_bytes + images * IMAGE_TOKENS + OVERHEAD_TOKENS


def _images(pending: list[object]) -> tuple[int, int]:
    """Images in messages and blocks, and the bytes of their data.

    What a tool is given may look like one, and is text.
    """
    images = 0
    data_bytes = 0
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, Mapping):
            source = value.get("source")
            inside = source if isinstance(source, Mapping) else {}
            if value.get("type") == "image":
                images = images + 1
                data = inside.get("data")
                data_bytes += len(data) if isinstance(data, str) and data.isascii() else 0
            else:
                # a message's or a block's, and a document's
                pending += [value.get("content"), inside.get("content")]
    return images, data_bytes


def retry_delay_s(
    error: HearthError, attempt: int, *, max_retries: int, sequence: Sequence
) -> float | None:
    """Seconds until the next attempt after `attempt` (from 1) failed; None for the end. To be asked
    only for what was refused before anything was charged.
    """
    if attempt > max_retries or not error.retryable or isinstance(error, CloudUnavailable):
        return None
    if type(error) not in (BackendBusy, BackendError, BackendUnreachable):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= LONGEST_ADVICE_S else None
    delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (attempt - 1))
    return delay_s * (0.75 + 0.5 * (sequence * _GOLDEN % 1.0))


@dataclass(slots=True, eq=False, kw_only=True)
class ClaudeCall:
    """A request on its way through Claude.

    Attributes:
        settings: those in force when it was accepted.
        path: the address that the caller used; shown_model: the model as the caller wrote it.
        prompt_bound: the most tokens that its prompt can have.
        reservation: the name of the money set aside for it, `reserved_nano_usd`.
        sent: the request may have reached Claude, so its prompt may be charged.
        ending: why it was stopped; None while it runs and where it ends by itself.
    """

    work: ActiveRequest
    settings: CloudSettings
    path: str
    shown_model: str
    request: ClaudeRequest
    to_send: CloudCall
    price: Price
    prompt_bound: int
    meter: Meter
    why: Why
    reservation: str
    reserved_nano_usd: int
    task: asyncio.Task[None] | None = None
    sent: bool = False
    ending: HearthError | None = None

    @property
    def bill_nano_usd(self) -> int:
        """What it has cost up to now, or at most."""
        if not self.meter.started:
            return self.price.bound_nano_usd(self.prompt_bound, 0) if self.sent else 0
        tokens = self.meter.tokens
        return (
            self.price.cost_nano_usd(tokens)
            if tokens.prompt
            else self.price.bound_nano_usd(self.prompt_bound, tokens.output)
        )

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

    async def run(self, backend: CloudBackend, registry: Registry, clock: Clock) -> None:
        """Ask until there is an answer, and pass it on to its end.

        Raises HearthError: there is none, or it broke off.
        """
        work = self.work
        while True:
            now = clock.monotonic()
            number = work.attempt.number + 1
            work.begin_attempt(number, self.to_send.model, now, engine=SERVED_BY)
            registry.dispatched(work, now)
            try:
                return await self._attempt(backend, registry, clock)
            except HearthError as error:
                may_be_charged = self.sent or self.meter.started or work.reply.started
                retries = self.settings.max_retries
                sequence = work.item.sequence
                if may_be_charged:
                    raise
                delay_s = retry_delay_s(
                    error, work.attempt.number, max_retries=retries, sequence=sequence
                )
                if delay_s is None:
                    raise
                work.attempt.error = error
            registry.resent(work, clock.monotonic())
            await asyncio.sleep(delay_s)

    async def _attempt(self, backend: CloudBackend, registry: Registry, clock: Clock) -> None:
        unclear = _UNCLEAR
        try:
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    exchange = await backend.open(self.to_send, self._note_sending)
            except TimeoutError as error:
                raise BackendTimeout("Claude did not answer in time") from error
            # From here on it has said yes: what cannot be read now may have been charged.
            unclear = (*_UNCLEAR, BackendProtocolError)
            async with aclosing(exchange):
                await self._pass_on(exchange, registry, clock)
        except HearthError as error:
            # Claude said no before it began: then nothing is charged. Where nothing was said,
            # nobody knows.
            self.sent = self.sent and (self.meter.started or isinstance(error, unclear))
            raise

    def _note_sending(self) -> None:
        self.sent = True

    async def _pass_on(self, exchange: CloudExchange, registry: Registry, clock: Clock) -> None:
        work = self.work
        meter = self.meter
        reply = self.work.reply
        now = clock.monotonic
        attempt = work.attempt
        answer = Answer(
            self.path,
            self.request,
            meter,
            model=self.shown_model,
            request_id=work.item.request_id,
            created_wall_s=clock.wall(),
            started_at=now(),
        )
        timeout_s = self.settings.timeout_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                async for event in exchange.events():
                    data = answer.feed(event, now())
                    if attempt.first_byte_at is None and meter.started:
                        attempt.first_byte_at = now()
                        registry.first_byte(work, attempt.first_byte_at)
                    if data:
                        reply.start(_head(answer, streaming=work.item.streaming))
                        reply.push(data)
                        # a slow reader is its connection's business, not Claude's
                        limit.reschedule(None)
                        await reply.writable()
                    if meter.stopped:
                        break
                    if event.get("type") != "ping" or limit.when() is None:
                        limit.reschedule(loop.time() + timeout_s)
        except TimeoutError as error:
            raise BackendTimeout("Claude stopped answering") from error
        if not meter.stopped:
            raise BackendGone("Claude's answer ended early")
        rest = answer.finish(now())
        attempt.status = 200
        reply.start(_head(answer, streaming=work.item.streaming, length=len(rest)))
        reply.push(rest)
        reply.cost_usd = usd(self.bill_nano_usd)
        reply.finish()


def _head(answer: Answer, *, streaming: bool, length: int = 0) -> ReplyHead:
    headers: Headers = ((b"content-type", answer.content_type.encode("ascii")),)
    if not streaming:
        headers = (*headers, (b"content-length", b"%d" % length))
    elif answer.content_type.startswith("text/event-stream"):
        headers = (*headers, (b"cache-control", b"no-cache"))
    return ReplyHead(status=200, headers=headers)
