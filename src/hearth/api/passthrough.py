"""Routes that run no model: forwarded to the model server without queueing, models that
run elsewhere taken out of its lists.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from hearth.api.body import RequestBody
from hearth.api.request import Request, until_disconnected
from hearth.dialects.request import count_tokens
from hearth.dialects.routes import MANAGEMENT_ROUTES
from hearth.dialects.stream import proxy_failure
from hearth.errors import BackendProtocolError, NotServed
from hearth.gateway import Gateway
from hearth.types import MIB, BackendCall

_FORWARDED_UNQUEUED = (b"content-type", b"accept", b"user-agent")
_LISTS = {"/api/tags": ("models", "name"), "/v1/models": ("data", "id")}
_LIST_BYTES = 16 * MIB


class Passthrough:
    """Forwards single requests to the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, request: Request, body: RequestBody) -> None:
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
            own = request.id_header
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

    async def count_tokens(self, request: Request, body: RequestBody) -> None:
        """Answer Anthropic's token count, which no engine need have, with the estimate that the
        queue uses. Raises BadRequest.
        """
        await request.answer_json(await body.parsed(count_tokens, await body.read()))

    async def refuse_unserved(self, *_: object) -> None:
        """Raises NotServed, before anything of the body is read."""
        title = self._gateway.engine.title
        raise NotServed(f"Hearth does not serve this path. Send the request to {title} itself.")


def _without(body: bytes, path: str, elsewhere: frozenset[str]) -> bytes:
    """A list of models without these, else as it came."""
    part, key = _LISTS[path]
    try:
        listed = json.loads(body)
        listed[part] = [each for each in listed[part] if each[key].lower() not in elsewhere]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return body
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()
