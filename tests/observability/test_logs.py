"""Logging as a whole: events and library records on one output that may be slow, blocked or closed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hearth.config.settings import LogFormat
from hearth.events import BudgetExhausted, GatewayStopped, ItemDispatched, ItemEnded, ItemQueued, ItemStreaming, RequestRejected
from hearth.observability.logs import KINDS, LINES_PER_MINUTE, OTHERS, WINDOW_S, LogOutput, LogSink, Repeats, Target, configure_logging
from tests.cli.test_views import Terminal
from tests.observability.samples import ended, fact, rejected, sample
from tests.storage.house import StoppedClock
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

NOON = 1_767_268_800.0


CLOCK = StoppedClock(monotonic_s=100.0, wall_s=NOON)


class ClosedOutput(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class GatedOutput(io.StringIO):
    """Blocks in `write` until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.gate.wait(WITHIN_S)
        return super().write(text)


def fail() -> None:
    raise RuntimeError("the caller's prompt")


@contextmanager
def logging_to(
    stream: io.StringIO, log_format: LogFormat = LogFormat.JSON, level: str = "debug", **environ: str
) -> Iterator[tuple[LogOutput, LogSink]]:
    output = configure_logging(log_format, stream, level=level, environ=environ)
    try:
        yield output, LogSink(CLOCK, output)
    finally:
        assert output.close()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_at_info_a_finished_item_is_one_line_with_the_wall_time_of_its_end_and_its_steps_are_none():
    stream = io.StringIO()
    with logging_to(stream, level="info") as (_, sink):
        for kind in (ItemQueued, ItemDispatched, ItemStreaming, ItemEnded):
            sink.emit(sample(kind, at=98.5))
    assert [(line["event"], line["ts"]) for line in lines(stream)] == [("item_ended", "2026-01-01T11:59:58.500Z")]


@for_each(
    ("log_format", "stream", "is_json"),
    [
        (LogFormat.JSON, Terminal(), True),
        (LogFormat.TEXT, io.StringIO(), False),
        (LogFormat.AUTO, Terminal(), False),
        (LogFormat.AUTO, io.StringIO(), True),
    ],
)
def test_auto_is_text_in_a_terminal_and_json_elsewhere(log_format: LogFormat, stream: io.StringIO, is_json: bool):
    with logging_to(stream, log_format) as (_, sink):
        sink.emit(ended())
    assert stream.getvalue().startswith("{") is is_json
    assert stream.getvalue().count("\n") == 1


@for_each(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"FORCE_COLOR": "0"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_follows_the_conventions(stream: io.StringIO, environ: dict[str, str], coloured: bool):
    with logging_to(stream, LogFormat.TEXT, **environ) as (_, sink):
        sink.emit(ended())
    assert ("\x1b[" in stream.getvalue()) is coloured


def test_what_libraries_log_comes_out_in_the_same_format():
    stream = io.StringIO()
    with logging_to(stream):
        logging.getLogger("some.library").warning("connection to %s\nfailed", "https://user:hunter2@example.org/")
        logging.getLogger("some.library").info("chatter")
        logging.getLogger("hearth.part").info("ours")
    first, second = lines(stream)
    assert (first["level"], first["event"], first["logger"]) == ("warning", "log", "some.library")
    assert first["message"] == "connection to https://***@example.org/\nfailed"
    assert second["message"] == "ours"


def test_an_exception_is_logged_by_type_and_place_and_never_by_text_nor_with_a_future_that_quotes_it():
    stream = io.StringIO()
    with logging_to(stream):
        try:
            fail()
        except RuntimeError as error:
            logging.getLogger("some.library").exception("it failed")
            loop = asyncio.new_event_loop()
            future = loop.create_future()
            future.set_exception(error)
            loop.call_exception_handler({"message": "Future exception was never retrieved", "exception": error, "future": future})
            future.exception()
            loop.close()
    said = [(line["error"], line["message"], line["frames"][-1].rpartition(":")[0]) for line in lines(stream)]
    assert said == [("RuntimeError", text, __name__) for text in ("it failed", "Future exception was never retrieved")]
    assert "prompt" not in stream.getvalue()


class Unspeakable:
    def __str__(self) -> str:
        raise AttributeError


def test_a_library_that_logs_what_has_no_words_is_not_disturbed():
    stream = io.StringIO()
    with logging_to(stream):
        for said in ({"msg": "it is %s", "args": (Unspeakable(),)}, {"msg": Unspeakable()}, {"msg": "%d apples", "args": ("three",)}):
            logging.getLogger().handlers[-1].handle(logging.makeLogRecord({"name": "some.library", **said}))
    assert [line["message"] for line in lines(stream)] == ["it is %s", "Unspeakable", "%d apples"]


def test_closing_restores_logging_as_it_was():
    def state() -> tuple[object, ...]:
        root, ours = logging.getLogger(), logging.getLogger("hearth")
        return list(root.handlers), ours.level, logging.logThreads, logging.logProcesses, logging.logMultiprocessing

    before, stream = state(), io.StringIO()
    with logging_to(stream) as (_, sink):
        assert state()[2:] == (False, False, False)
        assert state()[:2] != before[:2]
    assert state() == before
    sink.emit(ended())
    assert stream.getvalue() == ""


def test_a_blocked_output_delays_nobody_and_its_losses_are_reported_later():
    stream = GatedOutput()
    output = configure_logging(LogFormat.JSON, stream, environ={}, queued_lines=4)
    sink = LogSink(CLOCK, output)
    sink.emit(ended())
    assert stream.entered.wait(WITHIN_S)
    for _ in range(10):
        sink.emit(ended())
    assert output.dropped == 6
    assert not output.close(timeout_s=0.02), "it gives up on an output that stays blocked"
    stream.gate.set()
    output._thread.join(WITHIN_S)
    events = lines(stream)
    assert [event["event"] for event in events].count("item_ended") == 5
    assert [event["count"] for event in events if event["event"] == "log_lines_dropped"] == [6]


def test_a_closed_output_and_a_pipe_whose_reader_is_gone_drop_and_count():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as unread:
        for stream in (ClosedOutput(), unread):
            output = configure_logging(LogFormat.JSON, stream, environ={})
            LogSink(CLOCK, output).emit(ended())
            assert (output.close(), output.dropped) == (True, 1)


def test_an_instant_that_no_calendar_shows_costs_one_line_and_not_the_log():
    stream = io.StringIO()
    output = configure_logging(LogFormat.JSON, stream, environ={})
    LogSink(StoppedClock(wall_s=1e300), output).emit(ended())
    for _ in range(32):
        LogSink(CLOCK, output).emit(ended())
    assert output.close()
    assert output.dropped == 1
    said = [line["event"] for line in lines(stream)]
    assert (said[0], said[1:]) == ("log_lines_dropped", ["item_ended"] * 32), "told once"


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next_one(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = tmp_path / "log"
    with file.open("w", encoding="utf-8") as stream:
        target = Target(stream)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
            target.write("first\n")
            for cut_off in ("second\n", "third\n"):
                with pytest.raises(OSError, match="File too large"):
                    target.write(cut_off)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        target.write("fourth\n")
        target.write("fifth\n")
        target.close()
    assert file.read_text().splitlines() == ["first", "seco", "fourth", "fifth"]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_full_pipe_gets_every_line_whole_once_it_is_read(blocking: bool):
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    with os.fdopen(writer, "w", encoding="utf-8") as stream, os.fdopen(reader, encoding="utf-8") as written:
        output = configure_logging(LogFormat.JSON, stream, environ={})
        sink = LogSink(CLOCK, output)
        for _ in range(400):
            sink.emit(ended())
        received = [json.loads(next(written))["event"] for _ in range(400)]
        assert output.close()
    assert received == ["item_ended"] * 400
    assert output.dropped == 0


def test_an_output_that_cannot_show_a_character_gets_its_escape():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream, os.fdopen(reader, encoding="ascii") as written:
        output = configure_logging(LogFormat.TEXT, stream, environ={})
        logging.getLogger("some.library").error("grün")
        assert output.close()
        assert "gr\\xfcn" in next(written)


def test_closing_the_stream_cannot_redirect_the_log_into_the_next_opened_file():
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    output = configure_logging(LogFormat.JSON, stream, environ={})
    stream.close()
    with Path(os.devnull).open("rb") as _reuses_the_number, os.fdopen(reader, encoding="utf-8") as written:
        LogSink(CLOCK, output).emit(ended())
        assert output.close()
        assert json.loads(next(written))["event"] == "item_ended"


# Refusals that repeat themselves.


def refusal(at: float, caller: str = "tagger", **more: Any) -> RequestRejected:
    return rejected(at=at, caller=caller, **more)


def told(repeats: Repeats, now: float) -> list[tuple[str, int, str, int]]:
    return [(*kind[1:], count) for kind, count in repeats.left_out(now)]


def test_the_first_of_a_minute_are_told_and_the_rest_are_counted() -> None:
    repeats = Repeats()
    assert [repeats.admits(refusal(number / 10)) for number in range(LINES_PER_MINUTE + 5)] == [True] * LINES_PER_MINUTE + [False] * 5
    assert told(repeats, WINDOW_S - 0.1) == []
    assert told(repeats, WINDOW_S) == [("tagger", 429, "rate_limited", 5)]
    assert told(repeats, WINDOW_S + 1) == []
    assert all(repeats.admits(refusal(WINDOW_S + 1)) for _ in range(LINES_PER_MINUTE)), "the next minute begins anew"
    assert told(repeats, 3 * WINDOW_S) == []


@for_each("other", [refusal(1, "camera"), refusal(1, status=503), refusal(1, reason="queue_full")])
def test_one_that_repeats_itself_hides_no_other(other: RequestRejected) -> None:
    repeats = Repeats()
    while repeats.admits(refusal(0)):
        pass
    assert repeats.admits(other)


def test_ever_new_callers_take_no_memory() -> None:
    repeats = Repeats()
    admitted = sum(repeats.admits(refusal(0, f"192.0.2.{number}")) for number in range(KINDS + 100))
    assert admitted == KINDS + LINES_PER_MINUTE
    assert told(repeats, WINDOW_S) == [(OTHERS, 0, OTHERS, 100 - LINES_PER_MINUTE)]


SHORT = BudgetExhausted(at=1, caller="tagger", own=False, wanted_usd=0.2, spent_usd=0.9, limit_usd=1.0)
REPEATED = [
    (refusal(1), fact(61), "more_requests_rejected", "rate_limited", "backend_went_down"),
    (refusal(1), GatewayStopped(at=2, uptime_s=2), "more_requests_rejected", "rate_limited", "gateway_stopped"),
    (SHORT, fact(61), "more_budget_exhausted", "budget_exceeded", "backend_went_down"),
]


@for_each(("event", "next_one", "name", "reason", "last"), REPEATED)
def test_the_log_sums_them_up_with_the_first_event_after_their_minute_or_the_last_of_all(event, next_one, name, reason, last) -> None:
    stream = io.StringIO()
    with logging_to(stream) as (_, sink):
        for each in (*(event for _ in range(1000)), fact(30), next_one):
            sink.emit(each)
    found = lines(stream)
    assert [line["event"] for line in found] == [event.NAME] * LINES_PER_MINUTE + ["backend_went_down", name, last]
    summary = {"level": "warning", "event": name, "caller": "tagger", "status": 429, "reason": reason, "count": 990}
    assert {key: value for key, value in found[-2].items() if key != "ts"} == summary


BLOCKED_PROGRAM = """
import logging, sys
from hearth.config.settings import LogFormat
from hearth.observability.logs import configure_logging
output = configure_logging(LogFormat.JSON, sys.stdout, environ={}, queued_lines=2000)
for _ in range(2000):
    logging.getLogger("hearth").info("x" * 400)
output.close(timeout_s=0.05)
print("leaving", file=sys.stderr)
"""


def test_a_process_whose_stdout_nobody_reads_still_exits_cleanly():
    with subprocess.Popen([sys.executable, "-c", BLOCKED_PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(WITHIN_S) == 0
    assert said == "leaving\n"
