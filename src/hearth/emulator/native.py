"""Ollama's own inference routes, and embeddings in every dialect.

`/api/generate` and `/api/chat`: Ollama's own generation routes, streamed as NDJSON or whole.

Field order, omission of zeros and the load and unload forms as in ollama/ollama v0.33.0-rc2 (`api/types.go`, `server/routes.go`).

`/api/embed`, `/api/embeddings` and `/v1/embeddings`: deterministic unit vectors.

A vector depends on model and text alone, so the same text gives the same bits alone and in a batch.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import sqrt

from hearth.dialects import gojson as go
from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, encode, integer_field, lookup, object_field, string_field
from hearth.emulator.engine import Execution
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.emulator.prompts import Message, Options, count_tokens, read_options, render, token_ids
from hearth.emulator.session import Ask, Finished, Writer, check_capabilities, open_session, tell
from hearth.emulator.text import Piece, ToolCall, draws, logprobs_of
from hearth.emulator.wire import Call, Server, keep_alive_s, nanoseconds, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What both routes have in common."""

    shown: str
    task: str
    stream: bool
    logprobs: bool
    top_logprobs: int
    ask: Ask

    @property
    def chat(self) -> bool:
        return self.task == "chat"

    @property
    def empty(self) -> bool:
        """The load and unload form."""
        return not self.ask.messages if self.ask.prompt is None else not self.ask.prompt


async def generate(call: Call) -> None:
    """A missing model is looked up before anything else is refused."""
    fields = call.struct("api.GenerateRequest")
    struct = "GenerateRequest"
    prompt, system, suffix = (go.string_field(fields, name, struct) for name in ("prompt", "system", "suffix"))
    turns = [Message(role="system", content=system)] if system else []
    turns.append(Message(role="user", content=prompt + suffix))
    raw = go.bool_field(fields, "raw", struct)
    ask = _ask(fields, struct, messages=turns if prompt else [], tools=[], prompt=prompt if raw else None)
    request = _request(fields, struct, ask, task="generate")
    installed = call.server.catalogue.require(request.shown)
    _check_logprobs(request)
    if suffix and not installed.model.can("insert"):
        raise OllamaError(400, f"{installed.name.full} does not support insert")
    await _answer(call, installed, request)


async def chat(call: Call) -> None:
    fields = call.struct("api.ChatRequest")
    struct = "ChatRequest"
    turns = [_message(one) for one in go.array_field(fields, "messages", struct, "[]api.Message")]
    tools = [go.struct_of(one, "api.Tool") for one in go.array_field(fields, "tools", struct, "api.Tools")]
    request = _request(fields, struct, _ask(fields, struct, messages=turns, tools=tools, prompt=None), task="chat")
    _check_logprobs(request)
    if not request.shown:
        raise OllamaError(400, "model is required")
    await _answer(call, call.server.catalogue.require(request.shown), request)


def _ask(fields: JsonObject, struct: str, *, messages: list[Message], tools: list[JsonObject], prompt: str | None) -> Ask:
    return Ask(
        messages=messages,
        prompt=prompt,
        tools=tools,
        options=go.object_field(fields, "options", struct, "map[string]interface {}"),
        schema=go.lookup(fields, "format") or None,
        think=go.lookup(fields, "think"),
        keep_alive_s=keep_alive_s(go.lookup(fields, "keep_alive")),
        shift=go.bool_field(fields, "shift", struct) is not False,
        truncate=go.bool_field(fields, "truncate", struct) is not False,
        render_only=bool(go.bool_field(fields, "_debug_render_only", struct)),
    )


def _request(fields: JsonObject, struct: str, ask: Ask, *, task: str) -> _Request:
    return _Request(
        shown=go.string_field(fields, "model", struct),
        task=task,
        stream=go.bool_field(fields, "stream", struct) is not False,
        logprobs=bool(go.bool_field(fields, "logprobs", struct)),
        top_logprobs=go.integer_field(fields, "top_logprobs", struct) or 0,
        ask=ask,
    )


def _message(value: JsonValue) -> Message:
    fields = go.struct_of(value, "api.Message")
    calls = go.array_field(fields, "tool_calls", "Message", "[]api.ToolCall")
    role, content, thinking = (go.string_field(fields, name, "Message") for name in ("role", "content", "thinking"))
    return Message(role=role, content=content, tool_calls=encode(calls).decode() if calls else "", thinking=thinking)


def _check_logprobs(request: _Request) -> None:
    if not 0 <= request.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")


async def _answer(call: Call, installed: Installed, request: _Request) -> None:
    lines = _Lines(call, installed, request)
    if request.empty and request.ask.keep_alive_s == 0:
        call.server.engine.expire(installed)
        await call.json(lines.empty("unload"))
        return
    check_capabilities(installed, request.shown, task=request.task, ask=request.ask)
    async with open_session(call.server, installed, request.ask) as session:
        if request.empty:
            await call.json(lines.empty("load"))
        elif request.ask.render_only:
            await call.json(lines.rendered(session.rendered()))
        else:
            await tell(call, session, lines, stream=request.stream)


class _Lines(Writer):
    """The lines of one answer."""

    def __init__(self, call: Call, installed: Installed, request: _Request) -> None:
        self._call, self._installed, self._request = call, installed, request

    def piece(self, piece: Piece) -> Iterator[bytes]:
        said = self._said("", piece.text) if piece.thinking else self._said(piece.text)
        yield _line(self._head() | said | {"done": False} | self._logprobs((piece,)))

    def end(self, finished: Finished) -> Iterator[bytes]:
        if finished.plan.tool is not None:
            yield _line(self._head() | self._said(call=finished.plan.tool) | {"done": False})
        if finished.plan.reason is not None:
            yield _line(self._head() | self._said() | self._done(finished) | self._timings(finished))

    def whole(self, finished: Finished) -> JsonObject:
        head = self._head() | self._said(finished.text, finished.thinking, finished.plan.tool)
        probabilities = self._logprobs(finished.plan.pieces)
        if finished.plan.reason is None:
            return head | {"done": False} | probabilities
        return head | self._done(finished) | probabilities | self._timings(finished)

    def empty(self, reason: str) -> JsonObject:
        return self._head() | self._said() | {"done": True, "done_reason": reason}

    def rendered(self, prompt: str) -> JsonObject:
        said: JsonObject = {"message": {"role": "", "content": ""}} if self._request.chat else {"response": ""}
        return self._head() | said | {"done": False, "_debug_info": {"rendered_template": prompt}}

    def _head(self) -> JsonObject:
        return {"model": self._request.shown, "created_at": timestamp(self._call.server.engine.clock.wall())}

    def _said(self, text: str = "", thinking: str = "", call: ToolCall | None = None) -> JsonObject:
        thought: JsonObject = {"thinking": thinking} if thinking else {}
        if not self._request.chat:
            return {"response": text, **thought}
        message: JsonObject = {"role": "assistant", "content": text, **thought}
        if call is not None:
            function: JsonObject = {"index": 0, "name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": self._call.server.hex_id("call_", 8), "function": function}]
        return {"message": message}

    def _logprobs(self, pieces: tuple[Piece, ...]) -> JsonObject:
        return {"logprobs": logprobs_of(pieces, top=self._request.top_logprobs)} if self._request.logprobs else {}

    def _done(self, finished: Finished) -> JsonObject:
        done: JsonObject = {"done": True, "done_reason": finished.plan.reason}
        if self._request.chat or self._request.ask.prompt is not None:
            return done
        return done | {"context": [*token_ids(self._installed.model, render(self._request.ask.messages) + finished.text)]}

    def _timings(self, finished: Finished) -> JsonObject:
        measured, received_at = finished.measured, self._call.received_at
        return {
            "total_duration": nanoseconds(self._call.server.engine.clock.monotonic() - received_at),
            "load_duration": nanoseconds(finished.handed_over_at - received_at),
            "prompt_eval_count": measured.prompt_tokens,
            "prompt_eval_duration": nanoseconds(measured.prompt_s, step=1000),
            "eval_count": measured.eval_tokens,
            "eval_duration": nanoseconds(measured.eval_s, step=1000),
        }


def _line(value: JsonObject) -> bytes:
    return encode(value) + b"\n"


_MISSING = 'model "{}" not found, try pulling it first'
_NAMELESS = "model '{}' not found"
_UNSUPPORTED_TEXT = "This server does not support embeddings. Start it with `--embeddings`"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Texts to embed with one model."""

    texts: tuple[str, ...]
    options: JsonObject
    keep_alive_s: float | None
    dimensions: int | None = None
    truncate: bool = True
    unsupported_status: int = 501
    too_long_status: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedded:
    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    handed_over_at: float


async def embed(call: Call) -> None:
    """Raises `OllamaError`."""
    fields = call.struct("api.EmbedRequest")
    shown, go_struct = string_field(fields, "model", "EmbedRequest"), "EmbedRequest"
    job = _Job(
        texts=_texts(lookup(fields, "input"), OllamaError(400, "invalid input type")),
        options=object_field(fields, "options", go_struct, "map[string]interface {}"),
        keep_alive_s=keep_alive_s(lookup(fields, "keep_alive")),
        dimensions=integer_field(fields, "dimensions", go_struct),
        truncate=bool_field(fields, "truncate", go_struct) is not False,
    )
    installed = call.server.catalogue.require(shown, template=_MISSING if shown else _NAMELESS)
    done = await _embed(call.server, installed, job)
    answer: JsonObject = {"model": shown, "embeddings": [[*map(shortest, vector)] for vector in done.vectors]}
    if job.texts:
        answer |= {
            "total_duration": nanoseconds(call.server.engine.clock.monotonic() - call.received_at),
            "load_duration": nanoseconds(done.handed_over_at - call.received_at),
            "prompt_eval_count": done.prompt_tokens,
        }
    await call.json(answer)


async def legacy(call: Call) -> None:
    """Raises `OllamaError`; one prompt, values in double precision."""
    fields = call.struct("api.EmbeddingRequest")
    go_struct = "EmbeddingRequest"
    shown, prompt = string_field(fields, "model", go_struct), string_field(fields, "prompt", go_struct)
    options = object_field(fields, "options", go_struct, "map[string]interface {}")
    stay_s = keep_alive_s(lookup(fields, "keep_alive"))
    if not shown:
        raise OllamaError(400, "model is required")
    job = _Job(texts=(prompt,) if prompt else (), options=options, keep_alive_s=stay_s, unsupported_status=500, too_long_status=500)
    done = await _embed(call.server, call.server.catalogue.require(shown, template=_MISSING), job)
    await call.json({"embedding": [*(done.vectors[0] if done.vectors else ())]})


async def openai_embeddings(call: Call) -> None:
    """Raises `OllamaError`."""
    fields = call.struct("openai.EmbedRequest")
    go_struct = "EmbedRequest"
    shown, given = string_field(fields, "model", go_struct), lookup(fields, "input")
    if given is None or given == []:
        raise OllamaError(400, "invalid input", at_bind=True)
    packed = string_field(fields, "encoding_format", go_struct).lower() == "base64"
    texts = _texts([""] if given == "" else given, OllamaError(400, "invalid input type"))
    job = _Job(texts=texts, options={}, keep_alive_s=None, dimensions=integer_field(fields, "dimensions", go_struct))
    done = await _embed(call.server, call.server.catalogue.require(shown, template=_MISSING if shown else _NAMELESS), job)
    data: list[JsonValue] = [
        {"object": "embedding", "embedding": _packed(vector) if packed else [*map(shortest, vector)], "index": place}
        for place, vector in enumerate(done.vectors)
    ]
    usage: JsonObject = {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens}
    await call.json({"object": "list", "data": data, "model": shown, "usage": usage})


def _texts(given: JsonValue, invalid: OllamaError) -> tuple[str, ...]:
    if given is None or given == "":
        return ()
    if isinstance(given, str):
        return (given,)
    texts = tuple(one for one in given if isinstance(one, str)) if isinstance(given, list) else ()
    if not isinstance(given, list) or len(texts) != len(given):
        raise invalid
    return texts


async def _embed(server: Server, installed: Installed, job: _Job) -> _Embedded:
    options = read_options(installed.model, job.options, default_num_ctx=server.engine.limits.default_context_tokens, shift=True)
    async with server.engine.lease(installed, options.load, job.keep_alive_s) as runner:
        handed_over_at = server.engine.clock.monotonic()
        if job.texts and not installed.model.can("embedding"):
            raise OllamaError(job.unsupported_status, _UNSUPPORTED_TEXT)
        sizes = [_prompt_tokens(installed.model, text, job, options) for text in job.texts]
        for tokens in sizes:
            await Execution(server.engine, runner, tokens).read()
    vectors = tuple(vector_of(installed.model, text, job.dimensions) for text in job.texts)
    return _Embedded(vectors=vectors, prompt_tokens=sum(sizes), handed_over_at=handed_over_at)


def _prompt_tokens(model: EmulatedModel, text: str, job: _Job, options: Options) -> int:
    tokens = count_tokens(model, text)
    if tokens > options.load.num_ctx and not job.truncate:
        raise OllamaError(job.too_long_status, "the input length exceeds the context length")
    return min(tokens, options.load.num_ctx)


def vector_of(model: EmulatedModel, text: str, dimensions: int | None = None) -> tuple[float, ...]:
    """A vector of length 1 in single precision; shortened ones are normalised again."""
    full = model.profile.embedding_length
    size = min(dimensions, full) if dimensions and dimensions > 0 else full
    raw = [number / 2**31 - 1.0 for number in islice(draws(f"{model.profile.name}\x00{text}"), size)]
    length = sqrt(sum(value * value for value in raw))
    return struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *(value / length for value in raw)))


def shortest(value: float) -> float:
    """The float whose text is the shortest that still means the same number in single precision, as Go prints a float32."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("<f", struct.pack("<f", short))[0] == value:
            return short
    return float(f"{value:.9g}")


def _packed(vector: tuple[float, ...]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
