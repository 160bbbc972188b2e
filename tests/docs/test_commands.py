"""What the documentation tells people to type and to paste, typed and pasted; and every `hearth`
command that a text names.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from hearth.bootstrap import running_gateway
from hearth.cli import LazyCommand, main
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config, parse_config
from hearth.emulator import Emulator
from hearth.emulator.models import EmulatedModel, default_profiles
from hearth.engines.small_model.files import NAME as SMALL_MODEL
from tests.docs import stand_ins
from tests.support.cases import for_each
from tests.support.patience import in_time
from tests.support.places import ROOT

TEXTS = {
    page.relative_to(ROOT).as_posix(): page.read_text("utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
OUTSIDE = re.compile(r"(^|[|;&(]) */|> */(?!tmp/)", re.MULTILINE)
"""A program by its whole path, or a file that is written anywhere but in /tmp."""
BASH = shutil.which("bash") or "/bin/bash"
CONFIG = """
ollama: {{url: "{url}"}}
storage: {{path: "{store}"}}
rate_limits: {{default: {{requests_per_minute: 100000, requests_per_hour: 1000000}}}}
"""


class Block(NamedTuple):
    """What stands in one fence; `place` is the page and the line of its first line."""

    place: str
    info: str
    text: str


BLOCKS = [
    Block(f"{page}:{text.count(chr(10), 0, match.start()) + 2}", match["info"], match["text"])
    for page, text in TEXTS.items()
    for match in FENCE.finditer(text)
]
TUTORIAL = "docs/evening.md"
"""Whose fences are typed one after the other (`test_evening.py`)."""
SHELL = [
    block
    for block in BLOCKS
    if block.info.split()[:1] == ["sh"] and not block.place.startswith(TUTORIAL)
]
SCRIPTS = [
    block
    for block in BLOCKS
    if block.info.split()[:1] == ["python"] and block.place.startswith("docs/clients/")
]
OURS = [
    block
    for block in BLOCKS
    if block.info.startswith("yaml") and 'title="config/llm_gateway.yaml"' in block.info
]
INLINE = {
    code
    for text in TEXTS.values()
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))
}

Run = Callable[..., Awaitable[str]]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Runs a command in an empty directory beside a gateway that has a store where the
    documentation says that it is, and a fast emulated model server; there are stand-ins for what
    the commands call, and no other program can be called. Gives the output; exit must be 0.
    """
    store = tmp_path / ".local" / "state" / "hearth" / "hearth.db"
    config = tmp_path / "config" / "llm_gateway.yaml"
    profiles = (*default_profiles(), EmulatedModel(name=SMALL_MODEL))
    emulator = Emulator(profiles, clock=SystemClock(), speed=500, seed=1)
    config.parent.mkdir()
    config.write_text(CONFIG.format(url=await emulator.start(), store=store))
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(tmp_path / "bin")
    for name in stand_ins.PROGRAMS:
        program = tmp_path / "bin" / name
        program.write_text(
            f'#!/bin/sh\nexec {shlex.join([sys.executable, stand_ins.__file__, name])} "$@"\n'
        )
        program.chmod(0o755)
    environ = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
    environ |= {
        "PATH": str(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "NO_PROXY": "*",
        "COLUMNS": "200",
    }

    async def output_of(*command: str) -> str:
        words = [
            word.replace("http://127.0.0.1:8411", url) if command[0] != BASH else word
            for word in command
        ]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, cwd=tmp_path, env=environ, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with in_time():
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0, output.decode()
        return output.decode()

    try:
        async with running_gateway(load_gateway_config(config), port=0, store=True) as (_, url):
            environ["HEARTH_URL"] = url
            yield output_of
    finally:
        await emulator.stop()


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
async def test_every_command_in_a_shell_block_runs(run: Run, tmp_path: Path, block: Block):
    assert not OUTSIDE.search(block.text), "the test must not touch the machine"
    await run(BASH, "-euo", "pipefail", "-c", block.text.replace("/tmp/", f"{tmp_path}/"))


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: block.place)
async def test_every_script_of_the_client_pages_runs_and_prints_an_answer(run: Run, block: Block):
    assert (await run(sys.executable, "-c", block.text)).strip()


async def test_the_emulator_that_its_page_shows_starts():
    block = next(each for each in BLOCKS if each.place.startswith("docs/emulator.md:"))
    names = {"Emulator": Emulator, "default_profiles": default_profiles, "SystemClock": SystemClock}
    code = compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
    emulator = names["emulator"]
    assert isinstance(emulator, Emulator)
    await emulator.stop()


@pytest.mark.parametrize("block", OURS)
def test_every_piece_of_our_configuration_that_is_shown_is_usable(block: Block):
    parse_config(
        block.text,
        source=block.place,
        environ=dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "x" * 32),
    )


@for_each("text", sorted(text for text in INLINE if text.startswith("hearth ")))
def test_every_hearth_command_in_a_text_exists_with_its_options(text: str):
    command: click.Command = main
    words = text.split()[1:]
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        inner = command.commands.get(words[0])
        assert inner is not None, f"no such command: {words}"
        command = inner.load() if isinstance(inner, LazyCommand) else inner
        words = words[1:]
    known = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))) <= known | {
        "--help",
        "--version",
    }
