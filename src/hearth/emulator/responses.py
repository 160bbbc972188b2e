"""`/v1/responses`: OpenAI's Responses API as Ollama answers it (ollama/ollama v0.33.0-rc2, `openai/responses.go`).

Whole answers have Go's struct order; streamed events are Go maps, so their keys come out sorted. Called by the server's route table only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.dialects.gojson import JsonObject, JsonValue, bool_field, encode, integer_field, lookup, object_field, string_field
from hearth.emulator.errors import OllamaError, RunnerDied
from hearth.emulator.exchange import EVENTS, Call, Server, Sink, read_struct, send_v1
from hearth.emulator.responses_asks import responses_ask
from hearth.emulator.session import Ask, Finished, Session, check_capabilities, open_session
from hearth.emulator.text import Piece, ToolCall

_STRUCT = "ResponsesRequest"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What stays the same over all objects of one response."""

    response_id: str
    message_id: str
    call_id: str
    shown: str
    created_at: int
    asked: JsonObject
    ask: Ask


async def responses(server: Server, call: Call, sink: Sink) -> None:
    """Raises `OllamaError`."""
    fields = read_struct(call, "openai.ResponsesRequest")
    shown, ask = string_field(fields, "model", _STRUCT), responses_ask(fields)
    streaming = bool(bool_field(fields, "stream", _STRUCT))
    if streaming:
        sink.add_header("Cache-Control", "no-cache")
    if not shown:
        raise OllamaError(400, "model is required")
    installed = server.catalogue.require(shown)
    check_capabilities(installed, shown, task="chat", ask=ask)
    answer = _new_answer(server, shown, fields, ask)
    async with open_session(server, installed, ask) as session:
        if streaming:
            sink.prepare(EVENTS)
            await _stream(_Events(answer, sink), session, sink)
        else:
            finished = await session.speak()
            await send_v1(sink, _whole(answer, finished, int(server.engine.clock.wall())))


def _new_answer(server: Server, shown: str, fields: JsonObject, ask: Ask) -> _Answer:
    return _Answer(
        response_id=f"resp_{server.rng.randrange(999_999)}",
        message_id=f"msg_{server.rng.randrange(999_999)}",
        call_id=server.hex_id("call_", 8),
        shown=shown,
        created_at=int(server.engine.clock.wall()),
        asked=fields,
        ask=ask,
    )


def _whole(answer: _Answer, finished: Finished, completed_at: int) -> JsonObject:
    """A finished response: the frame's keys keep their places, only values change."""
    done: JsonObject = {"completed_at": completed_at, "status": "completed", "output": _output(answer, finished), "usage": _usage(finished)}
    return _frame(answer) | done


def _frame(answer: _Answer) -> JsonObject:
    """A response that is in progress, keys in Go's order."""
    asked = answer.asked
    return {
        "id": answer.response_id,
        "object": "response",
        "created_at": answer.created_at,
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": answer.shown,
        "previous_response_id": None,
        "instructions": lookup(asked, "instructions"),
        "output": [],
        "error": None,
        "tools": lookup(asked, "tools") or [],
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
        "usage": None,
        "max_output_tokens": integer_field(asked, "max_output_tokens", _STRUCT),
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def _one(asked: JsonObject, key: str) -> JsonValue:
    given = lookup(asked, key)
    return 1 if given is None else given


def _text_config(asked: JsonObject) -> JsonValue:
    given = object_field(asked, "text", _STRUCT, "openai.ResponsesText").get("format")
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


def _output(answer: _Answer, finished: Finished) -> list[JsonValue]:
    items: list[JsonValue] = []
    if finished.text or finished.plan.tool is None:
        part: JsonObject = {"type": "output_text", "text": finished.text, "annotations": [], "logprobs": []}
        head: JsonObject = {"id": answer.message_id, "type": "message", "status": "completed", "role": "assistant"}
        items.append(head | {"content": [part]})
    if finished.plan.tool is not None:
        items.append(_function_call(answer, finished.plan.tool, status="completed"))
    return items


def _function_call(answer: _Answer, call: ToolCall, *, status: str) -> JsonObject:
    done = status == "completed"
    return {
        "id": f"fc_{answer.call_id}",
        "type": "function_call",
        "status": status,
        "call_id": answer.call_id,
        "name": call.name,
        "arguments": encode(call.arguments).decode() if done else "",
    }


async def _stream(events: _Events, session: Session, sink: Sink) -> None:
    try:
        finished = await session.speak(events.say, v1=True)
    except RunnerDied:
        if not sink.started:
            raise
        return
    await events.finish(finished)


class _Events:
    """Sends the events of one streamed response, one HTTP chunk each, numbered from 0."""

    def __init__(self, answer: _Answer, sink: Sink) -> None:
        self._answer = answer
        self._sink = sink
        self._number = 0
        self._message_open = False

    async def say(self, piece: Piece) -> None:
        if piece.thinking:
            return
        if not self._message_open:
            await self._begin()
            await self._open_message()
        await self._send("response.output_text.delta", self._place() | {"delta": piece.text, "logprobs": []})

    async def finish(self, finished: Finished) -> None:
        if not self._sink.started:
            await self._begin()
        if finished.plan.reason is None:
            return
        if self._message_open:
            await self._close_message(finished.text)
        if finished.plan.tool is not None:
            await self._call_tool(finished.plan.tool)
        await self._send("response.completed", {"response": _whole(self._answer, finished, self._answer.created_at)})

    async def _begin(self) -> None:
        for name in ("created", "in_progress"):
            await self._send(f"response.{name}", {"response": _frame(self._answer)})

    async def _open_message(self) -> None:
        self._message_open = True
        item: JsonObject = {"content": [], "id": self._answer.message_id, "role": "assistant", "status": "in_progress", "type": "message"}
        await self._send("response.output_item.added", {"item": item, "output_index": 0})
        await self._send("response.content_part.added", self._place() | {"part": _part("")})

    async def _close_message(self, text: str) -> None:
        await self._send("response.output_text.done", self._place() | {"logprobs": [], "text": text})
        await self._send("response.content_part.done", self._place() | {"part": _part(text)})
        item: JsonObject = {"content": [_part(text)], "id": self._answer.message_id, "role": "assistant", "status": "completed"}
        await self._send("response.output_item.done", {"item": item | {"type": "message"}, "output_index": 0})

    async def _call_tool(self, call: ToolCall) -> None:
        place: JsonObject = {"output_index": int(self._message_open)}
        named: JsonObject = place | {"item_id": f"fc_{self._answer.call_id}"}
        arguments = encode(call.arguments).decode()
        await self._send("response.output_item.added", place | {"item": _function_call(self._answer, call, status="in_progress")})
        await self._send("response.function_call_arguments.delta", named | {"delta": arguments})
        await self._send("response.function_call_arguments.done", named | {"arguments": arguments})
        await self._send("response.output_item.done", place | {"item": _function_call(self._answer, call, status="completed")})

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._answer.message_id, "output_index": 0}

    async def _send(self, name: str, event: JsonObject) -> None:
        numbered: JsonObject = event | {"sequence_number": self._number, "type": name}
        self._number += 1
        await self._sink.chunk(f"event: {name}\ndata: ".encode() + encode(_sorted(numbered)) + b"\n\n")


def _part(text: str) -> JsonObject:
    return {"annotations": [], "logprobs": [], "text": text, "type": "output_text"}


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
