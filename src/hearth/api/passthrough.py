"""Routes that run no model: handed to the model server as they are, without queueing, and handed back.

Whoever may call is settled before: `api.app` lets only admin keys through to the management routes. Must never queue anything. Also
answers `/v1/messages/count_tokens`, which Ollama does not have.
"""

from __future__ import annotations

from hearth.admission.auth import Identity
from hearth.api.asgi import unless_gone
from hearth.api.visit import Visit
from hearth.dialects.anthropic import count_tokens
from hearth.gateway import Gateway
from hearth.types import BackendCall, Headers

_FORWARDED = (b"content-type", b"accept", b"user-agent")


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, visit: Visit, identity: Identity) -> None:
        """Forward one request; the connection to the backend closes when the caller leaves.

        Raises:
            BodyTooLarge, CallerGone.
            BackendError: nothing was sent yet, or the answer broke off (then the caller's connection has to break off too).
        """
        del identity
        body = await visit.body(self._gateway.config.settings.server)
        call = BackendCall(method=visit.method, path=visit.target, headers=_forwarded(visit), body=body)
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
        """Answer Anthropic's token count with the estimate the queue uses. Raises BadRequest, BodyTooLarge, CallerGone."""
        del identity
        body = count_tokens(await visit.body(self._gateway.config.settings.server))
        headers = ((b"content-type", b"application/json"), (b"x-request-id", visit.request_id.encode("ascii")))
        await visit.answer.whole(200, headers, body)


def _forwarded(visit: Visit) -> Headers:
    values = visit.headers.values
    return tuple((name, values[name]) for name in _FORWARDED if name in values)
