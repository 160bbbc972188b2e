"""One generation from request to last token, the same for every dialect: a lease, a prompt, a planned reply, and how it is told."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.writers import Generation, Said, Text, ToolCall, Writer
from hearth.emulator.engine import Runner, Say
from hearth.emulator.models import EmulatedModel, Installed, OllamaError
from hearth.emulator.prompts import GREEDY_SEED, Ask, Message, Options, fitted, read_options, token_ids
from hearth.emulator.quirks import QuirkName
from hearth.emulator.text import Wish, begun, draws, logprobs_of, plan_reply, sample
from hearth.emulator.wire import EVENTS, NDJSON, Call, nanoseconds

_PIECES_BEFORE_DEATH = 3


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

    async def tell(self, writer: Writer, *, stream: bool) -> None:
        """Answer in the dialect of `writer`; raises `OllamaError` where nothing has been sent and the error is the whole answer."""
        call, wall_s = self.call, self.call.engine.clock.wall
        if not stream:
            done = await self._speak()
            await call.json(writer.whole(done, wall_s()))
            return
        call.prepare(NDJSON if call.native else EVENTS)

        async def say(said: Said) -> None:
            await call.send(writer.say(said, wall_s()))

        try:
            done = await self._speak(say)
        except OllamaError as error:
            if call.native:
                await call.break_off(error)
                return
            if not call.started:
                raise
            await call.send(writer.broken())
        else:
            await call.send(writer.end(done, wall_s()))

    async def _speak(self, say: Say | None = None) -> Generation:
        """The reply, part by part to `say` if there is one.

        Raises `OllamaError` before the first part for a bad format or a prompt that is too long, and `RunnerDied`.
        """
        ask, engine, model = self.ask, self.call.engine, self.model
        _check_format(ask.schema)
        text, prompt_tokens = fitted(model, ask, self.options)
        plan = plan_reply(model, text, self._wish(text, prompt_tokens))
        pieces = [one for one in plan.said if isinstance(one, Text)]
        if ask.logprobs:
            pieces = [replace(piece, logprobs=[logprobs_of(piece.text, ask.top_logprobs)]) for piece in pieces]
        reason = None if engine.faults.strikes(QuirkName.NO_DONE) else plan.reason
        dies = say is not None and not self.call.native and engine.faults.strikes(QuirkName.EMPTY_ERROR_CHUNK)
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


def chosen_tool(messages: Sequence[Message], tools: Sequence[JsonObject], *, call_id: str = "") -> ToolCall | None:
    """The tool that the last user message asks for: it names the tool, or a long word of the tool's name; None otherwise."""
    if not messages or messages[-1].role != "user":
        return None
    said, lower = messages[-1].content, messages[-1].content.lower()
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            continue
        words = [name.lower(), *(word for word in name.lower().replace("-", "_").split("_") if len(word) > 4)]
        if any(word in lower for word in words):
            parameters = function.get("parameters")
            has_fields = isinstance(parameters, dict) and parameters.get("properties")
            value = sample(parameters, draws(said), hints=said) if has_fields else {}
            return ToolCall(call_id=call_id, name=name, arguments=value if isinstance(value, dict) else {})
    return None


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
