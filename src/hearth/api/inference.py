"""The inference routes: a request of any dialect, read, checked, queued and answered.

Routes that run no model: handed to the model server as they are, without queueing, and handed back.

Models of Ollama's own cloud are taken out of its lists, since they are not served. `/v1/messages/count_tokens`, which Ollama does not
have, is answered here.

`POST /llm/completions`: one prompt in, one text out, for programs that speak no vendor's API.

It goes through the same queue as everything else, as a native generate request that does not stream.
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
from pydantic import BaseModel, ConfigDict, Field

from hearth.admission.auth import Admission, Identity, admission_of, admit, check_model, may_use
from hearth.api.asgi import unless_gone, wait_gone
from hearth.api.dependencies import Caller, CurrentBody, CurrentRequest
from hearth.api.errors import rendered
from hearth.api.request import Body, Request
from hearth.api.streaming import Relay, Relayed, told_of, wire_time
from hearth.clock import new_seed
from hearth.config.settings import BackgroundTasks, OnDivergence, Settings, StartedStreams, load_options
from hearth.dialects.gojson import MAX_INT
from hearth.dialects.ollama import empty_reply
from hearth.dialects.replay_seed import seeded
from hearth.dialects.request import Envelope, count_tokens, on_model, read_envelope
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.dialects.validation import is_model_name
from hearth.errors import BackendProtocolError, BadRequest, HearthError, ModelNotFound, NotServed
from hearth.gateway import Gateway
from hearth.observability.tracing import Origin
from hearth.ports import Exchange
from hearth.queue.embedded import PromptCall, complete
from hearth.queue.item import Submission, Ticket
from hearth.types import MIB, BackendCall, Completion, Dialect, Headers, Way, WorkKind, canonical_model, preview_of, value

_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_FORWARDED = (b"content-type", b"accept", b"user-agent")
_LISTS = {"/api/tags": ("models", "name"), "/v1/models": ("data", "id")}
_LIST_BYTES = 16 * MIB


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, request: Request, _: Identity, body: Body) -> None:
        """Forward one request; the connection to the backend closes when the caller leaves.

        Raises:
            BodyTooLarge, NoRoomForBodies, CallerGone.
            BackendError: nothing was sent yet, or the answer broke off (then the caller's connection has to break off too).
        """
        content = b"" if request.method in _WITHOUT_BODY else await body.read()
        call = BackendCall(method=request.method, path=request.target, headers=_forwarded(request), body=content)
        await unless_gone(request.receive, self._forward(call, request))

    async def _forward(self, call: BackendCall, request: Request) -> None:
        exchange = await self._gateway.backend.open(call)
        try:
            own = (b"x-request-id", request.request_id.encode("ascii"))
            elsewhere = self._gateway.models_elsewhere
            if elsewhere and request.method == "GET" and exchange.status == HTTPStatus.OK and request.path in _LISTS:
                kept = tuple(header for header in exchange.headers if header[0].lower() != b"content-length")
                await request.answer.whole(exchange.status, (*kept, own), _without(await _whole(exchange), request.path, elsewhere))
                return
            await request.answer.head(exchange.status, (*exchange.headers, own))
            while chunks := await exchange.take():
                for chunk in chunks:
                    await request.answer.chunk(chunk)
            await request.answer.end()
        finally:
            exchange.close()

    async def count_tokens(self, request: Request, _: Identity, body: Body) -> None:
        """Answer Anthropic's token count with the estimate the queue uses. Raises BadRequest, BodyTooLarge, NoRoomForBodies, CallerGone."""
        await request.answer_json(await body.parsed(count_tokens, await body.read()))


async def refuse_unserved(*_: object) -> None:
    """Raises NotServed, before anything of the body is read."""
    raise NotServed


async def _whole(exchange: Exchange) -> bytes:
    body = bytearray()
    while chunks := await exchange.take():
        body += b"".join(chunks)
        if len(body) > _LIST_BYTES:
            raise BackendProtocolError("The model server's list of models is too long.")
    return bytes(body)


def _without(body: bytes, path: str, elsewhere: frozenset[str]) -> bytes:
    """A list of models without these, else as it came."""
    part, key = _LISTS[path]
    try:
        said = json.loads(body)
        said[part] = [each for each in said[part] if canonical_model(each[key]).lower() not in elsewhere]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return body
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _forwarded(request: Request) -> Headers:
    values = request.headers.values
    return tuple((name, values[name]) for name in _FORWARDED if name in values)


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


NameOf: TypeAlias = Callable[[str], str | None]
_Read: TypeAlias = "tuple[Envelope, tuple[Way, ...], bytes]"
"""The envelope, how an interrupted stream of it can go on, and what stands for the request in `intake.Places`."""
JSON_BODY: Headers = ((b"content-type", b"application/json"),)
"""Every body that goes on has been read as JSON."""
_FORWARDED_HEADERS = (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta")
_PREVIEWED_BYTES = 256 * 1024
_NATIVE_STREAM = (b"content-type", b"application/x-ndjson")
_NATIVE_JSON = (b"content-type", b"application/json; charset=utf-8")


class Inference:
    """Answers the inference routes of all three dialects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._background_models = BackgroundModels(gateway)

    async def handle(self, request: Request, identity: Identity, body: Body) -> None:
        """Answer one request. Raises HearthError where it is refused before anything was submitted or sent."""
        relay = await self._submitted(request, identity, body)
        if relay is not None:
            await relay.run()

    async def _submitted(self, request: Request, identity: Identity, body: Body) -> Relay | None:
        """Take the request in; None where it is answered already. Apart from `handle`, so that nothing of this stays while it waits."""
        route = INFERENCE_ROUTES[request.path]
        settings = self._gateway.config.settings
        if route.kind is not WorkKind.EMBED or self._gateway.embeddings is None:  # there it may join another call
            body.check_ahead()
        envelope, ways, digest = await self._read(route, body, identity, settings)
        body.hold(len(envelope.body))
        if envelope.kind is WorkKind.UNLOAD or (envelope.kind is WorkKind.GENERATE and envelope.max_tokens == 0):
            check_model(identity, envelope.model)
            if envelope.kind is WorkKind.UNLOAD:  # as `ollama stop` wants it; whoever may use a model may also ask for another in its place
                await self._gateway.orders.unload(envelope.model)
            else:
                await self._gateway.resolve(envelope.model)
            await self._answer_empty(request, route, envelope)
            return None
        call = BackendCall(method="POST", path=request.target, headers=forwarded_headers(request), body=envelope.body)
        wanted = Wanted(envelope=envelope, model=envelope.model, call=call, ways=ways, digest=digest)
        ticket = await submit(self._gateway, request, identity, wanted)
        self._background_models.note(envelope)
        relayed = Relayed(route=route, model=envelope.model, streaming=envelope.streaming, rewritten=envelope.rewritten)
        return Relay(self._gateway.worker, self._gateway.clock, settings.keepalive, request, ticket, relayed)

    async def _read(self, route: Route, body: Body, identity: Identity, settings: Settings) -> _Read:
        read = partial(_read, route, settings=settings, name_of=self._gateway.name_of)
        content = await body.read()
        found = await body.parsed(read, content)
        envelope = found[0]
        stand_in = await self._background_models.instead_of(identity, envelope)
        if stand_in is None:
            return found
        moved, ways, digest = await body.parsed(lambda content: read(on_model(content, stand_in)), content)
        return replace(moved, rewritten=(*moved.rewritten, "model")), ways, digest

    async def _answer_empty(self, request: Request, route: Route, envelope: Envelope) -> None:
        """What Ollama says after an unload; and where no token is wanted, for which it would generate until it repeats itself."""
        reason = "unload" if envelope.kind is WorkKind.UNLOAD else "length"
        body = empty_reply(route, envelope.model, wire_time(self._gateway.clock), reason)
        kind = _NATIVE_JSON
        if envelope.streaming:
            kind, body = _NATIVE_STREAM, body + b"\n"
        await request.answer.whole(200, (kind, (b"x-request-id", request.request_id.encode("ascii"))), body)


def _read(route: Route, body: bytes, settings: Settings, name_of: NameOf) -> _Read:
    strip = settings.clients.strip_attribution
    envelope = read_envelope(route, body, partial(load_options, settings, name_of=name_of), strip_attribution=strip)
    digest = sha256(route.path.encode() + b" " + envelope.body).digest()  # before a seed is put in, which is another one each time
    scheduling = settings.scheduling
    if not envelope.streaming or scheduling.started_streams is StartedStreams.FINISH:
        return envelope, (), digest
    known = seeded(route, envelope.body, new_seed())
    if known.body is not envelope.body:
        envelope = replace(envelope, body=known.body, rewritten=(*envelope.rewritten, "seed"))
    only_replay = scheduling.started_streams is StartedStreams.REPLAY
    ways = known.ways(only_replay=only_replay, continue_diverged=scheduling.on_divergence is OnDivergence.CONTINUE)
    return envelope, ways, digest


class BackgroundModels:
    """Remembers which models callers talk to, and finds one of them in memory."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._talkative: set[str] = set()

    def note(self, envelope: Envelope) -> None:
        """A request was accepted: its model can answer."""
        if envelope.kind is WorkKind.GENERATE:
            self._talkative.add(canonical_model(envelope.model).lower())

    async def instead_of(self, identity: Identity, envelope: Envelope) -> str | None:
        """The model that answers a background task in place of the one it names; None where that one does.

        A task that streams is left alone: its answer is watched, and has to repeat itself when it is interrupted.
        """
        wanted = self._gateway.config.settings.clients.background_tasks is BackgroundTasks.RESIDENT
        if not wanted or envelope.background is None or envelope.streaming:
            return None
        if not may_use(identity.models, envelope.model):  # refused by the gate, in the order of all refusals
            return None
        try:
            named = await self._gateway.resolve(envelope.model)
        except ModelNotFound:
            return None
        return await self._found(identity, named)

    async def _found(self, identity: Identity, named: str) -> str | None:
        models = await self._gateway.models()
        here = [str(model["name"]) for model in models if model["resident"] and model.get("phase") != "unloading"]
        if named in here:
            return None
        home = self._gateway.worker.scheduler.state.home
        able = [name for name in here if (name == home or name.lower() in self._talkative) and may_use(identity.models, name)]
        return min(able, key=lambda name: (name != home, name), default=None)


@value
class Wanted:
    """Work that a caller asks for.

    Attributes:
        envelope: what is known of its body.
        model: as the caller wrote it; None runs on whatever is resident.
        call: the backend call, or what makes it once the model is chosen.
        ways: how a stream of it can go on after an interruption.
        task_type: from the body, where the route has the field.
        digest: stands for address and body as they were sent.
        allow_cloud: Claude may answer, as far as the caller's own rights go.
    """

    envelope: Envelope
    model: str | None
    call: BackendCall | Callable[[str], BackendCall]
    ways: tuple[Way, ...] = ()
    task_type: str | None = None
    digest: bytes = b""
    allow_cloud: bool = True
    prompt: str | None = None

    def preview(self) -> str:
        """How the prompt begins: the caller's own words of the last turn; nothing of a body that is long to read once more."""
        if self.prompt is not None:
            return preview_of(self.prompt)
        return preview_of(_prompt_in(self.envelope.body)) if len(self.envelope.body) <= _PREVIEWED_BYTES else ""


def _prompt_in(body: bytes) -> str:
    try:
        document = json.loads(body)
        turns = document.get("messages") or document.get("input") or document.get("prompt") or ""
        said = turns[-1] if isinstance(turns, list) and turns else turns
        said = said.get("content", "") if isinstance(said, dict) else said
        return said if isinstance(said, str) else " ".join(str(part.get("text", "")) for part in said)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""


async def submit(gateway: Gateway, request: Request, identity: Identity, wanted: Wanted) -> Ticket:
    """Take work into the queue.

    Raises:
        BadRequest, Forbidden, RateLimited: see `admission.auth`.
        ModelNotFound: it is not installed, in the words of Ollama.
        QueueFull, Draining, ShuttingDown: with `retry_after_s`.
        HearthError: see `cloud.service`, where only Claude could answer.
    """
    admission = admission_of(identity, request.headers, gateway.config, task_type=wanted.task_type)
    admit(identity, wanted.model, admission, gateway.rate_limiter, gateway.clock.monotonic())
    gateway.orders.check_open()
    previews = gateway.config.settings.server.prompt_previews
    cloud = gateway.cloud
    if cloud is not None and wanted.allow_cloud and cloud.open_to(identity):
        ticket = await cloud.take(_item(request, identity, admission, wanted, wanted.model, previews=previews))
        if ticket is not None:
            return _traced(gateway, request, ticket)
    new = _item(request, identity, admission, wanted, await _installed_name(gateway, wanted), previews=previews)
    joined = gateway.embeddings.take(new) if new.kind is WorkKind.EMBED and gateway.embeddings is not None else None
    return _traced(gateway, request, joined or gateway.worker.submit(new))


def _traced(gateway: Gateway, request: Request, ticket: Ticket) -> Ticket:
    """The ticket; where traces are kept, they learn where it came from."""
    if gateway.traces is not None:
        text = request.headers.text
        origin = Origin(
            route=request.path,
            provider="anthropic" if ticket.served_by else "ollama",
            traceparent=text(b"traceparent"),
            tracestate=text(b"tracestate"),
        )
        gateway.traces.note(ticket.sequence, origin)
    return ticket


def _item(request: Request, identity: Identity, admission: Admission, wanted: Wanted, model: str | None, *, previews: bool) -> Submission:
    envelope = wanted.envelope
    return Submission(
        lane=admission.lane,
        priority=admission.priority,
        caller=identity.caller,
        model=model,
        task_type=admission.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        streaming=envelope.streaming,
        ways=wanted.ways,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
        request_id=request.request_id,
        call=wanted.call,
        digest=wanted.digest,
        prompt_preview=wanted.preview() if previews else "",
    )


async def _installed_name(gateway: Gateway, wanted: Wanted) -> str | None:
    if wanted.model is None:
        return None
    try:
        return await gateway.resolve(wanted.model)
    except ModelNotFound as error:
        if wanted.envelope.kind is WorkKind.EMBED:
            raise ModelNotFound(f'model "{wanted.model}" not found, try pulling it first') from error
        raise


def forwarded_headers(request: Request) -> Headers:
    """What a model server may see of a caller's headers: never a credential, a cookie or an origin.

    The body has been read as JSON, so that is what it is forwarded as, whatever `curl -d` called it.
    """
    values = request.headers.values
    return (*JSON_BODY, *((name, values[name]) for name in _FORWARDED_HEADERS if name in values))
