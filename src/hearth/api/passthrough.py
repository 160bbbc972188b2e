"""Routes that run no model: handed to the model server as they are, without queueing, and handed back.

Whoever may call is settled before: `api.app` lets only admin keys through to the management routes. Must never queue anything. Also
answers `/v1/messages/count_tokens`, which Ollama does not have.
"""

from __future__ import annotations

from hearth.admission.auth import Identity
from hearth.api.asgi import unless_gone
from hearth.api.visit import Bodies, Visit
from hearth.dialects.anthropic import count_tokens
from hearth.errors import NotServed
from hearth.gateway import Gateway
from hearth.types import BackendCall, Headers

_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_FORWARDED = (b"content-type", b"accept", b"user-agent")


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway, bodies: Bodies) -> None:
        self._gateway = gateway
        self._bodies = bodies

    async def handle(self, visit: Visit, identity: Identity) -> None:
        """Forward one request; the connection to the backend closes when the caller leaves.

        Raises:
            BodyTooLarge, NoRoomForBodies, CallerGone.
            BackendError: nothing was sent yet, or the answer broke off (then the caller's connection has to break off too).
        """
        with self._bodies.of(visit, identity) as body:
            content = b"" if visit.method in _WITHOUT_BODY else await body.read()
            call = BackendCall(method=visit.method, path=visit.target, headers=_forwarded(visit), body=content)
            await unless_gone(visit.receive, self._forward(call, visit))

    async def _forward(self, call: BackendCall, visit: Visit) -> None:
        exchange = await self._gateway.backend.open(call)
        try:
            own = (b"x-request-id", visit.request_id.encode("ascii"))
            await visit.answer.head(exchange.status, (*exchange.headers, own))
            while chunks := await exchange.take():
                for chunk in chunks:
                    await visit.answer.chunk(chunk)
            await visit.answer.end()
        finally:
            exchange.close()

    async def count_tokens(self, visit: Visit, identity: Identity) -> None:
        """Answer Anthropic's token count with the estimate the queue uses. Raises BadRequest, BodyTooLarge, NoRoomForBodies, CallerGone."""
        with self._bodies.of(visit, identity) as body:
            answer = await body.parsed(count_tokens, await body.read())
        headers = ((b"content-type", b"application/json"), (b"x-request-id", visit.request_id.encode("ascii")))
        await visit.answer.whole(200, headers, answer)


async def refuse_unserved(visit: Visit, identity: Identity) -> None:
    """Raises NotServed, before anything of the body is read."""
    del visit, identity
    raise NotServed


def _forwarded(visit: Visit) -> Headers:
    values = visit.headers.values
    return tuple((name, values[name]) for name in _FORWARDED if name in values)
