"""The shared path of every request that runs a model: read, parse, admit, submit, stream.

Raw ASGI on purpose: a body model or a middleware would cost more than everything else here. Must never touch the bytes of a body or of an
answer. Called by `api.app`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TypeAlias

from hearth.admission.auth import Identity
from hearth.admission.gate import check_model
from hearth.api.relay import Relay, Relayed, wire_time
from hearth.api.stand_ins import StandIns
from hearth.api.submission import Wanted, forwarded_headers, submit
from hearth.api.visit import Body, Visit
from hearth.clock import new_seed
from hearth.config.settings import OnDivergence, Settings, StartedStreams, load_options
from hearth.dialects.envelope import Envelope, read_envelope
from hearth.dialects.ollama import empty_reply
from hearth.dialects.quirks import on_model
from hearth.dialects.replay_seed import seeded
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.gateway import Gateway
from hearth.types import BackendCall, Way, WorkKind

NameOf: TypeAlias = Callable[[str], str | None]
_Read: TypeAlias = "tuple[Envelope, tuple[Way, ...], bytes]"
"""The envelope, how an interrupted stream of it can go on, and what stands for the request in `intake.Places`."""
_NATIVE_STREAM = (b"content-type", b"application/x-ndjson")
_NATIVE_JSON = (b"content-type", b"application/json; charset=utf-8")


class Inference:
    """Answers the inference routes of all three dialects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stand_ins = StandIns(gateway)

    async def handle(self, visit: Visit, identity: Identity, body: Body) -> None:
        """Answer one request. Raises HearthError where it is refused before anything was submitted or sent."""
        relay = await self._submitted(visit, identity, body)
        if relay is not None:
            await relay.run()

    async def _submitted(self, visit: Visit, identity: Identity, body: Body) -> Relay | None:
        """Take the request in; None where it is answered already. Apart from `handle`, so that nothing of this stays while it waits."""
        route = INFERENCE_ROUTES[visit.path]
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
            await self._answer_empty(visit, route, envelope)
            return None
        call = BackendCall(method="POST", path=visit.target, headers=forwarded_headers(visit), body=envelope.body)
        wanted = Wanted(envelope=envelope, model=envelope.model, call=call, ways=ways, digest=digest)
        ticket = await submit(self._gateway, visit, identity, wanted)
        self._stand_ins.note(envelope)
        relayed = Relayed(route=route, model=envelope.model, streaming=envelope.streaming, rewritten=envelope.rewritten)
        return Relay(self._gateway.worker, self._gateway.clock, settings.keepalive, visit, ticket, relayed)

    async def _read(self, route: Route, body: Body, identity: Identity, settings: Settings) -> _Read:
        read = partial(_read, route, settings=settings, name_of=self._gateway.name_of)
        content = await body.read()
        found = await body.parsed(read, content)
        envelope = found[0]
        stand_in = await self._stand_ins.instead_of(identity, envelope)
        if stand_in is None:
            return found
        moved, ways, digest = await body.parsed(lambda content: read(on_model(content, stand_in)), content)
        return replace(moved, rewritten=(*moved.rewritten, "model")), ways, digest

    async def _answer_empty(self, visit: Visit, route: Route, envelope: Envelope) -> None:
        """What Ollama says after an unload; and where no token is wanted, for which it would generate until it repeats itself."""
        reason = "unload" if envelope.kind is WorkKind.UNLOAD else "length"
        body = empty_reply(route, envelope.model, wire_time(self._gateway.clock), reason)
        kind = _NATIVE_JSON
        if envelope.streaming:
            kind, body = _NATIVE_STREAM, body + b"\n"
        await visit.answer.whole(200, (kind, (b"x-request-id", visit.request_id.encode("ascii"))), body)


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
