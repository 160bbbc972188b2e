"""`hearth emulate`: the emulator starts, says where and what, and ends."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket

import httpx
import pytest

from hearth.cli.emulate import models_table, read_models, run_emulator, until_stopped
from hearth.cli.views import console_for
from hearth.clock import SystemClock
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from tests.support.patience import WITHIN_S, within_limit


async def test_it_answers_like_an_ollama_with_its_quirks_and_capabilities():
    said = io.StringIO()
    speed = 20.0
    quirk = "busy-503=1"
    emulator = Emulator(
        read_models(None), clock=SystemClock(), speed=speed, seed=1, quirks=frozenset([quirk])
    )

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=WITHIN_S) as client:
            assert "llama3.1:8b" in [
                model["name"] for model in client.get("/api/tags").json()["models"]
            ]
            assert client.post("/api/generate", json={"model": "llama3.1:8b"}).status_code == 503

    async def stopped() -> None:
        await asyncio.to_thread(ask, said.getvalue().split("listens on ")[1].split(",")[0])

    about = [models_table(default_profiles(), speed=speed)]
    await run_emulator(
        emulator,
        console_for(said, environ={}),
        host="127.0.0.1",
        port=0,
        speed=speed,
        about=about,
        stopped=stopped,
    )
    rows = [line.split() for line in said.getvalue().splitlines()]
    assert "20 times as fast as real" in said.getvalue()
    assert [
        "llama3.1:8b",
        "6.2",
        "GiB",
        "0.1",
        "s",
        "77,300",
        "tokens/s",
        "2,240",
        "tokens/s",
        "131,072",
        "tokens",
    ] in rows
    assert next(row for row in rows if row[:1] == ["nomic-embed-text"])[-3] == "-"
    narrow = io.StringIO()
    console_for(narrow, environ={"COLUMNS": "80"}).print(
        models_table(default_profiles(), speed=1.0)
    )
    head, *names = [" ".join(line.split()) for line in narrow.getvalue().splitlines()]
    assert head == "model GPU memory load prompt answer"
    assert {row.split()[0] for row in names} == {profile.name for profile in default_profiles()}


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (
            ("--port", "{taken}"),
            1,
            "127.0.0.1:{taken} is taken (by a real Ollama?); choose another with --port",
        ),
        (("--host", "192.0.2.1", "--port", "0"), 1, "cannot listen on 192.0.2.1:0"),
        (("--quirk", "leak"), 2, "unknown quirk 'leak'; known are eviction-wedge, slot-leak"),
        (("--quirk", "slot-leak=7"), 2, "quirk slot-leak: cannot be '7'; it takes a probability"),
        (
            ("--port", "0", "--quirk", "no-done", "--quirk", "no-done=2"),
            2,
            "a quirk is given twice: no-done, no-done=2",
        ),
    ],
)
def test_what_cannot_be_emulated_ends_in_words(hearth, args, code, says):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        result = hearth("emulate", *(each.format(taken=taken) for each in args))
    assert (result.exit_code, says.format(taken=taken) in result.stderr) == (code, True)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"- {name: [}", b"- {nam: tiny}"])
def test_a_file_of_models_that_is_not_usable_ends_with_2(hearth, tmp_path, content):
    path = tmp_path / "models.yaml"
    if content is not None:
        path.write_bytes(content)
    result = hearth("emulate", "--models", str(path))
    assert (result.exit_code, f"  {path}: " in result.stderr, "Errno" in result.stderr) == (
        2,
        True,
        False,
    )


def test_models_come_from_a_file(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("- {name: tiny, load_s: 0.5}\n")
    assert [model.name for model in read_models(path)] == ["tiny"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
async def test_a_signal_or_time_ends_the_wait_and_signals_are_given_back(number):
    waiting = asyncio.create_task(until_stopped(0.0 if number is None else None))
    await asyncio.sleep(0)
    if number is not None:
        os.kill(os.getpid(), number)
    await within_limit(waiting)
    loop = asyncio.get_running_loop()
    assert not loop.remove_signal_handler(signal.SIGINT)
    assert not loop.remove_signal_handler(signal.SIGTERM)
