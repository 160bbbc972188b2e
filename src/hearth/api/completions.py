"""`POST /llm/completions`: one prompt in, one text out, for programs that speak no vendor's API.

It goes through the same queue as everything else, as a native generate request that does not stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from hearth.api.asgi import wait_gone
from hearth.api.dependencies import Caller, CurrentBody, CurrentRequest
from hearth.api.errors import rendered
from hearth.api.inference import Wanted, submit
from hearth.api.relay import told_of
from hearth.api.request import Request
from hearth.config.settings import load_options
from hearth.dialects.demands import is_model_name
from hearth.dialects.envelope import Envelope
from hearth.dialects.gojson import MAX_INT
from hearth.errors import BadRequest, HearthError
from hearth.gateway import Gateway
from hearth.queue.embedded import PromptCall, complete
from hearth.queue.item import Ticket
from hearth.types import Completion, Dialect, Headers, WorkKind


class CompletionBody(BaseModel):
    """What `/llm/completions` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: Annotated[str, Field(min_length=1)]
    model: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    max_tokens: Annotated[int | None, Field(ge=1, le=MAX_INT)] = None
    json_mode: bool = False
    allow_cloud: bool = False
    """Claude may answer, where the caller's key allows it."""
    task_type: Annotated[str | None, Field(min_length=1)] = None


class CompletionPages:
    """Runs completions through the queue."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def complete(self, asked: CompletionBody, request: CurrentRequest, caller: Caller, body: CurrentBody) -> Response:
        """One completion. What fails after it was accepted is the item's own end, not a refusal."""
        if asked.model is not None and not is_model_name(asked.model):
            raise BadRequest("invalid model name")
        work = await body.run(partial(self._work, asked))
        wanted = Wanted(
            envelope=_envelope(work),
            model=work.model,
            call=work.call_on,
            task_type=work.task_type,
            allow_cloud=asked.allow_cloud,
            prompt=asked.prompt,
        )
        ticket = await submit(self._gateway, request, caller, wanted)
        asked = asked.model_copy(update={"prompt": ""})
        del work, wanted  # the queue has the prompt, in the form that goes on
        try:
            completion = await self._finished(request, ticket, asked)
        except HearthError as error:
            reply = rendered(request, error)
            return Response(reply.body, status_code=reply.status, headers=_decoded(reply.headers))
        return JSONResponse(asdict(completion), headers=_decoded(told_of(ticket)))

    def _work(self, asked: CompletionBody) -> PromptCall:
        return PromptCall(
            prompt=asked.prompt,
            model=asked.model,
            max_tokens=asked.max_tokens,
            json_mode=asked.json_mode,
            task_type=asked.task_type,
            load_options=partial(load_options, self._gateway.config.settings),
        )

    async def _finished(self, request: Request, ticket: Ticket, asked: CompletionBody) -> Completion:
        """Wait for the answer; when the caller leaves, abandoning the reply ends the wait."""
        watching = asyncio.ensure_future(wait_gone(request.receive))
        watching.add_done_callback(lambda _: ticket.reply.abandon())
        try:
            return await complete(ticket.reply, self._gateway.clock.monotonic, lambda: _model_of(self._gateway, ticket, asked))
        finally:
            watching.cancel()
            self._gateway.worker.cancel(ticket.sequence)


def _decoded(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in headers}


def _model_of(gateway: Gateway, ticket: Ticket, asked: CompletionBody) -> str | None:
    """What ran; where Claude answers, the name that was asked for, as in every other dialect."""
    if ticket.served_by and asked.model is not None:
        return asked.model
    item = gateway.worker.get_item(ticket.sequence)
    model = None if item is None else item.get("model")
    return model if isinstance(model, str) else None


def _envelope(asked: PromptCall) -> Envelope:
    return Envelope(
        dialect=Dialect.OLLAMA,
        kind=WorkKind.GENERATE,
        model=asked.model or "",
        streaming=False,
        prompt_tokens=asked.prompt_tokens,
        max_tokens=asked.max_tokens,
        body=b"",
    )
