"""`/v1/messages`: Anthropic's Messages API as Ollama answers it (ollama/ollama v0.33.0-rc2, `anthropic` and `middleware`)."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.dialects import gojson as go
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.models import OllamaError
from hearth.emulator.prompts import Message, temperature_option
from hearth.emulator.session import Ask, Finished, Writer, check_capabilities, event, open_session, tell
from hearth.emulator.text import Piece
from hearth.emulator.wire import Call

_STRUCT = "MessagesRequest"


async def messages(call: Call) -> None:
    fields = call.struct("anthropic.MessagesRequest")
    shown = go.string_field(fields, "model", _STRUCT)
    ask = _ask(fields, shown)
    streaming = bool(go.bool_field(fields, "stream", _STRUCT))
    if streaming:
        call.headers["Cache-Control"] = "no-cache"
    installed = call.server.catalogue.require(shown)
    check_capabilities(installed, shown, task="chat", ask=ask, strict_thinking=False)
    async with open_session(call.server, installed, ask) as session:
        await tell(call, session, _Events(call, shown, ask), stream=streaming)


def _ask(fields: JsonObject, shown: str) -> Ask:
    limit_tokens = go.integer_field(fields, "max_tokens", _STRUCT) or 0
    turns = go.array_field(fields, "messages", _STRUCT, "[]anthropic.MessageParam")
    if not shown:
        raise OllamaError(400, "model is required", at_bind=True)
    if limit_tokens <= 0:
        raise OllamaError(400, "max_tokens is required and must be positive", at_bind=True)
    if not turns:
        raise OllamaError(400, "messages is required", at_bind=True)
    system = _text(go.lookup(fields, "system"))
    first = [Message(role="system", content=system)] if system else []
    return Ask(
        messages=first + [_message(one) for one in turns],
        tools=[_tool(go.struct_of(one, "anthropic.Tool")) for one in go.array_field(fields, "tools", _STRUCT, "[]anthropic.Tool")],
        options=_options(fields, limit_tokens),
        think=go.object_field(fields, "thinking", _STRUCT, "anthropic.ThinkingConfig").get("type") == "enabled",
    )


def _options(fields: JsonObject, limit_tokens: int) -> JsonObject:
    stops = go.array_field(fields, "stop_sequences", _STRUCT, "[]string")
    options = {"num_predict": limit_tokens, **temperature_option(fields, _STRUCT)}
    return options | {"stop": stops} if stops else options


def _message(value: JsonValue) -> Message:
    fields = go.struct_of(value, "anthropic.MessageParam")
    content = go.lookup(fields, "content")
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return Message(role="tool" if is_result else go.string_field(fields, "role", "MessageParam"), content=_text(content))


def _text(content: JsonValue) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(_block_text(one) for one in blocks if isinstance(one, dict))


def _block_text(block: JsonObject) -> str:
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    if kind == "tool_result":
        return _text(block.get("content"))
    return encode(block.get("input")).decode() if kind == "tool_use" else "[img]"


def _tool(tool: JsonObject) -> JsonObject:
    function: JsonObject = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": function}


class _Events(Writer):
    """The events of one message."""

    def __init__(self, call: Call, shown: str, ask: Ask) -> None:
        self._server, self._shown = call.server, shown
        self._estimated_tokens = max(1, sum(len(one.content) for one in ask.messages) // 4 + 1)
        self._begun = False
        self._open: str | None = None
        self._index = -1

    def piece(self, piece: Piece) -> Iterator[bytes]:
        kind = "thinking" if piece.thinking else "text"
        if self._open != kind:
            yield from self._open_block({"type": kind, kind: ""})
        yield self._delta({"type": f"{kind}_delta", kind: piece.text})

    def end(self, finished: Finished) -> Iterator[bytes]:
        call = finished.plan.tool
        if call is not None:
            yield from self._open_block({"type": "tool_use", "id": self._server.hex_id("call_", 8), "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": encode(call.arguments).decode()})
        if finished.plan.reason is None:
            return
        yield from self._close_block()
        yield from self._begin()
        delta: JsonObject = {"stop_reason": _stop_reason(finished)}
        yield event({"type": "message_delta", "delta": delta, "usage": _usage(finished)}, named=True)
        yield event({"type": "message_stop"}, named=True)

    def whole(self, finished: Finished) -> JsonObject:
        content: list[JsonValue] = [{"type": "thinking", "thinking": finished.thinking}] if finished.thinking else []
        if finished.text:
            content.append({"type": "text", "text": finished.text})
        call = finished.plan.tool
        if call is not None:
            content.append({"type": "tool_use", "id": self._server.hex_id("call_", 8), "name": call.name, "input": call.arguments})
        return self._message(content) | {"stop_reason": _stop_reason(finished), "usage": _usage(finished)}

    def _message(self, content: list[JsonValue]) -> JsonObject:
        made_by: JsonObject = {"type": "message", "role": "assistant", "model": self._shown}
        return {"id": self._server.hex_id("msg_", 24), **made_by, "content": content}

    def _begin(self) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            usage: JsonObject = {"input_tokens": self._estimated_tokens, "output_tokens": 0}
            yield event({"type": "message_start", "message": self._message([]) | {"usage": usage}}, named=True)

    def _open_block(self, block: JsonObject) -> Iterator[bytes]:
        yield from self._begin()
        yield from self._close_block()
        self._open, self._index = str(block["type"]), self._index + 1
        yield event({"type": "content_block_start", "index": self._index, "content_block": block}, named=True)

    def _close_block(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield event({"type": "content_block_stop", "index": self._index}, named=True)

    def _delta(self, delta: JsonObject) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta}, named=True)


def _stop_reason(finished: Finished) -> str:
    if finished.plan.tool is not None:
        return "tool_use"
    return "max_tokens" if finished.plan.reason == "length" else "end_turn"


def _usage(finished: Finished) -> JsonObject:
    return {"input_tokens": finished.measured.prompt_tokens, "output_tokens": finished.measured.eval_tokens}
