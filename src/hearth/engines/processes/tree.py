"""A command that runs under the guard, as the gateway sees it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, cast

from hearth.engines.processes import guard
from hearth.engines.processes.commands import ServerCommand
from hearth.engines.processes.log import ProcessLog
from hearth.engines.processes.marks import MARK, end_marked, new_mark

PIPE_BYTES = 256 * 1024
MUCH_BYTES = 32 * 1024
READ_PAUSE_S = 0.01
"""After so much at once: what a server logs beyond 25 MB a second waits, so that reading it never
takes more than some percent of the loop.
"""
MOST_REPORT_BYTES = 4096
LATE_S = 5.0
"""So long after the grace the guard is not waited for any more."""
GUARD_DIED = "lost its guard, which ended by itself or was killed"


class Tree:
    """The processes of one command, from its start until none is left; owns the pipes of the guard.

    It is started with `Popen`, not with asyncio: nothing is awaited between the start and the
    moment from which it is known, so that no cancelled task can lose it. Raises OSError where there
    is no room for another process.

    Args:
        run: hexadecimal digits that no other run has.

    Attributes:
        env: of its processes, with their mark. exit: how the command has ended, in words that go on
        from `its server`.
    """

    def __init__(
        self,
        command: ServerCommand,
        environ: Mapping[str, str],
        *,
        run: str,
        grace_s: float,
        log: ProcessLog,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = new_mark(run)
        self._grace_s = grace_s
        self._log = log
        self._said = b""
        self._is_orderly = False
        self.exit: asyncio.Future[str] = self._loop.create_future()
        self._guard_ended = asyncio.Event()
        words = (str(grace_s), str(len(command.stop)), *command.stop, *command.words)
        self.env = {**environ, **command.env, MARK: self._mark}
        self._guard = subprocess.Popen(  # noqa: S603 - a command of the owner's file
            (sys.executable, "-I", "-S", guard.__file__, *words),
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._orders, self._reports, self._output = (
            cast("IO[bytes]", pipe)
            for pipe in (self._guard.stdin, self._guard.stdout, self._guard.stderr)
        )
        for pipe in (self._orders, self._reports, self._output):
            os.set_blocking(pipe.fileno(), False)
        with suppress(OSError, AttributeError):  # more is read at once where the system allows it
            fcntl.fcntl(self._output.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._loop.add_reader(self._reports.fileno(), self._read_report)
        self._loop.add_reader(self._output.fileno(), self._read_output)

    def processes(self) -> set[int]:
        """Those of the command now, where the system shows them."""
        with suppress(OSError):
            return guard.descendants(self._guard.pid)
        return set()

    def stop(self) -> None:
        """End it, with its grace."""
        self._order(b"s")

    def kill(self) -> None:
        """End it at once."""
        self._order(b"k")

    def _order(self, order: bytes) -> None:
        with suppress(OSError, ValueError):  # it is gone
            self._orders.write(order)

    async def gone(self) -> bool:
        """Wait until nothing of it is left, after `stop` or `kill`. False: something cannot be
        ended, not even by SIGKILL.
        """
        try:
            async with asyncio.timeout(self._grace_s + LATE_S):
                await self._guard_ended.wait()
        except TimeoutError:
            self._guard.kill()
            await self._guard_ended.wait()
        await asyncio.to_thread(self._guard.wait)
        self._close()
        if self._is_orderly:
            return True
        return await asyncio.to_thread(end_marked, self._mark.__eq__, 0.0)

    def _close(self) -> None:
        self._loop.remove_reader(self._output.fileno())
        with suppress(OSError):  # the last words
            self._log.feed(os.read(self._output.fileno(), PIPE_BYTES))
        for pipe in (self._orders, self._output):
            pipe.close()

    def _read_report(self) -> None:
        try:
            said = os.read(self._reports.fileno(), MOST_REPORT_BYTES)
        except BlockingIOError:
            return
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            self._take(line.decode("utf-8", "replace"))
        if not said:
            self._loop.remove_reader(self._reports.fileno())
            self._reports.close()
            self._ended(GUARD_DIED)
            self._guard_ended.set()

    def _take(self, report: str) -> None:
        kind, _, about = report.partition(" ")
        if kind == "failed":
            self._ended(f"could not be started: {about}")
        elif kind == "exited":
            self._ended(exit_words(int(about)))
        elif kind == "gone":
            self._is_orderly = True

    def _ended(self, how: str) -> None:
        if not self.exit.done():
            self.exit.set_result(how)

    def _read_output(self) -> None:
        output = self._output.fileno()
        try:
            data = os.read(output, PIPE_BYTES)
        except BlockingIOError:
            return
        self._log.feed(data)
        if not data:
            self._loop.remove_reader(output)
        elif len(data) >= MUCH_BYTES:
            self._loop.remove_reader(output)
            self._loop.call_later(READ_PAUSE_S, self._read_on)

    def _read_on(self) -> None:
        if not self._output.closed:
            self._loop.add_reader(self._output.fileno(), self._read_output)


def exit_words(code: int) -> str:
    """How a process has ended; `code`: as Python's `returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
