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
from hearth.api.submission import PinnedOptions, submit
from hearth.api.visit import Visit
from hearth.dialects.envelope import read_envelope
from hearth.dialects.ollama import completion_call, read_completion
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BackendProtocolError, BadRequest, ModelNotFound
from hearth.gateway import Gateway
from hearth.queue import Ticket
from hearth.types import Completion


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
    model: str
    at: float


class Completions:
    """Runs completions through the queue."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def accept(self, visit: Visit, identity: Identity, asked: CompletionBody) -> Accepted:
        """Take a completion into the queue.

        Raises:
            BadRequest, Forbidden, RateLimited, QueueFull, ShuttingDown: it was not accepted.
        """
        settings = self._gateway.config.settings
        model = asked.model or settings.gpu.home_model
        if not model:
            raise BadRequest("name a model: there is no gpu.home_model to fall back on")
        call = completion_call(asked.prompt, model, asked.max_tokens, json_mode=asked.json_mode)
        envelope = read_envelope(INFERENCE_ROUTES[Endpoint.GENERATE], call.body, PinnedOptions(settings))
        at = self._gateway.clock.monotonic()
        ticket = submit(self._gateway, visit, identity, envelope, path=call.path, task_type=asked.task_type)
        return Accepted(ticket=ticket, model=model, at=at)

    async def finish(self, visit: Visit, accepted: Accepted) -> Completion:
        """Wait for the answer; `latency_ms` counts from the acceptance.

        Raises:
            ModelNotFound, BackendError, CapacityError: it came to nothing.
            CallerGone: the caller left, or it was cancelled.
        """
        status, body = await self._answer(visit, accepted.ticket)
        latency_ms = round((self._gateway.clock.monotonic() - accepted.at) * 1000)
        _check_status(status, body, accepted.model)
        return read_completion(body, latency_ms, accepted.model)

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
