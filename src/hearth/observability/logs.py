"""Events as log lines, what other libraries log in the same format on the same output, and the
thread that writes them.

Whatever a caller can put into a name or an error text ends up in a line, so no line can forge
another, drive a terminal, or carry a credential that slipped into a text. A slow, blocked or closed
output never delays the gateway: lines that find no room are dropped and counted. Colour follows
https://no-color.org and https://force-color.org: NO_COLOR wins, then FORCE_COLOR, then whether it
is a terminal.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import select
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from math import inf
from typing import TextIO

from hearth.clock import Clock, rfc3339_ms
from hearth.config.settings import LogFormat
from hearth.errors import BudgetExceeded
from hearth.events import (
    BatchEnded,
    BudgetExhausted,
    Event,
    GatewayStopped,
    ItemEnded,
    JobEnded,
    RequestRejected,
    SwapCompleted,
)
from hearth.types import JsonDict, JsonMapping, value

MAX_FIELD_CHARS = 500
MAX_LIST_ITEMS = 20
# a secret may be cut here, but only in text that is cut away afterwards
_SCANNED_CHARS = 4 * MAX_FIELD_CHARS
_SECRETS = (
    (re.compile(r"(?i)\bbearer\s+[^\s\"',;]+"), "Bearer ***"),
    (re.compile(r"(?i)\b(authorization\"?\s*[:=]\s*\"?)basic\s+[^\s\"',;]+"), r"\1Basic ***"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"), "sk-***"),
    # of Hearth's own keys, which are longer than any of its names
    (re.compile(r"\bhearth_[A-Za-z0-9_-]{40,}"), "hearth_***"),
    (re.compile(r"(?i)\b(https?://)[^\s/@]{1,200}@"), r"\1***@"),
    (
        re.compile(r"(?i)\bhttps?://[^\s/]{1,200}/(?:[^\s/]{1,100}/){0,4}webhooks?/[^\s\"'<>]+"),
        "https://***/webhooks/***",
    ),
    (
        re.compile(
            r"(?i)\b(x-api-key|api[_-]?key|authorization|password|secret|token)"
            r"(\"?\s*[:=]\s*\"?)(?!\w+ \*)[^\s\"',;&]+"
        ),
        r"\1\2***",
    ),
)
_SUSPICIOUS = (
    "bearer",
    "sk-",
    "hearth_",
    "://",
    "key",
    "authorization",
    "password",
    "secret",
    "token",
)
"""One of them is in every text that a pattern above could match: most texts need no
substitution.
"""
_LOOKS = {
    logging.DEBUG: ("·", "\x1b[2m"),
    logging.INFO: ("·", "\x1b[32m"),
    logging.WARNING: ("!", "\x1b[33m"),
    logging.ERROR: ("✗", "\x1b[31m"),
}
"""Glyph and colour."""
_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_EVENT_WIDTH = 20
_encode = json.JSONEncoder(separators=(",", ":")).encode
LogValue = str | int | float | bool | list[str] | None


@value
class LogLine:
    """What one line says.

    `wall_at`: seconds since 1970-01-01 UTC; `level`: a number of `logging`; `fields` are not yet
    cleaned.
    """

    wall_at: float
    level: int
    event: str
    fields: JsonMapping


def line_of(event: Event, wall_at: float) -> LogLine:
    """The line of an event: every field but `at`, which becomes the time stamp, and what only the
    store keeps.
    """
    fields = vars(event).copy()
    del fields["at"]
    fields.pop("counted", None)
    fields.pop("emulated", None)
    fields.pop("user", None)
    return LogLine(wall_at=wall_at, level=level_of(event), event=event.NAME, fields=fields)


_ENDS = (ItemEnded, BatchEnded, JobEnded, SwapCompleted)
"""A bad one is worth a look."""


def level_of(event: Event) -> int:
    """That of its kind, or WARNING for a bad end."""
    if not isinstance(event, _ENDS):
        return event.LEVEL
    if isinstance(event, SwapCompleted):
        return logging.WARNING if event.offloaded else event.LEVEL
    state = event.outcome if isinstance(event, ItemEnded) else event.state
    return logging.WARNING if state in ("failed", "expired") else event.LEVEL


def to_json(line: LogLine) -> str:
    """One JSON object in ASCII without a line break: `ts` (RFC 3339, UTC, ms), `level`, `event`,
    then the fields.
    """
    head = {
        "ts": rfc3339_ms(line.wall_at),
        "level": logging.getLevelName(line.level).lower(),
        "event": clean(line.event),
    }
    return _encode({**head, **{name: _field(raw) for name, raw in line.fields.items()}})


def to_text(line: LogLine, *, colour: bool) -> str:
    """One line for people: local time, level glyph, the event in words, then `key=value` for every
    field that says something.
    """
    time = datetime.fromtimestamp(line.wall_at, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    glyph, shade = _LOOKS[
        max((known for known in _LOOKS if known <= line.level), default=logging.DEBUG)
    ]
    words = escape(clean(line.event)).replace("_", " ").ljust(_EVENT_WIDTH)
    fields = ((name, _field(raw)) for name, raw in line.fields.items())
    pairs = "  ".join(
        f"{name}={_shown(field)}" for name, field in fields if field not in (None, "", [])
    )
    if not colour:
        return f"{time} {glyph} {words} {pairs}".rstrip()
    return f"{_DIM}{time}{_RESET} {shade}{glyph} {words}{_RESET} {_DIM}{pairs}{_RESET}"


def _field(raw: object) -> LogValue:
    """A value that JSON can hold: text cleaned, floats finite and rounded to the microsecond,
    tuples as lists of at most 20 texts, a mapping as such a list of its pairs.
    """
    if raw is None or isinstance(raw, int):
        return raw
    if isinstance(raw, float):
        return round(raw, 6) if math.isfinite(raw) else str(raw)
    if isinstance(raw, Mapping):
        raw = [f"{name} {value}" for name, value in raw.items()]
    if isinstance(raw, tuple | list | set | frozenset):
        kept = [clean(str(item)) for item in islice(raw, MAX_LIST_ITEMS)]
        more = len(raw) - MAX_LIST_ITEMS
        return [*kept, f"… and {more} more"] if more > 0 else kept
    return clean(str(raw))


def clean(text: str) -> str:
    """The text without credentials and at most 500 characters long."""
    scanned = text[:_SCANNED_CHARS]
    folded = scanned.casefold()
    for pattern, replacement in _SECRETS if any(word in folded for word in _SUSPICIOUS) else ():
        scanned = pattern.sub(replacement, scanned)
    return scanned if len(scanned) <= MAX_FIELD_CHARS else scanned[: MAX_FIELD_CHARS - 1] + "…"


def escape(text: str) -> str:
    """The text with everything that is not printable (line breaks, ESC, direction overrides, lone
    surrogates) as a Python escape.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def _shown(field: LogValue) -> str:
    """Quoted where a reader could otherwise take one value for several pairs."""
    if isinstance(field, bool):
        return "yes" if field else "no"
    if isinstance(field, float):
        return f"{field:.3f}".rstrip("0").rstrip(".")
    text = ",".join(field) if isinstance(field, list) else str(field)
    if text.isprintable() and not set(text) & set(" =\"'\\"):
        return text
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


LINES_PER_MINUTE = 10
"""For refusals that are alike: the same event, caller, status and reason."""
WINDOW_S = 60.0
KINDS = 1000
"""Told apart in a minute; the rest share a count.

All who have shown no key are one caller, without a name.
"""
OTHERS = "others"
QUEUED_LINES = 10_000
CLOSE_TIMEOUT_S = 2.0
GATHER_S = 0.1
"""A pause before the thread looks for more lines: waking it for each one costs the event loop more
than the lines themselves.
"""
_MAX_FRAMES = 20

Kind = tuple[str, str, int, str]
"""What makes two refusals alike: the event of the line that counts them, caller, status, reason."""


class Repeats:
    """Counts of the current minute, which begins with the first refusal after the last one."""

    def __init__(self) -> None:
        self._ends_at = inf
        self._seen: Counter[Kind] = Counter()

    def admits(self, refusal: RequestRejected | BudgetExhausted) -> bool:
        """Whether it gets a line of its own; it is counted either way."""
        if not self._seen:
            self._ends_at = refusal.at + WINDOW_S
        if isinstance(refusal, BudgetExhausted):
            kind: Kind = (
                "more_budget_exhausted",
                refusal.caller,
                BudgetExceeded.status,
                BudgetExceeded.reason,
            )
        else:
            kind = ("more_requests_rejected", refusal.caller, refusal.status, refusal.reason)
        if kind not in self._seen and len(self._seen) >= KINDS:
            kind = ("more_requests_rejected", OTHERS, 0, OTHERS)
        self._seen[kind] += 1
        return self._seen[kind] <= LINES_PER_MINUTE

    def left_out(self, now: float) -> list[tuple[Kind, int]]:
        """How many got no line in a minute that is over by `now`; reported once."""
        if now < self._ends_at:
            return []
        seen = self._seen
        self._seen = Counter()
        self._ends_at = inf
        return [
            (kind, count - LINES_PER_MINUTE)
            for kind, count in seen.items()
            if count > LINES_PER_MINUTE
        ]


class LogSink:
    """An `EventSink` that writes a line for every event that is loud enough: past `logging`, which
    takes longer than all else about a line. Refusals that repeat themselves are summed up
    (`Repeats`), with the first event after their minute, and with the last of all.
    """

    def __init__(self, clock: Clock, output: LogOutput) -> None:
        self._clock = clock
        self._output = output
        self._repeats = Repeats()

    def emit(self, event: Event) -> None:
        """Log the event; never blocks."""
        if level_of(event) < self._output.level:
            return
        wall_at = self._clock.wall() - (self._clock.monotonic() - event.at)
        for kind, count in self._repeats.left_out(
            inf if isinstance(event, GatewayStopped) else event.at
        ):
            fields = dict(zip(("caller", "status", "reason"), kind[1:], strict=True))
            self._output.put(
                LogLine(
                    wall_at=wall_at,
                    level=logging.WARNING,
                    event=kind[0],
                    fields={**fields, "count": count},
                )
            )
        if not isinstance(event, RequestRejected | BudgetExhausted) or self._repeats.admits(event):
            self._output.put(line_of(event, wall_at))

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """See `ports.HandlingSink`."""
        loudest = logging.WARNING if kind in _ENDS else kind.LEVEL
        return self.emit if self._output.level <= loudest else None


class LogTarget:
    """Where text goes: the stream's own descriptor where it has one, past its buffer, else the
    stream, which is left open. A thread stuck in a buffered stream would hold the lock that the
    interpreter needs at exit (it aborts then); and the stream's own descriptor number may be closed
    and given to a caller's socket.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._fd: int | None = None
        self._is_torn = False
        """A disk that was full took the beginning of a line only."""
        with suppress(OSError, ValueError):
            stream.flush()
            self._fd = os.dup(stream.fileno())

    def write(self, text: str) -> None:
        """Blocks until it is written. Raises OSError, ValueError."""
        if self._fd is None:
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(self._encoding, errors="backslashreplace")
        rest = memoryview(b"\n" + data if self._is_torn else data)
        while rest:
            try:
                written = os.write(self._fd, rest)
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                continue
            self._is_torn = rest[written - 1] != ord("\n")
            rest = rest[written:]

    def close(self) -> None:
        """To be called once, by whoever writes."""
        if self._fd is not None:
            os.close(self._fd)


class LogOutput:
    """The configured output of this process, until `close`: a bounded queue of lines, and the
    daemon thread that empties it. A line that finds the queue full, or that the target refuses, is
    dropped and counted; the count is written as a line of its own (`log_lines_dropped`) as soon as
    something can be written again. `put` may be called from any thread.
    """

    def __init__(
        self, target: LogTarget, render: Callable[[LogLine], str], *, capacity: int, level: int
    ) -> None:
        self.level = level
        self.on_line: Callable[[LogLine], None] | None = None
        """Gets each line, also those that are dropped, on whatever thread it was logged."""
        self.dropped = 0
        """Lines lost because the output was too slow, blocked or closed."""
        self._reported = 0
        self._target = target
        self._render = render
        self._queue: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hearth-log", daemon=True)
        self._thread.start()
        self._handler = _LineHandler(self.put)
        self._level_before = logging.getLogger("hearth").level
        logging.getLogger("hearth").setLevel(level)
        self._collected_before = (
            logging.logThreads,
            logging.logProcesses,
            logging.logMultiprocessing,
        )
        # no line shows them, and they cost half a record
        logging.logThreads = False
        logging.logProcesses = False
        logging.logMultiprocessing = False
        logging.getLogger().addHandler(self._handler)

    def put(self, line: LogLine) -> None:
        """Queue a line; never blocks."""
        if self.on_line is not None:
            self.on_line(line)
        if self._queue.qsize() < self._capacity:
            self._queue.put(line)
        else:
            self._drop()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Detach from logging, then write what is queued; False when the output did not take it
        within about `timeout_s`.
        """
        logging.getLogger().removeHandler(self._handler)
        logging.getLogger("hearth").setLevel(self._level_before)
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing = (
            self._collected_before
        )
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            self._write_line(line)
            if self._queue.empty():
                self._closing.wait(GATHER_S)
        self._target.close()

    def _write_line(self, line: LogLine) -> None:
        missing = self.dropped - self._reported
        report = LogLine(
            wall_at=line.wall_at,
            level=logging.WARNING,
            event="log_lines_dropped",
            fields={"count": missing},
        )
        if missing and self._write(report):
            self._reported += missing
        if not self._write(line):
            self._drop()

    def _write(self, line: LogLine) -> bool:
        try:
            self._target.write(self._render(line) + "\n")
        except (
            OSError,
            ValueError,
            OverflowError,
        ):  # a closed output, or an instant that no calendar can show
            return False
        return True

    def _drop(self) -> None:
        with self._counting:
            self.dropped += 1


def configure_logging(
    log_format: LogFormat,
    stream: TextIO,
    *,
    level: str = "info",
    environ: Mapping[str, str] | None = None,
    queued_lines: int = QUEUED_LINES,
) -> LogOutput:
    """Send everything that is logged in this process to `stream`: `hearth` from `level`, other
    libraries as the root logger says (WARNING). `environ`: where NO_COLOR, FORCE_COLOR and TERM are
    looked up; the process's environment when None. `queued_lines`: lines held for a slow output;
    more are dropped and counted.
    """
    known = os.environ if environ is None else environ
    is_terminal = stream.isatty() and known.get("TERM") != "dumb"
    colour = not known.get("NO_COLOR") and (
        known["FORCE_COLOR"] != "0" if known.get("FORCE_COLOR") else is_terminal
    )
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    render = partial(to_text, colour=colour) if is_text else to_json
    return LogOutput(
        LogTarget(stream), render, capacity=queued_lines, level=logging.getLevelName(level.upper())
    )


class _LineHandler(logging.Handler):
    """Hands what a library logged on as lines.

    Of an exception only the type and the frames: its text may quote a request.
    """

    def __init__(self, put: Callable[[LogLine], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        """Never blocks; formatting happens on the writing thread."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001
            # A library's own mistake, in its format string or in what it would show.
            message = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        fields: JsonDict = {"logger": record.name, "message": message}
        if record.exc_info and record.exc_info[0] is not None:
            # asyncio goes on with the future, which quotes the text
            fields["message"] = message.partition("\n")[0]
            fields["error"] = record.exc_info[0].__name__
            trace = record.exc_info[1].__traceback__ if record.exc_info[1] is not None else None
            frames = [
                f"{frame.f_globals.get('__name__', '?')}:{number}"
                for frame, number in traceback.walk_tb(trace)
            ]
            fields["frames"] = frames[-_MAX_FRAMES:]
        self._put(LogLine(wall_at=record.created, level=record.levelno, event="log", fields=fields))
