"""OpenAI's routes as Ollama answers them: chat, completions and Responses.

`/v1/chat/completions` and `/v1/completions`: OpenAI's chat and text completions as Ollama answers them.

Conversions, field order and the grouping of events into writes as in ollama/ollama v0.33.0-rc2 (`openai` and `middleware`). Reads only what
Ollama reads: `max_tokens` counts, `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do not.

`/v1/responses`: OpenAI's Responses API as Ollama answers it (ollama/ollama v0.33.0-rc2, `openai/responses.go`).

Whole answers have Go's struct order; streamed events are Go maps, so their keys come out sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hearth.dialects import gojson as go
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.models import OllamaError
from hearth.emulator.prompts import Message, temperature_option
from hearth.emulator.session import Ask, Finished, Writer, check_capabilities, event, open_session, tell
from hearth.emulator.text import Piece, ToolCall, logprobs_of
from hearth.emulator.wire import EVENTS, Call

_STRUCT = "ChatCompletionRequest"
_NO_USAGE: JsonObject = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    shown: str
    chat: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    ask: Ask


async def chat_completions(call: Call) -> None:
    fields = call.struct("openai.ChatCompletionRequest")
    await _answer(call, _request(fields, _STRUCT, _chat_ask(fields), chat=True))


async def completions(call: Call) -> None:
    fields = call.struct("openai.CompletionRequest")
    await _answer(call, _request(fields, "CompletionRequest", _completion_ask(fields), chat=False))


async def transcriptions(call: Call) -> None:
    """No emulated model hears anything."""
    if not call.body.startswith(b"--"):
        text = "failed to parse multipart form: request Content-Type isn't multipart/form-data"
        raise OllamaError(400, text, at_bind=True)
    raise OllamaError(400, "this model does not support audio")


def _request(fields: JsonObject, struct: str, ask: Ask, *, chat: bool) -> _Request:
    stream_options = go.object_field(fields, "stream_options", struct, "openai.StreamOptions")
    top = (go.integer_field(fields, "top_logprobs", struct) or 0) if chat else 0
    return _Request(
        shown=go.string_field(fields, "model", struct),
        chat=chat,
        stream=bool(go.bool_field(fields, "stream", struct)),
        include_usage=bool(go.bool_field(stream_options, "include_usage", "StreamOptions")),
        logprobs=chat and bool(go.bool_field(fields, "logprobs", struct)),
        top_logprobs=top,
        ask=ask,
    )


def _chat_ask(fields: JsonObject) -> Ask:
    """The ask of a chat completion; raises `OllamaError` or `GoJsonError` for what Ollama refuses while reading."""
    messages = go.array_field(fields, "messages", _STRUCT, "[]openai.Message")
    if not messages:
        raise OllamaError(400, "[] is too short - 'messages'", at_bind=True)
    return Ask(
        messages=[_message(one) for one in messages],
        tools=[go.struct_of(one, "api.Tool") for one in go.array_field(fields, "tools", _STRUCT, "[]api.Tool")],
        options=sampling(fields, _STRUCT, limit_key="max_tokens"),
        schema=_schema(go.object_field(fields, "response_format", _STRUCT, "openai.ResponseFormat")),
        think=_effort(fields),
        render_only=bool(go.bool_field(fields, "_debug_render_only", _STRUCT)),
    )


def _completion_ask(fields: JsonObject) -> Ask:
    struct = "CompletionRequest"
    prompt = go.string_field(fields, "prompt", struct) + go.string_field(fields, "suffix", struct)
    options, render_only = sampling(fields, struct, limit_key="max_tokens"), bool(go.bool_field(fields, "_debug_render_only", struct))
    return Ask(messages=[Message(role="user", content=prompt)], options=options, render_only=render_only)


def sampling(fields: Mapping[str, JsonValue], struct: str, *, limit_key: str) -> JsonObject:
    """The options that an OpenAI body can set, in Ollama's names."""
    options: JsonObject = {}
    limit, seed = go.integer_field(fields, limit_key, struct), go.integer_field(fields, "seed", struct)
    if limit is not None:
        options["num_predict"] = limit
    if seed is not None:
        options["seed"] = seed
    options |= temperature_option(fields, struct)
    stop = go.lookup(fields, "stop")
    if stop is not None:
        options["stop"] = stop if isinstance(stop, list) else [stop]
    return options


def text_of(content: JsonValue, *, text_kinds: tuple[str, ...] = ("text",)) -> str:
    """The text in a message's content: a string, or the text parts of a list; images count as a marker each."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise OllamaError(400, "invalid message content type: map[string]interface {}", at_bind=True)
    return "".join(_part(go.struct_of(one, "openai.ContentPart"), text_kinds) for one in content)


def _part(part: JsonObject, text_kinds: tuple[str, ...]) -> str:
    kind = part.get("type")
    text = part.get("text")
    if kind in text_kinds and isinstance(text, str):
        return text
    if kind not in ("image_url", "input_image"):
        raise OllamaError(400, "invalid message format", at_bind=True)
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith("data:"):
        raise OllamaError(400, "image URLs are not currently supported, please use base64 encoded data instead", at_bind=True)
    return "[img]"


def _message(value: JsonValue) -> Message:
    fields = go.struct_of(value, "openai.Message")
    calls = go.array_field(fields, "tool_calls", "Message", "[]openai.ToolCall")
    return Message(
        role=go.string_field(fields, "role", "Message"),
        content=text_of(go.lookup(fields, "content")),
        tool_calls=encode(calls).decode() if calls else "",
        thinking=go.string_field(fields, "reasoning", "Message"),
    )


def _schema(response_format: JsonObject) -> JsonValue:
    kind = response_format.get("type")
    if kind == "json_object":
        return "json"
    described = response_format.get("json_schema")
    if kind == "json_schema" and isinstance(described, dict):
        return described.get("schema")
    return None


def _effort(fields: JsonObject) -> JsonValue:
    effort = go.string_field(fields, "reasoning_effort", _STRUCT)
    nested = go.object_field(fields, "reasoning", _STRUCT, "openai.Reasoning").get("effort")
    return effort or nested or None


async def _answer(call: Call, request: _Request) -> None:
    if not 0 <= request.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")
    if not request.shown and request.chat:
        raise OllamaError(400, "model is required")
    installed = call.server.catalogue.require(request.shown)
    check_capabilities(installed, request.shown, task="chat" if request.chat else "generate", ask=request.ask)
    events = _Events(call, request)
    async with open_session(call.server, installed, request.ask) as session:
        if not request.ask.render_only:
            await tell(call, session, events, stream=request.stream)
        elif request.stream:
            await call.whole(b"".join(events.piece(Piece(text=""))), EVENTS)
        else:
            await call.json(events.rendered(session.rendered()))


class _Events(Writer):
    """The events of one answer, keys in Go's order."""

    def __init__(self, call: Call, request: _Request) -> None:
        self._server, self._request = call.server, request
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-{call.server.rng.randrange(999)}"
        self._created = int(call.server.engine.clock.wall())
        self._begun = False

    def piece(self, piece: Piece) -> Iterator[bytes]:
        if not self._request.chat:
            yield event(self._text_chunk(piece.text, None))
            return
        said: JsonObject = {"content": "", "reasoning": piece.text} if piece.thinking else {"content": piece.text}
        yield event(self._chat_chunk(self._delta(said), None, (piece,)))

    def end(self, finished: Finished) -> Iterator[bytes]:
        """The last chunks, the usage and the end are one write."""
        if finished.plan.tool is not None:
            yield event(self._chat_chunk(self._delta({"content": "", "tool_calls": [self._tool_call(finished.plan.tool)]}), None))
        if finished.plan.reason is None:
            return
        reason = _reason(finished)
        last = event(self._chat_chunk({}, reason) if self._request.chat else self._text_chunk("", reason))
        usage = event(self._usage_chunk(finished)) if self._request.include_usage else b""
        yield last + usage + b"data: [DONE]\n\n"

    def broken(self) -> Iterator[bytes]:
        """Empty text, no model, and nothing after it."""
        chunk = self._chat_chunk({"content": ""}, None) if self._request.chat else self._text_chunk("", None)
        yield event(chunk | {"model": ""})

    def whole(self, finished: Finished) -> JsonObject:
        choice = self._chat_choice(finished) if self._request.chat else _text_choice(finished.text, _reason(finished))
        return self._whole_head() | {"choices": [choice], "usage": _usage(finished)}

    def rendered(self, prompt: str) -> JsonObject:
        if not self._request.chat:
            return self._whole_head() | {"choices": [_text_choice("", None)], "usage": _NO_USAGE}
        choice: JsonObject = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
        return self._whole_head() | {"choices": [choice], "usage": _NO_USAGE, "_debug_info": {"rendered_template": prompt}}

    def _delta(self, said: JsonObject) -> JsonObject:
        begun, self._begun = self._begun, True
        return said if begun else {"role": "assistant", **said}

    def _chat_chunk(self, delta: JsonObject, reason: str | None, pieces: tuple[Piece, ...] = ()) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": reason, **self._logprobs(pieces)}
        return self._head("chat.completion.chunk") | self._made_by() | {"choices": [choice]}

    def _text_chunk(self, text: str, reason: str | None) -> JsonObject:
        chunk = self._head("text_completion") | {"choices": [_text_choice(text, reason)]} | self._made_by()
        return chunk | {"usage": _NO_USAGE} if self._request.include_usage else chunk

    def _usage_chunk(self, finished: Finished) -> JsonObject:
        usage: JsonObject = {"usage": _usage(finished)}
        if self._request.chat:
            return self._head("chat.completion.chunk") | self._made_by() | {"choices": []} | usage
        return self._head("text_completion") | {"choices": []} | self._made_by() | usage

    def _whole_head(self) -> JsonObject:
        return self._head("chat.completion" if self._request.chat else "text_completion") | self._made_by()

    def _head(self, kind: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created}

    def _made_by(self) -> JsonObject:
        return {"model": self._request.shown, "system_fingerprint": "fp_ollama"}

    def _chat_choice(self, finished: Finished) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": finished.text}
        if finished.thinking:
            message["reasoning"] = finished.thinking
        if finished.plan.tool is not None:
            message["tool_calls"] = [self._tool_call(finished.plan.tool)]
        return {"index": 0, "message": message, "finish_reason": _reason(finished), **self._logprobs(finished.plan.pieces)}

    def _tool_call(self, call: ToolCall) -> JsonObject:
        function: JsonObject = {"name": call.name, "arguments": encode(call.arguments).decode()}
        return {"id": self._server.hex_id("call_", 8), "index": 0, "type": "function", "function": function}

    def _logprobs(self, pieces: tuple[Piece, ...]) -> JsonObject:
        if not (self._request.logprobs and pieces):
            return {}
        return {"logprobs": {"content": logprobs_of(pieces, top=self._request.top_logprobs)}}


def _text_choice(text: str, reason: str | None) -> JsonObject:
    return {"text": text, "index": 0, "finish_reason": reason}


def _reason(finished: Finished) -> str | None:
    return "tool_calls" if finished.plan.tool is not None else finished.plan.reason


def _usage(finished: Finished) -> JsonObject:
    prompt, output = finished.measured.prompt_tokens, finished.measured.eval_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


_RESPONSES_STRUCT = "ResponsesRequest"


async def responses(call: Call) -> None:
    fields = call.struct("openai.ResponsesRequest")
    shown, ask = go.string_field(fields, "model", _RESPONSES_STRUCT), _ask(fields)
    streaming = bool(go.bool_field(fields, "stream", _RESPONSES_STRUCT))
    if streaming:
        call.headers["Cache-Control"] = "no-cache"
    if not shown:
        raise OllamaError(400, "model is required")
    installed = call.server.catalogue.require(shown)
    check_capabilities(installed, shown, task="chat", ask=ask)
    events = _ResponseEvents(call, shown, fields)
    async with open_session(call.server, installed, ask) as session:
        await tell(call, session, events, stream=streaming)


def _ask(fields: JsonObject) -> Ask:
    """What a response asks for. Raises OllamaError, GoJsonError."""
    instructions = go.string_field(fields, "instructions", _RESPONSES_STRUCT)
    first = [Message(role="system", content=instructions)] if instructions else []
    tools = [
        go.struct_of(one, "openai.ResponsesTool") for one in go.array_field(fields, "tools", _RESPONSES_STRUCT, "[]openai.ResponsesTool")
    ]
    return Ask(
        messages=first + _input(go.lookup(fields, "input")),
        tools=[_tool(one) for one in tools if one.get("type") == "function"],
        options=sampling(fields, _RESPONSES_STRUCT, limit_key="max_output_tokens"),
        schema=_schema_of(go.object_field(fields, "text", _RESPONSES_STRUCT, "openai.ResponsesText")),
        think=go.object_field(fields, "reasoning", _RESPONSES_STRUCT, "openai.ResponsesReasoning").get("effort"),
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


class _ResponseEvents(Writer):
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
            yield self._event("response.content_part.added", **self._place(), part=_response_part(""))
        yield self._event("response.output_text.delta", **self._place(), delta=piece.text, logprobs=[])

    def end(self, finished: Finished) -> Iterator[bytes]:
        if not self._number:
            yield from self._begin()
        if finished.plan.reason is None:
            return
        if self._message_open:
            part = _response_part(finished.text)
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
            "usage": _response_usage(finished) if finished else None,
            "max_output_tokens": go.integer_field(asked, "max_output_tokens", _RESPONSES_STRUCT),
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
    given = go.object_field(asked, "text", _RESPONSES_STRUCT, "openai.ResponsesText").get("format")
    return {"format": given if isinstance(given, dict) else {"type": "text"}}


def _response_usage(finished: Finished) -> JsonObject:
    prompt, output = finished.measured.prompt_tokens, finished.measured.eval_tokens
    return {
        "input_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _response_part(text: str) -> JsonObject:
    return {"annotations": [], "logprobs": [], "text": text, "type": "output_text"}


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
