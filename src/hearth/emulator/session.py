"""One generation from request to last token, the same for every dialect: a lease, a prompt, a planned reply, and how it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.emulator.engine import Execution, Measured, Runner, Say
from hearth.emulator.models import Installed, OllamaError
from hearth.emulator.prompts import GREEDY_SEED, Message, Options, Prompt, Room, fit_messages, fit_text, read_options
from hearth.emulator.text import Piece, ReplyPlan, ToolCall, Wish, begun, draws, plan_reply, sample
from hearth.emulator.wire import EVENTS, NDJSON, Call, Server
from hearth.types import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller wants of a model.

    Attributes:
        prompt: a finished prompt (raw generate); None renders `messages`.
        render_only: show the prompt and say nothing (`_debug_render_only`).
        options: in Ollama's names.
        schema: `"json"`, a JSON schema or None.
        think: True, False, an effort, or None for the model's default.
        keep_alive_s: None keeps what the runner has; infinity for ever.
    """

    messages: Sequence[Message] = ()
    prompt: str | None = None
    options: JsonObject = field(default_factory=dict)
    tools: Sequence[JsonObject] = ()
    schema: JsonValue = None
    think: JsonValue = None
    keep_alive_s: float | None = None
    truncate: bool = True
    shift: bool = True
    render_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A reply that was said to its end, when its model was ready, and what the reply and its prompt took."""

    plan: ReplyPlan
    measured: Measured
    handed_over_at: float

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.plan.pieces if not piece.thinking)

    @property
    def thinking(self) -> str:
        return "".join(piece.text for piece in self.plan.pieces if piece.thinking)


class Writer(ABC):
    """How one dialect puts one answer; each chunk is one HTTP chunk."""

    @abstractmethod
    def piece(self, piece: Piece) -> Iterable[bytes]:
        """The chunks for one piece of a stream."""

    @abstractmethod
    def end(self, finished: Finished) -> Iterable[bytes]:
        """The chunks that end a stream; without a reason for its end, only a tool call."""

    @abstractmethod
    def whole(self, finished: Finished) -> JsonObject:
        """The answer that is not streamed, keys in Go's order."""

    def broken(self) -> Iterable[bytes]:
        """The chunks after those of a `/v1` stream whose runner died."""
        return ()


class Session:
    """A request that holds its runner."""

    def __init__(self, server: Server, installed: Installed, ask: Ask, options: Options, runner: Runner) -> None:
        self._server = server
        self._installed = installed
        self._ask = ask
        self._options = options
        self._runner = runner
        self._handed_over_at = server.engine.clock.monotonic()

    def rendered(self) -> str:
        """The prompt as the model would read it."""
        return self._prompt().text

    async def speak(self, say: Say | None = None, *, v1: bool = False) -> Finished:
        """Say the reply, piece by piece to `say` if there is one.

        Raises `OllamaError` before the first piece for a bad format or a prompt that is too long, and `RunnerDied`.

        Args:
            v1: the answer is an event stream of a `/v1` route.
        """
        _check_format(self._ask.schema)
        prompt = self._prompt()
        plan = plan_reply(self._installed.model, prompt.text, self._wish(prompt, warm=self._runner.reads(begun(prompt.text)[0])))
        faults = self._server.engine.faults
        if faults.forgets_the_end():
            plan = replace(plan, reason=None)
        dies_after = faults.dies_after_pieces(v1_stream=v1)
        measured = await Execution(self._server.engine, self._runner, prompt.tokens).speak(plan, say, dies_after=dies_after)
        return Finished(plan=plan, measured=measured, handed_over_at=self._handed_over_at)

    def _prompt(self) -> Prompt:
        ask, model = self._ask, self._installed.model
        room = Room(num_ctx=self._options.load.num_ctx, num_keep=self._options.num_keep, truncate=ask.truncate, shift=ask.shift)
        if ask.prompt is not None:
            return fit_text(model, ask.prompt, room)
        return fit_messages(model, ask.messages, room, tools=ask.tools)

    def _wish(self, prompt: Prompt, *, warm: bool) -> Wish:
        ask, options = self._ask, self._options
        seed = self._server.rng.getrandbits(31) if options.seed is None else options.seed
        limit_tokens = options.limit_tokens
        if not ask.shift:
            room_tokens = max(1, options.load.num_ctx - prompt.tokens)
            limit_tokens = min(limit_tokens or room_tokens, room_tokens)
        return Wish(
            seed=seed,
            limit_tokens=limit_tokens,
            stop=options.stop,
            schema=ask.schema,
            thinks=ask.prompt is None and self._installed.model.can("thinking") and ask.think not in (False, "none"),
            tool=chosen_tool(ask.messages, ask.tools),
            drift=self._server.engine.faults.drift_after(f"{seed} {prompt.text}", greedy=seed == GREEDY_SEED) if warm else None,
        )


@asynccontextmanager
async def open_session(server: Server, installed: Installed, ask: Ask) -> AsyncIterator[Session]:
    """Hold a loaded runner for the block; raises `OllamaError` for bad options or a full queue."""
    default_num_ctx = server.engine.limits.default_context_tokens
    options = read_options(installed.model, ask.options, default_num_ctx=default_num_ctx, shift=ask.shift)
    async with server.engine.lease(installed, options.load, ask.keep_alive_s) as runner:
        yield Session(server, installed, ask, options, runner)


async def tell(call: Call, session: Session, writer: Writer, *, stream: bool) -> None:
    """Say the reply in the dialect of `writer`; raises `OllamaError` where nothing has been sent and the error is the whole answer."""
    if not stream:
        await call.json(writer.whole(await session.speak()))
        return
    native = call.dialect is Dialect.OLLAMA
    call.prepare(NDJSON if native else EVENTS)

    async def say(piece: Piece) -> None:
        await call.send(writer.piece(piece))

    try:
        finished = await session.speak(say, v1=not native)
    except OllamaError as error:
        if native:
            await call.break_off(error)
            return
        if not call.started:
            raise
        await call.send(writer.broken())
    else:
        await call.send(writer.end(finished))


def event(value: JsonObject, *, named: bool = False) -> bytes:
    """One server-sent event; a named one says its type before its data."""
    head = f"event: {value['type']}\n" if named else ""
    return head.encode() + b"data: " + encode(value) + b"\n\n"


def chosen_tool(messages: Sequence[Message], tools: Sequence[JsonObject]) -> ToolCall | None:
    """The tool that the last user message asks for: it names the tool, or a long word of the tool's name; None otherwise."""
    if not messages or messages[-1].role != "user":
        return None
    said = messages[-1].content
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(name, str) and _mentions(said, name):
            return ToolCall(name=name, arguments=_arguments(function.get("parameters"), said))
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
    quoted = encode(schema).decode()
    raise OllamaError(500, f'invalid format: {encode(quoted).decode()}; expected "json" or a valid JSON Schema object')


def check_capabilities(installed: Installed, shown: str, *, task: str, ask: Ask, strict_thinking: bool = True) -> None:
    """Refuse what the model cannot do; raises `OllamaError` 400 with Ollama's text for the missing capability."""
    model = installed.model
    if not model.can("completion"):
        raise OllamaError(400, f'"{shown}" does not support {task}')
    if ask.tools and not model.can("tools"):
        raise OllamaError(400, f"{installed.name.full} does not support tools")
    if strict_thinking and ask.think not in (None, False, "none") and not model.can("thinking"):
        raise OllamaError(400, f'"{shown}" does not support thinking')
