"""`hearth emulate`: the emulator starts, says where and what, and ends."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from hearth.cli.emulate import models_table, read_models, run_emulator, until_stopped
from hearth.cli.views import console_for
from hearth.clock import SystemClock
from hearth.emulator.models import default_profiles
from hearth.emulator.quirks import Quirk, QuirkName
from hearth.emulator.server import Emulator
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S


async def said_while(ask: Callable[[str], None], *quirks: Quirk) -> str:
    """What is printed while `ask` uses the emulator at its URL."""
    said, speed = io.StringIO(), 20.0
    emulator = Emulator(read_models(None), clock=SystemClock(), speed=speed, seed=1, quirks=frozenset(quirks))

    async def stopped() -> None:
        await asyncio.to_thread(ask, said.getvalue().split("listens on ")[1].split(",")[0])

    about = [models_table(default_profiles(), speed=speed)]
    await run_emulator(emulator, console_for(said, environ={}), host="127.0.0.1", port=0, speed=speed, about=about, stopped=stopped)
    return said.getvalue()


def opened(url: str, body: bytes | None = None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data=body), timeout=WITHIN_S) as answer:
        read: bytes = answer.read()
    return read


async def test_it_answers_like_an_ollama_and_says_what_the_models_can_do():
    names: list[str] = []
    said = await said_while(lambda url: names.extend(model["name"] for model in json.loads(opened(f"{url}/api/tags"))["models"]))
    rows = [line.split() for line in said.splitlines()]
    assert "20 times as fast as real" in said
    assert ["llama3.1:8b", "6.2", "GiB", "0.1", "s", "77,300", "tokens/s", "2,240", "tokens/s", "131,072", "tokens"] in rows
    assert next(row for row in rows if row[:1] == ["nomic-embed-text"])[-3] == "-"
    assert "llama3.1:8b" in names


async def test_quirks_are_given_to_the_emulator():
    def load(url: str) -> None:
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            opened(f"{url}/api/generate", b'{"model":"llama3.1:8b"}')
        caught.value.close()

    await said_while(load, Quirk(name=QuirkName.BUSY_503, value="1"))


def test_a_narrow_terminal_shows_the_names_of_the_models_whole():
    said = io.StringIO()
    console_for(said, environ={"COLUMNS": "80"}).print(models_table(default_profiles(), speed=1.0))
    head, *rows = [" ".join(line.split()) for line in said.getvalue().splitlines()]
    assert head == "model GPU memory load prompt answer"
    assert {row.split()[0] for row in rows} == {profile.name for profile in default_profiles()}


def test_what_cannot_be_listened_on_ends_with_1_and_is_named(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = hearth("emulate", "--port", str(port))
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} is taken (by a real Ollama?); choose another with --port" in result.stderr
    result = hearth("emulate", "--host", "192.0.2.1", "--port", "0")
    assert result.exit_code == 1
    assert "cannot listen on 192.0.2.1:0" in result.stderr


def test_models_come_from_a_file_and_one_that_is_not_usable_ends_with_2(hearth, tmp_path):
    path = tmp_path / "models.yaml"
    for content in (None, b"\xff\xfe", b"- {name: [}", b"- {nam: tiny}"):
        if content is not None:
            path.write_bytes(content)
        result = hearth("emulate", "--models", str(path))
        assert result.exit_code == 2
        assert f"  {path}: " in result.stderr
        assert "Errno" not in result.stderr
    path.write_text("- {name: tiny, load_s: 0.5}\n")
    assert [model.name for model in read_models(path)] == ["tiny"]


@for_each(
    ("args", "says"),
    [
        (("--speed", "0"), "--speed"),
        (("--speed", "-1"), "--speed"),
        (("--port", "65536"), "--port"),
        (("--parallel", "0"), "--parallel"),
        (("--vram-gb", "-1"), "--vram-gb"),
        (("--quirk", "leak"), "unknown quirk 'leak'; known are eviction-wedge, slot-leak"),
        (("--quirk", "slot-leak=7"), "quirk slot-leak: cannot be '7'; it takes a probability"),
        (("--port", "0", "--quirk", "no-done", "--quirk", "no-done=2"), "a quirk is given twice: no-done, no-done=2"),
    ],
)
def test_impossible_options_end_with_2(hearth, args, says):
    result = hearth("emulate", *args)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
async def test_a_signal_or_time_ends_the_wait_and_signals_are_given_back(number):
    waiting = asyncio.create_task(until_stopped(0.0 if number is None else None))
    await asyncio.sleep(0)
    if number is not None:
        os.kill(os.getpid(), number)
    await asyncio.wait_for(waiting, WITHIN_S)
    loop = asyncio.get_running_loop()
    assert not loop.remove_signal_handler(signal.SIGINT)
    assert not loop.remove_signal_handler(signal.SIGTERM)
