"""The way to the models of a llama-swap: what it says in a server's place is told apart from what
the server says.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

from hearth.dialects.frames import object_in
from hearth.dialects.routes import INFERENCE_ROUTES, WORK_ROUTES, Endpoint
from hearth.engines.data_path import DataPath
from hearth.engines.llama_swap.models import server_path
from hearth.engines.port import Exchange
from hearth.engines.routed_stream import RoutedStream
from hearth.errors import BackendBusy, RunnerDied
from hearth.types import BackendCall

_NOT_ITS_OWN = frozenset({Endpoint.TRANSLATIONS.value})
"""Of the addresses that run a model, those that it has not itself."""


class SwapPath:
    """`DataPath` to a llama-swap. What is none of its own addresses goes to the server of the model
    that the body names.

    Its calls raise BackendBusy, too: it takes no more requests at the same time; and RunnerDied:
    the server has ended within its answer.
    """

    def __init__(self, data_path: DataPath) -> None:
        self._data_path = data_path

    async def open(self, call: BackendCall) -> Exchange:
        route = INFERENCE_ROUTES.get(call.path)
        if call.path not in WORK_ROUTES or call.path in _NOT_ITS_OWN:
            form = call.form
            model = object_in(call.body).get("model") if form is None else form.model
            call = replace(call, path=server_path(str(model), call.path))
        exchange = await self._data_path.open(call)
        if exchange.status == HTTPStatus.TOO_MANY_REQUESTS:
            exchange.close()
            raise BackendBusy(
                "llama-swap takes no more requests for this model at the same time"
                " (concurrencyLimit)"
            )
        kind = dict(exchange.headers).get(b"content-type", b"")
        if route is None or not kind.startswith(b"text/event-stream"):
            return exchange
        return RoutedStream(exchange, route, RunnerDied)
