"""`/api/generate` and `/api/chat`: Ollama's own generation routes, streamed as NDJSON or whole.

Field order, omission of zeros and the load and unload forms as in ollama/ollama v0.33.0-rc2 (`api/types.go`, `server/routes.go`).
Called by the server's route table only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.dialects.gojson import (
    JsonObject,
    JsonValue,
    array_field,
    bool_field,
    encode,
    integer_field,
    lookup,
    object_field,
    string_field,
    struct_of,
)
from hearth.emulator.durations import keep_alive_s, nanoseconds, timestamp
from hearth.emulator.errors import OllamaError
from hearth.emulator.exchange import NDJSON, Call, Server, Sink, break_off, read_struct, send_json
from hearth.emulator.logprobs import logprobs_of
from hearth.emulator.models import Installed
from hearth.emulator.prompts import Message, render
from hearth.emulator.session import Ask, Finished, Session, check_capabilities, open_session
from hearth.emulator.text import Piece, ToolCall
from hearth.emulator.tokens import token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What both routes have in common."""

    shown: str
    chat: bool
    stream: bool
    logprobs: bool
    top_logprobs: int
    ask: Ask
    received_at: float
    raw: bool = False

    @property
    def empty(self) -> bool:
        """The load and unload form."""
        return not self.ask.messages if self.ask.prompt is None else not self.ask.prompt


async def generate(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError` and `GoJsonError`; a missing model is looked up before anything else is refused."""
    fields = read_struct(call, "api.GenerateRequest")
    request = _read_generate(fields, call)
    installed = server.catalogue.require(request.shown)
    _check_logprobs(request)
    if string_field(fields, "suffix", "GenerateRequest") and not installed.model.can("insert"):
        raise OllamaError(400, f"{installed.name.full} does not support insert")
    await _answer(server, installed, request, sink, task="generate")


async def chat(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError` and `GoJsonError`."""
    fields = read_struct(call, "api.ChatRequest")
    request = _read_chat(fields, call)
    _check_logprobs(request)
    if not request.shown:
        raise OllamaError(400, "model is required")
    await _answer(server, server.catalogue.require(request.shown), request, sink, task="chat")


def _read_generate(fields: JsonObject, call: Call) -> _Request:
    struct = "GenerateRequest"
    prompt, raw = string_field(fields, "prompt", struct), bool(bool_field(fields, "raw", struct))
    system = string_field(fields, "system", struct)
    turns = [Message(role="system", content=system)] if system else []
    turns.append(Message(role="user", content=prompt + string_field(fields, "suffix", struct)))
    ask = _read_ask(fields, struct, messages=turns if prompt else [], tools=[], prompt=prompt if raw else None)
    return _read_common(fields, struct, call, ask, raw=raw)


def _read_chat(fields: JsonObject, call: Call) -> _Request:
    struct = "ChatRequest"
    turns = [_message(one) for one in array_field(fields, "messages", struct, "[]api.Message")]
    tools = [struct_of(one, "api.Tool") for one in array_field(fields, "tools", struct, "api.Tools")]
    ask = _read_ask(fields, struct, messages=turns, tools=tools, prompt=None)
    return _read_common(fields, struct, call, ask, raw=False)


def _read_ask(fields: JsonObject, struct: str, *, messages: list[Message], tools: list[JsonObject], prompt: str | None) -> Ask:
    shift, truncate = bool_field(fields, "shift", struct), bool_field(fields, "truncate", struct)
    return Ask(
        messages=messages,
        prompt=prompt,
        tools=tools,
        options=object_field(fields, "options", struct, "map[string]interface {}"),
        schema=lookup(fields, "format") or None,
        think=lookup(fields, "think"),
        keep_alive_s=keep_alive_s(lookup(fields, "keep_alive")),
        shift=shift is not False,
        truncate=truncate is not False,
        render_only=bool(bool_field(fields, "_debug_render_only", struct)),
    )


def _read_common(fields: JsonObject, struct: str, call: Call, ask: Ask, *, raw: bool) -> _Request:
    return _Request(
        shown=string_field(fields, "model", struct),
        chat=struct == "ChatRequest",
        stream=bool_field(fields, "stream", struct) is not False,
        logprobs=bool(bool_field(fields, "logprobs", struct)),
        top_logprobs=integer_field(fields, "top_logprobs", struct) or 0,
        ask=ask,
        received_at=call.received_at,
        raw=raw,
    )


def _message(value: JsonValue) -> Message:
    fields = struct_of(value, "api.Message")
    calls = array_field(fields, "tool_calls", "Message", "[]api.ToolCall")
    return Message(
        role=string_field(fields, "role", "Message"),
        content=string_field(fields, "content", "Message"),
        tool_calls=encode(calls).decode() if calls else "",
        thinking=string_field(fields, "thinking", "Message"),
    )


def _check_logprobs(request: _Request) -> None:
    if not 0 <= request.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")


async def _answer(server: Server, installed: Installed, request: _Request, sink: Sink, *, task: str) -> None:
    lines = _Lines(server, request)
    if request.empty and request.ask.keep_alive_s == 0:
        server.engine.expire(installed)
        await send_json(sink, lines.empty("unload"))
        return
    check_capabilities(installed, request.shown, task=task, ask=request.ask)
    async with open_session(server, installed, request.ask) as session:
        if request.empty:
            await send_json(sink, lines.empty("load"))
        elif request.ask.render_only:
            await send_json(sink, lines.rendered(session.rendered()))
        elif request.stream:
            sink.prepare(NDJSON)
            await _stream(lines, installed, session, sink)
        else:
            finished = await session.speak()
            await send_json(sink, lines.last(installed, finished, session.handed_over_at, whole=True))


async def _stream(lines: _Lines, installed: Installed, session: Session, sink: Sink) -> None:
    async def say(piece: Piece) -> None:
        await sink.chunk(encode(lines.piece(piece)) + b"\n")

    try:
        finished = await session.speak(say)
        if finished.plan.tool is not None:
            await sink.chunk(encode(lines.tool_call(finished.plan.tool)) + b"\n")
        if finished.plan.reason is not None:
            await sink.chunk(encode(lines.last(installed, finished, session.handed_over_at, whole=False)) + b"\n")
    except OllamaError as error:
        await break_off(error, sink)


class _Lines:
    """The JSON objects of one answer, keys in Go's order."""

    def __init__(self, server: Server, request: _Request) -> None:
        self._server = server
        self._request = request

    def empty(self, reason: str) -> JsonObject:
        return self._head() | self._said("", "", None) | {"done": True, "done_reason": reason}

    def rendered(self, prompt: str) -> JsonObject:
        said: JsonObject = {"message": {"role": "", "content": ""}} if self._request.chat else {"response": ""}
        return self._head() | said | {"done": False, "_debug_info": {"rendered_template": prompt}}

    def piece(self, piece: Piece) -> JsonObject:
        thinking, text = (piece.text, "") if piece.thinking else ("", piece.text)
        return self._head() | self._said(text, thinking, None) | {"done": False} | self._logprobs((piece,))

    def tool_call(self, call: ToolCall) -> JsonObject:
        return self._head() | self._said("", "", call) | {"done": False}

    def last(self, installed: Installed, finished: Finished, handed_over_at: float, *, whole: bool) -> JsonObject:
        said = self._said(finished.text, finished.thinking, finished.plan.tool) if whole else self._said("", "", None)
        probabilities = self._logprobs(finished.plan.pieces) if whole else {}
        if finished.plan.reason is None:
            return self._head() | said | {"done": False} | probabilities
        end: JsonObject = {"done": True, "done_reason": finished.plan.reason}
        return self._head() | said | end | self._context(installed, finished) | probabilities | self._timings(finished, handed_over_at)

    def _head(self) -> JsonObject:
        return {"model": self._request.shown, "created_at": timestamp(self._server.engine.clock.wall())}

    def _said(self, text: str, thinking: str, call: ToolCall | None) -> JsonObject:
        thought: JsonObject = {"thinking": thinking} if thinking else {}
        if not self._request.chat:
            return {"response": text, **thought}
        message: JsonObject = {"role": "assistant", "content": text, **thought}
        if call is not None:
            function: JsonObject = {"index": 0, "name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": self._server.hex_id("call_", 8), "function": function}]
        return {"message": message}

    def _logprobs(self, pieces: tuple[Piece, ...]) -> JsonObject:
        return {"logprobs": logprobs_of(pieces, top=self._request.top_logprobs)} if self._request.logprobs else {}

    def _context(self, installed: Installed, finished: Finished) -> JsonObject:
        if self._request.chat or self._request.raw:
            return {}
        return {"context": [*token_ids(installed.model, render(self._request.ask.messages) + finished.text)]}

    def _timings(self, finished: Finished, handed_over_at: float) -> JsonObject:
        measured, received_at = finished.measured, self._request.received_at
        return {
            "total_duration": nanoseconds(self._server.engine.clock.monotonic() - received_at),
            "load_duration": nanoseconds(handed_over_at - received_at),
            "prompt_eval_count": measured.prompt_tokens,
            "prompt_eval_duration": nanoseconds(measured.prompt_s, step=1000),
            "eval_count": measured.eval_tokens,
            "eval_duration": nanoseconds(measured.eval_s, step=1000),
        }
