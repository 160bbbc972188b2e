"""What the official clients read as the model's thinking while they wait, and what of it is left
where the answer begins, in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from hearth.config.settings import Settings
from hearth.events import ItemEnded
from tests.execution.test_resuming import TEXT, Model
from tests.gateway.test_waiting import (
    ASKED,
    CLIENTS,
    ERRORS,
    IMPATIENCE_S,
    MODEL,
    Ask,
    Clients,
    clients_of,
)
from tests.support.fake_gpu import FakeModel
from tests.support.fake_ollama import Service
from tests.support.house import ALWAYS_PREEMPT, FULL_TEXT, House, settings_with, settle
from tests.support.in_process import Heard
from tests.support.virtual_time import in_virtual_time

SIGNS_AT_S = [10.0, 25.0, 40.0, 55.0]
FIRST = "Hearth: waiting, 1st in the queue"
READING = "Hearth: waiting for the model to read the prompt\n\n"


@dataclass
class Read:
    """What a client has read of one stream: its thinking, its text, and the ids of its parts."""

    thinking: str = ""
    text: str = ""
    ids: set[str] = field(default_factory=set)


async def chat(clients: Clients) -> Read:
    read = Read()
    async for part in await clients.native.chat(MODEL, ASKED, stream=True):
        read.thinking += part.message.thinking or ""
        read.text += part.message.content or ""
    return read


async def generate(clients: Clients) -> Read:
    read = Read()
    async for part in await clients.native.generate(MODEL, "say hello", stream=True):
        read.thinking += part.thinking or ""
        read.text += part.response or ""
    return read


async def gpt_chat(clients: Clients) -> Read:
    read = Read()
    roles = list[str]()
    stream = await clients.gpt.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    async for chunk in stream:
        delta: Any = chunk.choices[0].delta
        said = getattr(delta, "reasoning_content", None)
        assert said == getattr(delta, "reasoning", None)
        read.thinking += said or ""
        read.text += delta.content or ""
        read.ids.add(f"{chunk.id} {chunk.created}")
        roles += [delta.role] if delta.role else []
    assert roles == ["assistant"]
    return read


async def gpt_accumulated(clients: Clients) -> Read:
    """The client's own helper, which joins what the chunks say."""
    async with clients.gpt.chat.completions.stream(model=MODEL, messages=ASKED) as stream:
        final: Any = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.role == "assistant"
    return Read(getattr(message, "reasoning_content", ""), message.content, {final.id})


async def claude(clients: Clients, **more: Any) -> Read:
    async with clients.claude.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=100, **more
    ) as stream:
        opened = [event.index async for event in stream if event.type == "content_block_start"]
        final: Any = await stream.get_final_message()
    assert opened == [0, 1]
    assert min(final.usage.input_tokens, final.usage.output_tokens) > 2
    thought, text = final.content
    assert (thought.type, text.type, final.stop_reason) == ("thinking", "text", "end_turn")
    return Read(thought.thinking, text.text, {final.id})


async def claude_code(clients: Clients) -> Read:
    return await claude(clients, extra_headers={"User-Agent": "claude-cli/2.1.200"})


async def gpt_response(clients: Clients) -> Read:
    async with clients.gpt.responses.stream(model=MODEL, input="say hello") as stream:
        events: list[Any] = [event async for event in stream]
        final: Any = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kind = "response.reasoning_summary_text"
    texts = [event.delta for event in events if event.type == f"{kind}.delta"]
    assert texts == [event.text for event in events if event.type == f"{kind}.done"]
    places = [event.summary_index for event in events if event.type == f"{kind}.delta"]
    assert places == list(range(len(texts)))
    reasoning, message = final.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert [part.text for part in reasoning.summary] == texts
    return Read("".join(texts).replace("**", ""), final.output_text, {final.id})


AskRead = Callable[[Clients], Coroutine[Any, Any, Read]]
READERS: list[AskRead] = [
    chat,
    generate,
    gpt_chat,
    gpt_accumulated,
    claude,
    claude_code,
    gpt_response,
]
of_each_client = pytest.mark.parametrize("ask", READERS)


def showing(**sections: Any) -> Settings:
    return settings_with(keepalive={"show": "thinking"}, **sections)


def thought_at(heard: Heard) -> list[float]:
    """When words came; a response repeats them when the model begins, and when it is complete."""
    repeats = (b"event: response.output_item.done", b"event: response.completed")
    return [
        at_s
        for at_s, piece in heard.pieces
        if b"Hearth: waiting" in piece and not any(name in piece for name in repeats)
    ]


@of_each_client
@in_virtual_time
async def test_a_wait_is_thinking_and_no_part_of_the_answer(ask: AskRead):
    async with House(settings=showing()) as house, clients_of(house) as (clients, wire):
        house.submit("a", service_s=60.0)
        read = await ask(clients)
        (heard,) = wire.calls
        assert (read.text, len(read.ids) <= 1) == (FULL_TEXT, True)
        first, *more, rest = read.thinking.split("\n\n")
        assert (first, rest) == (f"{FIRST}, about 5 s", "")
        assert all(text.startswith(f"{FIRST}, about ") for text in more)
        assert [at_s for at_s, _ in heard.pieces[: len(SIGNS_AT_S)]] == SIGNS_AT_S
        assert thought_at(heard)[0] == SIGNS_AT_S[0]
        silent = [ended.output_tokens for ended in house.events.of(ItemEnded)]
        assert silent[-1] == silent[0]


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_a_short_wait_says_nothing(ask: Ask):
    async with House(settings=showing()) as house, clients_of(house) as (clients, wire):
        house.submit("a", service_s=9.0)
        assert await ask(clients) == FULL_TEXT
        assert thought_at(wire.calls[0]) == []


@in_virtual_time
async def test_a_text_comes_where_place_or_estimate_has_changed():
    async with House(settings=showing()) as house, clients_of(house) as (clients, wire):
        for _ in range(3):
            house.submit("a", service_s=20.5)  # none ends at an instant of a text
            await settle()
        read = await chat(clients)
        (heard,) = wire.calls
        texts = [text.split(", ")[1:] for text in read.thinking.split("\n\n")[:-1]]
        assert list(dict.fromkeys(place for place, _ in texts)) == [
            "3rd in the queue",
            "2nd in the queue",
            "1st in the queue",
        ]
        assert all(earlier != later for earlier, later in pairwise(texts))
        assert thought_at(heard) == [10.0, 25.0, 55.0]


@of_each_client
@in_virtual_time
async def test_a_prompt_that_is_read_for_long_is_waited_for(ask: AskRead):
    slow = House(
        "a", service=lambda _: Service(first_byte_s=45.0, service_s=46.0), settings=showing()
    )
    async with slow as house, clients_of(house) as (clients, _):
        read = await ask(clients)
        assert (read.thinking, read.text) == (READING, FULL_TEXT)


@in_virtual_time
async def test_a_load_is_named():
    async with (
        House(FakeModel(name="a", load_s=40.0), "b", resident="b", settings=showing()) as house,
        clients_of(house) as (clients, _),
    ):
        read = await chat(clients)
        assert read.thinking.startswith("Hearth: waiting for a:latest to load, about ")


@in_virtual_time
async def test_a_paused_queue_and_an_absent_model_server_are_named():
    settings = showing(backend={"wait_when_down_s": 600.0, "check_interval_s": 1.0})
    async with House(settings=settings) as house, clients_of(house) as (clients, _):
        house.gateway.orders.pause()
        asking = asyncio.ensure_future(chat(clients))
        await asyncio.sleep(20.0)
        house.ollama.go_down()
        house.gateway.orders.resume()
        await asyncio.sleep(20.0)
        house.ollama.come_up()
        texts = (await asking).thinking.split("\n\n")
        assert texts[:2] == [
            "Hearth: waiting, the queue is paused",
            "Hearth: waiting for the model server",
        ]


@pytest.mark.parametrize(("ask", "error"), list(zip(CLIENTS, ERRORS, strict=True)))
@in_virtual_time
async def test_an_error_after_the_words_is_each_clients_own(ask: Ask, error: type[Exception]):
    settings = showing(queue={"max_wait_s": 20.0})
    async with House(settings=settings) as house, clients_of(house) as (clients, wire):
        house.submit("a", service_s=1000.0)
        with pytest.raises(error, match="waited longer"):
            await ask(clients)
        assert thought_at(wire.calls[0]) == [10.0]


def interrupted_house() -> House:
    """What streams says `TEXT`, and what is the owner's own takes a minute."""
    says = Model()
    return House(
        settings=showing(scheduling=ALWAYS_PREEMPT),
        service=lambda call: says(call) if b"true" in call.body else Service(service_s=60.0),
    )


def check_pauses(heard: Heard, began_s: float) -> None:
    """Within the answer nothing is said, and something comes all the time."""
    assert [at_s for at_s in thought_at(heard) if at_s > began_s] == []
    pauses = [later - at for (at, _), (later, _) in pairwise(heard.pieces) if at > began_s]
    assert 10.0 < max(pauses) < IMPATIENCE_S


@of_each_client
@in_virtual_time
async def test_a_stream_goes_on_after_an_interruption_behind_the_words(ask: AskRead):
    async with interrupted_house() as house, clients_of(house) as (clients, wire):
        house.submit("a")
        await settle()
        asking = asyncio.ensure_future(ask(clients))
        await asyncio.sleep(64.5)
        house.internal("a")
        read = await asking
        assert (read.text, len(read.ids) <= 1) == (TEXT, True)
        assert read.thinking.startswith(FIRST)
        check_pauses(wire.calls[0], 60.0)


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_a_stream_that_began_at_once_says_nothing_while_it_is_interrupted(ask: Ask):
    async with interrupted_house() as house, clients_of(house) as (clients, wire):
        asking = asyncio.ensure_future(ask(clients))
        await asyncio.sleep(4.5)
        house.internal("a")
        assert await asking == TEXT
        check_pauses(wire.calls[0], 0.0)


@in_virtual_time
async def test_who_was_stopped_before_its_first_byte_says_its_wait_again():
    house = House(
        settings=showing(scheduling=ALWAYS_PREEMPT),
        service=lambda _: Service(first_byte_s=60.0, service_s=61.0),
    )
    async with house, clients_of(house) as (clients, _):
        asking = asyncio.ensure_future(chat(clients))
        await asyncio.sleep(20.0)
        house.internal("a")
        texts = (await asking).thinking.split("\n\n")
        begins = list(dict.fromkeys(text.partition(", about")[0] for text in texts))
        assert begins == [READING.rstrip(), FIRST, ""]
        assert texts[-2] == READING.rstrip()


@in_virtual_time
async def test_who_does_not_stream_is_told_nothing():
    async with House(settings=showing()) as house, clients_of(house) as (clients, _):
        house.submit("a", service_s=20.0)
        answer = await asyncio.wait_for(clients.native.chat(MODEL, ASKED), 29.0)
        assert (answer.message.content, answer.message.thinking) == (FULL_TEXT, None)
