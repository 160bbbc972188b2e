"""`/llm/completions`: one prompt in, one text out, through the queue."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from hearth.api.body import RequestBody
from hearth.api.dependencies import CurrentBody, CurrentRequest
from hearth.api.request import Request, rendered
from hearth.api.streaming import model_header, ticket_headers
from hearth.api.submitting import submit
from hearth.dialects.capabilities import Needs
from hearth.dialects.gojson import MAX_INT
from hearth.dialects.request import Envelope, is_model_name
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest, HearthError
from hearth.execution.request import Ticket
from hearth.gateway import Gateway
from hearth.queue.in_process import PromptCall, complete
from hearth.types import EMULATOR_HEADER, Headers

_COMPLETION = INFERENCE_ROUTES[Endpoint.GENERATE]
"""What `/llm/completions` asks the model server for."""


class CompletionBody(BaseModel, extra="forbid", strict=True):
    """What `/llm/completions` takes."""

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

    async def complete(
        self, asked: CompletionBody, request: CurrentRequest, body: CurrentBody
    ) -> Response:
        """One completion. What fails after it was accepted is the item's own end, not a refusal."""
        ticket = await self._submitted(asked, request, body)
        # the queue has the prompt, in the form that goes on
        model = asked.model
        asked = asked.model_copy(update={"prompt": ""})

        def abandon(_: object) -> None:
            ticket.reply.abandon()  # which ends the wait

        request.disconnected.add_done_callback(abandon)
        try:
            completion = await complete(
                ticket.reply, self._gateway.clock.monotonic, lambda: self._model_of(ticket, model)
            )
        except HearthError as error:
            reply = rendered(request, error)
            return Response(reply.body, status_code=reply.status, headers=_decoded(reply.headers))
        finally:
            request.disconnected.remove_done_callback(abandon)
            self._gateway.worker.cancel(ticket.sequence)
        mark: Headers = ((EMULATOR_HEADER, b"1"),) if completion.emulator else ()
        named: Headers = ()
        if self._gateway.aliases.named(model):
            named = model_header(completion.model)
        return JSONResponse(
            asdict(completion), headers=_decoded((*ticket_headers(ticket), *named, *mark))
        )

    async def _submitted(
        self, asked: CompletionBody, request: Request, body: RequestBody
    ) -> Ticket:
        if asked.model is not None and not is_model_name(asked.model):
            raise BadRequest("invalid model name")
        fields = asked.model_dump(exclude={"allow_cloud"})
        call = await body.run(
            partial(
                PromptCall,
                **fields,
                load_options=self._gateway.load_options,
            )
        )
        envelope = Envelope(
            dialect=_COMPLETION.dialect,
            kind="generate",
            model=asked.model or "",
            streaming=False,
            prompt_tokens=call.prompt_tokens,
            max_tokens=asked.max_tokens,
            body=b"",
            needs=None
            if asked.model is None
            else Needs(route=_COMPLETION, model=asked.model, capabilities=("completion",)),
        )
        return await submit(
            self._gateway,
            request,
            body.admission,
            envelope,
            call.call_on,
            task_type=asked.task_type,
            prompt=asked.prompt,
            allow_cloud=asked.allow_cloud,
        )

    def _model_of(self, ticket: Ticket, asked: str | None) -> str | None:
        """What ran; where Claude answers, the name that was asked for, as in every other
        dialect.
        """
        if ticket.served_by and asked is not None:
            return asked
        model = (self._gateway.worker.get_item(ticket.sequence) or {}).get("model")
        return model if isinstance(model, str) else None


def _decoded(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in headers}
