"""What the documentation tells people to type and to paste, typed and pasted; and every `hearth` command that a text names."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from hearth.bootstrap import running_gateway
from hearth.cli import LazyCommand, main
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config, parse_config
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from tests.docs import stand_ins
from tests.docs.pages import PAGES, Block, blocks, inline_code
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

BASH = shutil.which("bash") or "/bin/bash"
OUTSIDE = re.compile(r"(^|[|;&(]) */|> */(?!tmp/)", re.MULTILINE)
"""A program by its whole path, or a file that is written anywhere but in /tmp."""
SHELL = blocks("sh")
SCRIPTS = [block for block in blocks("python") if block.place.startswith("docs/clients/")]
NAMED = sorted({text for page in PAGES for text in inline_code(page) if text.startswith("hearth ")})
OURS = [block for block in blocks("yaml") if block.title == "config/llm_gateway.yaml"]
CONFIG = """
ollama: {{url: "{url}"}}
storage: {{path: "{store}"}}
rate_limits: {{default: {{requests_per_minute: 100000, requests_per_hour: 1000000}}}}
"""


@dataclass(frozen=True)
class House:
    """A running gateway, and an empty directory with stand-ins for what the commands call; no other program can be called from there."""

    folder: Path
    url: str

    async def run(self, *command: str) -> tuple[int | None, str]:
        """Exit code and output of a command that runs in the directory."""
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env=self._environ(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return process.returncode, output.decode()

    def _environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
        return {
            **kept,
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.folder),
            "HEARTH_URL": self.url,
            "NO_PROXY": "*",
            "COLUMNS": "200",
        }


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """The gateway has a store where the documentation says that it is, and a fast emulated model server."""
    store = tmp_path / ".local" / "state" / "hearth" / "hearth.db"
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=500, seed=1)
    config = tmp_path / "config" / "llm_gateway.yaml"
    config.parent.mkdir()
    config.write_text(CONFIG.format(url=await emulator.start("127.0.0.1", 0), store=store))
    put_stand_ins(tmp_path)
    try:
        async with running_gateway(load_gateway_config(config), port=0, store=True) as (_, url):
            yield House(folder=tmp_path, url=url)
    finally:
        await emulator.stop()


def put_stand_ins(folder: Path) -> None:
    """Programs in `bin/`, and in `.venv/bin/` where some pages call them."""
    (folder / "bin").mkdir()
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(folder / "bin")
    for name in stand_ins.PROGRAMS:
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, stand_ins.__file__, name])} "$@"\n')
        program.chmod(0o755)


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
async def test_every_command_in_a_shell_block_runs(house: House, block: Block) -> None:
    assert not OUTSIDE.search(block.text), "the test must not touch the machine"
    code, output = await house.run(BASH, "-euo", "pipefail", "-c", block.text.replace("/tmp/", f"{house.folder}/"))
    assert code == 0, output


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: block.place)
async def test_every_script_of_the_client_pages_runs_and_prints_an_answer(house: House, block: Block) -> None:
    script = house.folder / "script.py"
    script.write_text(block.text.replace("http://127.0.0.1:8411", house.url))
    code, output = await house.run(sys.executable, str(script))
    assert code == 0, output
    assert output.strip()


@for_each("block", OURS)
def test_every_piece_of_our_configuration_that_is_shown_is_usable(block: Block) -> None:
    parse_config(block.text, source=block.place, environ=dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "x" * 32))


@for_each("text", NAMED)
def test_every_hearth_command_in_a_text_exists_with_its_options(text: str) -> None:
    command, rest = found(text.split()[1:])
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(rest))) <= known | {"--help", "--version"}


def found(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words begin with, and the words after its name. Fails where there is none."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        inner = command.commands.get(words[0])
        assert inner is not None, f"no such command: {words}"
        command, words = inner.load() if isinstance(inner, LazyCommand) else inner, words[1:]
    return command, words
