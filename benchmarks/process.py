"""Processes under test: start one, wait until it listens, read what it has used, end it.

Reads `/proc`, so it needs Linux. Ends only what it has started. Used by everything in `benchmarks`
that runs a process.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType, TracebackType
from typing import Self

POLL_S = 0.002
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 15.0


class Child:
    """A process that listens on a port of loopback; leaving the context ends it.

    Args:
        log: where its output goes; nowhere where None.
        environment: variables beside those of this process.
        start_timeout_s: seconds until it must listen.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        log: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._command = command
        self._log = Path(os.devnull) if log is None else log
        self._environment = environment
        self._start_timeout_s = start_timeout_s
        self.port = port
        self.pid = 0
        self.started_s = 0.0
        """Seconds from the start of the process until it listened."""

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        began = monotonic()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - commands of our own
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_environment(), **self._environment},
            )
        self.pid = self._process.pid
        try:
            self._wait_until_listening()
        except BaseException:
            self._end()
            raise
        self.started_s = monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _wait_until_listening(self) -> None:
        give_up_at = monotonic() + self._start_timeout_s
        while not is_listening(self.port):
            if self._process.poll() is not None or monotonic() > give_up_at:
                raise RuntimeError(
                    f"{self._command[0]} did not begin to listen on {self.port}; its output is in"
                    f" {self._log}"
                )
            sleep(POLL_S)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _environment() -> dict[str, str]:
    """That of an owner: Python keeps what it has compiled, whatever is set here for development."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def is_listening(port: int) -> bool:
    """Does anybody take connections on this port of loopback?"""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Seconds that all threads of a process have spent on a CPU, user and system.

    From `schedstat`, which counts nanoseconds; the fields of `/proc/PID/stat` count in hundredths
    of a second and would be too coarse.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def rss_mib(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process now, or the most that it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:" if peak else "VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no memory")
