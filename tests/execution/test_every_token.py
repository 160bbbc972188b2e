"""Streams of every dialect on the emulator, interrupted after each of their tokens: text, token
counts, usage, order of events and ids are those of the answer that nobody interrupts.

Everything is the real thing but the sockets: application, gateway, queue and emulator, in virtual
time. A model says a token a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal

import pytest

from hearth.api.app import HearthApp
from hearth.config.settings import GatewayConfig, Settings
from hearth.dialects.gojson import encode
from hearth.emulator.engine import EmulatedServer
from hearth.emulator.models import EmulatedModel
from hearth.emulator.prompts import pieces_of
from hearth.events import ItemBrokenOff, ItemDiverged, ItemEnded, ItemInterrupted, ItemResumed
from hearth.execution.request import Submission
from hearth.gateway import Gateway
from hearth.observability.fanout import EventFanout
from hearth.types import BackendCall, Lane
from tests.support.emulated import EmulatedOllama
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.house import ALWAYS_PREEMPT, body_of, gateway_over, new_item, settings_with
from tests.support.http import drive, http_scope
from tests.support.recorder import Recorder
from tests.support.replay_readers import told
from tests.support.replay_streams import ROUTES, TURNS, Answer, offering
from tests.support.virtual_time import LoopClock, loop_s, run_virtual, sleep_until

CHAT, GENERATE, GPT, COMPLETIONS, CLAUDE, RESPONSES = ROUTES
MODEL = "m"
OTHER = "b"
TOKENS = 12
LOAD_S = 20.0
UNLOAD_S = 0.1
BEFORE = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "me"}, *TURNS]
Break = Literal["same model", "other model", "death"]
BREAKS: tuple[Break, ...] = ("same model", "other model", "death")
ResumeMode = Literal["continued", "replayed"]


def profile(name: str, *more: str) -> EmulatedModel:
    """Reads a prompt at once, says a token a second; a swap takes so long that who waits for it is
    sent signs of life.
    """
    capabilities = ("completion", "tools", *more)
    return EmulatedModel(
        name=name,
        decode_tokens_per_s=1.0,
        prompt_tokens_per_s=1e6,
        load_s=LOAD_S,
        unload_s=UNLOAD_S,
        capabilities=capabilities,
    )


@dataclass
class EmulatedHouse:
    """The running parts."""

    gateway: Gateway
    app: HearthApp
    ollama: EmulatedOllama
    events: Recorder

    async def urgent(self, model: str) -> None:
        """A short internal request."""
        new = new_item(model, lane=Lane.INTERNAL)
        body = encode(
            {"model": model, "prompt": "?", "stream": False, "options": {"num_predict": 1}}
        )
        call = BackendCall(method="POST", path=GENERATE, body=body)
        await body_of(self.gateway.worker.submit(Submission(item=new.item, call=call)))

    async def ask(self, path: str, body: Fields, agent: bytes) -> bytes:
        scope = http_scope(
            "POST", path, ((b"host", b"localhost"), (b"user-agent", agent)), "127.0.0.1"
        )
        got = await drive(self.app, scope, encode(body))
        assert (got.status, got.complete) == (200, True), got.body
        return got.body


@asynccontextmanager
async def open_home(settings: Settings, *, thinks: bool = False) -> AsyncIterator[EmulatedHouse]:
    clock = LoopClock()
    events = Recorder()
    model = profile(MODEL, "thinking") if thinks else profile(MODEL)
    engine = EmulatedServer(
        [model, profile(OTHER)], clock=clock, seed=1, marked=False, max_loaded=1
    )
    async with EmulatedOllama(engine) as ollama:
        gateway = gateway_over(
            ollama, GatewayConfig(settings=settings), clock=clock, events=EventFanout((events,))
        )
        await gateway.start()
        yield EmulatedHouse(gateway, HearthApp(gateway), ollama, events)
        await gateway.stop(0.0)


@dataclass(frozen=True)
class Asked:
    """What a caller wants beside a text."""

    paths: tuple[str, ...] = tuple(ROUTES)
    stop: tuple[str, ...] = ()
    limit: int = TOKENS
    thinks: bool = False
    agent: bytes = b"test"
    more: Fields = field(default_factory=dict)

    def body(self, path: str) -> Fields:
        more = dict(self.more)
        body: Fields = {"model": MODEL, "stream": True, **_prompt(path)}
        if more.pop("tools", False):
            body |= offering(path)
        if more.pop("turns", False):
            body |= {"input" if path == RESPONSES else "messages": BEFORE}
        body |= more
        options: Fields = {"temperature": 0}
        if self.stop:
            options["stop_sequences" if path == CLAUDE else "stop"] = list(self.stop)
        if path.startswith("/api"):
            options["num_predict"] = self.limit
            return body | {"options": options, **({"think": True} if self.thinks else {})}
        options["max_output_tokens" if path == RESPONSES else "max_tokens"] = self.limit
        return body | options | _thinking(path, thinks=self.thinks)


def _prompt(path: str) -> Fields:
    if path in (GENERATE, COMPLETIONS):
        return {"prompt": "hello"}
    return {"input": "hello"} if path == RESPONSES else {"messages": TURNS}


def _thinking(path: str, *, thinks: bool) -> Fields:
    if not thinks:
        return {}
    if path == CLAUDE:
        return {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    return {"reasoning": {"effort": "high"}}


STARTS = ("th", " th", "a", "The", " i", "of ", "t", " w", ". ")
"""Words of the emulator begin so: what may be the beginning of a stop string is held back."""
REPLAYED: dict[str, Asked] = {
    "a grammar": Asked(paths=(CHAT, GENERATE), more={"format": "json"}),
    "a grammar of OpenAI's": Asked(paths=(GPT,), more={"response_format": {"type": "json_object"}}),
    "log probabilities": Asked(paths=(CHAT, GENERATE, GPT), more={"logprobs": True}),
}
"""What cannot be continued is run again and compared."""
CONTINUED: dict[str, Asked] = {
    "a limit": Asked(),
    "stop strings that never come": Asked(stop=tuple(f"{start}~~~" for start in STARTS)),
    "one that comes": Asked(stop=(".", " the~~~", "e~~~"), limit=60),
    "no other end than its own": Asked(limit=1000),
    "thoughts": Asked(paths=(CHAT, GENERATE, GPT, CLAUDE), thinks=True, limit=40),
    "thoughts, with tools on offer": Asked(
        paths=(CHAT, GPT, CLAUDE), thinks=True, limit=40, more={"tools": True}
    ),
    "Claude Code, which is shown its own events": Asked(
        paths=(CLAUDE,), agent=b"claude-cli/2", more={"tools": True}
    ),
    "turns before": Asked(paths=(CHAT, GPT, CLAUDE, RESPONSES), more={"turns": True}),
    "a raw prompt": Asked(
        paths=(GENERATE,), more={"raw": True, "prompt": "<user>hello\n<assistant>"}
    ),
    "tools on offer": Asked(paths=(CHAT, GPT, CLAUDE, RESPONSES), more={"tools": True}),
    "a usage": Asked(paths=(GPT, COMPLETIONS), more={"stream_options": {"include_usage": True}}),
}


ASKS = REPLAYED | CONTINUED


@dataclass(frozen=True)
class Read:
    """All that a caller reads of a stream, and the log of its request."""

    answer: Answer
    kinds: tuple[str, ...]
    usage: tuple[int, ...]
    logged: tuple[int | None, int | None]


def kinds_of(path: str, data: bytes) -> tuple[str, ...]:
    """The kinds of frames in their order, each run of one kind once; signs of life left out."""
    kinds: list[str] = []
    for frame in data.split(b"\n" if path.startswith("/api") else b"\n\n")[:-1]:
        kind = _kind(path, frame)
        if kind and (not kinds or kinds[-1] != kind):
            kinds.append(kind)
    return tuple(kinds)


def _kind(path: str, frame: bytes) -> str:
    if frame.startswith(b":") or frame == b"data: [DONE]":
        return frame[6:].decode() if frame.startswith(b"data") else ""
    fields = json.loads(frame.partition(b"data: ")[2] or frame)
    if path == CLAUDE and fields["type"] == "message_delta" and not fields["delta"]["stop_reason"]:
        return ""
    if path in (CLAUDE, RESPONSES):
        return (
            ""
            if fields["type"] in ("ping", "response.in_progress")
            else f"{fields['type']} {fields.get('output_index', '')}"
        )
    if path.startswith("/api"):
        said = fields.get("message", fields)
        text = (
            "thinking"
            if said.get("thinking")
            else "text"
            if said.get("content") or said.get("response")
            else ""
        )
        return "done" if fields["done"] else text
    if not fields["choices"]:
        return "usage"
    choice = fields["choices"][0]
    delta = choice.get("delta", {"content": choice.get("text")})
    return "end" if choice["finish_reason"] else "thinking" if delta.get("reasoning") else "text"


def usage_of(path: str, data: bytes) -> tuple[int, ...]:
    """What it tells of tokens: of the prompt and of the answer."""
    lines = [
        line.removeprefix(b"data: ")
        for line in data.split(b"\n")
        if line.startswith((b"data: {", b"{"))
    ]
    said = [json.loads(line) for line in lines]
    if path.startswith("/api"):
        return said[-1]["prompt_eval_count"], said[-1]["eval_count"]
    told_of = [one.get("response", one).get("usage") for one in said]
    given = [
        usage
        for usage in told_of
        if usage and usage.get("output_tokens", usage.get("completion_tokens"))
    ]
    return (
        tuple(
            given[-1][name]
            for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
            if name in given[-1]
        )
        if given
        else ()
    )


async def read(home: EmulatedHouse, path: str, body: Fields, agent: bytes) -> Read:
    data = await home.ask(path, body, agent)
    ended = next(
        event for event in reversed(home.events.of(ItemEnded)) if event.lane is Lane.EXTERNAL
    )
    kept = b"".join(frame for frame in frames(path, data) if _kind(path, frame.rstrip(b"\n")))
    reader = told(path, data if path == RESPONSES else kept)
    return Read(
        reader.answer,
        kinds_of(path, data),
        usage_of(path, data),
        (ended.prompt_tokens, ended.output_tokens),
    )


def frames(path: str, data: bytes) -> list[bytes]:
    end = b"\n" if path.startswith("/api") else b"\n\n"
    return [frame + end for frame in data.split(end)[:-1]]


async def broken_into(
    home: EmulatedHouse,
    path: str,
    body: Fields,
    agent: bytes,
    breaks: list[tuple[float, Break]],
) -> Read:
    """The same with this happening to it so long after its start."""
    began_at = loop_s()
    reading = asyncio.ensure_future(read(home, path, body, agent))
    for after_s, how in breaks:
        await sleep_until(began_at + after_s)
        if how == "death":
            home.ollama.kill(MODEL)
        else:
            await home.urgent(MODEL if how == "same model" else OTHER)
    return await reading


def saying_something_else(path: str) -> Any:
    """The second run of a request, and each one after, gets another prompt, as if the engine did
    not repeat itself.
    """
    seen = 0

    def alter(call: BackendCall) -> BackendCall:
        nonlocal seen
        asked = json.loads(call.body)
        # the gateway's, not the caller's
        is_own = "_debug_render_only" in asked or "truncate" in asked
        if call.path != path or is_own or not asked["stream"]:
            return call
        seen += 1
        return (
            call
            if seen == 1
            else BackendCall(method="POST", path=path, body=call.body.replace(b"hello", b"goodbye"))
        )

    return alter


AT_ONCE = settings_with(
    scheduling={
        **ALWAYS_PREEMPT,
        "policy": "affinity",
        "preemption": "at_once",  # which waits for nobody to come back
        "preempt_finish_bound_s": 1000.0,
    },
    queue={"max_interrupt_count": 9},
)


async def _everywhere(name: str, path: str, way: ResumeMode, rng: Random) -> int:
    """How many of the streams went on."""
    asked = ASKS[name]
    body = asked.body(path)
    async with open_home(AT_ONCE, thinks=asked.thinks) as home:
        whole = await read(home, path, body, asked.agent)
        thoughts = len(pieces_of(whole.answer.parts[0][1])) + 2 if asked.thinks else 0
        # what only thinks so far cannot be continued
        places = list(range(thoughts if way == "continued" else 0, min(whole.logged[1] or 0, 60)))
        if EXAMPLES == 1:
            places = sorted(rng.sample(places, min(len(places), 5)))
        for place in places:
            if way == "continued":
                home.ollama.altered = saying_something_else(path)
            is_cold = rng.random() < 0.3  # then signs of life come before its first token
            at_s = place + 0.5 + (LOAD_S + UNLOAD_S if is_cold else 0.0)
            breaks: list[tuple[float, Break]] = [(at_s, rng.choice(BREAKS))]
            if rng.random() < 0.3:
                breaks.append((at_s + rng.uniform(1.0, 12.0), rng.choice(BREAKS)))
            await home.urgent(OTHER if is_cold else MODEL)
            broken = await broken_into(home, path, body, asked.agent, breaks)
            assert broken == whole, (name, path, way, breaks)
        assert home.events.of(ItemDiverged) == []
        gone_on = home.events.of(ItemResumed)
        assert way == "replayed" or {event.how for event in gone_on} <= {"continued", "replayed"}
        assert len(home.events.of(ItemInterrupted)) + len(home.events.of(ItemBrokenOff)) >= len(
            gone_on
        )
        return len([event for event in gone_on if event.how == way])


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "continued") for name in CONTINUED), *((name, "replayed") for name in ASKS)],
)
def test_a_stream_broken_into_after_any_token_is_the_answer_it_would_have_been(
    name: str, way: ResumeMode
):
    """After every token in `make reliability`."""
    for number, path in enumerate(ASKS[name].paths):
        went_on = run_virtual(
            partial(_everywhere, name, path, way, Random(number)),
            horizon_s=1e9,
        )
        assert went_on > 0, path
