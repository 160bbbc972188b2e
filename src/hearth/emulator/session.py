"""One generation from request to last token, the same for every dialect: a lease, a prompt, a planned reply, and how it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.writers import Generation, Said, ToolCall, Writer
from hearth.emulator.engine import Runner, Say
from hearth.emulator.models import Installed, OllamaError
from hearth.emulator.prompts import GREEDY_SEED, Message, Options, Prompt, Room, fit_messages, fit_text, read_options, token_ids
from hearth.emulator.text import Wish, begun, draws, logprobs_of, plan_reply, sample
from hearth.emulator.wire import EVENTS, NDJSON, Call, nanoseconds
from hearth.types import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller wants of a model.

    Attributes:
        model: as the caller wrote it.
        prompt: a finished prompt (raw generate); None renders `messages`.
        options: in Ollama's names.
        schema: `"json"`, a JSON schema or None.
        think: True, False, an effort, or None for the model's default.
        keep_alive_s: None keeps what the runner has; infinity for ever.
        logprobs: wanted, with `top_logprobs` alternatives each.
        context: the answer gives the numbers of the conversation's tokens.
        render_only: show the prompt and say nothing (`_debug_render_only`).
    """

    model: str
    stream: bool
    messages: Sequence[Message] = ()
    prompt: str | None = None
    options: JsonObject = field(default_factory=dict)
    tools: Sequence[JsonObject] = ()
    schema: JsonValue = None
    think: JsonValue = None
    keep_alive_s: float | None = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    context: bool = False
    render_only: bool = False


class Session:
    """A request that holds its runner."""

    def __init__(self, call: Call, installed: Installed, ask: Ask, options: Options, runner: Runner) -> None:
        self._call, self._server, self._model = call, call.server, installed.model
        self._ask = ask
        self._options = options
        self._runner = runner
        self._handed_over_at = call.server.engine.clock.monotonic()

    def prompt(self) -> Prompt:
        """The prompt as the model reads it; raises `OllamaError` where it is too long."""
        ask = self._ask
        room = Room(num_ctx=self._options.num_ctx, num_keep=self._options.num_keep, truncate=ask.truncate, shift=ask.shift)
        if ask.prompt is not None:
            return fit_text(self._model, ask.prompt, room)
        return fit_messages(self._model, ask.messages, room, tools=ask.tools)

    async def speak(self, say: Say | None = None, *, v1: bool = False) -> Generation:
        """Say the reply, part by part to `say` if there is one.

        Raises `OllamaError` before the first part for a bad format or a prompt that is too long, and `RunnerDied`.

        Args:
            v1: the answer is an event stream of a `/v1` route.
        """
        ask, engine = self._ask, self._server.engine
        _check_format(ask.schema)
        prompt = self.prompt()
        plan = plan_reply(self._model, prompt.text, self._wish(prompt, warm=self._runner.reads(begun(prompt.text)[0])))
        pieces = plan.pieces
        if ask.logprobs:
            pieces = tuple(replace(piece, logprobs=[logprobs_of(piece.text, ask.top_logprobs)]) for piece in pieces)
        reason = None if engine.faults.forgets_the_end() else plan.reason
        dies_after = engine.faults.dies_after_pieces(v1_stream=v1)
        prompt_s, output_s = await engine.speak(self._runner, prompt.tokens, pieces, plan.eval_tokens, say, dies_after=dies_after)
        if plan.tool is not None and say is not None:
            await say(plan.tool)
        said: list[Said] = [*pieces, *([plan.tool] if plan.tool is not None else [])]
        text = "".join(piece.text for piece in pieces if not piece.thinking)
        return Generation(
            said=said,
            reason=reason,
            prompt_tokens=prompt.tokens,
            output_tokens=plan.eval_tokens,
            context=token_ids(self._model, prompt.text + text) if ask.context else (),
            total_ns=nanoseconds(engine.clock.monotonic() - self._call.received_at),
            load_ns=nanoseconds(self._handed_over_at - self._call.received_at),
            prompt_ns=nanoseconds(prompt_s, step=1000),
            output_ns=nanoseconds(output_s, step=1000),
        )

    def _wish(self, prompt: Prompt, *, warm: bool) -> Wish:
        ask, options, server = self._ask, self._options, self._server
        seed = server.rng.getrandbits(31) if options.seed is None else options.seed
        limit_tokens = options.limit_tokens
        if not ask.shift:
            room_tokens = max(1, options.num_ctx - prompt.tokens)
            limit_tokens = min(limit_tokens or room_tokens, room_tokens)
        return Wish(
            seed=seed,
            limit_tokens=limit_tokens,
            stop=options.stop,
            schema=ask.schema,
            thinks=ask.prompt is None and self._model.can("thinking") and ask.think not in (False, "none"),
            tool=chosen_tool(ask.messages, ask.tools, call_id=server.hex_id("call_", 8)) if ask.tools else None,
            drift=server.engine.faults.drift_after(f"{seed} {prompt.text}", greedy=seed == GREEDY_SEED) if warm else None,
        )


@asynccontextmanager
async def open_session(call: Call, installed: Installed, ask: Ask) -> AsyncIterator[Session]:
    """Hold a loaded runner for the block; raises `OllamaError` for bad options or a full queue."""
    engine = call.server.engine
    options = read_options(installed.model, ask.options, default_num_ctx=engine.limits.default_context_tokens, shift=ask.shift)
    async with engine.lease(installed, options.load_key, ask.keep_alive_s) as runner:
        yield Session(call, installed, ask, options, runner)


async def tell(call: Call, session: Session, writer: Writer, *, stream: bool) -> None:
    """Say the reply in the dialect of `writer`; raises `OllamaError` where nothing has been sent and the error is the whole answer."""
    wall_s = call.server.engine.clock.wall
    if not stream:
        done = await session.speak()
        await call.json(writer.whole(done, wall_s()))
        return
    native = call.dialect is Dialect.OLLAMA
    call.prepare(NDJSON if native else EVENTS)

    async def say(said: Said) -> None:
        await call.send(writer.say(said, wall_s()))

    try:
        done = await session.speak(say, v1=not native)
    except OllamaError as error:
        if native:
            await call.break_off(error)
            return
        if not call.started:
            raise
        await call.send(writer.broken())
    else:
        await call.send(writer.end(done, wall_s()))


def chosen_tool(messages: Sequence[Message], tools: Sequence[JsonObject], *, call_id: str = "") -> ToolCall | None:
    """The tool that the last user message asks for: it names the tool, or a long word of the tool's name; None otherwise."""
    if not messages or messages[-1].role != "user":
        return None
    said = messages[-1].content
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(name, str) and _mentions(said, name):
            return ToolCall(call_id=call_id, name=name, arguments=_arguments(function.get("parameters"), said))
    return None


def _mentions(said: str, name: str) -> bool:
    folded = said.lower()
    return name.lower() in folded or any(len(word) > 4 and word in folded for word in name.lower().replace("-", "_").split("_"))


def _arguments(parameters: JsonValue, said: str) -> JsonObject:
    if not isinstance(parameters, dict) or not parameters.get("properties"):
        return {}
    value = sample(parameters, draws(said), hints=said)
    return value if isinstance(value, dict) else {}


def _check_format(schema: JsonValue) -> None:
    if schema is None or isinstance(schema, dict) or schema == "json":
        return
    quoted = encode(encode(schema).decode()).decode()
    raise OllamaError(500, f'invalid format: {quoted}; expected "json" or a valid JSON Schema object')


def check_capabilities(installed: Installed, ask: Ask, *, task: str, strict_thinking: bool = True) -> None:
    """Refuse what the model cannot do; raises `OllamaError` 400 with Ollama's text for the missing capability."""
    model = installed.model
    if not model.can("completion"):
        raise OllamaError(400, f'"{ask.model}" does not support {task}')
    if ask.tools and not model.can("tools"):
        raise OllamaError(400, f"{installed.name.full} does not support tools")
    if strict_thinking and ask.think not in (None, False, "none") and not model.can("thinking"):
        raise OllamaError(400, f'"{ask.model}" does not support thinking')
