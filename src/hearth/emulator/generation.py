"""The routes that compute on a model, in every dialect: what each of them reads, and how it answers.

Conversions, the order of checks and their texts as in ollama/ollama v0.33.0-rc2 (`server/routes.go`, `openai`, `anthropic`, `middleware`).
Reads only what Ollama reads: of an OpenAI body `max_tokens` counts; `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do not.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from hearth.dialects.gojson import Body, JsonObject, JsonValue, encode
from hearth.dialects.writers import (
    RESPONSE_REPEATS,
    Generation,
    MessagesWriter,
    NativeWriter,
    OpenAiWriter,
    ResponsesWriter,
    Said,
    Text,
    Writer,
    nanoseconds,
    response_in_progress,
)
from hearth.emulator.engine import Runner, Say
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.emulator.prompts import (
    GREEDY_SEED,
    Ask,
    Message,
    Options,
    check_capabilities,
    check_format,
    count_tokens,
    fitted,
    read_options,
    token_ids,
)
from hearth.emulator.text import Wish, begun, chosen_tool, floats_of, logprobs_of, plan_reply, shortest, vector_of
from hearth.emulator.wire import EVENTS, NDJSON, Call, keep_alive_s

_TEXTS = ("text", "input_text", "output_text")
_PIECES_BEFORE_DEATH = 3


# One generation, the same for every dialect: a lease, a prompt, a planned reply, and how it is told.


@asynccontextmanager
async def open_session(call: Call, installed: Installed, ask: Ask) -> AsyncIterator[Session]:
    """Hold a loaded runner for the block; raises `OllamaError` for bad options or a full queue."""
    engine = call.engine
    options = read_options(installed.model, ask, default_num_ctx=engine.default_context_tokens)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        yield Session(call, installed.model, ask, options, runner, engine.clock.monotonic())


@dataclass(frozen=True, slots=True)
class Session:
    """A request that holds its runner, since `held_at`."""

    call: Call
    model: EmulatedModel
    ask: Ask
    options: Options
    runner: Runner
    held_at: float

    async def tell(self, writer: Writer) -> None:
        """Answer in the dialect of `writer`; raises `OllamaError` where nothing has been sent and the error is the whole answer."""
        call, wall_s = self.call, self.call.engine.clock.wall
        if not self.ask.stream:
            await call.json(writer.whole(await self._speak(), wall_s()))
            return
        call.prepare(NDJSON if call.native else EVENTS)

        async def say(said: Said) -> None:
            await call.send(writer.say(said, wall_s()))

        try:
            done = await self._speak(say)
        except OllamaError as error:
            if not (call.native or call.started):
                raise
            await (call.break_off(error) if call.native else call.send(writer.broken()))
        else:
            await call.send(writer.end(done, wall_s()))

    async def _speak(self, say: Say | None = None) -> Generation:
        """The reply, part by part to `say` if there is one.

        Raises `OllamaError` before the first part for a bad format or a prompt that is too long, and where the runner dies.
        """
        ask, engine, model = self.ask, self.call.engine, self.model
        check_format(ask.schema)
        text, prompt_tokens = fitted(model, ask, self.options)
        plan = plan_reply(model, text, self._wish(text, prompt_tokens))
        pieces = [one for one in plan.said if isinstance(one, Text)]
        if ask.logprobs:
            pieces = [replace(piece, logprobs=[logprobs_of(piece.text, ask.top_logprobs)]) for piece in pieces]
        reason = None if engine.faults.strikes("no-done") else plan.reason
        dies = say is not None and not self.call.native and engine.faults.strikes("empty-error-chunk")
        dies_after = _PIECES_BEFORE_DEATH if dies else math.inf
        prompt_s, output_s = await engine.speak(self.runner, prompt_tokens, pieces, plan.output_tokens, say, dies_after=dies_after)
        if say is not None:
            for call in plan.calls:
                await say(call)
        return replace(
            plan,
            said=[*pieces, *plan.calls],
            reason=reason,
            prompt_tokens=prompt_tokens,
            context=token_ids(model, text + plan.text) if ask.context else (),
            total_ns=nanoseconds(engine.clock.monotonic() - self.call.received_at),
            load_ns=nanoseconds(self.held_at - self.call.received_at),
            prompt_ns=nanoseconds(prompt_s, step=1000),
            output_ns=nanoseconds(output_s, step=1000),
        )

    def _wish(self, text: str, prompt_tokens: int) -> Wish:
        ask, options, engine = self.ask, self.options, self.call.engine
        seed = engine.rng.getrandbits(31) if options.seed is None else options.seed
        limit_tokens = options.limit_tokens
        if not ask.shift:
            room_tokens = max(1, options.num_ctx - prompt_tokens)
            limit_tokens = min(limit_tokens or room_tokens, room_tokens)
        warm = self.runner.reads(begun(text)[0])
        return Wish(
            seed=seed,
            limit_tokens=limit_tokens,
            stop=options.stop,
            schema=ask.schema,
            thinks=ask.prompt is None and self.model.can("thinking") and ask.think not in (False, "none"),
            tool=chosen_tool(ask.messages, ask.tools, call_id=engine.hex_id("call_", 8)) if ask.tools else None,
            drift=engine.faults.drift_after(f"{seed} {text}", greedy=seed == GREEDY_SEED) if warm else None,
        )


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
            await session.tell(writer)


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
    if call.body.startswith(b"--"):
        raise OllamaError(400, "this model does not support audio")
    raise OllamaError(400, "failed to parse multipart form: request Content-Type isn't multipart/form-data", at_bind=True)


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
        await session.tell(writer)


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
            await session.tell(writer)
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
        await session.tell(MessagesWriter(call.engine.hex_id("msg_", 24), ask.model, estimated_tokens=estimated_tokens))


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


# Embeddings. A vector depends on model and text alone, so the same text gives the same bits alone and in a batch.


async def embed(call: Call) -> None:
    """`/api/embed`."""
    body = call.read()
    texts = _inputs(body.get("input"))
    ask = replace(_embedding_ask(body), truncate=body.flag("truncate", default=True))
    vectors, tokens, load_s = await _embed(call, ask, texts, dimensions=body.integer("dimensions"))
    answer: JsonObject = {"model": ask.model, "embeddings": [[*map(shortest, vector)] for vector in vectors]}
    if texts:
        total_s = call.engine.clock.monotonic() - call.received_at
        answer |= {"total_duration": nanoseconds(total_s), "load_duration": nanoseconds(load_s), "prompt_eval_count": tokens}
    await call.json(answer)


async def legacy_embeddings(call: Call) -> None:
    """`/api/embeddings`: one prompt, values in double precision."""
    body = call.read()
    prompt, ask = body.string("prompt"), _embedding_ask(body)
    if not ask.model:
        raise OllamaError(400, "model is required")
    vectors, _, _ = await _embed(call, ask, [prompt] if prompt else [], unsupported_status=500)
    await call.json({"embedding": [*vectors[0]] if vectors else []})


async def openai_embeddings(call: Call) -> None:
    """`/v1/embeddings`."""
    body = call.read()
    ask, given = Ask(model=body.string("model"), stream=False), body.get("input")
    if given is None or given == []:
        raise OllamaError(400, "invalid input", at_bind=True)
    packed = body.string("encoding_format").lower() == "base64"
    texts = [""] if given == "" else _inputs(given)
    vectors, tokens, _ = await _embed(call, ask, texts, dimensions=body.integer("dimensions"))
    data: list[JsonValue] = [
        {"object": "embedding", "embedding": b64encode(floats_of(vector)).decode() if packed else [*map(shortest, vector)], "index": place}
        for place, vector in enumerate(vectors)
    ]
    await call.json({"object": "list", "data": data, "model": ask.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


def _embedding_ask(body: Body) -> Ask:
    return Ask(model=body.string("model"), stream=False, options=body.map("options"), keep_alive_s=keep_alive_s(body))


def _inputs(given: JsonValue) -> list[str]:
    listed = given if isinstance(given, list) else [given] if given else []
    texts = [one for one in listed if isinstance(one, str)]
    if len(texts) != len(listed) or not (given is None or isinstance(given, str | list)):
        raise OllamaError(400, "invalid input type")
    return texts


async def _embed(
    call: Call, ask: Ask, texts: Sequence[str], *, dimensions: int | None = None, unsupported_status: int = 501
) -> tuple[list[tuple[float, ...]], int, float]:
    """The vectors, the tokens of all texts, and how long the load took in seconds."""
    missing = 'model "{}" not found, try pulling it first' if ask.model else "model '{}' not found"
    installed, engine = call.engine.catalogue.require(ask.model, template=missing), call.engine
    model, options = installed.model, read_options(installed.model, ask, default_num_ctx=engine.default_context_tokens)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        load_s = engine.clock.monotonic() - call.received_at
        if texts and not model.can("embedding"):
            raise OllamaError(unsupported_status, "This server does not support embeddings. Start it with `--embeddings`")
        sizes = [count_tokens(model, text) for text in texts]
        if not ask.truncate and any(tokens > options.num_ctx for tokens in sizes):
            raise OllamaError(400, "the input length exceeds the context length")
        sizes = [min(tokens, options.num_ctx) for tokens in sizes]
        for tokens in sizes:
            await engine.speak(runner, tokens)
    return [vector_of(model, text, dimensions) for text in texts], sum(sizes), load_s
