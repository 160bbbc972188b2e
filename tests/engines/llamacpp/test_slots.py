"""Conversations over a stop and a start of a real llama-server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.clock import Clock, SystemClock
from hearth.dialects.routes import Endpoint, route_of
from hearth.dialects.stream import StreamTail
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.llama_server.saved import SavedConversations
from hearth.engines.llama_server.signature import signature_of
from hearth.engines.llama_server.slots import Slots
from hearth.engines.llama_server.trust import Trust
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.port import Exchange
from hearth.events import (
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    Event,
    SavingSwitchedOff,
)
from hearth.types import JSON_BODY, BackendCall, Usage
from tests.engines.llamacpp.gguf import WORDS, write_model
from tests.engines.llamacpp.server_command import llama_server
from tests.support.examples import EXAMPLES

GIB = 1024**3
STOPS = 5
TURNS = 10
"""Of a conversation."""
TWO_SLOTS = ("-np", "2", "--no-kv-unified")
WITHOUT_MOVING = {"LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}
ROUTES = (Endpoint.OPENAI_CHAT, Endpoint.ANTHROPIC_MESSAGES, Endpoint.CHAT)
"""As OpenAI, as Anthropic, and translated."""


def opening(seed: int, words: int = 120) -> str:
    """A first message of some 900 tokens, which begins as no other."""
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(words))


class EvenClock(SystemClock):
    """Each reading is a microsecond after the last: on a busy machine a file may take longer to
    write than this small model to read, and then nothing more is saved.
    """

    def __init__(self, step_s: float = 1e-6) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += self._step_s
        return self._now_s


@dataclass
class Home:
    """What outlives a server: the directory, and what was learned of it.

    Attributes:
        claims: what a server says that it has done, by action, while it does nothing.
    """

    folder: Path
    model: Path
    quota_bytes: float = GIB
    keep_s: float = 3600.0
    events: list[Event] = field(default_factory=list)
    trust: Trust = field(default_factory=Trust)
    claims: dict[str, dict[str, int]] = field(default_factory=dict)
    clock: Clock = field(default_factory=EvenClock)

    def __post_init__(self) -> None:
        self.saved = self.reopened()

    def reopened(self) -> SavedConversations:
        """As a gateway that is started finds it."""
        self.saved = SavedConversations(
            self.folder / "conversations", self.quota_bytes, self.keep_s
        )
        self.saved.prepare()
        self.saved.read(SystemClock().wall())
        return self.saved

    @property
    def files(self) -> list[Path]:
        return sorted(self.saved.directory.glob("*.slot"))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @asynccontextmanager
    async def server(
        self, *arguments: str, env: dict[str, str] | None = None
    ) -> AsyncIterator[Running]:
        """A server that saves its conversations before it is stopped."""
        given = {"LLAMA_ARG_SLOT_SAVE_PATH": str(self.saved.directory), **(env or WITHOUT_MOVING)}
        command = ("-m", str(self.model), "--alias", "tiny", *arguments)
        with llama_server(*command, log=self.folder / "log", env=given) as (url, process):
            async with aiohttp.ClientSession() as session, session.get(f"{url}/props") as answer:
                props = await answer.json()
            signature = signature_of(("llama-server", *command), given, props)
            engine = LlamaServer(
                url,
                clock=SystemClock(),
                connect_timeout_s=5,
                control_timeout_s=5,
                slots=lambda opens: self.slots(opens, signature, props["total_slots"]),
            )
            try:
                yield Running(engine, process)
                if process.poll() is None and engine.slots is not None:
                    await engine.slots.save()
            finally:
                await engine.aclose()

    def slots(self, opens: DataPath, signature: str, count: int) -> Slots:
        return Slots(
            Liar(opens, self.claims) if self.claims else opens,
            saved=self.saved,
            trust=self.trust,
            model="tiny",
            signature=signature,
            count=count,
            clock=self.clock,
            report=self.events.append,
        )


@dataclass
class Liar:
    """A server that only claims to save or restore."""

    opens: DataPath
    claims: dict[str, dict[str, int]]

    async def open(self, call: BackendCall) -> Exchange:
        action = call.path.rpartition("action=")[2]
        if action in self.claims:
            return Ready(200, json.dumps(self.claims[action]).encode())
        return await self.opens.open(call)


@dataclass
class Said:
    """An answer: its text, and what it says of itself."""

    text: str
    usage: Usage

    @property
    def cached_tokens(self) -> int:
        return self.usage.cached_tokens or 0


@dataclass
class Running:
    """A server that runs."""

    engine: LlamaServer
    process: subprocess.Popen[bytes]

    async def ask(
        self, conversation: str, *turns: str, path: Endpoint = Endpoint.OPENAI_CHAT, **more: Any
    ) -> Said:
        """The answer to a conversation of user, assistant, user, and so on."""
        exchange = await self.engine.open(call(conversation, *turns, path=path, **more))
        tail = StreamTail(route_of(path))
        body = b""
        try:
            while chunks := await exchange.take():
                body += b"".join(chunks)
        finally:
            exchange.close()
        tail.feed(body)
        assert exchange.status == 200, body
        return Said(text_in(body), tail.ending().usage)


def call(
    conversation: str, *turns: str, path: Endpoint = Endpoint.OPENAI_CHAT, **more: Any
) -> BackendCall:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    asked = {"model": "tiny", "messages": messages, "stream": True, **more}
    if path is Endpoint.CHAT:
        asked["options"] = {"num_predict": 8, "temperature": 0}
    else:
        asked |= {"max_tokens": 8, "temperature": 0}
    if path is Endpoint.OPENAI_CHAT:
        asked["stream_options"] = {"include_usage": True}
    body = json.dumps(asked).encode()
    return BackendCall(
        method="POST", path=path, headers=JSON_BODY, body=body, conversation=conversation
    )


def text_in(body: bytes) -> str:
    parts = list[str]()
    for line in body.decode().splitlines():
        fields = line.removeprefix("data: ")
        if not fields.startswith("{"):
            continue
        chunk = json.loads(fields)
        parts += [choice["delta"].get("content") or "" for choice in chunk.get("choices", ())]
        parts.append(chunk.get("delta", {}).get("text", ""))
        parts.append(chunk.get("message", {}).get("content") or "" if "done" in chunk else "")
    return "".join(parts)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    return path


@pytest.fixture
def home(model: Path, tmp_path: Path) -> Home:
    return Home(tmp_path, model)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "arguments", [("-np", "1"), TWO_SLOTS, ()], ids=["one", "two", "as it comes"]
)
async def test_conversation_goes_on_after_a_stop(
    home: Home, arguments: tuple[str, ...], path: Endpoint
) -> None:
    first = opening(1)
    async with home.server(*arguments) as server:
        said = await server.ask("a", first, path=path)
    async with home.server(*arguments) as server:
        await server.ask("b", opening(2), path=path)
        again = await server.ask("a", first, said.text, "and then", path=path)
        cold = await server.ask("c", first, said.text, "and then", path=path, cache_prompt=False)
    assert again.cached_tokens >= (said.usage.prompt_tokens or 0) - 1
    assert again.text == cold.text
    [restored] = home.of(ConversationRestored)
    assert restored.cached_tokens == again.cached_tokens
    assert not home.of(ConversationUnsaved)


async def test_no_answer_after_a_stop_is_another_than_a_cold_one(home: Home) -> None:
    """`HEARTH_EXAMPLES=20` is a hundred stops."""
    chance = random.Random(EXAMPLES)
    compared = 0
    for number in range(STOPS * EXAMPLES):
        if number % TURNS == 0:
            talk = [opening(number)]
        async with home.server() as server:
            # before it, since the server gives them the slot that begins alike
            cold = [await server.ask("", *talk, cache_prompt=False) for _ in range(2)]
            said = await server.ask("a", *talk)
        if cold[0].text == cold[1].text:
            compared += 1
            assert said.text == cold[0].text
        if number % TURNS:
            assert said.cached_tokens > 800
        talk = [*talk, said.text, opening(number, chance.randint(1, 9))]
    assert compared > 0


async def test_each_of_two_slots_is_saved_and_restored(home: Home) -> None:
    async with home.server(*TWO_SLOTS) as server:
        await asyncio.gather(server.ask("a", opening(1)), server.ask("b", opening(2)))
        await server.ask("a", opening(1), "x", "y")
    async with home.server(*TWO_SLOTS) as server:
        b, a = await asyncio.gather(
            server.ask("b", opening(2), "x"), server.ask("a", opening(1), "x", "y", "z", "u")
        )
    saved = home.of(ConversationsSaved)[0]
    assert saved.conversations == 2
    assert min(a.cached_tokens, b.cached_tokens) > 800


async def test_nothing_short_is_saved(home: Home) -> None:
    async with home.server(*TWO_SLOTS) as server:
        await server.ask("a", "the house")
        await server.ask("", opening(1))
    assert not home.files
    assert not home.of(ConversationsSaved)


async def test_what_was_saved_is_only_for_its_owner(home: Home) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
    assert home.files
    modes = {path.stat().st_mode & 0o777 for path in home.saved.directory.iterdir()}
    assert modes == {0o600}
    assert home.saved.directory.stat().st_mode & 0o777 == 0o700


async def test_restarted_gateway_finds_what_was_saved(home: Home) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
    home.reopened()
    async with home.server() as server:
        said = await server.ask("a", opening(1), "x", "y")
    assert said.cached_tokens > 800


@pytest.mark.parametrize("cut_to", [0.0, 0.5, 1.0], ids=["empty", "half", "one byte short"])
async def test_cut_file_is_not_read(home: Home, cut_to: float) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
    [path] = home.files
    os.truncate(path, int((path.stat().st_size - 1) * cut_to))
    async with home.server() as server:
        said = await server.ask("a", opening(1), "x", "y")
        assert server.process.poll() is None
    assert said.cached_tokens < 10
    assert [event.step for event in home.of(ConversationUnsaved)] == ["restore"]
    assert path not in home.files


async def test_file_that_was_written_over_is_not_read(home: Home) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
    [path] = home.files
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size))
    async with home.server() as server:
        await server.ask("a", opening(1), "x", "y")
        assert server.process.poll() is None
    assert home.of(ConversationUnsaved)[0].reason == "its file was changed"


async def test_other_weights_of_the_same_shape_read_anew(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "tiny.gguf")
    write_model(home.model)
    async with home.server() as server:
        said = await server.ask("a", opening(1))
    before = home.model.stat()
    write_model(home.model, seed=2)
    assert home.model.stat().st_size == before.st_size
    os.utime(home.model, ns=(before.st_atime_ns, before.st_mtime_ns))
    async with home.server() as server:
        again = await server.ask("a", opening(1), said.text, "y")
        cold = await server.ask("", opening(1), said.text, "y", cache_prompt=False)
    assert again.cached_tokens < 10
    assert again.text == cold.text
    assert not home.of(ConversationRestored)


@pytest.mark.parametrize(
    "other", [("-c", "4096"), ("-ctk", "q8_0"), ("-np", "1")], ids=["context", "type", "slots"]
)
async def test_other_arguments_read_anew(home: Home, other: tuple[str, ...]) -> None:
    async with home.server("-c", "8192") as server:
        await server.ask("a", opening(1))
    async with home.server(*other) as server:
        said = await server.ask("a", opening(1), "x", "y")
    assert said.cached_tokens < 10
    assert not home.of(ConversationUnsaved)


async def test_conversation_larger_than_the_quota_is_not_kept(model: Path, tmp_path: Path) -> None:
    home = Home(tmp_path, model, quota_bytes=100_000)
    async with home.server() as server:
        await server.ask("a", opening(1))
    assert "quota_gb" in home.of(ConversationUnsaved)[0].reason
    assert not list(home.saved.directory.iterdir())
    assert not home.trust.is_off


async def test_least_recently_used_goes_first(model: Path, tmp_path: Path) -> None:
    home = Home(tmp_path, model, quota_bytes=3_000_000)
    for name in ("a", "b"):  # 1.9 MB each
        async with home.server() as server:
            await server.ask(name, opening(ord(name)))
    assert [entry.conversation for entry in home.saved.all()] == ["b"]
    assert home.saved.size_bytes <= 3_000_000


async def test_full_disk_costs_only_the_saving(home: Home) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
        limit = f"--pid={server.process.pid}"
        subprocess.run(["prlimit", limit, "--fsize=100000"], check=True)  # noqa: ASYNC221
    assert [event.step for event in home.of(ConversationUnsaved)] == ["save"]
    assert not list(home.saved.directory.iterdir())
    async with home.server() as server:
        said = await server.ask("a", opening(1), "x", "y")
    assert said.text


@pytest.mark.parametrize("instead", [None, "file"], ids=["gone", "a file"])
async def test_missing_directory_costs_only_the_saving(home: Home, instead: str | None) -> None:
    directory = home.saved.directory
    async with home.server() as server:
        await server.ask("a", opening(1))
        directory.rmdir()
        if instead:
            directory.write_text("")
        said = await server.ask("a", opening(1), "x", "y")
    assert said.text
    assert [event.step for event in home.of(ConversationUnsaved)] == ["save"]
    assert not home.trust.is_off


async def test_server_that_empties_its_slots_saves_one(home: Home) -> None:
    """By its default, or where its owner wants it, idle slots go to a cache in main memory."""
    moving = {"LLAMA_ARG_CACHE_IDLE_SLOTS": "1"}
    async with home.server(env=moving) as server:
        await server.ask("a", opening(1))
        await server.ask("b", opening(2))
    [saved] = home.of(ConversationsSaved)
    assert saved.conversations == 1
    assert home.of(ConversationUnsaved)[0].reason == "the server has emptied the slot"
    async with home.server(env=moving) as server:
        b = await server.ask("b", opening(2), "x", "y")
        a = await server.ask("a", opening(1), "x", "y")
    assert b.cached_tokens > 800
    assert a.cached_tokens < 10


async def test_prompt_that_was_cut_off_goes_on_in_its_slot(home: Home) -> None:
    long = opening(1, 900)
    async with home.server(*TWO_SLOTS, "-b", "256", "-ub", "256") as server:
        exchange = await server.engine.open(call("a", long, return_progress=True))
        await exchange.take()
        exchange.close()
        said = await server.ask("a", long)
    assert said.cached_tokens >= 256


async def test_conversation_asked_twice_at_once_waits_for_no_slot(home: Home) -> None:
    async with home.server(*TWO_SLOTS) as server:
        first = await server.engine.open(call("a", opening(1), max_tokens=10_000))
        await first.take()
        said = await server.ask("a", opening(1), "x", "y")
        first.close()
    assert said.text


async def test_slot_that_the_caller_names_is_its_own(home: Home) -> None:
    async with home.server(*TWO_SLOTS) as server:
        await server.ask("a", opening(1), id_slot=1)
    assert not home.files


async def test_server_that_dies_after_a_restore_is_not_trusted(home: Home) -> None:
    async with home.server() as server:
        await server.ask("a", opening(1))
    async with home.server() as server:
        exchange = await server.engine.open(call("a", opening(1), "x", "y", max_tokens=10_000))
        server.process.kill()
        exchange.close()
        server.process.wait()
        assert server.engine.slots is not None
        server.engine.slots.crashed()
    assert [event.step for event in home.of(ConversationUnsaved)] == ["restore"]
    assert not home.files
    assert not home.of(SavingSwitchedOff)


async def test_save_that_saved_nothing_is_given_up_after_two(home: Home) -> None:
    home.claims = {"save": {"n_saved": 0, "n_written": 40}}
    for number in range(3):
        async with home.server() as server:
            await server.ask("a", opening(number))
    reasons = [event.reason for event in home.of(ConversationUnsaved)]
    assert reasons == ["the server saved nothing"] * 2
    assert len(home.of(SavingSwitchedOff)) == 1
    assert not list(home.saved.directory.iterdir())


async def test_restore_that_did_nothing_is_given_up_after_two(home: Home) -> None:
    for _ in range(3):
        home.claims = {}
        async with home.server() as server:
            await server.ask("a", opening(1))
        for entry in home.saved.all():
            counts = {"n_restored": entry.tokens, "n_read": entry.size_bytes}
            home.claims = {"restore": counts, "save": {"n_saved": 0}}
        async with home.server() as server:
            said = await server.ask("a", opening(1), "x", "y")
            assert said.cached_tokens < 10
    steps = [event.step for event in home.of(ConversationUnsaved)]
    assert steps.count("restore") == 2
    assert len(home.of(SavingSwitchedOff)) == 1
    assert not home.of(ConversationRestored)


async def test_two_calls_of_one_slot_are_told_apart(home: Home) -> None:
    """The slots that a server has chosen itself are found by its newest task."""
    async with home.server("-np", "3", "--no-kv-unified") as server:
        for name in ("a", "b", "c", "d"):
            await server.ask(name, opening(ord(name)))
    kept = {entry.conversation for entry in home.saved.all()}
    assert kept == {"b", "c", "d"}


async def test_what_is_read_sooner_than_written_is_not_saved(home: Home) -> None:
    home.clock = EvenClock(step_s=10)
    async with home.server("-np", "3", "--no-kv-unified") as server:
        for name in ("a", "b", "c"):
            await server.ask(name, opening(ord(name)))
    assert {entry.conversation for entry in home.saved.all()} == {"c"}, "the first is measured"
