"""Every recorded exchange with a real Ollama is replayed over a raw socket; what is not a date, id,
duration or toy text must be equal.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import groupby

import pytest

from hearth.emulator import EmulatedModel, Emulator
from tests.emulator.captures import CAPTURES, comparable, connect, read_capture, send, take_apart
from tests.emulator.conftest import StartEmulator, toys

ALL = sorted(path.stem for path in CAPTURES.glob("*.txt"))
BUSY = [name for name in ALL if name.startswith("busy_503")]
KILLED = [name for name in ALL if name.startswith("midstream_kill")]
KILLED_WHOLE = [name for name in ALL if name.startswith("kill_nostream")]
STATEFUL = {
    "oai_chat_zstd",
    "ps_loaded",
    "ps_after_oai_keepalive",
    "ps_after_runner_crash",
    "delete_ok",
    "oai_models",
}
PLAIN = [name for name in ALL if name not in {*BUSY, *KILLED, *KILLED_WHOLE, *STATEFUL}]


def post(path: str, body: str, method: str = "POST") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


LISTED = ["ps_loaded", "ps_after_oai_keepalive", "ps_after_runner_crash", "delete_ok", "oai_models"]
"""What these show depends on what was done before, and on the models that there are."""


def models_of(name: str) -> list[EmulatedModel]:
    return toys("slow", "tiny-a", "tiny-b") if name == "oai_models" else toys()


async def come_to(
    name: str, emulator: Emulator, url: str, signed: Callable[[bytes], bytes] = bytes
) -> None:
    """Do what was done before the recording."""
    model = {
        "ps_loaded": "tiny-a",
        "ps_after_oai_keepalive": "tiny-a",
        "ps_after_runner_crash": "ma",
    }.get(name)
    if model is not None:
        await send(url, signed(post("/api/generate", f'{{"model":"{model}"}}')))
    if name == "ps_after_runner_crash":
        emulator.kill_runner("ma")
    if name == "delete_ok":
        await send(url, signed(read_capture("copy").request))


@pytest.mark.parametrize("name", [*PLAIN, *LISTED])
async def test_a_recorded_request_is_answered_as_recorded(name: str, start_emulator: StartEmulator):
    emulator, url = await start_emulator(models_of(name), vram_gib=0, marked=False)
    await come_to(name, emulator, url)
    exchange = read_capture(name)
    answer, recorded = take_apart(await send(url, exchange.request)), take_apart(exchange.response)
    assert comparable(name, answer) == comparable(name, recorded)


async def test_a_body_in_zstd_is_answered_as_recorded_but_for_template_tokens(
    start_emulator: StartEmulator,
):
    _, url = await start_emulator(toys(), vram_gib=0, marked=False)
    exchange = read_capture("oai_chat_zstd")
    answer, recorded = (
        re.sub(rb'"(prompt|total)_tokens":\d+', b"", raw)
        for raw in (await send(url, exchange.request), exchange.response)
    )
    assert take_apart(answer) == take_apart(recorded)


@pytest.mark.parametrize("name", BUSY)
async def test_a_full_load_queue_is_refused_as_recorded(name: str, start_emulator: StartEmulator):
    _, url = await start_emulator(toys(), max_queue=1, vram_gib=0, marked=False)
    waiting = []
    for model in ("slow", "ma"):
        waiting.append((await connect(url))[1])
        waiting[-1].write(post("/api/generate", f'{{"model":"{model}"}}'))
        await until_in_loader(url)
    exchange = read_capture(name)
    assert take_apart(await send(url, exchange.request)) == take_apart(exchange.response)
    for writer in waiting:
        writer.close()


async def until_in_loader(url: str) -> None:
    """A later request on the same loop is answered only after the earlier one has reached the
    scheduler.
    """
    for _ in range(2):
        await send(url, post("/api/version", "", "GET"))


@pytest.mark.parametrize("name", KILLED)
async def test_a_runner_that_dies_in_mid_stream_breaks_it_off_as_recorded(
    name: str, start_emulator: StartEmulator
):
    emulator, url = await start_emulator(toys(), vram_gib=0, marked=False)
    exchange = read_capture(name)
    reader, writer = await connect(url)
    writer.write(exchange.request)
    begun = b"".join([await reader.readuntil(b"\n\r\n") for _ in range(8)])
    emulator.kill_runner("ma")
    answer, recorded = take_apart(begun + await reader.read()), take_apart(exchange.response)
    writer.close()
    assert answer.headers == recorded.headers
    assert _shapes(answer.chunks) == _shapes(recorded.chunks)


def _shapes(chunks: tuple[bytes, ...]) -> list[bytes]:
    """The chunks with runs of equal ones shortened to one, and their numbering left out."""
    plain = [
        re.sub(rb'"(sequence_number|max_output_tokens|input_tokens)":\d+', b"", chunk)
        for chunk in chunks
    ]
    return [shape for shape, _ in groupby(plain)]


@pytest.mark.parametrize("name", KILLED_WHOLE)
async def test_a_runner_that_dies_before_the_answer_is_a_recorded_error(
    name: str, start_emulator: StartEmulator
):
    emulator, url = await start_emulator(toys(), vram_gib=0, marked=False)
    exchange = read_capture(name)
    answering = asyncio.ensure_future(send(url, exchange.request))
    await until_running(emulator, url)
    emulator.kill_runner("ma")
    assert take_apart(await answering) == take_apart(exchange.response)


async def until_running(emulator: Emulator, url: str) -> None:
    while not emulator.in_flight:
        await send(url, post("/api/version", "", "GET"))
