"""Leaving frees the GPU, over real sockets: whatever a request is doing when its caller goes, the
model server sees its connection close, and what others wait for goes on. In virtual time the same,
ten thousand times in `make reliability` and a quarter as often in CI.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.config.settings import ServerSettings
from hearth.events import ItemEnded, ItemInterrupted
from hearth.types import Outcome
from tests.emulator.callers import model
from tests.emulator.captures import connect
from tests.gateway.front import Front, front_settings, open_front
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.house import ALWAYS_PREEMPT, House, new_item, settings_with
from tests.support.patience import until
from tests.support.virtual_time import run_virtual, sleep_until

LOAD_S = 2.0
"""Longer than a busy machine stands still."""
LONG_TOKENS = 6000
"""A minute and a half of the slow models: longer than any test looks."""
MODELS = [
    model("slow", decode_tokens_per_s=60.0),
    model("thinker", prompt_tokens_per_s=0.05),
    model("heavy", load_s=LOAD_S, decode_tokens_per_s=60.0),
    model("fast", decode_tokens_per_s=1e6, vocabulary=(" word" * 2000, " thing" * 2000)),
]
WORDS = "one two three four five six seven eight nine ten"

Leave = Callable[[asyncio.StreamWriter], object]


Asked = tuple[str, Fields]
TURNS = [{"role": "user", "content": WORDS}]


def chat(name: str, tokens: int = LONG_TOKENS, **more: Any) -> Asked:
    return "/api/chat", {
        "model": name,
        "messages": TURNS,
        "options": {"num_predict": tokens},
        **more,
    }


def generation(name: str, tokens: int = LONG_TOKENS, **more: Any) -> Asked:
    return "/api/generate", {
        "model": name,
        "prompt": WORDS,
        "options": {"num_predict": tokens},
        **more,
    }


def to(path: str, **asked: Any) -> Callable[..., Asked]:
    return lambda name, **more: (path, {"model": name, "max_tokens": LONG_TOKENS, **asked, **more})


ROUTES = [
    chat,
    generation,
    to("/v1/chat/completions", messages=TURNS),
    to("/v1/completions", prompt=WORDS),
    to("/v1/responses", input=WORDS, max_output_tokens=LONG_TOKENS),
    to("/v1/messages", messages=TURNS),
]
MANNERS: list[Leave] = [
    lambda writer: writer.close(),
    lambda writer: writer.transport.abort(),
    lambda writer: writer.write_eof(),
]


def opened(**sections: Fields) -> Any:
    """A house without keys, so that `X-Task-Type` marks the house's own work."""
    return open_front(front_settings(auth={"keys": ()}, **sections), MODELS)


async def ask(front: Front, of: Asked) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    path, body = of
    reader, writer = await connect(front.url)
    raw = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    return reader, writer


def asked_of(front: Front, name: str) -> int:
    """Requests to the model that have reached the model server; loads and probes of one blank are
    not counted.
    """
    bodies = [
        json.loads(request.body) for request in front.emulator.requests if request.method == "POST"
    ]
    of_callers = [body for body in bodies if body.get("prompt", "").strip() or body.get("messages")]
    return sum(body.get("model", "").partition(":")[0] == name for body in of_callers)


def waiting(front: Front) -> int:
    return int(front.gateway.health()["queue"]["waiting"])  # type: ignore[index]  # plain JSON


WAYS = [
    (name, stream, leave)
    for name in ("slow", "thinker")
    for stream in (True, False)
    for leave in MANNERS
]


@pytest.mark.parametrize(("name", "stream", "leave"), WAYS)
@pytest.mark.parametrize("route", ROUTES)
async def test_leaving_at_any_time_closes_the_connection_to_the_model_server(
    route: Any, name: str, stream: bool, leave: Leave
):
    async with opened() as front:
        reader, writer = await ask(front, route(name, stream=stream))
        if stream and name == "slow":
            await reader.readuntil(b"\n\r\n")
        await until(lambda: front.emulator.in_flight == {f"{name}:latest": 1})
        leave(writer)
        await until(lambda: not front.emulator.in_flight)
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ROUTES)
async def test_who_leaves_the_queue_is_never_sent_to_the_model_server(route: Any, stream: bool):
    async with opened() as front:
        reader, running = await ask(front, chat("slow"))
        await reader.readuntil(b"\n\r\n")
        _, writer = await ask(front, route("slow", stream=stream))
        await until(lambda: waiting(front) == 1)
        writer.close()
        await until(lambda: waiting(front) == 0)
        running.close()
        await until(lambda: not front.emulator.in_flight)
        assert asked_of(front, "slow") == 1


async def test_a_reader_that_stands_still_loses_its_slot_at_the_write_deadline():
    async with opened(server={"write_deadline_s": 0.3, "write_buffer_mib": 0.25}) as front:
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        host, _, port = front.url.removeprefix("http://").partition(":")
        await asyncio.get_running_loop().sock_connect(narrow, (host, int(port)))
        body = json.dumps(generation("fast", tokens=20_000)[1]).encode()
        narrow.send(
            b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        await until(lambda: front.emulator.in_flight)
        reader, other = await ask(front, generation("fast", tokens=3, stream=False))
        async with asyncio.timeout(0.9 * ServerSettings().write_deadline_s):
            assert await reader.readuntil(b'"done_reason":"length"')
        assert [event.outcome for event in front.events.of(ItemEnded)] == [
            Outcome.CANCELLED,
            Outcome.COMPLETED,
        ]
        other.close()
        narrow.close()


async def test_a_hundred_callers_who_leave_at_any_moment_leave_nothing_behind():
    async with opened() as front:
        reader, writer = await ask(front, chat("slow", tokens=1))
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await _quiet(front)
        tasks = len(asyncio.all_tasks())
        files = _open_files()
        for number in range(100):
            route = ROUTES[number % len(ROUTES)]
            _, writer = await ask(front, route("slow", stream=number % 2 == 0))
            await asyncio.sleep(0.0005 * (number % 10))
            writer.close()
        await _quiet(front)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: _open_files() <= files)


async def _quiet(front: Front) -> None:
    health = front.gateway.health
    await until(
        lambda: health()["queue"] == {"waiting": 0, "running": 0} and not front.emulator.in_flight
    )


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


ROUNDS = 700
ENOUGH = 1250
PROMPT = settings_with(
    scheduling=ALWAYS_PREEMPT,
    queue={"max_interrupt_count": 1_000_000},
)
"""Nothing is too near its end, or too often interrupted, to be interrupted."""


@pytest.mark.parametrize("seed", range(2 if EXAMPLES == 1 else 8))
def test_thousands_of_preemptions_and_cancels_leave_nothing_behind(seed: int):
    async def scenario() -> int:
        dice = random.Random(seed)
        async with House(settings=PROMPT) as house:
            tasks = len(asyncio.all_tasks())
            for number in range(ROUNDS):
                await sleep_until(10.0 * (number + 1))
                assert (len(asyncio.all_tasks()), len(house.worker.scheduler.gateway.entries)) == (
                    tasks,
                    0,
                )
                assert +house.ollama.gpu.in_flight == {}
                await preempted_and_left(house, dice)
        return len(house.events.of(ItemInterrupted)) + [
            end.outcome for end in house.events.of(ItemEnded)
        ].count(Outcome.CANCELLED)

    assert run_virtual(scenario, seed=seed) >= ENOUGH


async def preempted_and_left(house: House, dice: random.Random) -> None:
    """An external stream is interrupted, and one of the two callers, or both, leave: running,
    waiting, stopping or being replayed.
    """
    external = house.worker.submit(
        new_item("a", stream=True, ways=("replayed",) if dice.random() < 0.8 else ())
    )
    await asyncio.sleep(dice.choice((0.0, 0.05, 0.1, 0.4, 0.7)))
    internal = house.internal("a", stream=dice.random() < 0.5)
    for ticket in dice.sample((external, internal), k=dice.choice((1, 2))):
        await asyncio.sleep(dice.choice((0.0, 0.0, 0.05, 0.3, 1.0, 1.2)))
        ticket.reply.abandon()
        house.cancel(ticket)
