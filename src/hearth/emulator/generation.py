"""The routes that generate, in every dialect: what each of them reads, and how it answers.

Conversions, the order of checks and their texts as in ollama/ollama v0.33.0-rc2 (`server/routes.go`, `openai`, `anthropic`, `middleware`).
Reads only what Ollama reads: of an OpenAI body `max_tokens` counts; `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do not.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.dialects.gojson import Body, JsonObject, JsonValue, encode
from hearth.dialects.writers import (
    RESPONSE_REPEATS,
    Generation,
    MessagesWriter,
    NativeWriter,
    OpenAiWriter,
    ResponsesWriter,
    Text,
    response_in_progress,
)
from hearth.emulator.models import Installed, OllamaError
from hearth.emulator.prompts import Ask, Message, fitted
from hearth.emulator.session import check_capabilities, open_session
from hearth.emulator.wire import EVENTS, Call, keep_alive_s

_TEXTS = ("text", "input_text", "output_text")

# Ollama's own routes.


async def generate(call: Call) -> None:
    """A missing model is looked up before anything else is refused."""
    body = call.read()
    prompt, system, suffix = (body.string(name) for name in ("prompt", "system", "suffix"))
    turns = [*_system(system), Message(role="user", content=prompt + suffix)] if prompt else []
    raw = body.flag("raw")
    ask = replace(_native_ask(body), messages=turns, prompt=prompt if raw else None, context=not raw)
    installed = call.engine.catalogue.require(ask.model)
    _check_logprobs(ask)
    if suffix and not installed.model.can("insert"):
        raise OllamaError(400, f"{installed.name.full} does not support insert")
    await _answer_native(call, installed, ask, task="generate")


async def chat(call: Call) -> None:
    body = call.read()
    turns = [_message(one, one.string("content"), "thinking") for one in body.objects("messages")]
    tools = [one.fields for one in body.objects("tools")]
    ask = replace(_native_ask(body), messages=turns, tools=tools)
    _check_logprobs(ask)
    await _answer_native(call, _required(call, ask), ask, task="chat")


def _native_ask(body: Body) -> Ask:
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream", default=True),
        options=body.map("options"),
        schema=body.get("format") or None,
        think=body.get("think"),
        keep_alive_s=keep_alive_s(body),
        shift=body.flag("shift", default=True),
        truncate=body.flag("truncate", default=True),
        logprobs=body.flag("logprobs"),
        top_logprobs=body.integer("top_logprobs") or 0,
        render_only=body.flag("_debug_render_only"),
    )


async def _answer_native(call: Call, installed: Installed, ask: Ask, *, task: str) -> None:
    writer, wall_s = NativeWriter(ask.model, chat=task == "chat"), call.engine.clock.wall
    empty = not (ask.messages if ask.prompt is None else ask.prompt)
    if empty and ask.keep_alive_s == 0:
        call.engine.expire(installed)
        await call.json(writer.line(wall_s()) | {"done": True, "done_reason": "unload"})
        return
    check_capabilities(installed, ask, task=task)
    async with open_session(call, installed, ask) as session:
        if empty:
            await call.json(writer.line(wall_s()) | {"done": True, "done_reason": "load"})
        elif ask.render_only:
            said: JsonObject = {"message": {"role": "", "content": ""}} if task == "chat" else {}
            text, _ = fitted(session.model, ask, session.options)
            await call.json(writer.line(wall_s()) | said | {"done": False, "_debug_info": {"rendered_template": text}})
        else:
            await session.tell(writer, stream=ask.stream)


# OpenAI's routes.


async def chat_completions(call: Call) -> None:
    body = call.read()
    messages = body.objects("messages")
    if not messages:
        raise OllamaError(400, "[] is too short - 'messages'", at_bind=True)
    wanted = body.object("response_format")
    ask = replace(
        _openai_ask(body, limit="max_tokens"),
        messages=[_message(one, _openai_text(one.get("content"), "text"), "reasoning") for one in messages],
        tools=[one.fields for one in body.objects("tools")],
        schema=_schema(wanted, wanted.get("json_schema")),
        think=body.string("reasoning_effort") or body.object("reasoning").get("effort") or None,
        logprobs=body.flag("logprobs"),
        top_logprobs=body.integer("top_logprobs") or 0,
    )
    _check_logprobs(ask)
    await _answer_openai(call, _required(call, ask), ask, body, task="chat")


async def completions(call: Call) -> None:
    body = call.read()
    prompt = body.string("prompt") + body.string("suffix")
    ask = replace(_openai_ask(body, limit="max_tokens"), messages=[Message(role="user", content=prompt)])
    await _answer_openai(call, call.engine.catalogue.require(ask.model), ask, body, task="generate")


async def transcriptions(call: Call) -> None:
    """No emulated model hears anything."""
    if not call.body.startswith(b"--"):
        text = "failed to parse multipart form: request Content-Type isn't multipart/form-data"
        raise OllamaError(400, text, at_bind=True)
    raise OllamaError(400, "this model does not support audio")


async def responses(call: Call) -> None:
    body = call.read()
    turns, given = _system(body.string("instructions")), body.get("input")
    if isinstance(given, str):
        turns.append(Message(role="user", content=given))
    elif isinstance(given, list):
        turns += [_item(Body(one).fields) for one in given]
    else:
        raise OllamaError(400, "input must be a string or array", at_bind=True)
    wanted = body.object("text").object("format")
    tools = [one.fields for one in body.objects("tools")]
    ask = replace(
        _openai_ask(body, limit="max_output_tokens"),
        messages=turns,
        tools=[_tool(one, "parameters") for one in tools if one.get("type") == "function"],
        schema=_schema(wanted, wanted.fields),
        think=body.object("reasoning").get("effort"),
    )
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = _required(call, ask)
    check_capabilities(installed, ask, task="chat")
    name, created_wall_s = str(call.engine.rng.randrange(999_999)), call.engine.clock.wall()
    asked = {name: body.get(name) for name in RESPONSE_REPEATS}
    writer = ResponsesWriter(name, response_in_progress(name, ask.model, asked, created_wall_s))
    async with open_session(call, installed, ask) as session:
        await session.tell(writer, stream=ask.stream)


def _openai_ask(body: Body, *, limit: str) -> Ask:
    stop = body.get("stop")
    options: JsonObject = {
        "num_predict": body.integer(limit),
        "seed": body.integer("seed"),
        "temperature": body.number("temperature"),
        "stop": stop if stop is None or isinstance(stop, list) else [stop],
    }
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream"),
        options={name: value for name, value in options.items() if value is not None},
        render_only=body.flag("_debug_render_only"),
    )


def _item(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind == "function_call_output":
        return Message(role="tool", content=str(item.get("output")))
    if kind == "function_call":
        return Message(role="assistant", content="", tool_calls=encode(item).decode())
    return Message(role=str(item.get("role") or "user"), content=_openai_text(item.get("content"), *_TEXTS))


def _openai_text(content: JsonValue, *text_kinds: str) -> str:
    """The text in a message's content; raises `OllamaError` 400 for parts that OpenAI's layer does not read."""
    if content is not None and not isinstance(content, str | list):
        raise OllamaError(400, "invalid message content type: map[string]interface {}", at_bind=True)
    for one in content if isinstance(content, list) else ():
        part = Body(one).fields
        kind, image = part.get("type"), part.get("image_url")
        if kind in text_kinds and isinstance(part.get("text"), str):
            continue
        if kind not in ("image_url", "input_image"):
            raise OllamaError(400, "invalid message format", at_bind=True)
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str) or not url.startswith("data:"):
            raise OllamaError(400, "image URLs are not currently supported, please use base64 encoded data instead", at_bind=True)
    return _text(content)


def _schema(wanted: Body, described: JsonValue) -> JsonValue:
    if wanted.get("type") == "json_object":
        return "json"
    return described.get("schema") if wanted.get("type") == "json_schema" and isinstance(described, dict) else None


async def _answer_openai(call: Call, installed: Installed, ask: Ask, body: Body, *, task: str) -> None:
    check_capabilities(installed, ask, task=task)
    writer = OpenAiWriter(
        str(call.engine.rng.randrange(999)),
        ask.model,
        chat=task == "chat",
        created_wall_s=call.engine.clock.wall(),
        made_by="fp_ollama",
        include_usage=body.object("stream_options").flag("include_usage"),
    )
    async with open_session(call, installed, ask) as session:
        if not ask.render_only:
            await session.tell(writer, stream=ask.stream)
        elif ask.stream:
            await call.whole(b"".join(writer.say(Text(text=""), 0.0)), EVENTS)
        else:
            answer = writer.whole(Generation(said=(), reason=None), 0.0)
            if task == "chat":
                choice: JsonObject = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
                text, _ = fitted(session.model, ask, session.options)
                answer |= {"choices": [choice], "_debug_info": {"rendered_template": text}}
            await call.json(answer)


# Anthropic's route.


async def messages(call: Call) -> None:
    ask = _messages_ask(call.read())
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = call.engine.catalogue.require(ask.model)
    check_capabilities(installed, ask, task="chat", strict_thinking=False)
    estimated_tokens = sum(len(one.content) for one in ask.messages) // 4 + 1
    async with open_session(call, installed, ask) as session:
        writer = MessagesWriter(call.engine.hex_id("msg_", 24), ask.model, estimated_tokens=estimated_tokens)
        await session.tell(writer, stream=ask.stream)


def _messages_ask(body: Body) -> Ask:
    turns, limit_tokens = body.objects("messages"), body.integer("max_tokens") or 0
    refusals = {
        "model is required": not body.string("model"),
        "max_tokens is required and must be positive": limit_tokens <= 0,
        "messages is required": not turns,
    }
    for text, applies in refusals.items():
        if applies:
            raise OllamaError(400, text, at_bind=True)
    options = {"num_predict": limit_tokens, "temperature": body.number("temperature"), "stop": body.array("stop_sequences")}
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream"),
        messages=_system(_text(body.get("system"))) + [_anthropic_message(one) for one in turns],
        tools=[_tool(one.fields, "input_schema") for one in body.objects("tools")],
        options={name: value for name, value in options.items() if value not in (None, [])},
        think=body.object("thinking").get("type") == "enabled",
    )


def _anthropic_message(body: Body) -> Message:
    content = body.get("content")
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return Message(role="tool" if is_result else body.string("role"), content=_text(content))


# What several of them do.


def _message(body: Body, content: str, thinking: str) -> Message:
    """A message of Ollama's or OpenAI's; `thinking` is where they have the model's thoughts."""
    calls = body.array("tool_calls")
    called = encode(calls).decode() if calls else ""
    return Message(role=body.string("role"), content=content, tool_calls=called, thinking=body.string(thinking))


def _text(content: JsonValue) -> str:
    """The text of a message, or of its blocks in any dialect; an image counts as a marker."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_text(block) for block in content)
    if isinstance(content, dict):
        match content.get("type"):
            case str() as kind if kind in _TEXTS and isinstance(content.get("text"), str):
                return str(content["text"])
            case "tool_result":
                return _text(content.get("content"))
            case "tool_use":
                return encode(content.get("input")).decode()
    return "[img]"


def _system(text: str) -> list[Message]:
    return [Message(role="system", content=text)] if text else []


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
    return call.engine.catalogue.require(ask.model)
