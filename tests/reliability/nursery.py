"""Gateways to be killed: `hearth serve` as often as a test likes, without paying for its imports
each time.

One process imports everything once and forks a life for each connection to its socket. A life is a
process of its own with a loop, a writer's thread and a listening port of its own; it reports over
that connection, which the kernel closes when it dies.

python -m tests.reliability.nursery SOCKET
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fields import Fields
from tests.support.patience import in_time
from tests.support.processes import die_with_parent

ROOT = Path(__file__).parents[2]


class Nursery:
    """The process that forks."""

    def __init__(self, directory: Path, environ: Mapping[str, str] | None = None) -> None:
        self._socket = directory / "nursery"
        command = [sys.executable, "-m", "tests.reliability.nursery", str(self._socket)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(environ or {})}, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    async def birth(self, work: str, *, failpoints: str = "", **given: Any) -> Life:
        """A new process that runs `work` (a function of `tests.reliability.work`) with what is
        given.
        """
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 20)
        writer.write(
            json.dumps({"work": work, "failpoints": failpoints, "given": given}).encode() + b"\n"
        )
        life = Life(reader, writer)
        await life.until(lambda: life.pid > 0)
        return life

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Life:
    """One process, as it reports on itself.

    Attributes:
        said: every report but the first, in order; each is an object with one name.
        over: it is dead. `orderly`: it ended by itself, with exit code 0.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._moved = asyncio.Event()
        self.pid = 0
        self.said: list[Fields] = []
        self.over = asyncio.Event()
        self.orderly = False
        self._reading = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (line := await reader.readline()).endswith(b"\n"):
            report = json.loads(line)
            if "pid" in report:
                self.pid = report["pid"]
            elif "exit" in report:
                self.orderly = report["exit"] == 0
            else:
                self.said.append(report)
            self._moved.set()
        self._writer.close()
        self.over.set()
        self._moved.set()

    async def until(self, holds: Any) -> None:
        """Returns once it holds, looked at after every report; a life that ends before that is an
        error.
        """
        async with in_time():
            while not holds():
                assert not self.over.is_set(), "the process ended before that"
                self._moved.clear()
                await self._moved.wait()

    async def url(self) -> str:
        """Where it listens; empty where it died before it did."""
        async with in_time():
            while not (self.named("url") or self.over.is_set()):
                self._moved.clear()
                await self._moved.wait()
        return next(iter(self.named("url")), "")

    def named(self, name: str) -> list[Any]:
        return [report[name] for report in self.said if name in report]

    def ends(self) -> Counter[str]:
        """How often the end of each job was told."""
        return Counter(self.named("ended"))

    async def end(self, by: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal, if it lives, and wait until it is gone."""
        if not self.over.is_set():
            os.kill(self.pid, by)
        await self.gone()

    async def gone(self) -> None:
        async with in_time():
            await self.over.wait()
        await self._reading


def main(path: str) -> None:
    die_with_parent()
    work = importlib.import_module("tests.reliability.work")
    failpoints = importlib.import_module("hearth.storage.failpoints")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            die_with_parent()
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _live(connection, work, failpoints)
        connection.close()


def _live(connection: socket.socket, work: Any, failpoints: Any) -> None:
    """Does not return."""
    code = 1
    try:
        asked = json.loads(connection.makefile().readline())
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        os.environ[failpoints.VARIABLE] = asked["failpoints"]
        importlib.reload(failpoints)

        def report(**said: Any) -> None:
            connection.sendall(json.dumps(said).encode() + b"\n")

        report(pid=os.getpid())
        code = asyncio.run(getattr(work, asked["work"])(report, **asked["given"]))
        report(exit=code)
    except Exception:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
