"""`POST /llm/completions`: one prompt in, one text out, for programs that speak no vendor's API.

Goes through the same gate and the same queue as everything else, as a native generate request that does not stream. Must never talk to a
backend itself. Called by `api.control`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hearth.admission.auth import Identity
from hearth.api.asgi import wait_gone
from hearth.api.submission import JSON_BODY, PinnedOptions, Wanted, submit
from hearth.api.visit import Visit
from hearth.dialects.envelope import Envelope, read_envelope
from hearth.dialects.ollama import completion_call, read_completion
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BackendProtocolError, ModelNotFound
from hearth.gateway import Gateway
from hearth.queue import Ticket
from hearth.types import BackendCall, Completion

_ANY_MODEL = "any"
"""Stands for a model that is not chosen yet where only the size of a request is read."""


class CompletionBody(BaseModel):
    """What `/llm/completions` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: Annotated[str, Field(min_length=1)]
    model: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    json_mode: bool = False
    allow_cloud: bool = False
    """Accepted, and answered locally as long as there is no cloud backend."""
    task_type: Annotated[str | None, Field(min_length=1)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A completion in the queue; `at` is the monotonic instant of its acceptance in seconds."""

    ticket: Ticket
    at: float


class Completions:
    """Runs completions through the queue."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def accept(self, visit: Visit, identity: Identity, asked: CompletionBody) -> Accepted:
        """Take a completion into the queue; without a model it runs on whatever is resident.

        Raises:
            BadRequest, Forbidden, RateLimited, ModelNotFound, QueueFull, ShuttingDown: it was not accepted.
        """
        pinned = PinnedOptions(self._gateway.config.settings)
        envelope = _envelope(asked, asked.model or _ANY_MODEL, pinned)
        wanted = Wanted(
            envelope=envelope,
            model=asked.model,
            call=lambda model: _call_of(_envelope(asked, model, pinned)),
            task_type=asked.task_type,
        )
        at = self._gateway.clock.monotonic()
        return Accepted(ticket=await submit(self._gateway, visit, identity, wanted), at=at)

    async def finish(self, visit: Visit, accepted: Accepted) -> Completion:
        """Wait for the answer; `latency_ms` counts from the acceptance.

        Raises:
            ModelNotFound, BackendError, CapacityError: it came to nothing.
            CallerGone: the caller left, or it was cancelled.
        """
        status, body = await self._answer(visit, accepted.ticket)
        latency_ms = round((self._gateway.clock.monotonic() - accepted.at) * 1000)
        item = self._gateway.worker.get_item(accepted.ticket.sequence) or {}
        model = str(item.get("model") or "")
        _check_status(status, body, model)
        return read_completion(body, latency_ms, model)

    async def _answer(self, visit: Visit, ticket: Ticket) -> tuple[int, bytes]:
        """Status and body; when the caller leaves, abandoning the reply ends the wait with CallerGone."""
        watching = asyncio.ensure_future(wait_gone(visit.receive))
        watching.add_done_callback(lambda _: ticket.reply.abandon())
        complete = False
        try:
            head = await ticket.reply.head()
            body = await ticket.reply.body()
            complete = True
            return head.status, body
        finally:
            watching.cancel()
            if not complete:
                self._gateway.worker.cancel(ticket.sequence)


def _envelope(asked: CompletionBody, model: str, pinned: PinnedOptions) -> Envelope:
    call = completion_call(asked.prompt, model, asked.max_tokens, json_mode=asked.json_mode)
    return read_envelope(INFERENCE_ROUTES[Endpoint.GENERATE], call.body, pinned)


def _call_of(envelope: Envelope) -> BackendCall:
    return BackendCall(method="POST", path=Endpoint.GENERATE, headers=JSON_BODY, body=envelope.body)


def _check_status(status: int, body: bytes, model: str) -> None:
    if status == 404:
        raise ModelNotFound(f"model '{model}' not found")
    if status >= 400:
        raise BackendProtocolError(f"the model server answered {status}: {_error_text(body)}")


def _error_text(body: bytes) -> str:
    try:
        said = json.loads(body)
    except ValueError:
        return "no reason given"
    reason = said.get("error") if isinstance(said, dict) else None
    return reason[:200] if isinstance(reason, str) else "no reason given"
