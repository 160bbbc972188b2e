"""Calls of every dialect to one server that speaks OpenAI's API.

What the server serves itself goes through as bytes; everything else is translated. It is always
asked for a stream: whether the caller of a whole answer has left is something that servers notice
late, or not at all.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from hearth.clock import Clock
from hearth.dialects.errors import error_object
from hearth.dialects.frames import at, event, object_in
from hearth.dialects.gojson import (
    LARGE_BYTES,
    GoJsonError,
    JsonObject,
    JsonValue,
    decode,
    decode_document,
    encode,
    folded,
)
from hearth.dialects.messages_writer import message_start
from hearth.dialects.request import prompt_tokens
from hearth.dialects.routes import INFERENCE_ROUTES, MEDIA_ROUTES, Endpoint, Route
from hearth.dialects.stream import StreamTail, empty_reply, proxy_failure
from hearth.dialects.translation.answering import (
    DialectStream,
    native_embedding,
    said_error,
    whole_answer,
    writer_for,
)
from hearth.dialects.translation.asking import asked_of
from hearth.dialects.translation.folding import folded_answer, stream_of, streaming_fields
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.continuations import Opens
from hearth.engines.openai_server.error_text import error_text
from hearth.engines.openai_server.exchanges import (
    EVENTS,
    JSON,
    NDJSON,
    CommentsApart,
    LineFeeds,
    Ready,
    TranslatedStream,
    whole_body,
)
from hearth.engines.port import Exchange
from hearth.errors import BackendError, BackendGone, BackendProtocolError
from hearth.types import JSON_BODY, BackendCall, FormBody, Headers, frozen

T = TypeVar("T")

Upstream: TypeAlias = Callable[[str], Awaitable[str | None]]
"""The server's own name of a model, by the one that a caller wrote; None where it has no such
model.
"""
_STREAMS = re.compile(rb'"stream"\s*:\s*true')
_SHORT_BYTES = 4096
"""Most clients have `stream` and a few options behind the messages."""
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")')
_CHAT = INFERENCE_ROUTES[Endpoint.OPENAI_CHAT]
_ERRORS = range(HTTPStatus.BAD_REQUEST, 600)
_NEVER = re.compile(r"(?!)")
_REFUSES_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@frozen
class Place:
    """Where a server is, in the words of messages.

    Attributes:
        title: what its owner calls it. setting: where its URL is written.
    """

    title: str
    setting: str

    @property
    def key_setting(self) -> str:
        """Where its key is written."""
        return f"{self.setting.rpartition('.')[0]}.api_key"


class OpenAiCalls:
    """The data path of a server, for calls of every dialect.

    Args:
        opens: carries calls to it. mistakes: what the server says of a request that is wrong, as if
        the fault were its own.

    Attributes:
        api: what the server is known to have; may be set anew where that was found out.
    """

    def __init__(
        self,
        opens: Opens,
        api: ServerApi,
        *,
        clock: Clock,
        place: Place,
        upstream: Upstream,
        mistakes: re.Pattern[str] = _NEVER,
    ) -> None:
        self._opens = opens
        self.api = api
        self._clock = clock
        self._place = place
        self._upstream = upstream
        self._mistakes = mistakes

    async def open(self, route: Route, call: BackendCall) -> Exchange:
        """As the port says, on one of the routes that run a model."""
        if call.form is not None:
            return await self._uploaded(route, call, call.form)
        is_media = route.path in MEDIA_ROUTES
        if route.path not in self.api.serves and not is_media:
            return await self._translated(route, call)
        body = await self._addressed(call.body)
        if body is None:
            return _not_found(route, (await _read(call.body)).get("model"))
        call = replace(call, path=route.path.value, body=body)
        if route.kind == "embed" or is_media:
            return await self._passed(route, call)
        if _streams_plainly(body):
            return await self._streamed(route, call)
        return await self._put_together(route, call)

    async def _uploaded(self, route: Route, call: BackendCall, form: FormBody) -> Exchange:
        name = await self._upstream(form.model)
        if name is None:
            return _not_found(route, form.model)
        return await self._passed(route, replace(call, form=form.naming(name)))

    async def probe(self, model: str, timeout_s: float) -> bool:
        """As the port says."""
        try:
            async with asyncio.timeout(timeout_s):
                name = await self._upstream(model)
                asked: JsonObject = {"model": name, "prompt": " ", "max_tokens": 1, "stream": True}
                call = BackendCall(
                    method="POST",
                    path=Endpoint.OPENAI_COMPLETIONS,
                    headers=JSON_BODY,
                    body=encode(asked),
                )
                await whole_body(await self._opens.open(call))
        except TimeoutError:
            return False
        except BackendError:
            return True  # the request that is about to be sent meets the same and says so
        return True

    async def _addressed(self, body: bytes) -> bytes | None:
        """The body with the server's own name of the model; None where it has no such model.

        Of several spellings of a field it has the one alone by which the caller's rights were
        checked: the server may go by another.
        """
        found = _MODEL.search(body) if _is_named_once(body) else None
        is_clear = True
        if found is None:
            written, is_exact = await made(len(body), lambda: _document(body))
            fields = folded(written)
            is_clear = is_exact and fields is written
            model = str(fields.get("model") or "")
        else:
            model = str(object_in(b'{"model":%b}' % found[1]).get("model"))
        name = await self._upstream(model)
        if name is None or (name == model and is_clear):
            return None if name is None else body
        if found is None:
            return await made(len(body), lambda: encode({**fields, "model": name}))
        return body[: found.start(1)] + encode_name(name) + body[found.end(1) :]

    async def _streamed(self, route: Route, call: BackendCall) -> Exchange:
        exchange = await self._stream(route, call)
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange
        is_message = route.path is Endpoint.ANTHROPIC_MESSAGES
        return CommentsApart(exchange, partial(_message_start, call.body) if is_message else None)

    async def _stream(self, route: Route, call: BackendCall) -> Exchange:
        """What a request for a stream is answered. Some servers stream nothing, and some report an
        error with status 200.
        """
        exchange = await self._passed(route, call)
        kind = dict(exchange.headers).get(b"content-type", b"").lower()
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange
        if not kind.startswith(b"application/json"):
            return LineFeeds(exchange)
        answer = await _read(await whole_body(exchange))
        if answer.get("error"):
            return _ready(route, {"error": answer["error"]})
        if not isinstance(answer.get("choices"), list):
            raise BackendProtocolError(
                f"{self._place.title} answered {call.path} with neither a stream nor an answer"
            )
        return Ready(HTTPStatus.OK, stream_of(answer), EVENTS)

    async def _passed(self, route: Route, call: BackendCall) -> Exchange:
        """The server's own answer; an error in the words of the dialect that was asked."""
        exchange = await self._opens.open(call)
        status = exchange.status
        if status < HTTPStatus.BAD_REQUEST:
            self._refuse_page(exchange)
            return exchange
        if status in _REFUSES_KEY:
            exchange.close()
            raise BackendProtocolError(
                f"{self._place.title} answered {status}: {self._place.key_setting} is not its key"
            )
        is_busy = status == HTTPStatus.SERVICE_UNAVAILABLE
        if is_busy or proxy_failure(status, exchange.headers):
            return exchange
        return self._error(route, exchange, await whole_body(exchange))

    def _error(self, route: Route, exchange: Exchange, body: bytes) -> Ready:
        status = exchange.status
        message = error_text(body) or said_error(None)
        is_fault = status == HTTPStatus.INTERNAL_SERVER_ERROR
        if is_fault and self._mistakes.match(message):
            return failed(route, HTTPStatus.BAD_REQUEST, message)
        if route.dialect == "openai" and isinstance(object_in(body).get("error"), dict):
            return Ready(status, body, exchange.headers)
        return failed(route, status, message, _retry_after(exchange.headers))

    def _refuse_page(self, exchange: Exchange) -> None:
        """Raises BackendProtocolError: it is a page for a browser."""
        if dict(exchange.headers).get(b"content-type", b"").lower().startswith(b"text/html"):
            exchange.close()
            raise BackendProtocolError(
                f"{self._place.title} sent a web page in place of an answer:"
                f" {self._place.setting} must lead to its API"
            )

    async def _put_together(self, route: Route, call: BackendCall) -> Exchange:
        """A whole answer, from a stream."""
        fields = folded(await _read(call.body))
        if fields.get("_debug_render_only") is True and self.api.renders:
            return await self._rendered(fields, call.headers)
        if fields.get("stream") is True:
            return await self._streamed(route, call)
        if fields.get("tools") and fields.get("logprobs") and not self.api.streams_tool_logprobs:
            return await self._passed(route, call)
        asked = streaming_fields(route, fields)
        body = await made(len(call.body), lambda: encode(asked))
        exchange = await self._streamed(route, replace(call, body=body))
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange
        stream = await whole_body(exchange)
        tail = StreamTail(route)
        tail.feed(stream)
        ending = tail.ending()
        if not (ending.complete or ending.reported_error):
            raise BackendGone
        return await made(len(stream), lambda: _ready(route, folded_answer(route, stream)))

    async def _translated(self, route: Route, call: BackendCall) -> Exchange:
        """An answer to a request that the server does not know."""
        fields = folded(await _read(call.body))
        upstream = await self._upstream(str(fields.get("model") or ""))
        if upstream is None:
            return _not_found(route, fields.get("model"))
        if asks_nothing(route, fields):
            model = str(fields.get("model"))
            return Ready(HTTPStatus.OK, _nothing(route, model, self._clock.wall()))
        renders = fields.get("_debug_render_only") is True
        if renders and fields.get("raw") is True:
            return _rendering(fields.get("model"), fields.get("prompt"))
        asked = await made(len(call.body), lambda: asked_of(route.path, fields, self.api))
        sent = {**asked.fields, "model": upstream}
        if renders:
            return await self._rendered(sent, call.headers)
        if asked.path is Endpoint.OPENAI_COMPLETIONS:
            sent = await self.without_end(sent, call.headers)
        body = await made(len(call.body), lambda: encode(sent))
        path = asked.path.value
        return await self._answered(
            route,
            fields,
            replace(call, method="POST", path=path, body=body),
        )

    async def _answered(self, route: Route, fields: JsonObject, asked: BackendCall) -> Exchange:
        """The answer to a translated call, in the caller's words."""
        began_at = self._clock.monotonic()
        carry = self._passed if route.kind == "embed" else self._stream
        exchange = await carry(route, asked)
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return exchange

        def now() -> tuple[float, int]:
            return self._clock.wall(), round((self._clock.monotonic() - began_at) * 1e9)

        if route.kind == "embed":
            body = await whole_body(exchange)
            total_ns = now()[1]
            return await made(len(body), lambda: self._embedded(route, fields, body, total_ns))
        model = str(fields.get("model"))
        name = secrets.token_hex(12)
        writer = writer_for(route, fields, model, name, self._clock.wall())
        wanted = fields.get("stream")
        if wanted is True or (wanted is None and route.is_native):
            headers = NDJSON if route.is_native else EVENTS
            return TranslatedStream(exchange, DialectStream(route, writer), headers, now)
        stream = await whole_body(exchange)
        wall_s, total_ns = now()

        def make() -> Ready:
            answer = whole_answer(route, writer, stream, wall_s, total_ns)
            if answer is None:
                raise BackendGone
            return _ready(route, answer)

        return await made(len(stream), make)

    def _embedded(self, route: Route, fields: JsonObject, body: bytes, total_ns: int) -> Ready:
        answer = native_embedding(route.path, fields, body, total_ns)
        if answer is None:
            raise BackendProtocolError(
                f"{self._place.title} did not send an embedding for each input."
            )
        return _ready(route, answer)

    async def _rendered(self, fields: JsonObject, headers: Headers) -> Exchange:
        """The prompt as the server renders it."""
        asked = with_thoughts(fields, "reasoning", self.api.thoughts)
        status, said = await self.render(asked, headers)
        if status >= HTTPStatus.BAD_REQUEST:
            return failed(_CHAT, status, error_text(encode(said)))
        return _rendering(fields.get("model"), said.get("prompt"))

    async def render(self, fields: JsonObject, headers: Headers) -> tuple[int, JsonObject]:
        """What the server says of how it renders a conversation, the text as `prompt`."""
        return await self.ask(self.api.renders, fields, headers)

    async def without_end(self, fields: JsonObject, headers: Headers) -> JsonObject:
        """A text completion that may be as long as the context, where it has no limit."""
        del headers
        return fields

    async def ask(self, path: str, fields: JsonObject, headers: Headers) -> tuple[int, JsonObject]:
        """Status and answer of another route of the server."""
        body = encode(fields)
        exchange = await self._opens.open(
            BackendCall(method="POST", path=path, headers=headers, body=body)
        )
        answer = await whole_body(exchange)
        return exchange.status, await made(len(answer), lambda: object_in(answer))


def check_request(route: Route, fields: JsonObject, api: ServerApi) -> None:
    """As the port says."""
    if route.path not in api.serves and not asks_nothing(route, fields):
        asked_of(route.path, fields, api)


def asks_nothing(route: Route, fields: JsonObject) -> bool:
    """It is one of Ollama's requests that would only load the model."""
    if not route.is_native:
        return False
    field = {Endpoint.CHAT: "messages", Endpoint.EMBED: "input"}.get(route.path, "prompt")
    return not fields.get(field)


def with_thoughts(fields: JsonObject, name: str, other: str) -> JsonObject:
    """The fields of a conversation with its thoughts under another name."""

    def renamed(message: JsonValue) -> JsonValue:
        if not isinstance(message, dict) or name not in message or other in message:
            return message
        return {other if key == name else key: one for key, one in message.items()}

    messages = fields.get("messages")
    if not isinstance(messages, list):
        return fields
    return {**fields, "messages": [renamed(message) for message in messages]}


def failed(route: Route, status: int, message: str, headers: Headers = ()) -> Ready:
    """An error of the server in the words of a dialect."""
    error = BackendError(message)
    error.status = status
    return Ready(status, encode(error_object(route.dialect, error)), (*JSON, *headers))


def encode_name(name: str) -> bytes:
    """A name as a JSON text."""
    return encode({"": name})[4:-1]


def _streams_plainly(body: bytes) -> bool:
    """It asks for a stream by a field of its own: before it begins no other object and no list, or
    what follows ends one object alone. Where the name comes twice, this cannot be told.
    """
    found = _STREAMS.search(body) if body.count(b'"stream"') == 1 else None
    if found is None:
        return False
    start = body.find(b"{") + 1
    if not any(body.find(sign, start, found.start()) >= 0 for sign in b"{["):
        return True
    rest = body[found.end() :].lstrip().removeprefix(b",")
    return len(rest) <= _SHORT_BYTES and _is_json(b"{" + rest)


def _is_json(text: bytes) -> bool:
    try:
        decode(text, whole=True)
    except GoJsonError:
        return False
    return True


def _is_named_once(body: bytes) -> bool:
    """Is one key alone spelled `model`, in whatever letter case? None is, with escapes."""
    may_be_escaped = b"\\u006" in body or b"\\u004" in body
    return not may_be_escaped and body.lower().count(b'"model"') == 1


def _document(body: bytes) -> tuple[JsonObject, bool]:
    """The object in a body, and whether it has no key twice: of two, some servers go by the first
    one.
    """
    try:
        document, is_exact = decode_document(body)
    except GoJsonError:
        return {}, True
    return (document if isinstance(document, dict) else {}), is_exact


async def _read(body: bytes) -> JsonObject:
    return await made(len(body), lambda: object_in(body))


async def made(size_bytes: int, make: Callable[[], T]) -> T:
    """What is made of so many bytes; of many in a thread, so that nobody waits for it."""
    return await asyncio.to_thread(make) if size_bytes > LARGE_BYTES else make()


def _not_found(route: Route, model: JsonValue) -> Ready:
    return failed(route, HTTPStatus.NOT_FOUND, f"model '{model or ''}' not found")


async def _message_start(body: bytes) -> bytes:
    """The first event of the answer to a request of Messages."""
    return await made(len(body), lambda: _start_in(folded(object_in(body))))


def _start_in(fields: JsonObject) -> bytes:
    name = f"msg_{secrets.token_hex(12)}"
    return event(message_start(name, str(fields.get("model")), prompt_tokens(fields)))


def _nothing(route: Route, model: str, wall_s: float) -> bytes:
    if route.path is Endpoint.EMBED:
        return encode({"model": model, "embeddings": []})
    if route.path is Endpoint.EMBEDDINGS:
        return encode({"embedding": []})
    return empty_reply(route, model, wall_s, "load")


def _rendering(model: JsonValue, prompt: JsonValue) -> Ready:
    shown: JsonObject = {"model": model, "_debug_info": {"rendered_template": prompt}}
    return Ready(HTTPStatus.OK, encode(shown))


def _retry_after(headers: Headers) -> Headers:
    return tuple(field for field in headers if field[0] == b"retry-after")


def _ready(route: Route, answer: JsonObject) -> Ready:
    """A whole answer, or the error in its place."""
    error = answer.get("error")
    if error is None:
        return Ready(HTTPStatus.OK, encode(answer))
    status = _status_in(error)
    if route.dialect == "openai" and isinstance(error, dict):
        return Ready(status, encode(answer))
    return failed(route, status, said_error(error))


def _status_in(error: JsonValue) -> int:
    """What a stream that ends with this error would have been answered with."""
    code = at(error, ("code",))
    return code if isinstance(code, int) and code in _ERRORS else HTTPStatus.INTERNAL_SERVER_ERROR
