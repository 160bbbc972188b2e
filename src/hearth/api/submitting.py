"""The way of an admitted request into the queue, or to Claude."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from hearth.admission.admit import Admission, Admitted
from hearth.admission.auth import Identity, allowed_of
from hearth.api.request import Request
from hearth.dialects.conversation import (
    CHAT_ID_HEADER,
    conversation_of_chat,
    conversation_of_user,
)
from hearth.dialects.request import Envelope
from hearth.errors import CallerError, ModelNotFound, naming_model
from hearth.execution.request import Call, Submission, Ticket
from hearth.gateway import Gateway
from hearth.observability.requests import Origin
from hearth.types import BackendCall, Lane, QueueItem, preview_of

CallsOn: TypeAlias = Callable[
    [Sequence[str]], Awaitable[tuple[tuple[str, ...], Callable[[str], BackendCall]]]
]
"""Gives for the models of an alias those whose engines can be asked, and what makes the call on one
of them. Raises BadRequest where none can be asked.
"""
_PREVIEWED_BYTES = 256 * 1024


async def submit(
    gateway: Gateway,
    request: Request,
    admission: Admission,
    envelope: Envelope,
    call: Call,
    *,
    calls_on: CallsOn | None = None,
    task_type: str | None = None,
    prompt: str | None = None,
    allow_cloud: bool = True,
) -> Ticket:
    """Take work into the queue, or have Claude answer, as far as `allow_cloud` and the caller's own
    rights go.

    `calls_on` makes the calls on the models of an alias, None where `call` does. `task_type` and
    `prompt` come from bodies that have such fields. Raises HearthError: see `Admission.admit`,
    `LLMQueueWorker.submit` and `Cloud.take`.
    """
    with naming_model(envelope.model):
        admitted = admission.admit(envelope.model or None, task_type=task_type)
        item = _item_of(request, admission, admitted, envelope)
        models = _models_of_alias(gateway, admission, item)
        if gateway.settings.server.prompt_previews:
            item.prompt_preview = _preview(envelope.body, prompt)
        new = Submission(item=item, call=call, digest=envelope.digest, needs=envelope.needs)
        ticket = None
        cloud = gateway.cloud
        if cloud is not None and allow_cloud and cloud.open_to(admission.identity):
            ticket = await cloud.take(new)
        if ticket is None and envelope.refusal is not None:
            raise envelope.refusal
        if ticket is None and models:
            new = await _of_alias(gateway, new, models, calls_on, admission.count)
        ticket = ticket or await _queued(gateway, new, admission.count)
    admission.end_turn()  # an embedding that shares a call is not counted
    _note_origin(gateway, request, ticket, new.item.model)
    return ticket


def _models_of_alias(gateway: Gateway, admission: Admission, item: QueueItem) -> tuple[str, ...]:
    """The models of the alias that an item names, as far as its caller may use them; none where it
    names a model.
    """
    alias = gateway.aliases.named(item.model)
    if not alias:
        return ()
    models = allowed_models(gateway, admission.identity, alias)
    item.alias = alias
    item.choices = gateway.aliases.installed(models)
    item.model = (item.choices or models)[0]
    return models


def allowed_models(gateway: Gateway, identity: Identity, model: str) -> tuple[str, ...]:
    """The models that this name stands for, as far as a caller may use them; none where it is no
    alias.
    """
    models = gateway.aliases.models_of(model)
    canonical = gateway.engines.canonical
    return allowed_of(identity.models, model, models, canonical) if models else ()


async def _of_alias(
    gateway: Gateway,
    new: Submission,
    models: Sequence[str],
    calls_on: CallsOn | None,
    count_embedding: Callable[[], None],
) -> Submission:
    """The request with the models that can do what it asks, and the calls on them.

    Raises ModelNotFound, NotCapable; RateLimited for an embedding.
    """
    item = new.item
    try:
        item.choices = await gateway.aliases.choices(
            item.alias, models, new.needs, local_only=item.local_only
        )
    except CallerError:
        if item.kind == "embed":
            count_embedding()
        raise
    item.model = item.choices[0]
    if item.kind == "embed":
        item.choices = ()  # vectors of two models cannot be compared
    if calls_on is None:
        return new
    able, call_on = await calls_on(item.choices or (item.model,))
    item.choices = able if item.choices else ()
    item.model = able[0]
    return replace(new, call=call_on if item.choices else call_on(item.model))


def _item_of(
    request: Request, admission: Admission, admitted: Admitted, envelope: Envelope
) -> QueueItem:
    shape = envelope.background if admitted.lane is Lane.EXTERNAL else None
    return QueueItem(
        lane=admitted.lane,
        priority=admitted.priority,
        caller=admission.identity.caller,
        model=envelope.model or None,
        task_type=admitted.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        streaming=envelope.streaming,
        ways=envelope.ways,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
        counted="embeddings" if envelope.kind == "embed" else "requests",
        background="" if shape is None else shape.name,
        conversation=_conversation(request, admission, envelope),
        user=admission.user,
        local_only=admission.identity.local_only,
        audio_s=envelope.audio_s,
        request_id=request.request_id,
    )


def _conversation(request: Request, admission: Admission, envelope: Envelope) -> str:
    """The chat that the program names, else the one that the messages tell; of two users it is
    never the same.

    What a program asks beside its user's turns has the id of the chat, but not its messages.
    """
    conversation = envelope.conversation
    chat_id = request.headers.values.get(CHAT_ID_HEADER)
    if chat_id and conversation and envelope.background is None:
        conversation = conversation_of_chat(chat_id) or conversation
    return conversation_of_user(conversation, admission.user)


async def _queued(gateway: Gateway, new: Submission, count_embedding: Callable[[], None]) -> Ticket:
    """Raises ModelNotFound and NotCapable; RateLimited for an embedding;
    QueueFull, ShuttingDown.
    """
    if new.item.kind != "embed":
        await _settle_model(gateway, new)
        return gateway.worker.submit(new)
    try:
        await _settle_model(gateway, new)
    except CallerError:
        count_embedding()
        raise
    joined = gateway.embeddings.take(new, count_embedding)
    if joined is not None:
        return joined
    count_embedding()
    return gateway.worker.submit(new)


async def _settle_model(gateway: Gateway, new: Submission) -> None:
    """Give the item the installed name of its model, which can do what is asked of it."""
    item = new.item
    if item.alias:
        return
    if item.model is not None:
        try:
            item.model = await gateway.resolve(item.model, local_only=item.local_only)
        except ModelNotFound as error:
            if item.kind == "embed":
                raise ModelNotFound(
                    f'model "{item.model}" not found, try pulling it first'
                ) from error
            raise
    await gateway.check_capable(new.needs)


def _preview(body: bytes, prompt: str | None) -> str:
    """How the prompt begins: the caller's own words of the last turn; nothing of a body that is
    long to read once more.
    """
    if prompt is not None:
        return preview_of(prompt)
    if len(body) > _PREVIEWED_BYTES:
        return ""
    try:
        document = json.loads(body)
        turns = document.get("messages") or document.get("input") or document.get("prompt") or ""
        last = turns[-1] if isinstance(turns, list) and turns else turns
        text = last.get("content", "") if isinstance(last, dict) else last
        return preview_of(
            text if isinstance(text, str) else " ".join(str(part.get("text", "")) for part in text)
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""


def _note_origin(gateway: Gateway, request: Request, ticket: Ticket, model: str | None) -> None:
    """Where the request came from and who answers it, which its trace says; only where traces go
    anywhere.
    """
    requests = gateway.records.requests
    if requests.on_trace is None:
        return
    text = request.headers.text
    engines = gateway.engines
    kind = gateway.identity.kind if engines.is_single else engines.row_of(model or "").kind
    provider = "anthropic" if ticket.served_by else kind
    origin = Origin(
        route=request.path,
        provider=provider,
        traceparent=text(b"traceparent"),
        tracestate=text(b"tracestate"),
    )
    requests.note(ticket.sequence, origin)
