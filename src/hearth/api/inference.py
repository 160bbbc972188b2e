"""The shared path of every request that runs a model: read, parse, admit, submit, stream.

Raw ASGI on purpose: a body model or a middleware would cost more than everything else here. Bodies above 1 MiB are parsed in a thread,
so that nobody else waits for them. Must never touch the bytes of a body or of an answer. Called by `api.app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from hearth.admission.auth import Identity
from hearth.admission.gate import check_model
from hearth.api.relay import Relay, Relayed, wire_time
from hearth.api.stand_ins import StandIns
from hearth.api.submission import Wanted, forwarded_headers, submit
from hearth.api.visit import Visit
from hearth.clock import new_seed
from hearth.config.settings import Settings, StartedStreams, load_options
from hearth.dialects.envelope import Envelope, read_envelope
from hearth.dialects.ollama import unload_reply
from hearth.dialects.quirks import on_model
from hearth.dialects.replay_seed import seeded
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.gateway import Gateway
from hearth.types import BackendCall, WorkKind

NameOf: TypeAlias = Callable[[str], str | None]
_THREAD_FROM_BYTES = 1024 * 1024
_NATIVE_JSON = (b"content-type", b"application/json; charset=utf-8")


class Inference:
    """Answers the inference routes of all three dialects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stand_ins = StandIns(gateway)

    async def handle(self, visit: Visit, identity: Identity) -> None:
        """Answer one request.

        Raises:
            HearthError: it was refused before anything was submitted or sent.
        """
        relay = await self._submitted(visit, identity)
        if relay is not None:
            await relay.run()

    async def _submitted(self, visit: Visit, identity: Identity) -> Relay | None:
        """Take the request in; None where it is answered already. Apart from `handle`, so that nothing of this stays while it waits."""
        route = INFERENCE_ROUTES[visit.path]
        settings = self._gateway.config.settings
        envelope, replayable = await self._read(route, await visit.body(settings.server), identity, settings)
        if envelope.kind is WorkKind.UNLOAD:
            check_model(identity, envelope.model)
            await self._unload(visit, route, envelope)
            return None
        call = BackendCall(method="POST", path=visit.target, headers=forwarded_headers(visit), body=envelope.body)
        ticket = await submit(
            self._gateway, visit, identity, Wanted(envelope=envelope, model=envelope.model, call=call, replayable=replayable)
        )
        self._stand_ins.note(envelope)
        relayed = Relayed(route=route, model=envelope.model, streaming=envelope.streaming, rewritten=envelope.rewritten)
        return Relay(self._gateway.worker, self._gateway.clock, settings.keepalive, visit, ticket, relayed)

    async def _read(self, route: Route, body: bytes, identity: Identity, settings: Settings) -> tuple[Envelope, bool]:
        envelope, replayable = await _parse(route, body, settings, self._gateway.name_of)
        stand_in = await self._stand_ins.instead_of(identity, envelope)
        if stand_in is None:
            return envelope, replayable
        moved, replayable = await _parse(route, on_model(body, stand_in), settings, self._gateway.name_of)
        return replace(moved, rewritten=(*moved.rewritten, "model")), replayable

    async def _unload(self, visit: Visit, route: Route, envelope: Envelope) -> None:
        """Have the model go, as `ollama stop` wants it. Raises ModelNotFound, and OrderRefused where it is in use or pinned.

        Whoever may use a model may also ask for another one in its place, so this gives nobody more than they had.
        """
        await self._gateway.orders.unload(envelope.model)
        body = unload_reply(route, envelope.model, wire_time(self._gateway.clock))
        await visit.answer.whole(200, (_NATIVE_JSON, (b"x-request-id", visit.request_id.encode("ascii"))), body)


async def _parse(route: Route, body: bytes, settings: Settings, name_of: NameOf) -> tuple[Envelope, bool]:
    if len(body) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(_read, route, body, settings, name_of)
    return _read(route, body, settings, name_of)


def _read(route: Route, body: bytes, settings: Settings, name_of: NameOf) -> tuple[Envelope, bool]:
    """The envelope, and whether an interrupted stream of it can be resumed: that takes a request that repeats itself."""
    strip = settings.clients.strip_attribution
    envelope = read_envelope(route, body, partial(load_options, settings, name_of=name_of), strip_attribution=strip)
    if not envelope.streaming or settings.scheduling.started_streams is not StartedStreams.REPLAY:
        return envelope, False
    known = seeded(route, envelope.body, new_seed())
    if known.body is not envelope.body:
        envelope = replace(envelope, body=known.body, rewritten=(*envelope.rewritten, "seed"))
    return envelope, known.repeatable
