"""The shared path of every request that runs a model: read, parse, admit, submit, stream.

Raw ASGI on purpose: a body model or a middleware would cost more than everything else here. Bodies above 1 MiB are parsed in a thread,
so that nobody else waits for them. Must never touch the bytes of a body or of an answer. Called by `api.app`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

from hearth.admission.auth import Identity
from hearth.admission.gate import check_model
from hearth.api.relay import Exchange, Relay
from hearth.api.submission import Wanted, forwarded_headers, submit
from hearth.api.visit import Visit
from hearth.config.settings import Settings, load_options
from hearth.dialects.envelope import Envelope, read_envelope
from hearth.dialects.ollama import unload_reply
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.gateway import Gateway
from hearth.queue import Ticket
from hearth.types import BackendCall, Headers, WorkKind

_THREAD_FROM_BYTES = 1024 * 1024
_NATIVE_JSON = (b"content-type", b"application/json; charset=utf-8")


class Inference:
    """Answers the inference routes of all three dialects."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, visit: Visit, identity: Identity) -> None:
        """Answer one request.

        Raises:
            HearthError: it was refused before anything was submitted or sent.
        """
        route = INFERENCE_ROUTES[visit.path]
        settings = self._gateway.config.settings
        envelope = await _parse(route, await visit.body(settings.server), settings)
        if envelope.kind is WorkKind.UNLOAD:
            check_model(identity, envelope.model)
            await self._answer_unload(visit, route, envelope)
            return
        call = BackendCall(method="POST", path=visit.target, headers=forwarded_headers(visit), body=envelope.body)
        ticket = await submit(self._gateway, visit, identity, Wanted(envelope=envelope, model=envelope.model, call=call))
        headers = _answer_headers(ticket, envelope)
        exchange = Exchange(route=route, model=envelope.model, streaming=envelope.streaming, headers=headers)
        await Relay(self._gateway.worker, self._gateway.clock, settings.keepalive, visit, ticket, exchange).run()

    async def _answer_unload(self, visit: Visit, route: Route, envelope: Envelope) -> None:
        """Residency is the scheduler's business: the caller hears what Ollama would say, and nothing is unloaded."""
        created_at = datetime.fromtimestamp(self._gateway.clock.wall(), UTC).isoformat().replace("+00:00", "Z")
        body = unload_reply(route, envelope.model, created_at)
        await visit.answer.whole(200, (_NATIVE_JSON, (b"x-request-id", visit.request_id.encode("ascii"))), body)


async def _parse(route: Route, body: bytes, settings: Settings) -> Envelope:
    options = partial(load_options, settings)
    if len(body) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(read_envelope, route, body, options)
    return read_envelope(route, body, options)


def _answer_headers(ticket: Ticket, envelope: Envelope) -> Headers:
    """What is added to the backend's own headers; the request id comes first."""
    headers = (
        (b"x-request-id", ticket.request_id.encode("ascii")),
        (b"x-queue-position", b"%d" % ticket.position),
    )
    if not envelope.rewritten:
        return headers
    return (*headers, (b"x-hearth-rewrote", ",".join(envelope.rewritten).encode("ascii", "replace")))
