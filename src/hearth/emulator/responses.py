"""`/v1/responses`: OpenAI's Responses API as Ollama answers it (ollama/ollama v0.33.0-rc2, `openai/responses.go`).

Whole answers have Go's struct order; streamed events are Go maps, so their keys come out sorted.
"""

from __future__ import annotations

from collections.abc import Iterator

from hearth.dialects import gojson as go
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.errors import OllamaError
from hearth.emulator.openai import sampling, text_of
from hearth.emulator.prompts import Message
from hearth.emulator.session import Ask, Finished, Writer, check_capabilities, event, open_session, tell
from hearth.emulator.text import Piece, ToolCall
from hearth.emulator.wire import Call

_STRUCT = "ResponsesRequest"


async def responses(call: Call) -> None:
    fields = call.struct("openai.ResponsesRequest")
    shown, ask = go.string_field(fields, "model", _STRUCT), _ask(fields)
    streaming = bool(go.bool_field(fields, "stream", _STRUCT))
    if streaming:
        call.headers["Cache-Control"] = "no-cache"
    if not shown:
        raise OllamaError(400, "model is required")
    installed = call.server.catalogue.require(shown)
    check_capabilities(installed, shown, task="chat", ask=ask)
    events = _Events(call, shown, fields)
    async with open_session(call.server, installed, ask) as session:
        await tell(call, session, events, stream=streaming)


def _ask(fields: JsonObject) -> Ask:
    """The ask of a response; raises `OllamaError` or `GoJsonError` for what Ollama refuses while reading."""
    instructions = go.string_field(fields, "instructions", _STRUCT)
    first = [Message(role="system", content=instructions)] if instructions else []
    tools = [go.struct_of(one, "openai.ResponsesTool") for one in go.array_field(fields, "tools", _STRUCT, "[]openai.ResponsesTool")]
    return Ask(
        messages=first + _input(go.lookup(fields, "input")),
        tools=[_tool(one) for one in tools if one.get("type") == "function"],
        options=sampling(fields, _STRUCT, limit_key="max_output_tokens"),
        schema=_schema_of(go.object_field(fields, "text", _STRUCT, "openai.ResponsesText")),
        think=go.object_field(fields, "reasoning", _STRUCT, "openai.ResponsesReasoning").get("effort"),
    )


def _input(given: JsonValue) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    if not isinstance(given, list):
        raise OllamaError(400, "input must be a string or array", at_bind=True)
    return [_item(go.struct_of(one, "openai.ResponsesInputItem")) for one in given]


def _item(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind == "function_call_output":
        return Message(role="tool", content=str(item.get("output")))
    if kind == "function_call":
        return Message(role="assistant", content="", tool_calls=encode(item).decode())
    content = text_of(item.get("content"), text_kinds=("input_text", "output_text", "text"))
    return Message(role=str(item.get("role") or "user"), content=content)


def _tool(tool: JsonObject) -> JsonObject:
    function: JsonObject = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("parameters")}
    return {"type": "function", "function": function}


def _schema_of(text: JsonObject) -> JsonValue:
    wanted = text.get("format")
    if not isinstance(wanted, dict):
        return None
    if wanted.get("type") == "json_object":
        return "json"
    return wanted.get("schema") if wanted.get("type") == "json_schema" else None


class _Events(Writer):
    """The events of one response, numbered from 0."""

    def __init__(self, call: Call, shown: str, asked: JsonObject) -> None:
        server = call.server
        self._clock = server.engine.clock
        self._shown, self._asked = shown, asked
        self._response_id = f"resp_{server.rng.randrange(999_999)}"
        self._message_id = f"msg_{server.rng.randrange(999_999)}"
        self._call_id = server.hex_id("call_", 8)
        self._created_at = int(self._clock.wall())
        self._number = 0
        self._message_open = False

    def piece(self, piece: Piece) -> Iterator[bytes]:
        if piece.thinking:
            return
        if not self._message_open:
            yield from self._begin()
            self._message_open = True
            yield self._event("response.output_item.added", item=self._message([], "in_progress"), output_index=0)
            yield self._event("response.content_part.added", **self._place(), part=_part(""))
        yield self._event("response.output_text.delta", **self._place(), delta=piece.text, logprobs=[])

    def end(self, finished: Finished) -> Iterator[bytes]:
        if not self._number:
            yield from self._begin()
        if finished.plan.reason is None:
            return
        if self._message_open:
            part = _part(finished.text)
            yield self._event("response.output_text.done", **self._place(), logprobs=[], text=finished.text)
            yield self._event("response.content_part.done", **self._place(), part=part)
            yield self._event("response.output_item.done", item=self._message([part], "completed"), output_index=0)
        if finished.plan.tool is not None:
            yield from self._call_tool(finished.plan.tool)
        yield self._event("response.completed", response=self._response(finished, self._created_at))

    def whole(self, finished: Finished) -> JsonObject:
        return self._response(finished, int(self._clock.wall()))

    def _begin(self) -> Iterator[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response())

    def _call_tool(self, call: ToolCall) -> Iterator[bytes]:
        index, item_id, arguments = int(self._message_open), f"fc_{self._call_id}", encode(call.arguments).decode()
        begun, done = self._function_call(call, status="in_progress"), self._function_call(call, status="completed")
        yield self._event("response.output_item.added", item=begun, output_index=index)
        yield self._event("response.function_call_arguments.delta", delta=arguments, item_id=item_id, output_index=index)
        yield self._event("response.function_call_arguments.done", arguments=arguments, item_id=item_id, output_index=index)
        yield self._event("response.output_item.done", item=done, output_index=index)

    def _event(self, name: str, **fields: JsonValue) -> bytes:
        numbered: JsonObject = {**fields, "sequence_number": self._number, "type": name}
        self._number += 1
        sorted_keys = {key: _sorted(numbered[key]) for key in sorted(numbered)}
        return event(sorted_keys, named=True)

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._message_id, "output_index": 0}

    def _message(self, content: list[JsonValue], status: str) -> JsonObject:
        return {"id": self._message_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _function_call(self, call: ToolCall, *, status: str) -> JsonObject:
        arguments = encode(call.arguments).decode() if status == "completed" else ""
        named: JsonObject = {"call_id": self._call_id, "name": call.name, "arguments": arguments}
        return {"id": f"fc_{self._call_id}", "type": "function_call", "status": status, **named}

    def _output(self, finished: Finished) -> list[JsonValue]:
        items: list[JsonValue] = []
        if finished.text or finished.plan.tool is None:
            part: JsonObject = {"type": "output_text", "text": finished.text, "annotations": [], "logprobs": []}
            items.append(self._message([part], "completed"))
        if finished.plan.tool is not None:
            items.append(self._function_call(finished.plan.tool, status="completed"))
        return items

    def _response(self, finished: Finished | None = None, completed_at: int | None = None) -> JsonObject:
        """The response, in progress where it is not finished; keys in Go's order."""
        asked = self._asked
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": completed_at,
            "status": "completed" if finished else "in_progress",
            "incomplete_details": None,
            "model": self._shown,
            "previous_response_id": None,
            "instructions": go.lookup(asked, "instructions"),
            "output": self._output(finished) if finished else [],
            "error": None,
            "tools": go.lookup(asked, "tools") or [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": _text_config(asked),
            "top_p": _one(asked, "top_p"),
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": _one(asked, "temperature"),
            "reasoning": None,
            "usage": _usage(finished) if finished else None,
            "max_output_tokens": go.integer_field(asked, "max_output_tokens", _STRUCT),
            "max_tool_calls": None,
            "store": False,
            "background": False,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }


def _one(asked: JsonObject, key: str) -> JsonValue:
    given = go.lookup(asked, key)
    return 1 if given is None else given


def _text_config(asked: JsonObject) -> JsonValue:
    given = go.object_field(asked, "text", _STRUCT, "openai.ResponsesText").get("format")
    return {"format": given if isinstance(given, dict) else {"type": "text"}}


def _usage(finished: Finished) -> JsonObject:
    prompt, output = finished.measured.prompt_tokens, finished.measured.eval_tokens
    return {
        "input_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _part(text: str) -> JsonObject:
    return {"annotations": [], "logprobs": [], "text": text, "type": "output_text"}


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
