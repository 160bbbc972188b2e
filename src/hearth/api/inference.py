"""The inference routes: a request of any dialect, read, checked, queued and answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from hearth.admission.auth import may_use
from hearth.api.body import RequestBody
from hearth.api.request import Request
from hearth.api.streaming import Relay
from hearth.api.submitting import CallsOn, allowed_models, submit
from hearth.clock import new_id, new_seed
from hearth.config.settings import ClientSettings, Settings
from hearth.dialects.background import SHAPES, Shape
from hearth.dialects.errors import refused_stream_headers
from hearth.dialects.gojson import encode
from hearth.dialects.request import Envelope, counted, read_request, seeded, ways_on
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.dialects.stream import empty_reply
from hearth.engines.table import EngineTable
from hearth.errors import BackendUnreachable, BadRequest, ModelNotFound, naming_model
from hearth.execution.aliases import CheckRequest
from hearth.gateway import Gateway
from hearth.types import JSON_BODY, BackendCall, Headers, LoadOptions

_FORWARDED_HEADERS = (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta")
"""Never a credential, a cookie or an origin."""
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

    async def handle(self, request: Request, body: RequestBody) -> None:
        """Answer one request.

        Raises HearthError where it is refused before anything was submitted or sent.
        """
        relay = await self._submitted(request, body)
        if relay is not None:
            await relay.run()

    async def _submitted(self, request: Request, body: RequestBody) -> Relay | None:
        """None where the request is answered already.

        Apart from `handle`, so that nothing of this stays in memory while it waits.
        """
        route = INFERENCE_ROUTES[request.path]
        gateway = self._gateway
        content = await body.read()
        envelope = await self._read(route, body, content)
        body.hold(len(envelope.body))
        if envelope.streaming:
            request.answer.of_refusal = refused_stream_headers(route)
        if envelope.kind == "unload" or (envelope.kind == "generate" and envelope.max_tokens == 0):
            with naming_model(envelope.model):
                await self._answer_at_once(request, body, route, envelope)
            return None
        rewritten = envelope.rewritten
        calls_on = None
        if gateway.aliases.named(envelope.model):
            calls_on = self._calls_on(request, route, body, content)
            rewritten = (*rewritten, "model")
        del content
        ticket = await submit(
            gateway,
            request,
            body.admission,
            envelope,
            _call_of(request, envelope),
            calls_on=calls_on,
        )
        keepalive_show = body.admission.identity.keepalive_show or gateway.settings.keepalive.show
        name = gateway.name_of(envelope.model)
        if envelope.num_ctx is not None and name is not None:
            gateway.context_wishes.note(body.admission.identity.caller, name, envelope.num_ctx)
        if envelope.kind == "generate":
            self._chat_models.add(gateway.name_of(envelope.model) or "")
        return Relay(
            gateway,
            request,
            ticket,
            route,
            envelope.model,
            streaming=envelope.streaming,
            shows_wait=keepalive_show == "thinking",
            rewritten=rewritten,
            names_model=calls_on is not None,
        )

    def _calls_on(
        self, request: Request, route: Route, body: RequestBody, content: bytes
    ) -> CallsOn:
        """What reads the body once more for the models of an alias, once for all of an engine that
        are loaded alike: in place of their name it gets a mark that nobody else can have written.
        """
        gateway = self._gateway
        mark = new_id("alias_")

        engines = gateway.engines

        async def calls_on(
            models: Sequence[str],
        ) -> tuple[tuple[str, ...], Callable[[str], BackendCall]]:
            alike = {
                model: (
                    engines.row_of(model).name,
                    gateway.load_options(model) if route.is_native else LoadOptions(),
                )
                for model in models
            }
            marked = dict[tuple[str, LoadOptions], BackendCall]()
            refused: BadRequest | None = None
            for key, model in {key: model for model, key in alike.items()}.items():
                named = {mark: key[1]}.__getitem__
                read = partial(self._reader(route), pinned=named, model=mark, like=model)
                envelope = await body.parsed(read, content)
                refused = refused or envelope.refusal
                if envelope.refusal is None:
                    marked[key] = _call_of(request, envelope)
            if not marked and refused is not None:
                raise refused
            body.hold(sum(len(call.body) for call in marked.values()))
            able = tuple(model for model in models if alike[model] in marked)
            return able, lambda model: _naming(marked[alike[model]], mark, engines.own_name(model))

        return calls_on

    async def _answer_at_once(
        self, request: Request, body: RequestBody, route: Route, envelope: Envelope
    ) -> None:
        """What needs no model: an unload, and no token wanted, for which a server would generate
        until it repeats itself.
        """
        gateway = self._gateway
        body.admission.admit(envelope.model)
        kept: Headers = ()
        identity = body.admission.identity
        models = allowed_models(gateway, identity, envelope.model)
        if models:
            models = await gateway.aliases.choices(envelope.model, models, None)
        if envelope.kind == "unload":
            named = models or (envelope.model,)
            found = [await gateway.orders.wish_unloaded(each, identity.caller) for each in named]
            why = next(filter(None, found), "")
            kept = ((b"x-hearth-kept", why.encode("ascii")),) if why else ()
        elif not models:
            await gateway.resolve(envelope.model)
        reason = "unload" if envelope.kind == "unload" else "length"
        answer = empty_reply(route, envelope.model, gateway.clock.wall(), reason)
        media = b"application/json; charset=utf-8"
        if envelope.streaming:
            media = b"application/x-ndjson"
            answer += b"\n"
        headers = (
            (b"content-type", media),
            request.id_header,
            *kept,
        )
        await request.answer.whole(200, headers, answer)

    def _reader(self, route: Route) -> Callable[..., Envelope]:
        gateway = self._gateway
        return partial(
            _read,
            route,
            settings=gateway.settings,
            engines=gateway.engines,
            check=gateway.aliases.check_request,
            pinned=gateway.load_options,
        )

    async def _read(self, route: Route, body: RequestBody, content: bytes) -> Envelope:
        read = self._reader(route)
        envelope = await body.parsed(read, content)
        stand_in = await self._stand_in(body.admission.identity.models, envelope)
        if stand_in is None:
            return envelope
        return await body.parsed(partial(read, model=stand_in), content)

    async def _stand_in(self, allowed: Sequence[str], envelope: Envelope) -> str | None:
        """The model in memory that answers a background task in place of the one it names; None
        where that one does.
        """
        wanted = self._gateway.settings.clients.background_tasks == "resident"
        canonical = self._gateway.engines.canonical
        # a stream has to repeat itself when it is interrupted
        is_short = envelope.background is not None and envelope.background.any_model
        if not wanted or not is_short or envelope.streaming:
            return None
        if self._gateway.aliases.named(envelope.model):
            return None  # it is served by what is in memory anyway
        # refused later, in the order of all refusals
        if not may_use(allowed, envelope.model, canonical):
            return None
        try:
            named = await self._gateway.resolve(envelope.model)
        except (ModelNotFound, BackendUnreachable):
            return None
        view = self._gateway.worker.runtime.view
        here = [resident.model for resident in view.latest_first if resident.phase != "unloading"]
        engine_of = self._gateway.engines.of
        if named in here:
            return None
        home = view.home
        able = [
            name
            for name in here
            if (name == home or name in self._chat_models)
            and may_use(allowed, name, canonical)
            and engine_of(name).on_card  # nobody has asked for other machines
        ]
        return min(able, key=lambda name: (name != home, name), default=None)


def _call_of(request: Request, envelope: Envelope) -> BackendCall:
    values = request.headers.values
    forwarded = ((name, values[name]) for name in _FORWARDED_HEADERS if name in values)
    return BackendCall(
        method="POST",
        path=request.target,
        headers=(*JSON_BODY, *forwarded),
        body=envelope.body,
        hides_usage=_USAGE_ASKED in envelope.rewritten,
    )


def _naming(call: BackendCall, mark: str, model: str) -> BackendCall:
    """The call with a model's name in place of the mark; made when it is sent, since each has a
    body of its own.
    """
    return replace(call, body=call.body.replace(encode(mark), encode(model), 1))


def _shapes(clients: ClientSettings) -> Sequence[Shape]:
    """Of background requests: the owner's before those that ship."""
    if not clients.background:
        return SHAPES
    own = [
        Shape(
            name=each.name,
            place=each.place,
            starts=each.starts_with,
            then=each.then,
            background=each.background,
        )
        for each in clients.background
    ]
    return (*own, *SHAPES)


def _read(
    route: Route,
    body: bytes,
    settings: Settings,
    engines: EngineTable,
    check: CheckRequest,
    pinned: Callable[[str], LoadOptions],
    model: str | None = None,
    like: str = "",
) -> Envelope:
    strip = settings.clients.strip_attribution
    envelope, fields = read_request(
        route,
        body,
        pinned,
        strip_attribution=strip,
        shapes=_shapes(settings.clients),
        model=model,
        wire_name=engines.wire_name,
    )
    asked = like or envelope.model
    try:
        check(route.path, fields, asked)
    except BadRequest as error:
        envelope = replace(envelope, refusal=error)
    # before a seed is put in, which is another one each time
    digest = sha256(route.path.encode() + b" " + envelope.body).digest()
    envelope = replace(envelope, digest=digest)
    if not envelope.streaming:
        return envelope
    body = envelope.body
    if not engines.of(asked).counts_unasked:
        body, fields = counted(route, body, fields)
    if body is not envelope.body:
        envelope = replace(envelope, body=body, rewritten=(*envelope.rewritten, _USAGE_ASKED))
    scheduling = settings.scheduling
    if scheduling.started_streams == "finish":
        return envelope
    ways = ways_on(
        route,
        envelope.body,
        fields,
        only_replay=scheduling.started_streams == "replay",
        continue_diverged=scheduling.on_divergence == "continue",
    )
    rewritten = envelope.rewritten
    body = seeded(route, envelope.body, fields, new_seed())
    if body is not envelope.body:
        rewritten = (*rewritten, "seed")
    return replace(envelope, body=body, rewritten=rewritten, ways=ways)
