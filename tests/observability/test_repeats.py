"""Refusals that repeat themselves: the first of a minute get a line each, the rest one line that counts them."""

from __future__ import annotations

import io
import json
from typing import Any

from hearth.events import BudgetExhausted, GatewayStopped, RequestRejected
from hearth.observability.logs import KINDS, OTHERS, TOLD, WINDOW_S, LogSink, Repeats
from hearth.types import RequestId
from tests.observability.samples import fact
from tests.observability.test_logs import StoppedClock, logging_to
from tests.support.cases import for_each


def refusal(at: float, caller: str = "tagger", *, status: int = 429, reason: str = "rate_limited") -> RequestRejected:
    return RequestRejected(at=at, request_id=RequestId("req_1"), caller=caller, path="/api/chat", status=status, reason=reason)


def told(repeats: Repeats, now: float) -> list[tuple[str, int, str, int]]:
    return [(kind.caller, kind.status, kind.reason, count) for kind, count in repeats.left_out(now)]


def test_the_first_of_a_minute_are_told_and_the_rest_are_counted() -> None:
    repeats = Repeats()
    assert [repeats.admits(refusal(number / 10)) for number in range(TOLD + 5)] == [True] * TOLD + [False] * 5
    assert told(repeats, WINDOW_S - 0.1) == []
    assert told(repeats, WINDOW_S) == [("tagger", 429, "rate_limited", 5)]
    assert told(repeats, WINDOW_S + 1) == []


def test_the_next_minute_begins_anew() -> None:
    repeats = Repeats()
    for number in range(TOLD + 1):
        repeats.admits(refusal(number))
    assert told(repeats, WINDOW_S) != []
    assert all(repeats.admits(refusal(WINDOW_S)) for _ in range(TOLD))
    assert told(repeats, 2 * WINDOW_S) == []


@for_each("other", [refusal(1, "camera"), refusal(1, status=503), refusal(1, reason="queue_full")])
def test_one_that_repeats_itself_hides_no_other(other: RequestRejected) -> None:
    repeats = Repeats()
    while repeats.admits(refusal(0)):
        pass
    assert repeats.admits(other)


def test_ever_new_callers_take_no_memory() -> None:
    repeats = Repeats()
    admitted = sum(repeats.admits(refusal(0, f"192.0.2.{number}")) for number in range(KINDS + 100))
    assert admitted == KINDS + TOLD
    assert told(repeats, WINDOW_S) == [(OTHERS, 0, OTHERS, 100 - TOLD)]


def test_the_log_sums_them_up_with_the_first_event_after_their_minute() -> None:
    stream = io.StringIO()
    with logging_to(stream) as output:
        sink = LogSink(StoppedClock(), output)
        for event in (*(refusal(1) for _ in range(1000)), fact(30), fact(61)):
            sink.emit(event)
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request_rejected"] * TOLD + [
        "backend_went_down",
        "more_requests_rejected",
        "backend_went_down",
    ]
    summary = {name: value for name, value in lines[-2].items() if name != "ts"}
    assert summary == {
        "level": "warning",
        "event": "more_requests_rejected",
        "caller": "tagger",
        "status": 429,
        "reason": "rate_limited",
        "count": 990,
    }


def test_a_stop_within_the_minute_keeps_nothing_back() -> None:
    stream = io.StringIO()
    with logging_to(stream) as output:
        sink = LogSink(StoppedClock(), output)
        for event in (*(refusal(1) for _ in range(TOLD + 7)), GatewayStopped(at=2, uptime_s=2)):
            sink.emit(event)
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("count")) for line in lines[TOLD:]] == [("more_requests_rejected", 7), ("gateway_stopped", None)]


def test_want_of_money_is_summed_up_too_and_beside_the_refusals_that_it_leads_to() -> None:
    stream = io.StringIO()
    with logging_to(stream) as output:
        sink = LogSink(StoppedClock(), output)
        short = BudgetExhausted(at=1, caller="tagger", own=False, wanted_usd=0.2, spent_usd=0.9, limit_usd=1.0)
        for event in (*(short for _ in range(TOLD + 3)), refusal(1, reason="budget_exceeded"), fact(61)):
            sink.emit(event)
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    summary = {"event": "more_budget_exhausted", "caller": "tagger", "status": 429, "reason": "budget_exceeded", "count": 3}
    assert [line["event"] for line in lines] == ["budget_exhausted"] * TOLD + ["request_rejected", summary["event"], "backend_went_down"]
    assert lines[-2].items() >= summary.items()
