"""The inference routes: a request of any dialect, read, checked, queued and answered;
`/llm/completions` is one prompt in, one text out.

What runs no model is forwarded without a queue; models of Ollama's own cloud are taken out of its
lists.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, TypeAlias

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from hearth.admission.auth import (
    Identity,
    admission_of,
    admit,
    check_model,
    check_rate,
    count,
    may_use,
)
from hearth.api.dependencies import Caller, CurrentBody, CurrentRequest
from hearth.api.request import Body, Request, rendered, until_disconnected
from hearth.api.streaming import Relay, ticket_headers
from hearth.clock import new_seed
from hearth.config.settings import Settings
from hearth.dialects.capabilities import Needs
from hearth.dialects.gojson import MAX_INT
from hearth.dialects.request import (
    Envelope,
    count_tokens,
    counted,
    is_model_name,
    read_request,
    seeded,
)
from hearth.dialects.routes import INFERENCE_ROUTES, MANAGEMENT_ROUTES, Endpoint, Route
from hearth.dialects.stream import empty_reply, proxy_failure
from hearth.errors import (
    BackendProtocolError,
    BadRequest,
    CallerError,
    HearthError,
    ModelNotFound,
    NotServed,
)
from hearth.execution.request import Call, Submission, Ticket
from hearth.gateway import Gateway
from hearth.observability.requests import Origin
from hearth.queue.in_process import PromptCall, complete
from hearth.types import (
    EMULATOR_HEADER,
    MIB,
    BackendCall,
    Counted,
    Headers,
    Lane,
    LoadOptions,
    QueueItem,
    Way,
    WorkKind,
    preview_of,
)

_Read: TypeAlias = "tuple[Envelope, tuple[Way, ...], bytes]"
"""The envelope, how an interrupted stream of it can go on, and a digest that stands for address and
body as they were sent.
"""
JSON_BODY: Headers = ((b"content-type", b"application/json"),)
"""Every body that goes on has been read as JSON, whatever `curl -d` called it."""
_FORWARDED_HEADERS = (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta")
"""Never a credential, a cookie or an origin."""
_PREVIEWED_BYTES = 256 * 1024
_USAGE_ASKED = "stream_options"
"""In the list of what was changed in a body: Hearth asks for a usage that the caller is not
shown.
"""


class Inference:
    """Answers the inference routes of all three dialects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._chat_models: set[str] = set()
        """Those that have answered a request, so that they can answer another one's background
        task.
        """

    async def handle(self, request: Request, identity: Identity, body: Body) -> None:
        """Answer one request.

        Raises HearthError where it is refused before anything was submitted or sent.
        """
        relay = await self._submitted(request, identity, body)
        if relay is not None:
            await relay.run()

    async def _submitted(self, request: Request, identity: Identity, body: Body) -> Relay | None:
        """None where the request is answered already.

        Apart from `handle`, so that nothing of this stays in memory while it waits.
        """
        route, gateway = INFERENCE_ROUTES[request.path], self._gateway
        embeds = route.kind == "embed"  # which may join another call, and then needs no room
        body.check_ahead(queued=not embeds, counted="embeddings" if embeds else "requests")
        envelope, ways, digest = await self._read(route, body, identity)
        body.hold(len(envelope.body))
        if envelope.kind == "unload" or (envelope.kind == "generate" and envelope.max_tokens == 0):
            await self._answer_at_once(request, identity, route, envelope)
            return None
        values = request.headers.values
        forwarded = (
            *JSON_BODY,
            *((name, values[name]) for name in _FORWARDED_HEADERS if name in values),
        )
        hides_usage = _USAGE_ASKED in envelope.rewritten
        call = BackendCall(
            method="POST",
            path=request.target,
            headers=forwarded,
            body=envelope.body,
            hides_usage=hides_usage,
        )
        ticket = await submit(
            gateway,
            request,
            identity,
            envelope,
            model=envelope.model,
            call=call,
            ways=ways,
            digest=digest,
        )
        if envelope.kind == "generate":
            self._chat_models.add(gateway.name_of(envelope.model) or "")
        return Relay(
            gateway,
            request,
            ticket,
            route,
            envelope.model,
            streaming=envelope.streaming,
            rewritten=envelope.rewritten,
        )

    async def _answer_at_once(
        self, request: Request, identity: Identity, route: Route, envelope: Envelope
    ) -> None:
        """What needs no model: an unload, and no token wanted, for which Ollama would generate
        until it repeats itself.
        """
        gateway = self._gateway
        admission = admission_of(identity, request.headers, gateway.config)
        admit(identity, envelope.model, admission, gateway.rate_limiter, gateway.clock.monotonic())
        kept: Headers = ()
        if envelope.kind == "unload":
            why = await gateway.orders.wish_unloaded(envelope.model, identity.caller)
            kept = ((b"x-hearth-kept", why.encode("ascii")),) if why else ()
        else:
            await gateway.resolve(envelope.model)
        reason = "unload" if envelope.kind == "unload" else "length"
        answer = empty_reply(route, envelope.model, gateway.clock.wall(), reason)
        media = b"application/json; charset=utf-8"
        if envelope.streaming:
            media = b"application/x-ndjson"
            answer += b"\n"
        headers = (
            (b"content-type", media),
            (b"x-request-id", request.request_id.encode("ascii")),
            *kept,
        )
        await request.answer.whole(200, headers, answer)

    async def _read(self, route: Route, body: Body, identity: Identity) -> _Read:
        read = partial(
            _read, route, settings=self._gateway.config.settings, pinned=self._gateway.load_options
        )
        content = await body.read()
        found = await body.parsed(read, content)
        stand_in = await self._stand_in(identity, found[0])
        return (
            found if stand_in is None else await body.parsed(partial(read, model=stand_in), content)
        )

    async def _stand_in(self, identity: Identity, envelope: Envelope) -> str | None:
        """The model in memory that answers a background task in place of the one it names; None
        where that one does.
        """
        wanted = self._gateway.config.settings.clients.background_tasks == "resident"
        # a stream has to repeat itself when it is interrupted
        if not wanted or not envelope.background or envelope.streaming:
            return None
        # refused later, in the order of all refusals
        if not may_use(identity.models, envelope.model):
            return None
        try:
            named = await self._gateway.resolve(envelope.model)
        except ModelNotFound:
            return None
        view = self._gateway.worker.runtime.view
        here = [resident.model for resident in view.latest_first if resident.phase != "unloading"]
        if named in here:
            return None
        home = view.home
        able = [
            name
            for name in here
            if (name == home or name in self._chat_models) and may_use(identity.models, name)
        ]
        return min(able, key=lambda name: (name != home, name), default=None)


def _read(
    route: Route,
    body: bytes,
    settings: Settings,
    pinned: Callable[[str], LoadOptions],
    model: str | None = None,
) -> _Read:
    strip = settings.clients.strip_attribution
    envelope, fields = read_request(route, body, pinned, strip_attribution=strip, model=model)
    # before a seed is put in, which is another one each time
    digest = sha256(route.path.encode() + b" " + envelope.body).digest()
    if not envelope.streaming:
        return envelope, (), digest
    body, fields = counted(route, envelope.body, fields)
    if body is not envelope.body:
        envelope = replace(envelope, body=body, rewritten=(*envelope.rewritten, _USAGE_ASKED))
    scheduling = settings.scheduling
    if scheduling.started_streams == "finish":
        return envelope, (), digest
    only_replay, continue_diverged = (
        scheduling.started_streams == "replay",
        scheduling.on_divergence == "continue",
    )
    seeded_body, ways = seeded(
        route,
        envelope.body,
        fields,
        new_seed(),
        only_replay=only_replay,
        continue_diverged=continue_diverged,
    )
    if seeded_body is not envelope.body:
        envelope = replace(envelope, body=seeded_body, rewritten=(*envelope.rewritten, "seed"))
    return envelope, ways, digest


async def submit(
    gateway: Gateway,
    request: Request,
    identity: Identity,
    envelope: Envelope,
    *,
    model: str | None,
    call: Call,
    ways: tuple[Way, ...] = (),
    digest: bytes = b"",
    task_type: str | None = None,
    prompt: str | None = None,
    allow_cloud: bool = True,
) -> Ticket:
    """Take work into the queue, or have Claude answer, as far as `allow_cloud` and the caller's own
    rights go.

    `model` is as the caller wrote it, None for whatever is resident; `task_type` and `prompt` come
    from bodies that have such fields. Raises HearthError: see `admission.auth`,
    `LLMQueueWorker.submit` and `cloud.service`.
    """
    admission = admission_of(identity, request.headers, gateway.config, task_type=task_type)
    count_call = partial(_count_call, gateway, identity, admission.lane, envelope.kind)
    check_model(identity, model)
    if envelope.kind == "embed":  # counted once it is known whether it shares a call
        check_rate(
            identity, admission.lane, gateway.rate_limiter, gateway.clock.monotonic(), "embeddings"
        )
    else:
        count_call()
    gateway.worker.admission.check()
    item = QueueItem(
        lane=admission.lane,
        priority=admission.priority,
        caller=identity.caller,
        model=model,
        task_type=admission.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        streaming=envelope.streaming,
        ways=ways,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
        counted="embeddings" if envelope.kind == "embed" else "requests",
        request_id=request.request_id,
        prompt_preview=_preview(envelope.body, prompt)
        if gateway.config.settings.server.prompt_previews
        else "",
    )
    new, ticket = Submission(item=item, call=call, digest=digest, needs=envelope.needs), None
    if gateway.cloud is not None and allow_cloud and gateway.cloud.open_to(identity):
        ticket = await gateway.cloud.take(new)
    ticket = ticket or await _queued(gateway, new, count_call)
    _note_origin(gateway, request, ticket)
    return ticket


def _note_origin(gateway: Gateway, request: Request, ticket: Ticket) -> None:
    """Where the request came from and who answers it, which its trace says; only where traces go
    anywhere.
    """
    requests = gateway.records.requests
    if requests.on_trace is None:
        return
    text, provider = request.headers.text, "anthropic" if ticket.served_by else "ollama"
    origin = Origin(
        route=request.path,
        provider=provider,
        traceparent=text(b"traceparent"),
        tracestate=text(b"tracestate"),
    )
    requests.note(ticket.sequence, origin)


def _count_call(gateway: Gateway, identity: Identity, lane: Lane, kind: WorkKind) -> None:
    """Raises RateLimited; then nothing is counted."""
    counted: Counted = "embeddings" if kind == "embed" else "requests"
    count(identity, lane, gateway.rate_limiter, gateway.clock.monotonic(), counted)


async def _queued(gateway: Gateway, new: Submission, count_call: Callable[[], None]) -> Ticket:
    """Raises ModelNotFound and NotCapable, in the words of Ollama; RateLimited for an embedding;
    QueueFull, ShuttingDown.
    """
    item = new.item
    embeds = item.kind == "embed"
    try:
        await _settle_model(gateway, new)
    except CallerError:
        if embeds:
            count_call()
        raise
    if embeds:
        joined = gateway.embeddings.take(new, count_call)
        if joined is not None:
            return joined
        count_call()
    return gateway.worker.submit(new)


async def _settle_model(gateway: Gateway, new: Submission) -> None:
    """Give the item the installed name of its model, which can do what is asked of it."""
    item = new.item
    if item.model is not None:
        try:
            item.model = await gateway.resolve(item.model)
        except ModelNotFound as error:
            if item.kind == "embed":
                raise ModelNotFound(
                    f'model "{item.model}" not found, try pulling it first'
                ) from error
            raise
    if new.needs is not None:
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
        self, asked: CompletionBody, request: CurrentRequest, caller: Caller, body: CurrentBody
    ) -> Response:
        """One completion. What fails after it was accepted is the item's own end, not a refusal."""
        ticket = await self._submitted(asked, request, caller, body)
        # the queue has the prompt, in the form that goes on
        model, asked = asked.model, asked.model_copy(update={"prompt": ""})

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
        return JSONResponse(asdict(completion), headers=_decoded((*ticket_headers(ticket), *mark)))

    async def _submitted(
        self, asked: CompletionBody, request: Request, caller: Identity, body: Body
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
            dialect="ollama",
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
            caller,
            envelope,
            model=asked.model,
            call=call.call_on,
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


# Routes that run no model: forwarded to the model server without queueing.

_FORWARDED_UNQUEUED = (b"content-type", b"accept", b"user-agent")
_LISTS = {"/api/tags": ("models", "name"), "/v1/models": ("data", "id")}
_LIST_BYTES = 16 * MIB


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, request: Request, _: Identity, body: Body) -> None:
        """Forward one request; the connection to the backend closes when the caller leaves.

        Raises HearthError, also amid an answer.
        """
        content = b"" if request.method in ("GET", "HEAD") else await body.read()
        values = request.headers.values
        headers = tuple((name, values[name]) for name in _FORWARDED_UNQUEUED if name in values)
        call = BackendCall(
            method=request.method, path=request.target, headers=headers, body=content
        )
        await until_disconnected(request.disconnected, self._forward(call, request))
        if request.path in MANAGEMENT_ROUTES:
            self._gateway.list_may_differ()

    async def _forward(self, call: BackendCall, request: Request) -> None:
        exchange = await self._gateway.engine.open(call)
        try:
            failed = proxy_failure(exchange.status, exchange.headers)
            if failed is not None:
                raise failed
            own = (b"x-request-id", request.request_id.encode("ascii"))
            elsewhere = self._gateway.models_elsewhere
            if (
                elsewhere
                and request.method == "GET"
                and exchange.status == HTTPStatus.OK
                and request.path in _LISTS
            ):
                kept = tuple(
                    header for header in exchange.headers if header[0].lower() != b"content-length"
                )
                content = bytearray()
                while chunks := await exchange.take():
                    content += b"".join(chunks)
                    if len(content) > _LIST_BYTES:
                        raise BackendProtocolError("The model server's list of models is too long.")
                listed = await asyncio.to_thread(_without, bytes(content), request.path, elsewhere)
                await request.answer.whole(exchange.status, (*kept, own), listed)
                return
            await request.answer.head(exchange.status, (*exchange.headers, own))
            while chunks := await exchange.take():
                for chunk in chunks:
                    await request.answer.chunk(chunk)
            await request.answer.end()
        finally:
            exchange.close()

    async def count_tokens(self, request: Request, _: Identity, body: Body) -> None:
        """Answer Anthropic's token count, which Ollama does not have, with the estimate the queue
        uses. Raises BadRequest.
        """
        await request.answer_json(await body.parsed(count_tokens, await body.read()))


async def refuse_unserved(*_: object) -> None:
    """Raises NotServed, before anything of the body is read."""
    raise NotServed


def _without(body: bytes, path: str, elsewhere: frozenset[str]) -> bytes:
    """A list of models without these, else as it came."""
    part, key = _LISTS[path]
    try:
        listed = json.loads(body)
        listed[part] = [each for each in listed[part] if each[key].lower() not in elsewhere]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return body
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()
