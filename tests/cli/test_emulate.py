"""`hearth emulate`: the emulator starts, says where and what, and ends."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hearth.cli.serve import EmulatorPlan, models_table, read_models, run_emulator
from hearth.cli.views import console_for
from hearth.emulator.quirks import Quirk, QuirkName
from hearth.emulator.service_model import default_profiles
from tests.support.patience import WITHIN_S


def plan(*, port: int = 0, speed: float = 20.0, models_file: Path | None = None) -> EmulatorPlan:
    return EmulatorPlan(
        host="127.0.0.1", port=port, models=read_models(models_file), speed=speed, seed=1, parallel=1, max_queue=8, vram_gib=24.0
    )


def asked(said: io.StringIO, path: str, body: bytes | None = None) -> Any:
    """The open answer of the emulator that says where it listens."""
    url = said.getvalue().split("listens on ")[1].split(",")[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(urllib.request.Request(f"{url}{path}", data=body), timeout=WITHIN_S)


async def test_it_says_where_it_listens_and_what_the_models_can_do():
    said = io.StringIO()

    async def stopped() -> None:
        assert "http://127.0.0.1:" in said.getvalue()

    await run_emulator(plan(), console_for(said, environ={}), stopped=stopped)
    rows = [line.split() for line in said.getvalue().splitlines()]
    assert "20 times as fast as real" in said.getvalue()
    assert ["llama3.1:8b", "6.2", "GiB", "0.1", "s", "77,300", "tokens/s", "2,240", "tokens/s", "131,072", "tokens"] in rows
    assert next(row for row in rows if row[:1] == ["nomic-embed-text"])[-3] == "-"


def test_a_narrow_terminal_shows_the_names_of_the_models_whole():
    said = io.StringIO()
    console_for(said, environ={"COLUMNS": "80"}).print(models_table(default_profiles(), speed=1.0))
    head, *rows = [" ".join(line.split()) for line in said.getvalue().splitlines()]
    assert head == "model GPU memory load prompt answer"
    assert {row.split()[0] for row in rows} == {profile.name for profile in default_profiles()}


async def test_it_answers_like_an_ollama_until_it_is_stopped():
    said = io.StringIO()
    names: list[str] = []

    def tags() -> None:
        with asked(said, "/api/tags") as answer:
            names.extend(model["name"] for model in json.load(answer)["models"])

    async def stopped() -> None:
        await asyncio.to_thread(tags)

    await run_emulator(plan(), console_for(said, environ={}), stopped=stopped)
    assert "llama3.1:8b" in names


def test_a_taken_port_ends_with_1_and_names_it(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = hearth("emulate", "--port", str(port))
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} is taken" in result.stderr
    assert "--port" in result.stderr


def test_an_address_of_another_machine_ends_with_1(hearth):
    result = hearth("emulate", "--host", "192.0.2.1", "--port", "0")
    assert result.exit_code == 1
    assert "cannot listen on 192.0.2.1:0" in result.stderr


def test_models_come_from_a_file(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("- {name: tiny, load_s: 0.5}\n")
    assert [model.profile.name for model in read_models(path)] == ["tiny"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"- {name: [}", b"- {nam: tiny}", None])
def test_a_models_file_that_is_not_usable_ends_with_2(hearth, tmp_path, content):
    path = tmp_path / "models.yaml"
    if content is not None:
        path.write_bytes(content)
    result = hearth("emulate", "--models", str(path))
    assert result.exit_code == 2
    assert f"  {path}: " in result.stderr
    assert "Errno" not in result.stderr


@pytest.mark.parametrize("args", [("--speed", "0"), ("--speed", "-1"), ("--port", "65536"), ("--parallel", "0"), ("--vram-gb", "-1")])
def test_impossible_numbers_are_usage_errors(hearth, args):
    assert hearth("emulate", *args).exit_code == 2


def test_help_lists_every_quirk(hearth):
    said = hearth("emulate", "--help").stdout
    assert all(f"{name} " in said for name in QuirkName)


async def test_quirks_are_shown_and_given_to_the_emulator():
    said = io.StringIO()
    quirks = frozenset({Quirk(name=QuirkName.BUSY_503, value="1"), Quirk(name=QuirkName.NO_DONE)})
    statuses: list[int] = []

    def load() -> None:
        try:
            asked(said, "/api/generate", b'{"model":"llama3.1:8b"}').close()
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            error.close()

    async def stopped() -> None:
        await asyncio.to_thread(load)

    await run_emulator(replace(plan(), quirks=quirks), console_for(said, environ={}), stopped=stopped)
    assert "Quirks: busy-503=1, no-done." in said.getvalue()
    assert statuses == [503]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--quirk", "leak"), "unknown quirk 'leak'; known are eviction-wedge, slot-leak"),
        (("--quirk", "slot-leak=7"), "quirk slot-leak: cannot be '7'; it takes a probability"),
        (("--port", "0", "--quirk", "no-done", "--quirk", "no-done=2"), "a quirk is given twice: no-done, no-done=2"),
    ],
)
def test_a_quirk_that_is_unknown_wrong_or_given_twice_ends_with_2(hearth, args, says):
    result = hearth("emulate", *args)
    assert result.exit_code == 2
    assert says in result.stderr
