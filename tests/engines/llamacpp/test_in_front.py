"""The gateway in front of a real llama-server, with nothing between them: official clients are
answered in each dialect, an interrupted answer goes on, and nothing is ever swapped.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import anthropic
import ollama
import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineKind
from hearth.config.settings import (
    BackendMode,
    BackendSettings,
    EngineSettings,
    GatewayConfig,
    GpuSettings,
    StorageSettings,
)
from hearth.dialects.routes import Endpoint
from hearth.errors import ConfigError, OrderRefused
from hearth.events import (
    ItemBrokenOff,
    ItemEnded,
    ItemInterrupted,
    ItemQueued,
    ItemResumed,
    ItemStopped,
    SwapStarted,
)
from hearth.gateway import Gateway
from tests.cloud.house import HAIKU, cloud_settings
from tests.engines.llamacpp.front import MODEL
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.llamacpp.serving import serving
from tests.engines.llamacpp.test_adapter import Script, as_recorded
from tests.engines.stub_server import StubServer
from tests.support.fake_claude import WORDS, FakeClaude
from tests.support.fields import Fields
from tests.support.home import WEATHER, house_settings
from tests.support.patience import within_limit
from tests.support.recorder import Recorder

HELLO: Any = [{"role": "user", "content": "hello house"}]
AS_HOUSE = {"X-Task-Type": "chat_router"}
TOKENS = 300
MOST_TRIES = 20
"""Now and then a stream ends before the interruption reaches it."""
MANY_TOKENS = 30_000
COLD: Fields = {"temperature": 1e-6}
"""Who asks for 0 is replayed first."""
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}


@dataclass
class Door:
    """A gateway whose engine is a llama-server, and the official clients on it."""

    engine_url: str
    gateway: Gateway
    events: Recorder
    native: ollama.AsyncClient
    gpt: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic

    async def as_house(self) -> None:
        """A request of the house's own, which needs the one slot."""
        await self.gpt.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=2, extra_headers=AS_HOUSE
        )


@asynccontextmanager
async def open_door(
    engine_url: str, *, kind: EngineKind = "llama_server", store: bool = False, **changes: Any
) -> AsyncIterator[Door]:
    """`changes`: sections of the settings."""
    events = Recorder()
    engines = {"main": EngineSettings(kind=kind, url=engine_url)}
    settings = house_settings(gpu=GpuSettings(restore_home_delay_s=0.0))
    config = GatewayConfig(settings=settings.replace(engines=engines, models={}, **changes))
    async with AsyncExitStack() as stack:
        running = running_gateway(config, host="127.0.0.1", port=0, sinks=(events,), store=store)
        gateway, url = await stack.enter_async_context(running)
        gpt = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        claude = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
        yield Door(
            engine_url=engine_url,
            gateway=gateway,
            events=events,
            native=await stack.enter_async_context(ollama.AsyncClient(url, trust_env=False)),
            gpt=await stack.enter_async_context(gpt),
            claude=await stack.enter_async_context(claude),
        )


@pytest.fixture
async def door(engine_url: str) -> AsyncIterator[Door]:
    async with open_door(engine_url) as door:
        yield door


@pytest.fixture
async def letters(letters_url: str) -> AsyncIterator[Door]:
    """The same with the model of single letters, whose texts are read as they were written."""
    async with open_door(letters_url) as door:
        yield door


async def test_ollamas_client_is_answered_whole_and_streamed_alike(door):
    options = {"num_predict": 12, "temperature": 0, "seed": 7}
    whole = await door.native.chat(model=MODEL, messages=HELLO, options=options)
    stream = await door.native.chat(model=MODEL, messages=HELLO, options=options, stream=True)
    parts = [part async for part in stream]
    assert "".join(part.message.content for part in parts) == whole.message.content != ""
    assert [part.done for part in parts] == [False] * 12 + [True]
    assert (parts[-1].eval_count, whole.eval_count, whole.done_reason) == (12, 12, "length")
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    generated = await door.native.generate(model=MODEL, prompt="hello house", options=options)
    assert generated.response == whole.message.content
    book = await door.native.chat(
        model=MODEL, messages=HELLO, format=SCHEMA, options={"num_predict": 60}
    )
    assert json.loads(book.message.content) == {"a": "x"}
    assert [model.model for model in (await door.native.list()).models] == [MODEL]
    [resident] = (await door.native.ps()).models
    assert (resident.model, resident.context_length) == (MODEL, 32768)
    assert (await door.native.show(MODEL)).capabilities == ["completion"]
    for asked in (
        door.native.generate(model=MODEL, prompt="a", suffix="b"),
        door.native.embed(model=MODEL, input="a"),
    ):
        with pytest.raises(ollama.ResponseError, match=r"suffix|--embeddings"):
            await asked


async def test_a_name_with_ollamas_tag_is_the_one_without_it(letters):
    short, other = MODEL.removesuffix(":latest"), "other:latest"
    for name in (short, MODEL, MODEL.upper()):
        said = await letters.native.generate(model=name, prompt="a", options={"num_predict": 2})
        assert said.eval_count == 2
        assert (await letters.native.show(name)).template
    with pytest.raises(ollama.ResponseError, match="not found"):
        await letters.native.generate(model=other, prompt="a")


async def test_openais_client_is_answered_whole_and_streamed_alike(door):
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = await door.gpt.chat.completions.create(**asked, seed=7)
    stream = await door.gpt.chat.completions.create(**asked, seed=7, stream=True)
    parts = [part async for part in stream]
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content != ""
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert all(part.usage is None for part in parts)
    called = await door.gpt.chat.completions.create(**asked, tools=[WEATHER], logprobs=True)
    assert len(called.choices[0].logprobs.content) == 12
    completed = await door.gpt.completions.create(
        model=MODEL, prompt="hello", max_tokens=4, temperature=0
    )
    assert (completed.usage.completion_tokens, bool(completed.choices[0].text)) == (4, True)
    response = await door.gpt.responses.create(model=MODEL, input="hello", max_output_tokens=4)
    assert response.output_text
    assert [model.id async for model in door.gpt.models.list()] == [MODEL]
    assert (await door.gpt.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await door.gpt.chat.completions.create(**{**asked, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="grammar"):
        await door.gpt.chat.completions.create(**asked, extra_body={"grammar": "root ::= ("})


async def test_anthropics_client_is_answered_whole_and_streamed_alike(door):
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "extra_body": COLD}
    whole = await door.claude.messages.create(**asked)
    async with door.claude.messages.stream(**asked) as stream:
        text = "".join([text async for text in stream.text_stream])
    assert text == whole.content[0].text != ""
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context"):
        await door.claude.messages.create(
            **{**asked, "messages": [{"role": "user", "content": "lamp " * 33_000}]}
        )


async def test_what_an_answer_took_is_known_in_every_dialect(door):
    options = {"num_predict": 4}
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
    await door.native.chat(model=MODEL, messages=HELLO, options=options)
    for part in (
        await door.native.chat(model=MODEL, messages=HELLO, options=options, stream=True),
        await door.gpt.chat.completions.create(**asked, stream=True),
        await door.claude.messages.create(**asked, stream=True),
    ):
        assert [one async for one in part]
    await door.gpt.chat.completions.create(**asked)
    await door.claude.messages.create(**asked)
    ended = door.events.of(ItemEnded)
    assert [event.output_tokens for event in ended] == [4] * 6
    assert [event.prompt_tokens for event in ended] == [ended[0].prompt_tokens] * 6
    assert ended[0].prompt_tokens


Say = Callable[[Door, int], Awaitable[AsyncIterator[str]]]
"""Begin a stream of so many tokens; it gives the pieces of its text."""


async def chat(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.native.chat(
        model=MODEL, messages=HELLO, stream=True, options={"num_predict": tokens, **COLD}
    )
    return (part.message.content or "" async for part in stream)


async def chat_with_tools(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.native.chat(
        model=MODEL,
        messages=HELLO,
        tools=[WEATHER],
        stream=True,
        options={"num_predict": tokens, **COLD},
    )
    return (part.message.content or "" async for part in stream)


async def generate(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.native.generate(
        model=MODEL, prompt="hello", stream=True, options={"num_predict": tokens, **COLD}
    )
    return (part.response or "" async for part in stream)


async def openai_chat(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.gpt.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, max_tokens=tokens, **COLD
    )
    return (part.choices[0].delta.content or "" async for part in stream)


async def openai_completion(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.gpt.completions.create(
        model=MODEL, prompt="hello", stream=True, max_tokens=tokens, **COLD
    )
    return (part.choices[0].text async for part in stream)


async def messages(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.claude.messages.create(
        model=MODEL, messages=HELLO, stream=True, max_tokens=tokens, extra_body=COLD
    )
    return (
        event.delta.text
        async for event in stream
        if event.type == "content_block_delta" and event.delta.type == "text_delta"
    )


DIALECTS = [chat, chat_with_tools, generate, openai_chat, openai_completion, messages]


@pytest.mark.parametrize("say", DIALECTS)
async def test_an_interrupted_answer_goes_on_with_the_same_text(letters, say: Say):
    whole = "".join([piece async for piece in await say(letters, TOKENS)])
    for _ in range(MOST_TRIES):
        text = await interrupted(letters, say)
        assert (len(text), text) == (len(whole), whole)
        if letters.events.of(ItemInterrupted):
            break
    assert [event.how for event in letters.events.of(ItemResumed)] == ["continued"]
    assert letters.events.of(SwapStarted) == []


async def interrupted(door: Door, say: Say) -> str:
    """The text of a stream that the house's own request breaks into."""
    text = ""
    asked: asyncio.Future[None] | None = None
    async for piece in await say(door, TOKENS):
        text += piece
        if asked is None and len(text) > 10:
            asked = asyncio.ensure_future(door.as_house())
    assert asked is not None
    await asked
    return text


async def test_an_answer_with_thoughts_goes_on_behind_them(tmp_path):
    model = tmp_path / "thinker.gguf"
    write_model(model, THOUGHTS, THINKING)
    with serving(model, MODEL) as url:
        async with open_door(url) as door:
            thoughts: list[str] = []
            for _ in range(MOST_TRIES):
                await interrupted(door, thinking_into(thoughts))
            resumed = [event.how for event in door.events.of(ItemResumed)]
            assert resumed == ["continued"] * len(door.events.of(ItemInterrupted))
            assert thoughts
            assert len(resumed) > MOST_TRIES / 2


UNTHINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% if not (loop.last and m['role'] == 'assistant') %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


async def messages_with_tools(door: Door, tokens: int) -> AsyncIterator[str]:
    tool: Any = {"name": "weather", "description": "", "input_schema": {"type": "object"}}
    stream: Any = await door.claude.messages.create(
        model=MODEL,
        messages=HELLO,
        stream=True,
        max_tokens=tokens,
        tools=[tool],
        extra_body=COLD,
    )
    return (
        event.delta.text
        async for event in stream
        if event.type == "content_block_delta" and event.delta.type == "text_delta"
    )


async def test_a_template_that_writes_an_empty_thought_goes_on_with_tools(tmp_path):
    """And without a seed to replay with. This server writes the same before a begun answer."""
    model = tmp_path / "unthinking.gguf"
    write_model(model, tuple(LETTERS), UNTHINKING)
    with serving(model, MODEL) as url:
        async with open_door(url) as door:
            whole = "".join([piece async for piece in await messages_with_tools(door, TOKENS)])
            for _ in range(MOST_TRIES):
                assert await interrupted(door, messages_with_tools) == whole
                if door.events.of(ItemInterrupted):
                    break
            assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]


THOUGHTS = ("<think>\n", "</think>", *(f"\u2581{word}" for word in ("so", "hm", "<think>")))
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def thinking_into(thoughts: list[str]) -> Say:
    """A conversation whose thoughts are kept."""

    async def say(door: Door, tokens: int) -> AsyncIterator[str]:
        stream = await door.native.chat(
            model=MODEL, messages=HELLO, stream=True, options={"num_predict": tokens}
        )
        return texts(stream)

    async def texts(stream: AsyncIterator[ollama.ChatResponse]) -> AsyncIterator[str]:
        async for part in stream:
            if part.message.thinking:
                thoughts.append(part.message.thinking)
            yield part.message.content or ""

    return say


async def test_a_stream_goes_on_when_its_server_has_died_and_is_back(tmp_path):
    model = tmp_path / "letters.gguf"
    write_model(model, tuple(LETTERS))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    patient = BackendSettings(mode=BackendMode.OLLAMA, wait_when_down_s=600.0)
    with ExitStack() as running:
        url = running.enter_context(serving(model, MODEL, port))
        async with open_door(url, backend=patient) as door:
            whole = "".join([piece async for piece in await openai_chat(door, TOKENS)])
            text = ""
            async for piece in await openai_chat(door, TOKENS):
                text += piece
                if len(text) == 20:
                    running.close()
                    running.enter_context(serving(model, MODEL, port))
            assert (len(text), text) == (len(whole), whole)
            assert len(door.events.of(ItemBrokenOff)) == 1
            assert door.events.of(SwapStarted) == []


async def test_a_url_that_leads_to_another_hearth_is_refused_by_its_setting(engine_url):
    async with open_door(engine_url) as door:
        with pytest.raises(
            ConfigError, match=r"engines\.main\.url: Hearth answers at .* llama-server"
        ):
            async with open_door(str(door.gpt.base_url).removesuffix("/v1/")):
                pass


async def test_what_comes_while_the_model_is_loading_waits_for_it():
    answers = {
        "/props": as_recorded("loading_503_props"),
        str(Endpoint.OPENAI_CHAT): as_recorded("oai_chat_stream_usage"),
    }
    script = Script(answers)
    patient = BackendSettings(mode=BackendMode.OLLAMA, wait_when_down_s=600.0)
    async with StubServer(script) as server, open_door(server.url, backend=patient) as door:
        assert "503: Loading model" in door.gateway.ready()[1]
        waiting = asyncio.create_task(door.native.chat(model="tiny.gguf", messages=HELLO))
        await door.events.first(ItemQueued)
        script.answers["/props"] = as_recorded("props")
        answer = await waiting
        assert answer.message.content == " window holds"
        [row] = await door.gateway.models()
        assert (row["name"], row["parallel"]) == ("tiny.gguf", 2)


async def test_what_cannot_be_carried_is_refused_before_it_waits(door):
    for asked in (
        door.native.generate(model=MODEL, prompt="a", template="b"),
        door.native.chat(model=MODEL, messages=HELLO, options={"tfs_z": 1.0}),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            await asked
        assert caught.value.status_code == 400
    assert door.events.of(ItemQueued) == []


async def busy(door: Door) -> bool:
    """Whether the server's one slot is at work."""
    async with aiohttp.ClientSession() as session, session.get(f"{door.engine_url}/slots") as said:
        [slot] = await said.json()
        return bool(slot["is_processing"])


@pytest.mark.parametrize("streams", [True, False])
async def test_leaving_frees_the_slot_whether_or_not_it_streams(door, streams: bool):
    async def ask() -> None:
        answer = await door.native.chat(
            model=MODEL, messages=HELLO, stream=streams, options={"num_predict": MANY_TOKENS}
        )
        if streams:
            async for _ in answer:
                pass

    waiting = asyncio.create_task(ask())
    while not await busy(door):
        pass
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await within_limit(door.as_house())
    assert not await busy(door)
    (stopped,) = door.events.of(ItemStopped)
    assert stopped.at <= door.events.of(ItemEnded)[-1].at


async def test_nothing_is_swapped_whatever_is_ordered_or_missing(engine_url):
    gpu = GpuSettings(restore_home_delay_s=0.0, home_model="missing:8b", vram_gb=0.001)
    async with open_door(engine_url, gpu=gpu) as door:
        orders = door.gateway.orders
        with pytest.raises(OrderRefused, match="stays for as long as its server runs"):
            await orders.unload(MODEL)
        await orders.load(MODEL)
        await door.native.generate(model=MODEL, keep_alive=0)
        answer = await door.native.generate(model=MODEL, prompt="a", options={"num_predict": 1})
        assert answer.done
        with pytest.raises(ollama.ResponseError, match="not found"):
            await door.native.generate(model="missing:8b", prompt="a")
        assert door.events.of(SwapStarted) == []
        assert "missing:8b is not installed" in " ".join(door.gateway.warnings())
        [row] = await door.gateway.models()
        assert (row["name"], row["resident"], row["parallel"]) == (MODEL, True, 1)
        shown: Any = door.gateway.health()["backend"]
        assert (shown["kind"], shown["up"]) == ("llama_server", True)


async def test_what_only_claude_can_do_is_claudes_where_it_may_answer(tmp_path):
    claude = FakeClaude()
    script = Script({})
    async with StubServer(script) as server, AsyncExitStack() as stack:
        url = await claude.start()
        stack.push_async_callback(claude.stop)
        settings = cloud_settings(url, tmp_path, keys=())
        cloud = settings.cloud.replace(allow_local=True)
        given: Any = {"cloud": cloud, "budget": settings.budget, "storage": settings.storage}
        async with open_door(server.url, store=True, **given) as door:
            asked: Any = {"messages": HELLO, "options": {"tfs_z": 1.0}}
            answer = await door.native.chat(model=HAIKU, **asked)
            assert answer.message.content == "".join(WORDS)
            with pytest.raises(ollama.ResponseError, match=r"options\.tfs_z"):
                await door.native.chat(model="tiny.gguf", **asked)
        assert all(peer.method == "GET" for peer in script.calls)


async def test_a_stream_does_not_go_on_with_another_model_of_the_same_name(tmp_path):
    first, second = tmp_path / "letters.gguf", tmp_path / "others.gguf"
    write_model(first, tuple(LETTERS))
    write_model(second, tuple(LETTERS))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    patient = BackendSettings(mode=BackendMode.OLLAMA, wait_when_down_s=600.0)
    with ExitStack() as running:
        url = running.enter_context(serving(first, MODEL, port))
        async with open_door(url, backend=patient) as door:
            pieces: list[str] = []

            async def follow() -> None:
                async for piece in await openai_chat(door, TOKENS):
                    pieces.append(piece)
                    if len(pieces) == 20:
                        running.close()
                        running.enter_context(serving(second, MODEL, port))

            with pytest.raises(openai.APIError):
                await follow()
            assert len(pieces) >= 20
            assert len(door.events.of(ItemBrokenOff)) == 1
            assert door.events.of(ItemResumed) == []


async def test_a_job_that_cannot_be_carried_is_refused_before_it_is_kept(tmp_path):
    storage = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    async with (
        StubServer(Script({})) as server,
        open_door(server.url, store=True, storage=storage) as door,
        aiohttp.ClientSession() as session,
    ):
        asked = {"model": "tiny.gguf", "messages": HELLO, "Options": {"tfs_z": 1.0}}
        url = f"{str(door.gpt.base_url).removesuffix('/v1/')}/llm/jobs"
        async with session.post(url, json={"request": asked}) as refused:
            assert refused.status == 400
            assert "`options.tfs_z`" in await refused.text()
