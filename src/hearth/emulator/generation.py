"""The routes that generate, in every dialect: what each of them reads, and how it answers.

Conversions, the order of checks and their texts as in ollama/ollama v0.33.0-rc2 (`server/routes.go`, `openai`, `anthropic`, `middleware`).
Reads only what Ollama reads: of an OpenAI body `max_tokens` counts; `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do not.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.dialects import gojson as go
from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup
from hearth.dialects.writers import (
    RESPONSE_REPEATS,
    Generation,
    MessagesWriter,
    NativeWriter,
    OpenAiWriter,
    ResponsesWriter,
    Text,
    Writer,
)
from hearth.emulator.models import Installed, OllamaError
from hearth.emulator.prompts import Message, temperature_option
from hearth.emulator.session import Ask, check_capabilities, open_session, tell
from hearth.emulator.wire import EVENTS, Call, keep_alive_s

_CHAT = "ChatCompletionRequest"
_RESPONSES = "ResponsesRequest"
_MESSAGES = "MessagesRequest"


# Ollama's own routes.


async def generate(call: Call) -> None:
    """A missing model is looked up before anything else is refused."""
    struct, fields = "GenerateRequest", call.struct("api.GenerateRequest")
    prompt, system, suffix = (go.string_field(fields, name, struct) for name in ("prompt", "system", "suffix"))
    turns = [Message(role="system", content=system)] if system else []
    turns.append(Message(role="user", content=prompt + suffix))
    ask = _native_ask(fields, struct)
    raw = bool(go.bool_field(fields, "raw", struct))
    ask = replace(ask, messages=turns if prompt else (), prompt=prompt if raw else None, context=not raw)
    installed = call.server.catalogue.require(ask.model)
    _check_logprobs(ask)
    if suffix and not installed.model.can("insert"):
        raise OllamaError(400, f"{installed.name.full} does not support insert")
    await _answer_native(call, installed, ask, task="generate")


async def chat(call: Call) -> None:
    struct, fields = "ChatRequest", call.struct("api.ChatRequest")
    turns = [_native_message(go.struct_of(one, "api.Message")) for one in go.array_field(fields, "messages", struct, "[]api.Message")]
    tools = [go.struct_of(one, "api.Tool") for one in go.array_field(fields, "tools", struct, "api.Tools")]
    ask = replace(_native_ask(fields, struct), messages=turns, tools=tools)
    _check_logprobs(ask)
    await _answer_native(call, _required(call, ask), ask, task="chat")


def _native_ask(fields: JsonObject, struct: str) -> Ask:
    return Ask(
        model=go.string_field(fields, "model", struct),
        stream=go.bool_field(fields, "stream", struct) is not False,
        options=go.object_field(fields, "options", struct, "map[string]interface {}"),
        schema=lookup(fields, "format") or None,
        think=lookup(fields, "think"),
        keep_alive_s=keep_alive_s(lookup(fields, "keep_alive")),
        shift=go.bool_field(fields, "shift", struct) is not False,
        truncate=go.bool_field(fields, "truncate", struct) is not False,
        logprobs=bool(go.bool_field(fields, "logprobs", struct)),
        top_logprobs=go.integer_field(fields, "top_logprobs", struct) or 0,
        render_only=bool(go.bool_field(fields, "_debug_render_only", struct)),
    )


def _native_message(fields: JsonObject) -> Message:
    calls = go.array_field(fields, "tool_calls", "Message", "[]api.ToolCall")
    role, content, thinking = (go.string_field(fields, name, "Message") for name in ("role", "content", "thinking"))
    return Message(role=role, content=content, tool_calls=encode(calls).decode() if calls else "", thinking=thinking)


async def _answer_native(call: Call, installed: Installed, ask: Ask, *, task: str) -> None:
    writer, wall_s = NativeWriter(ask.model, chat=task == "chat"), call.server.engine.clock.wall
    empty = not ask.messages if ask.prompt is None else not ask.prompt
    if empty and ask.keep_alive_s == 0:
        call.server.engine.expire(installed)
        await call.json(writer.line(wall_s()) | {"done": True, "done_reason": "unload"})
        return
    check_capabilities(installed, ask, task=task)
    async with open_session(call, installed, ask) as session:
        if empty:
            await call.json(writer.line(wall_s()) | {"done": True, "done_reason": "load"})
        elif ask.render_only:
            said: JsonObject = {"message": {"role": "", "content": ""}} if task == "chat" else {}
            rendered: JsonObject = {"done": False, "_debug_info": {"rendered_template": session.prompt().text}}
            await call.json(writer.line(wall_s()) | said | rendered)
        else:
            await tell(call, session, writer, stream=ask.stream)


# OpenAI's routes.


async def chat_completions(call: Call) -> None:
    fields = call.struct("openai.ChatCompletionRequest")
    messages = go.array_field(fields, "messages", _CHAT, "[]openai.Message")
    if not messages:
        raise OllamaError(400, "[] is too short - 'messages'", at_bind=True)
    wanted = go.object_field(fields, "response_format", _CHAT, "openai.ResponseFormat")
    ask = replace(
        _openai_ask(fields, _CHAT, limit="max_tokens"),
        messages=[_openai_message(go.struct_of(one, "openai.Message")) for one in messages],
        tools=[go.struct_of(one, "api.Tool") for one in go.array_field(fields, "tools", _CHAT, "[]api.Tool")],
        schema=_schema(wanted, wanted.get("json_schema")),
        think=go.string_field(fields, "reasoning_effort", _CHAT)
        or go.object_field(fields, "reasoning", _CHAT, "openai.Reasoning").get("effort")
        or None,
        logprobs=bool(go.bool_field(fields, "logprobs", _CHAT)),
        top_logprobs=go.integer_field(fields, "top_logprobs", _CHAT) or 0,
    )
    _check_logprobs(ask)
    installed = _required(call, ask)
    check_capabilities(installed, ask, task="chat")
    await _answer_openai(call, installed, ask, _openai_writer(call, ask, fields, _CHAT))


async def completions(call: Call) -> None:
    struct, fields = "CompletionRequest", call.struct("openai.CompletionRequest")
    prompt = go.string_field(fields, "prompt", struct) + go.string_field(fields, "suffix", struct)
    ask = replace(_openai_ask(fields, struct, limit="max_tokens"), messages=[Message(role="user", content=prompt)])
    installed = call.server.catalogue.require(ask.model)
    check_capabilities(installed, ask, task="generate")
    await _answer_openai(call, installed, ask, _openai_writer(call, ask, fields, struct))


async def transcriptions(call: Call) -> None:
    """No emulated model hears anything."""
    if not call.body.startswith(b"--"):
        text = "failed to parse multipart form: request Content-Type isn't multipart/form-data"
        raise OllamaError(400, text, at_bind=True)
    raise OllamaError(400, "this model does not support audio")


async def responses(call: Call) -> None:
    fields = call.struct("openai.ResponsesRequest")
    instructions, given = go.string_field(fields, "instructions", _RESPONSES), lookup(fields, "input")
    first = [Message(role="system", content=instructions)] if instructions else []
    tools = [go.struct_of(one, "openai.ResponsesTool") for one in go.array_field(fields, "tools", _RESPONSES, "[]openai.ResponsesTool")]
    if isinstance(given, str):
        turns = [Message(role="user", content=given)]
    elif isinstance(given, list):
        turns = [_item(go.struct_of(one, "openai.ResponsesInputItem")) for one in given]
    else:
        raise OllamaError(400, "input must be a string or array", at_bind=True)
    wanted = go.object_field(fields, "text", _RESPONSES, "openai.ResponsesText").get("format")
    ask = replace(
        _openai_ask(fields, _RESPONSES, limit="max_output_tokens"),
        messages=first + turns,
        tools=[_tool(one, "parameters") for one in tools if one.get("type") == "function"],
        schema=_schema(wanted, wanted) if isinstance(wanted, dict) else None,
        think=go.object_field(fields, "reasoning", _RESPONSES, "openai.ResponsesReasoning").get("effort"),
        render_only=False,
    )
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = _required(call, ask)
    check_capabilities(installed, ask, task="chat")
    name, created_wall_s = str(call.server.rng.randrange(999_999)), call.server.engine.clock.wall()
    asked = {name: lookup(fields, name) for name in RESPONSE_REPEATS}
    writer = ResponsesWriter(name, ask.model, asked=asked, created_wall_s=created_wall_s, incomplete={})
    async with open_session(call, installed, ask) as session:
        await tell(call, session, writer, stream=ask.stream)


def _openai_ask(fields: JsonObject, struct: str, *, limit: str) -> Ask:
    options: JsonObject = {}
    limit_tokens, seed = go.integer_field(fields, limit, struct), go.integer_field(fields, "seed", struct)
    if limit_tokens is not None:
        options["num_predict"] = limit_tokens
    if seed is not None:
        options["seed"] = seed
    options |= temperature_option(fields, struct)
    stop = lookup(fields, "stop")
    if stop is not None:
        options["stop"] = stop if isinstance(stop, list) else [stop]
    return Ask(
        model=go.string_field(fields, "model", struct),
        stream=bool(go.bool_field(fields, "stream", struct)),
        options=options,
        render_only=bool(go.bool_field(fields, "_debug_render_only", struct)),
    )


def _openai_message(fields: JsonObject) -> Message:
    calls = go.array_field(fields, "tool_calls", "Message", "[]openai.ToolCall")
    return Message(
        role=go.string_field(fields, "role", "Message"),
        content=_content(lookup(fields, "content"), text_kinds=("text",)),
        tool_calls=encode(calls).decode() if calls else "",
        thinking=go.string_field(fields, "reasoning", "Message"),
    )


def _item(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind == "function_call_output":
        return Message(role="tool", content=str(item.get("output")))
    if kind == "function_call":
        return Message(role="assistant", content="", tool_calls=encode(item).decode())
    content = _content(item.get("content"), text_kinds=("input_text", "output_text", "text"))
    return Message(role=str(item.get("role") or "user"), content=content)


def _content(content: JsonValue, *, text_kinds: tuple[str, ...]) -> str:
    """The text in a message's content: a string, or the text parts of a list; images count as a marker each."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise OllamaError(400, "invalid message content type: map[string]interface {}", at_bind=True)
    return "".join(_part(go.struct_of(one, "openai.ContentPart"), text_kinds) for one in content)


def _part(part: JsonObject, text_kinds: tuple[str, ...]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind in text_kinds and isinstance(text, str):
        return text
    if kind not in ("image_url", "input_image"):
        raise OllamaError(400, "invalid message format", at_bind=True)
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith("data:"):
        raise OllamaError(400, "image URLs are not currently supported, please use base64 encoded data instead", at_bind=True)
    return "[img]"


def _schema(wanted: JsonObject, described: JsonValue) -> JsonValue:
    if wanted.get("type") == "json_object":
        return "json"
    return described.get("schema") if wanted.get("type") == "json_schema" and isinstance(described, dict) else None


def _openai_writer(call: Call, ask: Ask, fields: JsonObject, struct: str) -> OpenAiWriter:
    stream_options = go.object_field(fields, "stream_options", struct, "openai.StreamOptions")
    return OpenAiWriter(
        str(call.server.rng.randrange(999)),
        ask.model,
        chat=struct == _CHAT,
        created_wall_s=call.server.engine.clock.wall(),
        made_by="fp_ollama",
        include_usage=bool(go.bool_field(stream_options, "include_usage", "StreamOptions")),
    )


async def _answer_openai(call: Call, installed: Installed, ask: Ask, writer: Writer) -> None:
    async with open_session(call, installed, ask) as session:
        if not ask.render_only:
            await tell(call, session, writer, stream=ask.stream)
        elif ask.stream:
            await call.whole(b"".join(writer.say(Text(text=""), 0.0)), EVENTS)
        else:
            answer = writer.whole(Generation(said=(), reason=None), 0.0)
            if answer["object"] == "chat.completion":
                choice: JsonObject = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
                answer |= {"choices": [choice], "_debug_info": {"rendered_template": session.prompt().text}}
            await call.json(answer)


# Anthropic's route.


async def messages(call: Call) -> None:
    fields = call.struct("anthropic.MessagesRequest")
    ask = _messages_ask(fields)
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = call.server.catalogue.require(ask.model)
    check_capabilities(installed, ask, task="chat", strict_thinking=False)
    estimated_tokens = max(1, sum(len(one.content) for one in ask.messages) // 4 + 1)
    async with open_session(call, installed, ask) as session:
        writer = MessagesWriter(call.server.hex_id("msg_", 24), ask.model, estimated_tokens=estimated_tokens)
        await tell(call, session, writer, stream=ask.stream)


def _messages_ask(fields: JsonObject) -> Ask:
    shown, limit_tokens = go.string_field(fields, "model", _MESSAGES), go.integer_field(fields, "max_tokens", _MESSAGES) or 0
    turns = go.array_field(fields, "messages", _MESSAGES, "[]anthropic.MessageParam")
    if not shown:
        raise OllamaError(400, "model is required", at_bind=True)
    if limit_tokens <= 0:
        raise OllamaError(400, "max_tokens is required and must be positive", at_bind=True)
    if not turns:
        raise OllamaError(400, "messages is required", at_bind=True)
    system, stops = _blocks_text(lookup(fields, "system")), go.array_field(fields, "stop_sequences", _MESSAGES, "[]string")
    first = [Message(role="system", content=system)] if system else []
    tools = [go.struct_of(one, "anthropic.Tool") for one in go.array_field(fields, "tools", _MESSAGES, "[]anthropic.Tool")]
    return Ask(
        model=shown,
        stream=bool(go.bool_field(fields, "stream", _MESSAGES)),
        messages=first + [_anthropic_message(go.struct_of(one, "anthropic.MessageParam")) for one in turns],
        tools=[_tool(one, "input_schema") for one in tools],
        options={"num_predict": limit_tokens, **temperature_option(fields, _MESSAGES), **({"stop": stops} if stops else {})},
        think=go.object_field(fields, "thinking", _MESSAGES, "anthropic.ThinkingConfig").get("type") == "enabled",
    )


def _anthropic_message(fields: JsonObject) -> Message:
    content = lookup(fields, "content")
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return Message(role="tool" if is_result else go.string_field(fields, "role", "MessageParam"), content=_blocks_text(content))


def _blocks_text(content: JsonValue) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(_block_text(one) for one in blocks if isinstance(one, dict))


def _block_text(block: JsonObject) -> str:
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str):
            return str(block["text"])
        case "tool_result":
            return _blocks_text(block.get("content"))
        case "tool_use":
            return encode(block.get("input")).decode()
    return "[img]"


# What several of them do.


def _tool(tool: JsonObject, schema: str) -> JsonObject:
    """A tool in Ollama's form; `schema` is where its parameters are."""
    function: JsonObject = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(schema)}
    return {"type": "function", "function": function}


def _check_logprobs(ask: Ask) -> None:
    if not 0 <= ask.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")


def _required(call: Call, ask: Ask) -> Installed:
    if not ask.model:
        raise OllamaError(400, "model is required")
    return call.server.catalogue.require(ask.model)
