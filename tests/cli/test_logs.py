"""`hearth logs`: the last lines of the gateway's log, and each new one over its restarts."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hearth.cli import main
from tests.cli.stub_gateway import StubGateway
from tests.support.fields import Fields

LINE: Fields = {
    "id": "run-7",
    "ts": "2026-01-01T12:00:00.000Z",
    "level": "warning",
    "event": "request_rejected",
    "caller": "n8n\x1b[2J",
    "count": 3,
}


def run(gateway: StubGateway, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["logs", "--url", gateway.url, *arguments])
    return done.exit_code, done.output


def test_lines_are_printed_as_the_log_writes_them(busy: StubGateway):
    busy.put("/llm/admin/logs?lines=200", {"lines": [LINE], "next": "run-7"})
    code, text = run(busy)
    assert code == 0
    assert "! request rejected" in text
    assert "count=3" in text
    assert "\x1b" not in text


def test_filters_are_passed_on_and_json_is_a_line_each(busy: StubGateway):
    path = "/llm/admin/logs?level=info&caller=n8n&request_id=req_1&event=a&event=b&lines=5"
    busy.put(path, {"lines": [LINE, LINE], "next": "run-7"})
    filters = "--level info --caller n8n --id req_1 --event a --event b --lines 5 --json"
    code, text = run(busy, *filters.split())
    assert (code, [json.loads(each) for each in text.splitlines()]) == (0, [LINE, LINE])


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_refusal_and_a_gateway_that_is_not_there_end_it(busy: StubGateway, follow):
    busy.put("/llm/admin/logs?lines=200", {"error": "not yours"}, 403)
    assert run(busy, *follow)[0] == 1
    busy.url = "http://127.0.0.1:1"
    assert run(busy, *follow)[0] == 3


def test_a_stream_that_ends_is_asked_for_all_lines_since_the_last_one(busy: StubGateway):
    earlier = LINE | {"id": "run-6"}
    busy.put("/llm/admin/logs?lines=1", {"lines": [earlier], "next": "run-6"})
    stream = f"data: {json.dumps(LINE)}\n\n".encode()
    path = "/llm/admin/logs/stream?lines=2000&after="
    busy.answers[f"{path}run-6"] = (200, "text/event-stream", stream)
    busy.put(f"{path}run-7", {"error": "no more"}, 403)
    code, text = run(busy, "-f", "--json", "--lines", "1")
    assert (code, text.splitlines()[:2]) == (1, [json.dumps(earlier), json.dumps(LINE)])
    assert text.count("waiting for the gateway") == 1
    assert "no more" in text
