"""A llama-server as an engine.

What it serves itself goes through as bytes; Ollama's own routes are translated. It is always asked
for a stream, since beside other work it does not notice that the caller of a whole answer has left.
Its one model is there for as long as it listens, so nothing is ever loaded or unloaded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TypeVar

from hearth.clock import Clock
from hearth.dialects.errors import error_object
from hearth.dialects.frames import at, object_in
from hearth.dialects.gojson import LARGE_BYTES, JsonObject, JsonValue, encode, folded
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route
from hearth.dialects.stream import StreamTail, empty_reply, proxy_failure
from hearth.dialects.translation.answering import (
    NativeStream,
    native_embedding,
    native_whole,
    said_error,
)
from hearth.dialects.translation.asking import asked_of
from hearth.dialects.translation.folding import folded_answer, streaming_fields
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.common_form import with_thoughts
from hearth.engines.llama_server.control import Control, whole_body
from hearth.engines.llama_server.exchanges import Ready, TranslatedStream
from hearth.engines.llama_server.pages import page
from hearth.engines.llama_server.traits import OPTIONS, LlamaServerTraits, asks_nothing
from hearth.engines.port import Exchange
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    LoadError,
    ModelNotFound,
)
from hearth.types import (
    JSON_BODY,
    BackendCall,
    Headers,
    LoadOptions,
)

T = TypeVar("T")

APPLY_TEMPLATE = "/apply-template"
_STREAMS = re.compile(rb'"stream"\s*:\s*true')
_CHAT = INFERENCE_ROUTES[Endpoint.CHAT]
_ERRORS = range(HTTPStatus.BAD_REQUEST, 600)
_MISTAKES = re.compile(
    r"Failed to parse (?:messages|tools|tool choice)\b|.* is too large to process"
)
"""What the server says of a request that is wrong, as if the fault were its own."""
_REFUSES_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class LlamaServer(LlamaServerTraits):
    """The llama-server at one address. ConfigError for no such address.

    Args:
        url: `http://host:port`, with a path prefix where a proxy wants one. api_key: that it
        requires, empty for none. setting: where its URL is written, for messages.
        connect_timeout_s: of the work's connections. control_timeout_s: of every question about
        itself.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
        control_timeout_s: float,
    ) -> None:
        self._clock = clock
        self._data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        self._control = control = Control(
            url, api_key=api_key, setting=setting, timeout_s=control_timeout_s
        )
        self._key_setting = f"{setting.rpartition('.')[0]}.api_key"
        self._first_seen: dict[str, float] = {}
        self.version = control.version
        self.installed = control.installed
        self.resident = control.resident

    # The data path.

    async def open(self, call: BackendCall) -> Exchange:
        path = call.path.partition("?")[0]
        route = INFERENCE_ROUTES.get(path)
        if route is None:
            return await self._page(path, call)
        if route.is_native:
            return await self._translated(route, call)
        # more than one of the name, and only its place tells which one is meant
        is_plain = call.body.count(b'"stream"') == 1
        if route.kind == "embed" or (is_plain and _STREAMS.search(call.body)):
            return await self._passed(route, call)
        return await self._put_together(route, call)

    async def _page(self, path: str, call: BackendCall) -> Ready:
        served = await self._control.served()
        since_wall_s = self._first_seen.setdefault(served.digest, self._clock.wall())
        answer = page(path, call.body, served, since_wall_s)
        return answer if call.method != "HEAD" else Ready(answer.status, b"", answer.headers)

    async def _passed(self, route: Route, call: BackendCall) -> Exchange:
        """The server's own answer; an error in the words of the dialect that was asked."""
        exchange = await self._data_path.open(call)
        status = exchange.status
        if status < HTTPStatus.BAD_REQUEST:
            return exchange
        if status in _REFUSES_KEY:
            exchange.close()
            raise BackendProtocolError(
                f"llama-server answered {status}: {self._key_setting} is not its key"
            )
        is_busy = status == HTTPStatus.SERVICE_UNAVAILABLE
        is_fault = status == HTTPStatus.INTERNAL_SERVER_ERROR
        if is_busy or proxy_failure(status, exchange.headers):
            return exchange
        if route.dialect == "openai" and not is_fault:
            return exchange
        body = await whole_body(exchange)
        message = said_error(object_in(body).get("error"))
        if is_fault and _MISTAKES.match(message):
            return _failed(route, HTTPStatus.BAD_REQUEST, message)
        if route.dialect == "openai":
            return Ready(status, body, exchange.headers)
        return _failed(route, status, message)

    async def _put_together(self, route: Route, call: BackendCall) -> Exchange:
        """A whole answer, from a stream."""
        fields = folded(await _read(call.body))
        if fields.get("_debug_render_only") is True:
            return await self._rendered(fields, call.headers)
        wants_stream = fields.get("stream") is True
        asked = fields if wants_stream else streaming_fields(route, fields)
        body = await _made(len(call.body), lambda: encode(asked))
        exchange = await self._passed(route, replace(call, body=body))
        if wants_stream or exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange
        stream = await whole_body(exchange)
        tail = StreamTail(route)
        tail.feed(stream)
        ending = tail.ending()
        if not (ending.complete or ending.reported_error):
            raise BackendGone
        return await _made(len(stream), lambda: _ready(route, folded_answer(route, stream)))

    async def _translated(self, route: Route, call: BackendCall) -> Exchange:
        """An answer to one of Ollama's own requests."""
        fields = folded(await _read(call.body))
        model = str(fields.get("model") or "")
        if not await self._has(model):
            return _failed(route, HTTPStatus.NOT_FOUND, f"model '{model}' not found")
        if asks_nothing(route, fields):
            return Ready(HTTPStatus.OK, _nothing(route, model, self._clock.wall()))
        if fields.get("raw") is True and fields.get("_debug_render_only") is True:
            return _rendering(model, fields.get("prompt"))
        asked = asked_of(route.path, fields, OPTIONS)
        if fields.get("_debug_render_only") is True:
            return await self._rendered(asked.fields, call.headers)
        upstream = BackendCall(
            method="POST",
            path=asked.path.value,
            headers=call.headers,
            body=await _made(len(call.body), lambda: encode(asked.fields)),
        )
        is_streamed = route.kind == "generate" and fields.get("stream") is not False
        return await self._answered(route, model, upstream, is_streamed=is_streamed)

    async def _answered(
        self, route: Route, model: str, upstream: BackendCall, *, is_streamed: bool
    ) -> Exchange:
        """The answer to a translated call, in Ollama's words."""
        began_at = self._clock.monotonic()
        exchange = await self._passed(route, upstream)
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange

        def now() -> tuple[float, int]:
            return self._clock.wall(), round((self._clock.monotonic() - began_at) * 1e9)

        if is_streamed:
            return TranslatedStream(exchange, NativeStream(route.path, model), now)
        body = await whole_body(exchange)
        wall_s, total_ns = now()

        def make() -> Ready:
            answer = (
                native_embedding(route.path, model, body, total_ns)
                if route.kind == "embed"
                else native_whole(route.path, model, body, wall_s, total_ns)
            )
            if answer is None:
                raise BackendProtocolError("llama-server sent no embeddings.")
            return _ready(route, answer)

        return await _made(len(body), make)

    async def _rendered(self, fields: JsonObject, headers: Headers) -> Exchange:
        """The prompt as the server renders it."""
        body = encode(with_thoughts(fields, "reasoning", "reasoning_content"))
        exchange = await self._data_path.open(
            BackendCall(method="POST", path=APPLY_TEMPLATE, headers=headers, body=body)
        )
        said = object_in(await whole_body(exchange))
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return _failed(_CHAT, exchange.status, said_error(said.get("error")))
        return _rendering(str(fields.get("model") or ""), said.get("prompt"))

    # What is there, and stays.

    async def capabilities(self, model: str) -> frozenset[str] | None:
        await self._find(model)
        return (await self._control.served()).capabilities

    async def memory_mib(self) -> float | None:
        return None

    async def load(self, model: str, options: LoadOptions) -> None:
        del options
        await self._find(model)

    async def unload(self, model: str) -> None:
        await self._find(model)
        raise LoadError(f"llama-server keeps {model} for as long as it runs.")

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        del options
        asked: JsonObject = {"model": model, "prompt": " ", "max_tokens": 1, "stream": True}
        call = BackendCall(
            method="POST",
            path=Endpoint.OPENAI_COMPLETIONS,
            headers=JSON_BODY,
            body=encode(asked),
        )
        try:
            async with asyncio.timeout(timeout_s):
                await whole_body(await self._data_path.open(call))
        except TimeoutError:
            return False
        except BackendError:
            return True  # the request that is about to be sent meets the same and says so
        return True

    async def aclose(self) -> None:
        await self._control.aclose()
        await self._data_path.aclose()

    async def _find(self, model: str) -> None:
        await self._control.served()
        if not await self._has(model):
            raise ModelNotFound(f"model '{model}' not found")

    async def _has(self, model: str) -> bool:
        """It is the model that the server was last seen with; the server answers to any name."""
        served = self._control.last_served or await self._control.served()
        return model.lower() in {name.lower() for name in served.names}


async def _read(body: bytes) -> JsonObject:
    return await _made(len(body), lambda: object_in(body))


async def _made(size_bytes: int, make: Callable[[], T]) -> T:
    """What is made of so many bytes; of many in a thread, so that nobody waits for it."""
    return await asyncio.to_thread(make) if size_bytes > LARGE_BYTES else make()


def _nothing(route: Route, model: str, wall_s: float) -> bytes:
    if route.path is Endpoint.EMBED:
        return encode({"model": model, "embeddings": []})
    if route.path is Endpoint.EMBEDDINGS:
        return encode({"embedding": []})
    return empty_reply(route, model, wall_s, "load")


def _rendering(model: str, prompt: JsonValue) -> Ready:
    shown: JsonObject = {"model": model, "_debug_info": {"rendered_template": prompt}}
    return Ready(HTTPStatus.OK, encode(shown))


def _failed(route: Route, status: int, message: str) -> Ready:
    """An error of the server in the words of a dialect."""
    error = BackendError(message)
    error.status = status
    said = error_object(route.dialect, error)
    said.pop("request_id", None)  # it knows none
    return Ready(status, encode(said))


def _ready(route: Route, answer: JsonObject) -> Ready:
    """A whole answer, or the error in its place."""
    error = answer.get("error")
    if error is None:
        return Ready(HTTPStatus.OK, encode(answer))
    status = _status_in(error)
    if route.dialect == "openai":
        return Ready(status, encode(answer))
    return _failed(route, status, said_error(error))


def _status_in(error: JsonValue) -> int:
    """What a stream that ends with this error would have been answered with."""
    code = at(error, ("code",))
    return code if isinstance(code, int) and code in _ERRORS else HTTPStatus.INTERNAL_SERVER_ERROR
