"""The routes that compute on a model, in every dialect: what each of them reads, and how it
answers.

Conversions, the order of checks and their texts as in ollama/ollama v0.33.0-rc2
(`server/routes.go`, `openai`, `anthropic`, `middleware`). Reads only what Ollama reads: of an
OpenAI body `max_tokens` counts; `max_completion_tokens`, `n`, `tool_choice` and `keep_alive` do
not.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf

from hearth.dialects.gojson import Body, JsonObject, JsonValue, encode
from hearth.dialects.messages_writer import MessagesWriter
from hearth.dialects.responses_writer import RESPONSE_REPEATS, ResponsesWriter, response_in_progress
from hearth.dialects.writers import (
    AnswerPart,
    Generation,
    NativeWriter,
    OpenAiWriter,
    TextPart,
    Writer,
    nanoseconds,
)
from hearth.emulator.engine import Runner, SendPiece
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.emulator.prompts import (
    GREEDY_SEED,
    Ask,
    ChatMessage,
    Options,
    check_capabilities,
    check_format,
    count_tokens,
    fitted,
    read_options,
    token_ids,
)
from hearth.emulator.reading import (
    anthropic_message,
    anthropic_tools,
    as_function,
    check_context,
    check_images,
    effort_of,
    go_type,
    native_message,
    openai_message,
    plain_text,
    response_item,
    strings,
    system_message,
    think_of,
    tools_of,
)
from hearth.emulator.text import (
    Wish,
    begun,
    chosen_tool,
    floats_of,
    held_back,
    logprobs_of,
    plan_reply,
    shortest,
    vector_of,
)
from hearth.emulator.wire import EVENTS, NDJSON, EmulatedCall, keep_alive_s, with_rows
from hearth.errors import BadRequest
from hearth.types import frozen, without_none

_PIECES_BEFORE_DEATH = 3


# One generation, the same for every dialect: a lease, a prompt, a planned reply, and how it is
# sent.


@asynccontextmanager
async def open_session(
    call: EmulatedCall, installed: Installed, ask: Ask
) -> AsyncIterator[Session]:
    """Hold a loaded runner for the block; raises `OllamaError` for bad options or a full queue."""
    engine = call.engine
    options = read_options(installed.model, ask, default_num_ctx=engine.default_context_tokens)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        yield Session(call, installed.model, ask, options, runner, engine.clock.monotonic())


@dataclass(frozen=True, slots=True)
class Session:
    """A request that holds its runner, since `held_at`."""

    call: EmulatedCall
    model: EmulatedModel
    ask: Ask
    options: Options
    runner: Runner
    held_at: float

    async def answer(self, writer: Writer) -> None:
        """Answer in the dialect of `writer`; raises `OllamaError` where nothing has been sent and
        the error is the whole answer.
        """
        call = self.call
        wall_s = self.call.engine.clock.wall
        if not self.ask.stream:
            await call.json(writer.whole(await self._generate(), wall_s()))
            return
        call.prepare(NDJSON if call.native else EVENTS)

        async def send_piece(piece: AnswerPart) -> None:
            await call.send(writer.write(piece, wall_s()))

        try:
            done = await self._generate(send_piece)
        except OllamaError as error:
            if not (call.native or call.started):
                raise
            await (call.break_off(error) if call.native else call.send(writer.broken()))
        else:
            await call.send(writer.end(done, wall_s()))

    def rendered(self) -> JsonObject:
        """The prompt that the model would read (`_debug_render_only`)."""
        text, _ = fitted(self.model, self.ask, self.options)
        return {"_debug_info": {"rendered_template": text}}

    async def _generate(self, send_piece: SendPiece | None = None) -> Generation:
        """The reply, piece by piece to `send_piece` if there is one.

        Raises `OllamaError` before the first part for a bad format or a prompt that is too long,
        and where the runner dies.
        """
        ask = self.ask
        engine = self.call.engine
        model = self.model
        check_format(ask.schema)
        text, prompt_tokens = fitted(model, ask, self.options)
        plan = plan_reply(model, text, self._wish(text, prompt_tokens))
        pieces = [one for one in plan.parts if isinstance(one, TextPart)]
        if ask.logprobs:
            pieces = [
                replace(piece, logprobs=[logprobs_of(piece.text, ask.top_logprobs)])
                for piece in pieces
            ]
        reason = None if engine.faults.strikes("no-done") else plan.reason
        dies_after = inf
        streams_v1 = send_piece is not None and not self.call.native
        if streams_v1 and engine.faults.strikes("empty-error-chunk"):
            dies_after = _PIECES_BEFORE_DEATH
        stops = () if ask.logprobs else self.options.stop
        due = list(held_back(pieces, stops, plan.reason))
        prompt_s, output_s = await engine.generate(
            self.runner,
            prompt_tokens,
            due,
            plan.output_tokens,
            send_piece,
            prompt=text,
            dies_after=dies_after,
        )
        if send_piece is not None:
            for call in plan.calls:
                await send_piece(call)
        return replace(
            plan,
            parts=[*pieces, *plan.calls],
            reason=reason,
            prompt_tokens=prompt_tokens,
            context=token_ids(model, text + plan.text) if ask.context else (),
            total_ns=nanoseconds(engine.clock.monotonic() - self.call.received_at),
            load_ns=nanoseconds(self.held_at - self.call.received_at),
            prompt_ns=nanoseconds(prompt_s, step=1000),
            output_ns=nanoseconds(output_s, step=1000),
        )

    def _wish(self, text: str, prompt_tokens: int) -> Wish:
        ask = self.ask
        options = self.options
        engine = self.call.engine
        seed = engine.rng.getrandbits(31) if options.seed is None else options.seed
        limit_tokens = options.limit_tokens
        if not ask.shift:
            room_tokens = max(1, options.num_ctx - prompt_tokens)
            limit_tokens = min(limit_tokens or room_tokens, room_tokens)
        before, written = begun(text)
        may_think = self.model.can("thinking") and ask.think not in (False, "none")
        tool = None
        drift = None
        if self.runner.reads(before):
            drift = engine.faults.drift_after(f"{seed} {text}", greedy=seed == GREEDY_SEED)
        if ask.tools:
            tool = chosen_tool(ask.messages, ask.tools, call_id=engine.hex_id("call_", 8))
        return Wish(
            seed=seed,
            limit_tokens=limit_tokens,
            stop=options.stop,
            schema=ask.schema,
            thinks=may_think and not written and ask.prompt is None,
            tool=tool,
            drift=drift,
        )


# Ollama's own routes.


async def generate(call: EmulatedCall) -> None:
    """A missing model is looked up before anything else is refused."""
    body = call.read()
    prompt = body.string("prompt")
    suffix = body.string("suffix")
    raw = body.flag("raw")
    system = system_message(body.string("system"))
    body.string("template")
    check_images(body)
    check_context(body)
    turns = [*system, ChatMessage(role="user", content=prompt + suffix)] if prompt else []
    ask = replace(
        _native_ask(body), messages=turns, prompt=prompt if raw else None, context=not raw
    )
    installed = call.catalogue.require(ask.model)
    _check_logprobs(ask)
    if suffix and not installed.model.can("insert"):
        raise OllamaError(400, f"{installed.name.full} does not support insert")
    await _answer_native(call, installed, ask, task="generate")


async def chat(call: EmulatedCall) -> None:
    body = call.read()
    turns = [native_message(one) for one in body.objects("messages")]
    ask = replace(_native_ask(body), messages=turns, tools=tools_of(body))
    _check_logprobs(ask)
    await _answer_native(call, _required(call, ask), ask, task="chat")


def _native_ask(body: Body) -> Ask:
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream", default=True),
        options=body.map("options"),
        schema=body.get("format") or None,
        think=think_of(body),
        keep_alive_s=keep_alive_s(body),
        shift=body.flag("shift", default=True),
        truncate=body.flag("truncate", default=True),
        logprobs=body.flag("logprobs"),
        top_logprobs=body.integer("top_logprobs") or 0,
        render_only=body.flag("_debug_render_only"),
    )


async def _answer_native(call: EmulatedCall, installed: Installed, ask: Ask, *, task: str) -> None:
    writer = NativeWriter(ask.model, chat=task == "chat")
    wall_s = call.engine.clock.wall
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
            answer = writer.line(wall_s())
            if task == "chat":
                answer["message"] = {"role": "", "content": ""}
            await call.json(answer | {"done": False} | session.rendered())
        else:
            await session.answer(writer)


# OpenAI's routes.


async def chat_completions(call: EmulatedCall) -> None:
    body = call.read()
    messages = body.objects("messages")
    if not messages:
        raise BadRequest("[] is too short - 'messages'")
    wanted = body.object("response_format")
    ask = replace(
        _openai_ask(body, limit="max_tokens"),
        messages=[openai_message(one) for one in messages],
        tools=tools_of(body),
        schema=_schema(wanted, wanted.get("json_schema")),
        think=effort_of(body),
        logprobs=body.flag("logprobs"),
        top_logprobs=body.integer("top_logprobs") or 0,
    )
    _check_logprobs(ask)
    await _answer_openai(call, _required(call, ask), ask, body, task="chat")


async def completions(call: EmulatedCall) -> None:
    body = call.read()
    prompt = body.string("prompt") + body.string("suffix")
    stop = body.get("stop")
    for one in stop if isinstance(stop, list) else ():
        if not isinstance(one, str):
            raise BadRequest(f"invalid type for 'stop' field: {go_type(one)}")
    ask = replace(
        _openai_ask(body, limit="max_tokens"), messages=[ChatMessage(role="user", content=prompt)]
    )
    await _answer_openai(call, call.catalogue.require(ask.model), ask, body, task="generate")


async def transcriptions(call: EmulatedCall) -> None:
    """No emulated model hears anything."""
    if call.body.startswith(b"--"):
        raise OllamaError(400, "this model does not support audio")
    raise BadRequest(
        "failed to parse multipart form: request Content-Type isn't multipart/form-data"
    )


async def responses(call: EmulatedCall) -> None:
    body = call.read()
    turns = system_message(body.string("instructions"))
    given = body.get("input")
    if isinstance(given, str):
        turns.append(ChatMessage(role="user", content=given))
    elif isinstance(given, list):
        turns += [response_item(Body(one)) for one in given]
    else:
        raise BadRequest("input must be a string or array")
    wanted = body.object("text").object("format")
    tools = [one.fields for one in body.objects("tools")]
    ask = replace(
        _openai_ask(body, limit="max_output_tokens"),
        messages=turns,
        tools=[as_function(one, "parameters") for one in tools if one.get("type") == "function"],
        schema=_schema(wanted, wanted.fields),
        think=body.object("reasoning").get("effort"),
    )
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = _required(call, ask)
    check_capabilities(installed, ask, task="chat")
    name = str(call.engine.rng.randrange(999_999))
    created_wall_s = call.engine.clock.wall()
    asked = {name: body.get(name) for name in RESPONSE_REPEATS}
    response = response_in_progress(name, ask.model, asked, created_wall_s)
    writer = ResponsesWriter(f"msg_{name}", response)
    async with open_session(call, installed, ask) as session:
        await session.answer(writer)


def _openai_ask(body: Body, *, limit: str) -> Ask:
    options: JsonObject = {
        "num_predict": body.integer(limit),
        "temperature": body.number("temperature"),
    }
    if limit == "max_tokens":  # a Responses request has neither
        stop = body.get("stop")
        stops = stop if isinstance(stop, list) else [stop]
        options |= {
            "seed": body.integer("seed"),
            "stop": [one for one in stops if isinstance(one, str)] or None,
        }
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream"),
        options=without_none(options),
        render_only=body.flag("_debug_render_only"),
    )


def _schema(wanted: Body, described: JsonValue) -> JsonValue:
    if wanted.get("type") == "json_object":
        return "json"
    if wanted.get("type") == "json_schema" and isinstance(described, dict):
        return described.get("schema")
    return None


async def _answer_openai(
    call: EmulatedCall, installed: Installed, ask: Ask, body: Body, *, task: str
) -> None:
    check_capabilities(installed, ask, task=task)
    kind = "chatcmpl" if task == "chat" else "cmpl"
    number = call.engine.rng.randrange(999)
    writer = OpenAiWriter(
        f"{kind}-{number}",
        ask.model,
        chat=task == "chat",
        created_wall_s=call.engine.clock.wall(),
        made_by="hearth-emulator" if call.engine.marked else "fp_ollama",
        include_usage=body.object("stream_options").flag("include_usage"),
    )
    async with open_session(call, installed, ask) as session:
        if not ask.render_only:
            await session.answer(writer)
        elif ask.stream:
            await call.whole(b"".join(writer.write(TextPart(text=""), 0.0)), EVENTS)
        else:
            answer = writer.whole(Generation(parts=(), reason=None), 0.0)
            if task == "chat":
                choice: JsonObject = {
                    "index": 0,
                    "message": {"role": "", "content": ""},
                    "finish_reason": None,
                }
                answer["choices"] = [choice]
                answer |= session.rendered()
            await call.json(answer)


# Anthropic's route.


async def messages(call: EmulatedCall) -> None:
    ask = _messages_ask(call.read())
    if ask.stream:
        call.headers["Cache-Control"] = "no-cache"
    installed = call.catalogue.require(ask.model)
    check_capabilities(installed, ask, task="chat", strict_thinking=False)
    estimated_tokens = sum(len(one.content) for one in ask.messages) // 4 + 1
    async with open_session(call, installed, ask) as session:
        await session.answer(
            MessagesWriter(
                call.engine.hex_id("msg_", 24), ask.model, estimated_tokens=estimated_tokens
            )
        )


def _messages_ask(body: Body) -> Ask:
    turns = body.objects("messages")
    limit_tokens = body.integer("max_tokens") or 0
    refusals = {
        "model is required": not body.string("model"),
        "max_tokens is required and must be positive": limit_tokens <= 0,
        "messages is required": not turns,
    }
    for text, applies in refusals.items():
        if applies:
            raise BadRequest(text)
    options: JsonObject = {
        "num_predict": limit_tokens,
        "temperature": body.number("temperature"),
        "stop": [*strings(body, "stop_sequences")],
    }
    return Ask(
        model=body.string("model"),
        stream=body.flag("stream"),
        messages=system_message(plain_text(body.get("system")))
        + [anthropic_message(one) for one in turns],
        tools=anthropic_tools(body),
        options={name: value for name, value in options.items() if value not in (None, [])},
        think=body.object("thinking").get("type") == "enabled",
    )


def _check_logprobs(ask: Ask) -> None:
    if not 0 <= ask.top_logprobs <= 20:
        raise OllamaError(400, "top_logprobs must be between 0 and 20")


def _required(call: EmulatedCall, ask: Ask) -> Installed:
    if not ask.model:
        raise OllamaError(400, "model is required")
    return call.catalogue.require(ask.model)


# Embeddings. A vector depends on model and text alone, so the same text gives the same bits alone
# and in a batch.


async def embed(call: EmulatedCall) -> None:
    """`/api/embed`."""
    body = call.read()
    texts = _inputs(body.get("input"))
    ask = replace(_embedding_ask(body), truncate=body.flag("truncate", default=True))
    found = await _embed(call, ask, texts, dimensions=body.integer("dimensions"))
    rows = [encode([*map(shortest, vector)]) async for vector in found.vectors()]
    timings: JsonObject = {}
    if texts:
        total_s = call.engine.clock.monotonic() - call.received_at
        timings["total_duration"] = nanoseconds(total_s)
        timings["load_duration"] = nanoseconds(found.load_s)
        timings["prompt_eval_count"] = found.tokens
    await call.written(with_rows({"model": ask.model}, "embeddings", rows, timings))


async def legacy_embeddings(call: EmulatedCall) -> None:
    """`/api/embeddings`: one prompt, values in double precision."""
    body = call.read()
    prompt = body.string("prompt")
    ask = _embedding_ask(body)
    if not ask.model:
        raise OllamaError(400, "model is required")
    found = await _embed(call, ask, [prompt] if prompt else [], unsupported_status=500)
    vectors = [vector async for vector in found.vectors()]
    await call.json({"embedding": [*vectors[0]] if vectors else []})


async def openai_embeddings(call: EmulatedCall) -> None:
    """`/v1/embeddings`."""
    body = call.read()
    ask = Ask(model=body.string("model"), stream=False)
    given = body.get("input")
    if given is None or given == []:
        raise BadRequest("invalid input")
    packed = body.string("encoding_format").lower() == "base64"
    texts = [""] if given == "" else _inputs(given)
    found = await _embed(call, ask, texts, dimensions=body.integer("dimensions"))
    rows: list[bytes] = []
    async for vector in found.vectors():
        value: JsonValue = (
            b64encode(floats_of(vector)).decode() if packed else [*map(shortest, vector)]
        )
        rows.append(encode({"object": "embedding", "embedding": value, "index": len(rows)}))
    usage: JsonObject = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    await call.written(
        with_rows({"object": "list"}, "data", rows, {"model": ask.model, "usage": usage})
    )


def _embedding_ask(body: Body) -> Ask:
    return Ask(
        model=body.string("model"),
        stream=False,
        options=body.map("options"),
        keep_alive_s=keep_alive_s(body),
    )


def _inputs(given: JsonValue) -> list[str]:
    listed = given if isinstance(given, list) else [given] if given else []
    texts = [one for one in listed if isinstance(one, str)]
    if len(texts) != len(listed) or not (given is None or isinstance(given, str | list)):
        raise OllamaError(400, "invalid input type")
    return texts


@frozen
class _Embedded:
    """Texts that a runner has read, how many tokens they have, and how long the load took in
    seconds.
    """

    model: EmulatedModel
    texts: Sequence[str]
    dimensions: int | None
    tokens: int
    load_s: float

    async def vectors(self) -> AsyncIterator[tuple[float, ...]]:
        """One after the other.

        Between them others get the loop: a vector takes a millisecond, and a request may have
        thousands.
        """
        for text in self.texts:
            yield vector_of(self.model, text, self.dimensions)
            await asyncio.sleep(0)


async def _embed(
    call: EmulatedCall,
    ask: Ask,
    texts: Sequence[str],
    *,
    dimensions: int | None = None,
    unsupported_status: int = 501,
) -> _Embedded:
    missing = 'model "{}" not found, try pulling it first' if ask.model else "model '{}' not found"
    installed = call.catalogue.require(ask.model, template=missing)
    engine = call.engine
    model = installed.model
    options = read_options(installed.model, ask, default_num_ctx=engine.default_context_tokens)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        load_s = engine.clock.monotonic() - call.received_at
        if texts and not model.can("embedding"):
            raise OllamaError(
                unsupported_status,
                "This server does not support embeddings. Start it with `--embeddings`",
            )
        sizes: list[int] = []
        for text in texts:
            sizes.append(count_tokens(model, text))
            await asyncio.sleep(0)
        if not ask.truncate and any(tokens > options.num_ctx for tokens in sizes):
            raise OllamaError(400, "the input length exceeds the context length")
        sizes = [min(tokens, options.num_ctx) for tokens in sizes]
        for tokens in sizes:
            await engine.generate(runner, tokens)
    return _Embedded(
        model=model, texts=texts, dimensions=dimensions, tokens=sum(sizes), load_s=load_s
    )
