"""The way to the models of a router: what the router says in a model's place is told apart from
what the model says.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from hearth.dialects.frames import object_in
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.translation.answering import said_error
from hearth.engines.data_path import DataPath
from hearth.engines.openai_server.exchanges import Ready, whole_body
from hearth.engines.port import Exchange
from hearth.engines.routed_stream import PROXY_ERROR, RoutedStream
from hearth.errors import ModelGone
from hearth.types import BackendCall

_UNKNOWN = re.compile(r"model '.*' not found")
"""The router's words; a model says of other things that they are not found."""
_OF_THE_ROUTER = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR})


class RouterPath:
    """`DataPath` to a router.

    Its calls raise ModelGone, too: no process of the model answers, or it has ended within its
    answer.
    """

    def __init__(self, data_path: DataPath) -> None:
        self._data_path = data_path

    async def open(self, call: BackendCall) -> Exchange:
        exchange = await self._data_path.open(call)
        if exchange.status in _OF_THE_ROUTER:
            return _checked(exchange.status, exchange, await whole_body(exchange))
        route = INFERENCE_ROUTES.get(call.path)
        kind = dict(exchange.headers).get(b"content-type", b"")
        if route is None or not kind.startswith(b"text/event-stream"):
            return exchange
        return RoutedStream(exchange, route, ModelGone)


def _checked(status: int, exchange: Exchange, body: bytes) -> Ready:
    """A refusal of the model's own."""
    message = said_error(object_in(body).get("error"))
    if body.startswith(PROXY_ERROR) or message == "model is not loaded":
        raise ModelGone
    is_unknown = status == HTTPStatus.BAD_REQUEST and _UNKNOWN.fullmatch(message) is not None
    return Ready(HTTPStatus.NOT_FOUND if is_unknown else status, body, exchange.headers)
