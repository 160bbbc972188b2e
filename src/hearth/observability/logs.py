"""Events as log lines, and everything that other libraries log in the same format on the same output.

Renders and writes; decides nothing, keeps nothing, and never blocks whoever logs. `bootstrap` calls `configure_logging` once per process
and puts a `LogSink` into the fanout; `hearth serve` closes the output last.

Colour follows https://no-color.org and https://force-color.org: NO_COLOR wins, then FORCE_COLOR, then whether it is a terminal.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from hearth.clock import Clock
from hearth.config.settings import LogFormat
from hearth.errors import BudgetExceeded
from hearth.events import BudgetExhausted, Event, GatewayStopped, RequestRejected
from hearth.observability.log_writer import LineWriter, LogLine, level_of, line_of, may_reach, target_of, to_json, to_text
from hearth.types import value

TOLD = 10
"""Alike: the same event, caller, status and reason."""
WINDOW_S = 60.0
KINDS = 1000
"""Told apart in a minute; the rest share a count. All who have shown no key are one caller, without a name."""
OTHERS = "others"
REJECTED, EXHAUSTED = "more_requests_rejected", "more_budget_exhausted"


@value
class Kind:
    """What makes two refusals alike; `summary` is the event of the line that counts them."""

    summary: str
    caller: str
    status: int
    reason: str


_REST = Kind(summary=REJECTED, caller=OTHERS, status=0, reason=OTHERS)


class Repeats:
    """Counts of the current minute, which begins with the first refusal after the last one."""

    def __init__(self) -> None:
        self._ends_at = math.inf
        self._seen: dict[Kind, int] = {}

    def admits(self, refusal: RequestRejected | BudgetExhausted) -> bool:
        """Whether it gets a line of its own; it is counted either way."""
        if not self._seen:
            self._ends_at = refusal.at + WINDOW_S
        kind = _kind_of(refusal)
        if kind not in self._seen and len(self._seen) >= KINDS:
            kind = _REST
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._seen[kind] <= TOLD

    def left_out(self, now: float) -> list[tuple[Kind, int]]:
        """How many got no line in a minute that is over by `now`; told once."""
        if now < self._ends_at:
            return []
        seen, self._seen, self._ends_at = self._seen, {}, math.inf
        return [(kind, count - TOLD) for kind, count in seen.items() if count > TOLD]


def _kind_of(refusal: RequestRejected | BudgetExhausted) -> Kind:
    if isinstance(refusal, BudgetExhausted):
        return Kind(summary=EXHAUSTED, caller=refusal.caller, status=BudgetExceeded.status, reason=BudgetExceeded.reason)
    return Kind(summary=REJECTED, caller=refusal.caller, status=refusal.status, reason=refusal.reason)


QUEUED_LINES = 10_000
CLOSE_TIMEOUT_S = 2.0

_MAX_FRAMES = 20


class LogSink:
    """An `EventSink` that writes a line for every event that is loud enough: past `logging`, which takes longer than all else about a line.

    The time stamp is the wall time at which the event happened (its `at`), by the given clock. Refusals that repeat
    themselves are summed up (`repeats`), with the first event after their minute, and with the last of all.
    """

    def __init__(self, clock: Clock, output: LogOutput) -> None:
        self._clock = clock
        self._output = output
        self._repeats = Repeats()

    def emit(self, event: Event) -> None:
        """Log the event; never blocks."""
        if level_of(event) < self._output.level:
            return
        wall_at = _wall_at(event, self._clock)
        for kind, count in self._repeats.left_out(math.inf if isinstance(event, GatewayStopped) else event.at):
            fields = {"caller": kind.caller, "status": kind.status, "reason": kind.reason, "count": count}
            self._output.put(LogLine(wall_at=wall_at, level=logging.WARNING, event=kind.summary, fields=fields))
        if not isinstance(event, RequestRejected | BudgetExhausted) or self._repeats.admits(event):
            self._output.put(line_of(event, wall_at))

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if may_reach(kind, self._output.level) else None


class LogOutput:
    """The configured output of this process, until `close`."""

    def __init__(self, writer: LineWriter, level: int) -> None:
        self.level = level
        self.put = writer.put
        self._writer = writer
        self._handler = _LineHandler(writer)
        self._logger = logging.getLogger("hearth")
        self._level_before = self._logger.level
        self._logger.setLevel(level)
        self._collected_before = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line shows them, and they cost half a record
        logging.getLogger().addHandler(self._handler)

    @property
    def dropped(self) -> int:
        """Lines lost because the output was too slow, blocked or closed."""
        return self._writer.dropped

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Detach from logging, then write what is queued; False when the output did not take it within about `timeout_s`."""
        logging.getLogger().removeHandler(self._handler)
        self._logger.setLevel(self._level_before)
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing = self._collected_before
        return self._writer.close(timeout_s)


def configure_logging(
    log_format: LogFormat,
    stream: TextIO,
    *,
    level: str = "info",
    environ: Mapping[str, str] | None = None,
    queued_lines: int = QUEUED_LINES,
) -> LogOutput:
    """Send everything that is logged in this process to `stream`: `hearth` from `level`, other libraries as the root logger says (WARNING).

    Args:
        level: `info`, or `debug` for every step of every item.
        log_format: `text`, `json`, or `auto`: text in a terminal, JSON elsewhere.
        environ: where NO_COLOR, FORCE_COLOR and TERM are looked up; the process's environment when None.
        queued_lines: lines held for a slow output; more are dropped and counted.
    """
    render = _renderer(log_format, stream, os.environ if environ is None else environ)
    return LogOutput(LineWriter(target_of(stream), render, queued_lines), logging.getLevelName(level.upper()))


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether text on `stream` should be coloured."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return stream.isatty() and environ.get("TERM") != "dumb"


class _LineHandler(logging.Handler):
    """Hands records to the writer as lines; formatting happens on its thread."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(_foreign_line(record))


def _renderer(log_format: LogFormat, stream: TextIO, environ: Mapping[str, str]) -> Callable[[LogLine], str]:
    if log_format is LogFormat.TEXT or (log_format is LogFormat.AUTO and stream.isatty()):
        return partial(to_text, colour=wants_colour(stream, environ))
    return to_json


def _wall_at(event: Event, clock: Clock) -> float:
    return clock.wall() - (clock.monotonic() - event.at)


def _foreign_line(record: logging.LogRecord) -> LogLine:
    """What a library logged. Of an exception only the type and the frames: its text may quote a request."""
    fields: dict[str, object] = {"logger": record.name, "message": _message(record)}
    if record.exc_info and record.exc_info[0] is not None:
        fields["message"] = _message(record).partition("\n")[0]  # asyncio goes on with the future, which quotes the text
        fields["error"] = record.exc_info[0].__name__
        fields["frames"] = _frames(record.exc_info[1])
    return LogLine(wall_at=record.created, level=record.levelno, event="log", fields=fields)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a library's own mistake, in its format string or in what it would show
        return record.msg if isinstance(record.msg, str) else type(record.msg).__name__


def _frames(error: BaseException | None) -> list[str]:
    """`module:line` of the innermost frames, outermost first."""
    frames: list[str] = []
    trace = None if error is None else error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-_MAX_FRAMES:]
