"""Log lines, clean and one record each, and the thread that writes them.

One event, one line: what a log line says and how it is written, as JSON or for a terminal.

Pure functions of their arguments: no stream, no clock, no logging configuration. Whatever a caller can put into a name or an error text
ends up here, so nothing leaves this module that could forge a line, drive a terminal, or carry a credential that slipped into a text.

The thread that writes log lines, so that a slow, blocked or closed output never delays the gateway.

Writes what it is given and counts what it could not; formats nothing. Only `logs` uses it. `put` and `dropped` may be used from any
thread; nothing here touches the event loop.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import selectors
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, TextIO, cast

from hearth.events import BatchEnded, Event, ItemEnded, JobEnded, SwapCompleted
from hearth.types import Outcome, value

MAX_FIELD_CHARS = 500
MAX_LIST_ITEMS = 20
_SCANNED_CHARS = 4 * MAX_FIELD_CHARS  # a secret may be cut here, but only in text that is cut away afterwards

Field = str | int | float | bool | list[str] | None

_SECRETS = (
    (re.compile(r"(?i)\bbearer\s+[^\s\"',;]+"), "Bearer ***"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"), "sk-***"),
    (re.compile(r"(?i)\b(https?://)[^\s/@]{1,200}@"), r"\1***@"),
    (re.compile(r"(?i)\bhttps?://[^\s/]{1,200}/(?:[^\s/]{1,100}/){0,4}webhooks?/[^\s\"'<>]+"), "https://***/webhooks/***"),
    (
        re.compile(r"(?i)\b(x-api-key|api[_-]?key|authorization|password|secret|token)(\"?\s*[:=]\s*\"?)(?!Bearer \*)[^\s\"',;&]+"),
        r"\1\2***",
    ),
)

_SUSPICIOUS = re.compile(r"(?i)bearer|sk-|://|key|authorization|password|secret|token")
"""Found in every text that a pattern above could match: most texts need one search instead of five substitutions."""

_SHORTEST_SECRET_CHARS = 5
"""`key=x`: most words that an event carries are shorter than any pattern above, or are ids."""

_LEVEL_NAMES = {level: logging.getLevelName(level).lower() for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)}
_AS_THEY_ARE = frozenset({int, bool, type(None)})
_encoded = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode

_GLYPHS = {logging.DEBUG: "·", logging.INFO: "·", logging.WARNING: "!", logging.ERROR: "✗"}
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_COLOURS = {logging.DEBUG: "\x1b[2m", logging.INFO: "\x1b[32m", logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}
_EVENT_WIDTH = 20


@value
class LogLine:
    """What one line says. `wall_at`: seconds since 1970-01-01 UTC; `level`: a number of `logging`; `fields` are not yet cleaned."""

    wall_at: float
    level: int
    event: str
    fields: Mapping[str, object]


def line_of(event: Event, wall_at: float) -> LogLine:
    """The line of an event: every field but `at`, which becomes the time stamp."""
    values = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != "at"}
    return LogLine(wall_at=wall_at, level=level_of(event), event=event.NAME, fields=values)


def level_of(event: Event) -> int:
    """That of its kind; a bad end is worth a look."""
    if isinstance(event, ItemEnded):
        return logging.WARNING if event.outcome in (Outcome.FAILED, Outcome.EXPIRED) else logging.INFO
    if isinstance(event, BatchEnded):
        return logging.WARNING if event.state in ("failed", "expired") else logging.INFO
    if isinstance(event, JobEnded):
        return logging.WARNING if event.state == "failed" else logging.INFO
    if isinstance(event, SwapCompleted):
        return logging.WARNING if event.offloaded else logging.INFO
    return event.LEVEL


def may_reach(kind: type[Event], level: int) -> bool:
    """False where no event of this kind is ever logged at this level or above."""
    return level <= kind.LEVEL


def to_json(line: LogLine) -> str:
    """One JSON object in ASCII without a line break: `ts` (RFC 3339, UTC, ms), `level`, `event`, then the fields."""
    time = datetime.fromtimestamp(line.wall_at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level = _LEVEL_NAMES.get(line.level) or logging.getLevelName(line.level).lower()
    fields = "".join([f',"{name}":{_json_of(raw)}' for name, raw in line.fields.items()])
    return f'{{"ts":"{time}","level":"{level}","event":{_encoded(clean(line.event))}{fields}}}'


def _json_of(raw: object) -> str:
    """The JSON of one value, in half the time that an encoder takes for all of them."""
    if isinstance(raw, float) and math.isfinite(raw):
        return repr(round(raw, 6))
    if type(raw) is int:
        return str(raw)
    return "null" if raw is None else _encoded(value_of(raw))


def to_text(line: LogLine, *, colour: bool) -> str:
    """One line for people: local time, level glyph, the event in words, then `key=value` for every field that says something."""
    time = datetime.fromtimestamp(line.wall_at, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    level = max((known for known in _GLYPHS if known <= line.level), default=logging.DEBUG)
    words = escape(clean(line.event)).replace("_", " ").ljust(_EVENT_WIDTH)
    pairs = "  ".join(f"{name}={_shown(value)}" for name, value in _said(line.fields))
    if not colour:
        return f"{time} {_GLYPHS[level]} {words} {pairs}".rstrip()
    return f"{_DIM}{time}{_RESET} {_COLOURS[level]}{_GLYPHS[level]} {words}{_RESET} {_DIM}{pairs}{_RESET}"


def value_of(raw: object) -> Field:
    """A value that JSON can hold: text cleaned, floats finite and rounded to the microsecond, tuples as lists of at most 20 texts."""
    if type(raw) in _AS_THEY_ARE:
        return cast("Field", raw)
    if isinstance(raw, float):
        return round(raw, 6) if math.isfinite(raw) else str(raw)
    if isinstance(raw, str):
        return clean(str(raw))
    if isinstance(raw, tuple | list | set | frozenset):
        return _list_of([str(item) for item in raw])
    return clean(str(raw))


def clean(text: str) -> str:
    """The text without credentials and at most 500 characters long."""
    if len(text) < _SHORTEST_SECRET_CHARS or (text.isalnum() and len(text) <= MAX_FIELD_CHARS):  # each pattern above has a separator in it
        return text
    scanned = text[:_SCANNED_CHARS]
    for pattern, replacement in _SECRETS if _SUSPICIOUS.search(scanned) else ():
        scanned = pattern.sub(replacement, scanned)
    return scanned if len(scanned) <= MAX_FIELD_CHARS else scanned[: MAX_FIELD_CHARS - 1] + "…"


def escape(text: str) -> str:
    """The text with everything that is not printable (line breaks, ESC, direction overrides, lone surrogates) as a Python escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _list_of(items: list[str]) -> list[str]:
    kept = [clean(item) for item in items[:MAX_LIST_ITEMS]]
    return kept if len(items) <= MAX_LIST_ITEMS else [*kept, f"… and {len(items) - MAX_LIST_ITEMS} more"]


def _said(values: Mapping[str, object]) -> list[tuple[str, Field]]:
    cleaned = ((name, value_of(raw)) for name, raw in values.items())
    return [(name, value) for name, value in cleaned if value not in (None, "", [])]


def _shown(value: Field) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return _quoted(",".join(value) if isinstance(value, list) else str(value))


def _quoted(text: str) -> str:
    """Quoted where a reader could otherwise take one value for several pairs."""
    if text.isprintable() and not set(text) & set(" =\"'\\"):
        return text
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


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
