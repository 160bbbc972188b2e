from __future__ import annotations

import json
import os
import signal
from functools import partial

from tests.cli.stub_gateway import StubGateway
from tests.support.cases import for_each

LAST = {"message": {"content": ""}, "done": True, "eval_count": 2, "eval_duration": 40_000_000}


def answers(stub: StubGateway, *pieces: object, status: int = 200) -> None:
    lines = [{"message": {"content": each}, "done": False} if isinstance(each, str) else each for each in pieces]
    stub.answers["/api/chat"] = (status, "application/x-ndjson", b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def said(body: dict[str, list[dict[str, str]]]) -> list[str]:
    return [f"{each['role']}: {each['content']}" for each in body["messages"]]


def test_a_real_gateway_answers_twice_and_bye_ends_it(hearth, url):
    result = hearth("chat", "llama3.1:8b", "--url", url, input="hello\nand then?\n/bye\nnever sent\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) >= 2


@for_each(
    ("typed", "asked"),
    [
        ("a\nb\n", ["user: a", "assistant: yes", "user: b"]),
        ("a\n/clear\nb\n", ["user: b"]),
        ("\n  \nb", ["user: b"]),
        ('"""a\nb"""\n', ["user: a\nb"]),
        ('"""a"""\n', ["user: a"]),
        ("b\n/bye\nc\n", ["user: b"]),
    ],
)
def test_what_was_said_goes_along_until_it_is_cleared(hearth, typed, asked):
    busy = StubGateway()
    with busy.listening():
        answers(busy, "yes", LAST)
        assert hearth("chat", "m", "--url", busy.url, input=typed).exit_code == 0
    assert said(busy.bodies[-1]) == asked


def test_a_message_without_an_answer_is_not_sent_again(hearth, busy):
    answers(busy, LAST)
    assert hearth("chat", "m", "--url", busy.url, input="a\nb\n").exit_code == 0
    assert said(busy.bodies[-1]) == ["user: b"]


def test_a_system_prompt_stays_and_a_slash_lists_the_commands(hearth, busy):
    answers(busy, "yes", LAST)
    result = hearth("chat", "m", "-s", "be brief", "--url", busy.url, input="/?\n/clear\na\n")
    assert said(busy.bodies[-1]) == ["system: be brief", "user: a"]
    assert "/clear starts" in result.stdout


@for_each(
    ("pieces", "status", "code", "says"),
    [
        (({"error": "model 'm' not found"},), 404, 1, "Error: model 'm' not found"),
        (("half",), 200, 1, "ended early"),
        ((), 500, 3, "no gateway at"),
    ],
)
def test_without_a_terminal_a_failure_ends_the_chat(hearth, busy, pieces, status, code, says):
    busy.bodies.clear()
    answers(busy, *pieces, status=status)
    result = hearth("chat", "m", "--url", busy.url, input="a\nb\n")
    assert (result.exit_code, len(busy.bodies)) == (code, 1)
    assert says in result.stderr


def test_ctrl_c_stops_the_answer_and_not_the_chat(hearth, busy):
    busy.answers["/api/chat"] = (200, "text/event-stream", b'{"message": {"content": "half"}, "done": false}\n')
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    result = hearth("chat", "m", "--url", busy.url, input="a\nb\n")
    assert (result.exit_code, result.stdout.count(" (stopped)")) == (0, 2)
    assert said(busy.bodies[1])[-1] == "user: b"
