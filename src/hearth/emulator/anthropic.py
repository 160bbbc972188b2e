"""`/v1/messages`: Anthropic's Messages API as Ollama answers it (ollama/ollama v0.33.0-rc2, `anthropic` and `middleware`).

Called by the server's route table only.
"""

from __future__ import annotations

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
from hearth.emulator.errors import OllamaError, RunnerDied
from hearth.emulator.exchange import EVENTS, Call, Server, Sink, read_struct, send_v1
from hearth.emulator.options import temperature_option
from hearth.emulator.prompts import Message
from hearth.emulator.session import Ask, Finished, Session, check_capabilities, open_session
from hearth.emulator.text import Piece, ToolCall

_STRUCT = "MessagesRequest"


async def messages(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError`."""
    fields = read_struct(call, "anthropic.MessagesRequest")
    shown = string_field(fields, "model", _STRUCT)
    ask = _ask(fields, shown)
    streaming = bool(bool_field(fields, "stream", _STRUCT))
    if streaming:
        sink.add_header("Cache-Control", "no-cache")
    installed = server.catalogue.require(shown)
    check_capabilities(installed, shown, task="chat", ask=ask, strict_thinking=False)
    async with open_session(server, installed, ask) as session:
        if streaming:
            sink.prepare(EVENTS)
            await _stream(_Events(server, shown, ask, sink), session, sink)
        else:
            await send_v1(sink, _whole(server, shown, await session.speak()))


def _ask(fields: JsonObject, shown: str) -> Ask:
    limit_tokens = integer_field(fields, "max_tokens", _STRUCT) or 0
    turns = array_field(fields, "messages", _STRUCT, "[]anthropic.MessageParam")
    if not shown:
        raise OllamaError(400, "model is required", at_bind=True)
    if limit_tokens <= 0:
        raise OllamaError(400, "max_tokens is required and must be positive", at_bind=True)
    if not turns:
        raise OllamaError(400, "messages is required", at_bind=True)
    system = _text(lookup(fields, "system"))
    first = [Message(role="system", content=system)] if system else []
    return Ask(
        messages=first + [_message(one) for one in turns],
        tools=[_tool(struct_of(one, "anthropic.Tool")) for one in array_field(fields, "tools", _STRUCT, "[]anthropic.Tool")],
        options=_options(fields, limit_tokens),
        think=object_field(fields, "thinking", _STRUCT, "anthropic.ThinkingConfig").get("type") == "enabled",
    )


def _options(fields: JsonObject, limit_tokens: int) -> JsonObject:
    stops = array_field(fields, "stop_sequences", _STRUCT, "[]string")
    options = {"num_predict": limit_tokens, **temperature_option(fields, _STRUCT)}
    return options | {"stop": stops} if stops else options


def _message(value: JsonValue) -> Message:
    fields = struct_of(value, "anthropic.MessageParam")
    content = lookup(fields, "content")
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return Message(role="tool" if is_result else string_field(fields, "role", "MessageParam"), content=_text(content))


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


def _whole(server: Server, shown: str, finished: Finished) -> JsonObject:
    content: list[JsonValue] = [{"type": "thinking", "thinking": finished.thinking}] if finished.thinking else []
    if finished.text:
        content.append({"type": "text", "text": finished.text})
    if finished.plan.tool is not None:
        call = finished.plan.tool
        content.append({"type": "tool_use", "id": server.hex_id("call_", 8), "name": call.name, "input": call.arguments})
    head: JsonObject = {"id": server.hex_id("msg_", 24), "type": "message", "role": "assistant", "model": shown, "content": content}
    return head | {"stop_reason": _stop_reason(finished), "usage": _usage(finished)}


def _stop_reason(finished: Finished) -> str:
    if finished.plan.tool is not None:
        return "tool_use"
    return "max_tokens" if finished.plan.reason == "length" else "end_turn"


def _usage(finished: Finished) -> JsonObject:
    return {"input_tokens": finished.measured.prompt_tokens, "output_tokens": finished.measured.eval_tokens}


async def _stream(events: _Events, session: Session, sink: Sink) -> None:
    try:
        finished = await session.speak(events.say, v1=True)
    except RunnerDied:
        if not sink.started:
            raise
        return
    if finished.plan.tool is not None:
        await events.call_tool(finished.plan.tool)
    if finished.plan.reason is not None:
        await events.end(finished)


class _Events:
    """Sends the events of one streamed message, one HTTP chunk each."""

    def __init__(self, server: Server, shown: str, ask: Ask, sink: Sink) -> None:
        self._server = server
        self._shown = shown
        self._sink = sink
        self._estimated_tokens = max(1, sum(len(one.content) for one in ask.messages) // 4 + 1)
        self._open: str | None = None
        self._index = -1

    async def say(self, piece: Piece) -> None:
        kind = "thinking" if piece.thinking else "text"
        if self._open != kind:
            await self._open_block({"type": kind, kind: ""})
        await self._delta({"type": f"{kind}_delta", kind: piece.text})

    async def call_tool(self, call: ToolCall) -> None:
        await self._open_block({"type": "tool_use", "id": self._server.hex_id("call_", 8), "name": call.name, "input": {}})
        await self._delta({"type": "input_json_delta", "partial_json": encode(call.arguments).decode()})

    async def end(self, finished: Finished) -> None:
        await self._close_block()
        if not self._sink.started:
            await self._begin()
        await self._send({"type": "message_delta", "delta": {"stop_reason": _stop_reason(finished)}, "usage": _usage(finished)})
        await self._send({"type": "message_stop"})

    async def _begin(self) -> None:
        message: JsonObject = {"id": self._server.hex_id("msg_", 24), "type": "message", "role": "assistant", "model": self._shown}
        usage: JsonObject = {"input_tokens": self._estimated_tokens, "output_tokens": 0}
        await self._send({"type": "message_start", "message": message | {"content": [], "usage": usage}})

    async def _open_block(self, block: JsonObject) -> None:
        if not self._sink.started:
            await self._begin()
        await self._close_block()
        self._open, self._index = str(block["type"]), self._index + 1
        await self._send({"type": "content_block_start", "index": self._index, "content_block": block})

    async def _delta(self, delta: JsonObject) -> None:
        await self._send({"type": "content_block_delta", "index": self._index, "delta": delta})

    async def _close_block(self) -> None:
        if self._open is not None:
            self._open = None
            await self._send({"type": "content_block_stop", "index": self._index})

    async def _send(self, event: JsonObject) -> None:
        await self._sink.chunk(f"event: {event['type']}\ndata: ".encode() + encode(event) + b"\n\n")
