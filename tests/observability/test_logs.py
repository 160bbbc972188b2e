"""The log: what a line says, whatever text is in it, and how lines get to one output that may be
slow, blocked or closed.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from hearth import events as ev
from hearth.config.settings import LogFormat
from hearth.observability import logs
from hearth.observability.fanout import EventFanout
from hearth.observability.logs import (
    MAX_FIELD_CHARS,
    LogLine,
    LogOutput,
    LogSink,
    Repeats,
    clean,
    escape,
    level_of,
    line_of,
    to_json,
    to_text,
)
from hearth.types import Outcome
from tests.observability.samples import all_kinds, ended, fact, rejected, sample
from tests.support.cases import for_each
from tests.support.fields import Fields
from tests.support.patience import WITHIN_S
from tests.support.stopped_clock import StoppedClock

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z
CLOCK = StoppedClock(monotonic_s=100.0, wall_s=NOON)

# What a line says.

HOSTILE = [
    *(
        'x\n{"level":"error","event":"forged"}',
        "x\r\nforged",
        "\x1b[2J\x1b]0;owned\x07",
        "\x9b31m",
        "a\u2028b\u2029c",
    ),
    *("\u202egnp.exe", "\ud800 lone", "\x00\x08\x7f", 'a" b=c "', "x" * 100_000),
]


@pytest.mark.parametrize("text", ["word", *HOSTILE])
@for_each("kind", all_kinds())
def test_every_kind_of_event_is_one_line_with_every_field_in_either_format(
    kind: type[ev.Event], text: str
):
    line = line_of(sample(kind, text=text), NOON)
    as_json = to_json(line)
    as_text = to_text(line, colour=False)
    loaded = json.loads(as_json)
    assert list(loaded)[:3] == ["ts", "level", "event"]
    assert (loaded["ts"], loaded["event"]) == ("2026-01-01T12:00:00.000Z", kind.NAME)
    assert set(loaded) - {"ts", "level", "event"} == {field.name for field in fields(kind)} - {
        "at",
        "counted",
        "emulated",
        "user",
    }
    assert (as_json.isascii(), as_json.isprintable(), as_text.isprintable()) == (True, True, True)
    assert kind.NAME.replace("_", " ") in as_text
    assert len(as_json) < 10_000


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.DEF-123", "abc.DEF-123"),
        ("bearer   hunter2", "hunter2"),
        ("invalid key sk-ant-api03-AAAA_BBBB", "AAAA_BBBB"),
        (f"model hearth_{'Ab-_' * 10}xyz not found", "Ab-_Ab"),
        ("POST https://discord.com/api/webhooks/123456/tokenTOKEN failed", "tokenTOKEN"),
        ("https://discordapp.com/api/v10/webhooks/1/zzz?wait=true", "zzz"),
        ("https://user:hunter2@example.org/x", "hunter2"),
        ('{"api_key": "hunter2"}', "hunter2"),
        ("x-api-key: hunter2", "hunter2"),
        ("Authorization: Basic cHJveHk6aHVudGVyMg==", "cHJveHk6aHVudGVyMg"),
        ("password=hunter2&x=1", "hunter2"),
        ("z" * (MAX_FIELD_CHARS - 8) + " Bearer hunter2", "hunter2"),
        ("z" * 1990 + " sk-ant-api03-AAAA_BBBB", "AAAA"),
    ],
)
def test_credentials_that_slip_into_a_text_are_masked(text: str, secret: str):
    line = line_of(rejected(caller=text), NOON)
    assert secret not in to_json(line) + to_text(line, colour=False)


@pytest.mark.parametrize(
    "plain",
    [
        "qwen2.5:32b-instruct-q6_K",
        "open webui",
        "the token limit was reached",
        "task-runner",
        "/api/chat?x=1",
    ],
)
def test_a_plain_value_is_written_as_it_is(plain: str):
    assert escape(clean(plain)) == plain


def test_a_value_is_cut_at_its_longest_and_a_list_says_how_many_more():
    assert (len(clean("y" * 5000)), clean("y" * 5000)[-1]) == (MAX_FIELD_CHARS, "…")
    many = LogLine(
        wall_at=NOON,
        level=logging.CRITICAL,
        event="log",
        fields={"problems": tuple(str(n) for n in range(50))},
    )
    assert json.loads(to_json(many))["problems"][-1] == "… and 30 more"
    assert " ✗ log" in to_text(many, colour=False)


def test_a_value_cannot_pretend_to_be_another_pair():
    line = to_text(line_of(rejected(caller='x  status=200 path="/"'), NOON), colour=False)
    assert 'caller="x  status=200 path=\\"/\\""' in line
    assert "  status=429" in line


def test_in_json_numbers_are_rounded_and_no_number_is_a_word():
    loaded = json.loads(
        to_json(line_of(ended(queue_s=float("inf"), swap_s=float("nan"), total_s=1.00000049), NOON))
    )
    assert (loaded["queue_s"], loaded["swap_s"], loaded["total_s"]) == ("inf", "nan", 1.0)
    assert (loaded["attempts"], loaded["task_type"], loaded["lane"]) == (1, None, "external")


def test_a_text_line_begins_with_who_and_what_and_leaves_out_nothing_said():
    text = to_text(line_of(ended(), NOON), colour=False)
    begins = (
        "· item ended           sequence=1  request_id=req_1  lane=external  "
        "caller=webui  model=home:32b  outcome=completed"
    )
    assert text[13:].startswith(begins)
    assert "queue_s=0.25  swap_s=0  first_byte_s=0.5" in text
    assert "task_type" not in text


def test_colour_only_surrounds_what_a_line_says():
    failed = line_of(ended(Outcome.FAILED), NOON)
    coloured = to_text(failed, colour=True)
    assert ("\x1b[33m!" in coloured, coloured[-4:]) == (True, "\x1b[0m")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == to_text(failed, colour=False)


LEVELS = {
    logging.DEBUG: (
        "embeddings_flushed energy_measured item_dispatched item_promoted item_queued item_stopped "
        "item_streaming job_queued job_started model_held suspend_followed suspend_unfollowed"
    ),
    logging.WARNING: (
        "alert_failed backend_answer_unexpected backend_went_down budget_exhausted "
        "budget_threshold_reached clock_doubted "
        "cloud_went_down comfyui_unreadable config_rejected connections_crowded "
        "conversation_unsaved disk_ran_low "
        "embeddings_parted emulator_started engine_exited gpu_lease_late gpu_lost "
        "gpu_overheated home_model_missing item_broken_off item_diverged item_lost "
        "item_protected item_resent job_requeued "
        "keys_tried load_cutting_stopped loop_lagged model_offloaded "
        "model_slow model_stays_slow model_unresponsive order_dropped owner_warned "
        "request_rejected residency_drifted saving_switched_off sleep_failed small_model_answers "
        "storage_failed swap_completed "
        "swap_failed "
        "telemetry_failed wal_damaged webhook_failed yield_watch_off"
    ),
    logging.ERROR: "internal_fault",
}
ENDS: list[tuple[ev.Event, bool]] = [
    *((ended(outcome), outcome in {Outcome.FAILED, Outcome.EXPIRED}) for outcome in Outcome),
    *(
        (sample(ev.JobEnded, state=state), state == "failed")
        for state in ("completed", "cancelled", "failed")
    ),
    *(
        (sample(ev.BatchEnded, state=state), state in {"failed", "expired"})
        for state in ("completed", "cancelled", "failed", "expired")
    ),
    *((sample(ev.SwapCompleted, offloaded=offloaded), offloaded) for offloaded in (True, False)),
]


def test_levels_follow_what_an_owner_should_look_at():
    for level, names in LEVELS.items():
        assert (
            " ".join(sorted(kind.NAME for kind in all_kinds() if level_of(sample(kind)) == level))
            == names
        )
    for event, is_bad in ENDS:
        assert level_of(event) == (logging.WARNING if is_bad else logging.INFO), event
    stream = io.StringIO()
    with logging_to(stream, level="warning") as (_, sink):
        for event, _ in ENDS:
            EventFanout((sink,)).emit(event)
    assert [line["event"] for line in lines(stream)] == [
        event.NAME for event, is_bad in ENDS if is_bad
    ]


# How it gets to the output.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


@contextmanager
def logging_to(
    stream: io.StringIO, log_format: LogFormat = "json", level: str = "debug", **environ: str
) -> Iterator[tuple[LogOutput, LogSink]]:
    output = logs.configure_logging(log_format, stream, level=level, environ=environ)
    try:
        yield output, LogSink(CLOCK, output)
    finally:
        assert output.close()


def lines(stream: io.StringIO) -> list[Fields]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_at_info_a_finished_item_is_one_line_with_the_time_of_its_end():
    stream = io.StringIO()
    with logging_to(stream, level="info") as (_, sink):
        for kind in (ev.ItemQueued, ev.ItemDispatched, ev.ItemStreaming, ev.ItemEnded):
            sink.emit(sample(kind, at=98.5))
    assert [(line["event"], line["ts"]) for line in lines(stream)] == [
        ("item_ended", "2026-01-01T11:59:58.500Z")
    ]


@pytest.mark.parametrize(
    ("log_format", "kind", "environ", "is_json", "coloured"),
    [
        ("json", Terminal, {}, True, False),
        ("auto", io.StringIO, {}, True, False),
        ("auto", Terminal, {}, False, True),
        ("text", Terminal, {"TERM": "dumb"}, False, False),
        ("text", Terminal, {"NO_COLOR": "1"}, False, False),
        ("text", Terminal, {"NO_COLOR": ""}, False, True),
        ("text", Terminal, {"FORCE_COLOR": "0"}, False, False),
        ("text", io.StringIO, {}, False, False),
        ("text", io.StringIO, {"FORCE_COLOR": "1"}, False, True),
        ("text", io.StringIO, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_auto_is_text_in_a_terminal_and_json_elsewhere(
    log_format, kind, environ, is_json, coloured
):
    stream = kind()
    with logging_to(stream, log_format, **environ) as (_, sink):
        sink.emit(ended())
    said = stream.getvalue()
    assert (said.startswith("{"), "\x1b[" in said, said.count("\n")) == (is_json, coloured, 1)


class Unspeakable:
    def __str__(self) -> str:
        raise AttributeError


def test_libraries_log_in_the_same_format_and_of_an_exception_only_its_type():
    def fail() -> None:
        raise RuntimeError("the caller's prompt")

    stream = io.StringIO()
    with logging_to(stream):
        logging.getLogger("some.library").warning(
            "connection to %s\nfailed", "https://user:hunter2@example.org/"
        )
        logging.getLogger("some.library").info("chatter")
        logging.getLogger("hearth.part").info("ours")
        for said in (
            {"msg": "it is %s", "args": (Unspeakable(),)},
            {"msg": Unspeakable()},
            {"msg": "%d apples", "args": ("three",)},
        ):
            logging.getLogger().handlers[-1].handle(
                logging.makeLogRecord({"name": "some.library", **said})
            )
        try:
            fail()
        except RuntimeError as error:
            logging.getLogger("some.library").exception("it failed")
            loop = asyncio.new_event_loop()
            future = loop.create_future()
            future.set_exception(error)
            loop.call_exception_handler(
                {
                    "message": "Future exception was never retrieved",
                    "exception": error,
                    "future": future,
                }
            )
            future.exception()
            loop.close()
    first, *others, failed, future_failed = lines(stream)
    assert (first["level"], first["event"], first["logger"]) == ("warning", "log", "some.library")
    assert first["message"] == "connection to https://***@example.org/\nfailed"
    assert [line["message"] for line in others] == ["ours", "it is %s", "Unspeakable", "%d apples"]
    for line, text in (
        (failed, "it failed"),
        (future_failed, "Future exception was never retrieved"),
    ):
        assert (line["error"], line["message"], line["frames"][-1].rpartition(":")[0]) == (
            "RuntimeError",
            text,
            __name__,
        )
    assert "prompt" not in stream.getvalue()


def test_closing_restores_logging_as_it_was():
    def state() -> tuple[object, ...]:
        root = logging.getLogger()
        ours = logging.getLogger("hearth")
        return (
            list(root.handlers),
            ours.level,
            logging.logThreads,
            logging.logProcesses,
            logging.logMultiprocessing,
        )

    before = state()
    stream = io.StringIO()
    with logging_to(stream) as (_, sink):
        assert state()[2:] == (False, False, False)
        assert state()[:2] != before[:2]
    assert state() == before
    sink.emit(ended())
    assert stream.getvalue() == ""


def test_a_blocked_output_delays_nobody_and_its_losses_are_reported_later():
    stream = GatedOutput()
    output = logs.configure_logging("json", stream, environ={}, queued_lines=4)
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


def test_what_cannot_be_written_is_dropped_and_counted_and_reported_once():
    """A closed output, a pipe whose reader is gone, and an instant that no calendar shows."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as unread:
        for closed in (ClosedOutput(), unread):
            output = logs.configure_logging("json", closed, environ={})
            LogSink(CLOCK, output).emit(ended())
            assert (output.close(), output.dropped) == (True, 1)
    stream = io.StringIO()
    with logging_to(stream) as (output, sink):
        LogSink(StoppedClock(wall_s=1e300), output).emit(ended())
        for _ in range(32):
            sink.emit(ended())
    assert [line["event"] for line in lines(stream)] == ["log_lines_dropped"] + ["item_ended"] * 32


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next_one(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = tmp_path / "log"
    with file.open("w", encoding="utf-8") as stream:
        target = logs.LogTarget(stream)
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
    with (
        os.fdopen(writer, "w", encoding="utf-8") as stream,
        os.fdopen(reader, encoding="utf-8") as written,
    ):
        output = logs.configure_logging("json", stream, environ={})
        for _ in range(400):
            LogSink(CLOCK, output).emit(ended())
        assert [json.loads(next(written))["event"] for _ in range(400)] == ["item_ended"] * 400
        assert (output.close(), output.dropped) == (True, 0)


def test_an_unshowable_character_is_escaped_and_a_closed_stream_stays_closed():
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", encoding="ascii")
    output = logs.configure_logging("text", stream, environ={})
    stream.close()
    with (
        Path(os.devnull).open("rb") as _reuses_the_number,
        os.fdopen(reader, encoding="ascii") as written,
    ):
        logging.getLogger("some.library").error("grün")
        assert output.close()
        assert "gr\\xfcn" in next(written)


# Refusals that repeat themselves.


def told(repeats: Repeats, now: float) -> list[tuple[str, int, str, int]]:
    return [(*kind[1:], count) for kind, count in repeats.left_out(now)]


MOST = logs.LINES_PER_MINUTE
MINUTE_S = logs.WINDOW_S


def test_the_first_of_a_minute_are_told_and_the_rest_counted():
    repeats = Repeats()
    admitted = [repeats.admits(rejected(at=number / 10)) for number in range(MOST + 5)]
    assert admitted == [True] * MOST + [False] * 5
    assert told(repeats, MINUTE_S - 0.1) == []
    assert told(repeats, MINUTE_S) == [("webui", 429, "rate_limited", 5)]
    assert told(repeats, MINUTE_S + 1) == []


@pytest.mark.parametrize("other", [{"caller": "camera"}, {"status": 503}, {"reason": "queue_full"}])
def test_another_caller_status_or_reason_is_told_by_itself(other: Fields):
    repeats = Repeats()
    for number in range(MOST + 1):
        repeats.admits(rejected(at=number / 10))
    assert repeats.admits(rejected(at=1, **other))
    assert told(repeats, MINUTE_S) == [("webui", 429, "rate_limited", 1)]


def test_the_next_minute_begins_anew():
    repeats = Repeats()
    for number in range(MOST + 5):
        repeats.admits(rejected(at=number / 10))
    assert told(repeats, MINUTE_S) != []
    assert all(repeats.admits(rejected(at=MINUTE_S + 1)) for _ in range(MOST))
    assert told(repeats, 3 * MINUTE_S) == []


def test_ever_new_callers_take_no_memory_and_a_known_one_stays_its_own():
    repeats = Repeats()
    callers = [f"192.0.2.{number}" for number in range(logs.KINDS + 100)]
    new_ones = sum(repeats.admits(rejected(at=200, caller=caller)) for caller in callers)
    assert new_ones == logs.KINDS + MOST
    assert repeats.admits(rejected(at=200, caller="192.0.2.0"))
    assert told(repeats, 200 + MINUTE_S) == [(logs.OTHERS, 0, logs.OTHERS, 100 - MOST)]


SHORT = ev.BudgetExhausted(
    at=1, caller="webui", own=False, wanted_usd=0.2, spent_usd=0.9, limit_usd=1.0
)
STOPPED = ev.GatewayStopped(at=2, uptime_s=2)


@pytest.mark.parametrize(
    ("event", "next_one", "name", "reason"),
    [
        (rejected(at=1), fact(61), "more_requests_rejected", "rate_limited"),
        (rejected(at=1), STOPPED, "more_requests_rejected", "rate_limited"),
        (SHORT, fact(61), "more_budget_exhausted", "budget_exceeded"),
    ],
)
def test_the_log_sums_them_up_after_their_minute(event, next_one, name, reason):
    stream = io.StringIO()
    with logging_to(stream) as (_, sink):
        for each in (*(event for _ in range(1000)), fact(30), next_one):
            sink.emit(each)
    found = lines(stream)
    assert [line["event"] for line in found] == [event.NAME] * logs.LINES_PER_MINUTE + [
        "backend_went_down",
        name,
        next_one.NAME,
    ]
    summary = {
        "level": "warning",
        "event": name,
        "caller": "webui",
        "status": 429,
        "reason": reason,
        "count": 990,
    }
    assert {key: value for key, value in found[-2].items() if key != "ts"} == summary


BLOCKED_PROGRAM = """
import logging, sys
from hearth.config.settings import LogFormat
from hearth.observability.logs import configure_logging
output = configure_logging("json", sys.stdout, environ={}, queued_lines=2000)
for _ in range(2000):
    logging.getLogger("hearth").info("x" * 400)
output.close(timeout_s=0.05)
print("leaving", file=sys.stderr)
"""


def test_a_process_whose_stdout_nobody_reads_still_exits_cleanly():
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED_PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(WITHIN_S) == 0
    assert said == "leaving\n"
