"""A wait that is shown as thinking, to the official clients in front of a gateway on a socket: the
model's own thinking goes on behind it, and the next turn, with all that the client kept, is the one
that the model server would have got without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import dropwhile
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.config.settings import KeepaliveSettings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.events import ItemEnded
from tests.support.fields import Fields
from tests.support.home import HELLO, SPEED, Home, house_settings, open_home

THINKER = "thinker"
WAITS = "Hearth: waiting, the queue is paused\n\n"
SEEDED: Fields = {"seed": 7}
NEXT: Fields = {"role": "user", "content": "and then?"}


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    """A gateway whose queue is paused, and that says so at once."""
    thinker = default_profiles()[1].model_copy(
        update={"name": THINKER, "capabilities": ("completion", "thinking")}
    )
    emulator = Emulator([thinker], clock=SystemClock(), speed=SPEED, seed=1)
    keepalive = KeepaliveSettings(after_s=0.02, every_s=0.02, show="thinking")
    async with open_home(house_settings().replace(keepalive=keepalive), emulator) as home:
        home.gateway.orders.pause()
        yield home


async def in_parts(home: Home, stream: Any) -> AsyncIterator[Any]:
    """The parts of a stream; the queue goes on once the first has come."""
    async for part in stream:
        home.gateway.orders.resume()
        yield part


def behind_words(thinking: str) -> str:
    """What the model itself has thought."""
    assert thinking.startswith(WAITS)
    texts = thinking.split("\n\n")
    return "\n\n".join(dropwhile(lambda text: text.startswith("Hearth: waiting"), texts))


async def test_ollamas_client_reads_on_and_sends_it_back(home: Home):
    asked: Fields = {"model": THINKER, "options": SEEDED}
    async with home.native() as native:
        stream = await native.chat(messages=HELLO, stream=True, **asked)
        parts = [part async for part in in_parts(home, stream)]
        said = "".join(part.message.content or "" for part in parts)
        thought = "".join(part.message.thinking or "" for part in parts)
        plain = await native.chat(messages=HELLO, **asked)
        assert (said, behind_words(thought)) == (plain.message.content, plain.message.thinking)
        assert (parts[-1].eval_count, parts[-1].done) == (plain.eval_count, True)
        turns: list[Any] = [
            [*HELLO, {"role": "assistant", "content": said, "thinking": kept}, NEXT]
            for kept in (thought, plain.message.thinking)
        ]
        sizes = [(await native.chat(messages=each, **asked)).prompt_eval_count for each in turns]
        assert sizes[0] == sizes[1]
    streamed, whole, *_ = home.events.of(ItemEnded)
    assert streamed.output_tokens == whole.output_tokens


async def test_openais_client_reads_on_and_sends_it_back(home: Home):
    asked: Fields = {"model": THINKER, **SEEDED}
    async with home.gpt() as gpt:
        stream: Any = await gpt.chat.completions.create(messages=HELLO, stream=True, **asked)
        parts = [part async for part in in_parts(home, stream)]
        deltas = [part.choices[0].delta for part in parts]
        said = "".join(delta.content or "" for delta in deltas)
        thought = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
        plain: Any = await gpt.chat.completions.create(messages=HELLO, **asked)
        message = plain.choices[0].message
        assert (said, behind_words(thought)) == (message.content, message.reasoning)
        assert len({(part.id, part.created) for part in parts}) == 1
        turns: list[Any] = [
            [*HELLO, {"role": "assistant", "content": said, "reasoning": kept}, NEXT]
            for kept in (thought, message.reasoning)
        ]
        answers: list[Any] = [
            await gpt.chat.completions.create(messages=each, **asked) for each in turns
        ]
        assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


async def test_anthropics_client_reads_on_and_sends_it_back(home: Home):
    asked: Fields = {
        "model": THINKER,
        "max_tokens": 2000,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    async with home.claude() as claude:
        async with claude.messages.stream(messages=HELLO, **asked) as stream:
            async for _ in in_parts(home, stream):
                pass
            final: Any = await stream.get_final_message()
        words, *answer = final.content
        assert (words.type, words.thinking.startswith(WAITS)) == ("thinking", True)
        assert [block.type for block in answer] == ["thinking", "text"]
        assert "Hearth" not in answer[0].thinking + answer[1].text
        assert final.usage.output_tokens == home.events.of(ItemEnded)[-1].output_tokens
        turns: list[Any] = [
            [*HELLO, {"role": "assistant", "content": kept}, NEXT]
            for kept in (final.content, answer)
        ]
        sizes = [
            (await claude.messages.create(messages=each, **asked)).usage.input_tokens
            for each in turns
        ]
        assert sizes[0] == sizes[1]


async def test_a_response_reads_on_and_sends_it_back(home: Home):
    asked: Fields = {"model": THINKER, "temperature": 0}
    async with home.gpt() as gpt:
        async with gpt.responses.stream(input="say hello", **asked) as stream:
            async for _ in in_parts(home, stream):
                pass
            final: Any = await stream.get_final_response()
        words, *answer = final.output
        assert (words.type, words.summary[0].text == f"**{WAITS.rstrip()}**\n\n") == (
            "reasoning",
            True,
        )
        items = [item.model_dump(exclude_none=True) for item in final.output]
        turns: list[Any] = [
            [{"role": "user", "content": "say hello"}, *kept, NEXT] for kept in (items, items[1:])
        ]
        answers: list[Any] = [await gpt.responses.create(input=each, **asked) for each in turns]
        assert answers[0].usage.input_tokens == answers[1].usage.input_tokens
        assert final.output_text == answer[-1].content[0].text != ""
