"""The thread that writes log lines, so that a slow, blocked or closed output never delays the gateway.

Writes what it is given and counts what it could not; formats nothing. Only `logs` uses it. `put` and `dropped` may be used from any
thread; nothing here touches the event loop.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import threading
from collections.abc import Callable
from typing import Protocol, TextIO

from hearth.observability.log_lines import LogLine

GATHER_S = 0.1
"""A pause before the thread looks for more lines: waking it for each one costs the event loop more than the lines themselves."""
AT_ONCE = 16
"""Lines that are written together at most."""


class Target(Protocol):
    """Where text goes. `write` may block and may raise OSError or ValueError; `close` is called once, by the writing thread."""

    def write(self, text: str) -> None: ...

    def close(self) -> None: ...


class DescriptorTarget:
    """Writes to a descriptor of its own, past the stream's buffer.

    A thread stuck in a buffered stream would hold the lock that the interpreter needs at exit (it aborts then); and the stream's own
    descriptor number may be closed and given to a caller's socket.
    """

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._encoding = stream.encoding or "utf-8"
        self._fd = os.dup(stream.fileno())
        self._torn = False
        """A disk that was full took the beginning of a line only."""

    def write(self, text: str) -> None:
        data = text.encode(self._encoding, errors="backslashreplace")
        rest = memoryview(b"\n" + data if self._torn else data)
        while rest:
            try:
                written = os.write(self._fd, rest)
                self._torn = rest[written - 1] != ord("\n")
                rest = rest[written:]
            except BlockingIOError:
                self._wait_until_writable()

    def close(self) -> None:
        os.close(self._fd)

    def _wait_until_writable(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_WRITE)
            selector.select()


class StreamTarget:
    """Writes to a stream that has no descriptor, and leaves it open."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def close(self) -> None:
        return


def target_of(stream: TextIO) -> Target:
    """The stream's own descriptor where it has one, else the stream."""
    try:
        return DescriptorTarget(stream)
    except (OSError, ValueError):
        return StreamTarget(stream)


class LineWriter:
    """A bounded queue and the daemon thread that empties it.

    A line that finds the queue full, or that the target refuses, is dropped and counted; the count is written as a line of its own
    (`log_lines_dropped`) as soon as something can be written again.
    """

    def __init__(self, target: Target, render: Callable[[LogLine], str], capacity: int) -> None:
        self._target = target
        self._render = render
        self._queue: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._counting = threading.Lock()
        self._dropped = 0
        self._told = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hearth-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost since the start."""
        return self._dropped

    def put(self, line: LogLine) -> None:
        """Queue a line; never blocks."""
        if self._queue.qsize() < self._capacity:
            self._queue.put(line)
        else:
            self._drop()

    def close(self, timeout_s: float) -> bool:
        """Write what is queued and end the thread; False when that takes longer than about `timeout_s` and the rest is given up."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            lines, ended = self._gathered()
            texts = [text for line in lines if (text := self._text(line))]
            self._drop(len(lines) - len(texts))
            if lines:
                self._tell_drops(lines[-1].wall_at)
            if not self._write(texts):
                self._drop(len(texts))
            if not ended and self._queue.empty():
                self._closing.wait(GATHER_S)
        self._target.close()

    def _gathered(self) -> tuple[list[LogLine], bool]:
        """What is there, waiting for the first of it; and whether the end was among it."""
        lines = list[LogLine]()
        line = self._queue.get()
        while line is not None:
            lines.append(line)
            if len(lines) == AT_ONCE or self._queue.empty():
                return lines, False
            line = self._queue.get()
        return lines, True

    def _tell_drops(self, wall_at: float) -> None:
        missing = self._dropped - self._told
        line = LogLine(wall_at=wall_at, level=logging.WARNING, event="log_lines_dropped", fields={"count": missing})
        if missing and (text := self._text(line)) and self._write([text]):
            self._told += missing

    def _write(self, texts: list[str]) -> bool:
        try:
            self._target.write("".join(texts))
        except (OSError, ValueError):  # a closed output
            return False
        return True

    def _text(self, line: LogLine) -> str:
        """The line as it is written; empty where that is impossible."""
        try:
            return self._render(line) + "\n"
        except (OSError, ValueError, OverflowError):  # an instant that no calendar can show
            return ""

    def _drop(self, lines: int = 1) -> None:
        with self._counting:
            self._dropped += lines
