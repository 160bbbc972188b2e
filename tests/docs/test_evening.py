"""The tutorial (docs/evening.md), typed fence by fence into one shell, in an empty directory with
an empty home, ends with what it promises.

`hearth` is the real command with real processes, and the emulator of the page is the Ollama. Only
ports and speed are others. Stand-ins: `make` and `docker`, which install programs; `curl`, which
Python does; `sleep`, which waits until a request runs, since this emulator is in a hurry.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docs import stand_ins
from tests.docs.test_commands import BASH, BLOCKS, TUTORIAL, Block
from tests.support.fields import Fields
from tests.support.patience import in_time, until

FENCES = [block for block in BLOCKS if block.place.startswith(TUTORIAL)]
SPEED = 10
"""At which six chapters of 25 s each leave time for the commands between them to start."""
IN_A_HURRY = f"scheduling:\n  preempt_min_remaining_s: {2.0 / SPEED}\n"
"""What is about to end is not interrupted: at this speed, that is as much less."""
CHAPTERS = 6
TOKENS = 1500
QUESTIONS = 4
MARK = "the fence has ended with"
HEARTH = 'import sys; sys.argv[0] = "hearth"; from hearth.cli import main; main()'
PRINTED = re.compile(r"^The key of (\S+);.*\n\n +(hearth_\S+)$", re.MULTILINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Evening:
    """A reader with three terminals."""

    def __init__(self, place: Path, shell: Process, environ: dict[str, str]) -> None:
        self.place = place
        self.ollama_port, self.port = free_port(), free_port()
        self.keys: dict[str, str] = {}
        self.terminals: dict[str, Process] = {}
        self._shell = shell
        self._environ = environ

    async def follow(self, fence: Block) -> None:
        """Do what the page asks of its reader with this fence."""
        kind = fence.info.split()[:1]
        title = re.search(r'title="([^"]*)"', fence.info)
        if kind == ["yaml"] and title:
            (self.place / title[1]).write_text(fence.text.replace("scheduling:\n", IN_A_HURRY))
        elif kind == ["sh"] and title:
            await self._start(title[1], fence.text)
        elif kind == ["sh"]:
            await self.type_in(fence.text)

    async def type_in(self, text: str) -> str:
        """What the commands print, typed into the third terminal; each fence must succeed."""
        assert self._shell.stdin
        assert self._shell.stdout
        text = self._with_keys(self._with_ports(text))
        self._shell.stdin.write(f'{text}\necho "{MARK} $?"\n'.encode())
        await self._shell.stdin.drain()
        printed = ""
        async for line in self._shell.stdout:
            before, mark, rest = line.decode().partition(MARK)
            printed += before
            if mark:
                assert rest.strip() == "0", printed
                break
        else:
            pytest.fail(f"the shell has ended: {printed}")
        self.keys |= dict(PRINTED.findall(printed))
        return printed

    async def _start(self, terminal: str, command: str) -> None:
        options = {
            "first terminal": f" --port {self.ollama_port} --speed {SPEED}",
            "second terminal": f" --port {self.port} --ollama-url"
            f" http://127.0.0.1:{self.ollama_port}",
        }
        log = self.place.parent / f"{terminal}.log"
        with log.open("wb") as printed:
            self.terminals[terminal] = await asyncio.create_subprocess_exec(
                BASH,
                "-c",
                f"exec {command.strip()}{options[terminal]}",
                cwd=self.place,
                env=self._environ,
                stdout=printed,
                stderr=STDOUT,
            )
        await until(lambda: re.search("listens on|gateway_started", log.read_text()))

    async def stop(self, terminal: str) -> None:
        """Ctrl-C."""
        process = self.terminals.pop(terminal)
        process.send_signal(signal.SIGINT)
        await process.wait()

    def _with_ports(self, text: str) -> str:
        return text.replace("127.0.0.1:8411", f"127.0.0.1:{self.port}").replace(
            "127.0.0.1:11434", f"127.0.0.1:{self.ollama_port}"
        )

    def _with_keys(self, text: str) -> str:
        for name, key in self.keys.items():
            text = re.sub(rf"hearth_\.\.\.(?= +# .*\b{re.escape(name)}\b)", key, text)
        return text


@pytest.fixture
async def evening(tmp_path: Path) -> AsyncIterator[Evening]:
    """In an empty directory, beside an empty home."""
    programs, home, place = tmp_path / "programs", tmp_path / "home", tmp_path / "hearth"
    for folder in (programs, home, place / "config", place / ".venv" / "bin"):
        folder.mkdir(parents=True)
    called = {
        name: [sys.executable, stand_ins.__file__, name]
        for name in ("make", "docker", "curl", "sleep")
    }
    written = [(programs / name, command) for name, command in called.items()]
    written.append((place / ".venv" / "bin" / "hearth", [sys.executable, "-c", HEARTH]))
    for program, command in written:
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
    environ = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
    environ |= {"HOME": str(home), "PATH": f"{programs}:{os.defpath}", "NO_PROXY": "*"}
    environ |= {"PYTHONUNBUFFERED": "1", "CURL_AS_WRITTEN": "1"}
    shell = await asyncio.create_subprocess_exec(
        BASH,
        "-euo",
        "pipefail",
        cwd=place,
        env=environ,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
    )
    reader = Evening(place, shell, environ)
    try:
        await reader.type_in(f"export HEARTH_URL=http://127.0.0.1:{reader.port}")
        yield reader
    finally:
        for process in (*reader.terminals.values(), shell):
            process.kill()
            await process.wait()


async def test_the_evening_ends_with_what_it_promises(evening: Evening):
    """The assistant is answered while a chapter is being written, and every chapter is whole."""
    without_hearth = next(number for number, each in enumerate(FENCES) if "11434/" in each.text)
    async with in_time():
        for fence in FENCES[:without_hearth]:
            await evening.follow(fence)
        log = json.loads(await evening.type_in(".venv/bin/hearth log --json"))
        await evening.stop("second terminal")
        for fence in FENCES[without_hearth:]:
            await evening.follow(fence)
    rows: list[Fields] = log["items"][::-1]
    chapters = [row for row in rows if row["caller"] == "writer"]
    callers = [row["caller"] for row in rows]
    asked_meanwhile = callers[callers.index("home-assistant") + 1 :]
    assert {row["outcome"] for row in rows} == {"completed"}
    assert [row["output_tokens"] for row in chapters] == [TOKENS] * CHAPTERS
    assert sum(row["interrupt_count"] for row in chapters) >= 1
    assert asked_meanwhile.count("home-assistant") == QUESTIONS
    assert asked_meanwhile.index("home-assistant") < CHAPTERS - 1, "answered within the story"
