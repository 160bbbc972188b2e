"""`hearth log`: a table, or the gateway's own answer, asked over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.stub_gateway import StubGateway

PAGE = "/llm/log?limit=50"


def item(**changes: Any) -> dict[str, Any]:
    known = {
        "sequence": 7,
        "caller": "open-webui",
        "model": "llama3.1:8b",
        "task_type": None,
        "outcome": "completed",
        "reason": "",
        "ended_wall_s": 1_767_571_200.0,
        "queue_s": 2.5,
        "swap_s": 1.5,
        "first_byte_s": 0.25,
        "backend_s": 42.0,
        "total_s": 44.5,
        "prompt_tokens": 12,
        "output_tokens": None,
        "interrupt_count": 0,
    }
    return known | changes


@pytest.fixture
def logging(busy: StubGateway) -> StubGateway:
    busy.put(PAGE, {"items": [item()]})
    return busy


def lines_of(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_every_phase_of_a_request_is_a_column(hearth, logging):
    head, row = lines_of(hearth("log", "--url", logging.url))
    assert head == "ended caller model task outcome queue swap first byte backend total tokens"
    assert row.endswith("open-webui llama3.1:8b - completed 2.5 s 1.5 s 0.25 s 42 s 44 s 12+?")


def test_rows_keep_the_order_of_the_answer(hearth, logging):
    logging.put(PAGE, {"items": [item(caller=name) for name in ("third", "second", "first")]})
    assert [line.split()[2] for line in lines_of(hearth("log", "--url", logging.url))[1:]] == ["third", "second", "first"]


def test_a_failure_says_why_and_an_interrupted_request_how_often(hearth, logging):
    logging.put(
        PAGE,
        {"items": [item(outcome="failed", reason="backend_gone"), item(interrupt_count=2), item(outcome="cancelled", reason="cancelled")]},
    )
    failed, interrupted, cancelled = lines_of(hearth("log", "--url", logging.url, COLUMNS="200"))[1:]
    assert "failed (backend_gone)" in failed
    assert "completed +2 interrupted" in interrupted
    assert "cancelled 2.5 s" in cancelled


def test_the_options_become_the_question(hearth, logging):
    asked = "/llm/log?caller=n8n+%261&model=llama3.1%3A8b&outcome=failed&since=1h&limit=5"
    logging.put(asked, {"items": []})
    options = ["--caller", "n8n &1", "--model", "llama3.1:8b", "--outcome", "failed", "--since", "1h", "--limit", "5"]
    assert lines_of(hearth("log", "--url", logging.url, *options)) == ["nothing has ended that matches"]


def test_json_is_the_gateways_own_answer(hearth, logging):
    result = hearth("log", "--json", "--url", logging.url, HEARTH_KEY="hearth_k")
    assert json.loads(result.stdout) == {"items": [item()]}
    assert logging.seen[-1]["authorization"] == "Bearer hearth_k"


@pytest.mark.parametrize(
    ("status", "text", "code"), [(404, "no log is kept here", 1), (400, "since: write how long ago", 2), (503, "not available", 1)]
)
def test_a_refusal_ends_in_the_gateways_words_with_2_where_the_options_are_wrong(hearth, logging, status, text, code):
    logging.put(PAGE, {"error": text}, status)
    result = hearth("log", "--url", logging.url)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr


def test_something_else_at_the_address_ends_with_3(hearth, logging):
    logging.put(PAGE, {"detail": "Not Found"}, 404)
    assert hearth("log", "--url", logging.url).exit_code == 3


@pytest.mark.parametrize("answer", [{}, {"items": None}, {"items": ["x", 3]}, {"items": {}}])
def test_an_answer_without_items_is_an_empty_log(hearth, logging, answer):
    logging.put(PAGE, answer)
    assert lines_of(hearth("log", "--url", logging.url)) == ["nothing has ended that matches"]


@pytest.mark.parametrize("value", [None, "text", True, [], 1e300, 10**400, -1e14])
def test_odd_fields_are_drawn_all_the_same(hearth, logging, value):
    logging.put(PAGE, {"items": [dict.fromkeys(item(), value)]})
    assert len(lines_of(hearth("log", "--url", logging.url, COLUMNS="9000"))) == 2


def test_a_name_cannot_drive_the_terminal(hearth, logging):
    logging.put(PAGE, {"items": [item(caller="\x1b[2Jevil")]})
    assert "\x1b" not in hearth("log", "--url", logging.url).stdout


@pytest.mark.parametrize("options", [("--limit", "0"), ("--limit", "1001"), ("--outcome", "lost")])
def test_what_the_gateway_would_not_take_ends_with_2(hearth, options):
    assert hearth("log", *options).exit_code == 2


def test_a_narrow_terminal_has_fewer_columns_and_no_broken_words(hearth, logging):
    logging.put(PAGE, {"items": [item(model="qwen2.5:32b-instruct-q6_K", caller="n8n", task_type="generate_digest")]})
    head, row = lines_of(hearth("log", "--url", logging.url, COLUMNS="80"))
    assert head == "ended caller model outcome queue total"
    assert row.endswith("n8n qwen2.5:32b-instruct-q6_K completed 2.5 s 44 s")


def test_a_model_that_fits_nowhere_is_broken_and_nothing_else(hearth, logging):
    logging.put(PAGE, {"items": [item(model="m" * 60)]})
    head, *rows = lines_of(hearth("log", "--url", logging.url, COLUMNS="60"))
    assert head == "ended caller model outcome total"
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d open-webui m+ completed 44 s", rows[0])
    assert "".join(row.removesuffix("completed 44 s").split()[-1] for row in rows) == "m" * 60
