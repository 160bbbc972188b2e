"""`hearth submit` and `hearth chat`: prompts go in, texts come out, and the wait is shown on a
terminal only.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from hearth.bootstrap import running_gateway
from hearth.cli import GatewayUnreachable
from hearth.cli.client import GatewayClient, without_controls
from hearth.cli.prompt import waiting_line, waiting_words
from hearth.cli.views import console_for
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.events import ItemEnded
from tests.cli.stub_gateway import StubGateway, recorded
from tests.cli.test_views import Terminal
from tests.support.fields import Fields
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder

LAST = {
    "response": "",
    "message": {"content": ""},
    "done": True,
    "prompt_eval_count": 12,
    "eval_count": 2,
    "eval_duration": 40_000_000,
}


def answers(stub: StubGateway, *lines: object, status: int = 200) -> None:
    """A text is a piece of the answer."""
    pieces = [
        {"response": each, "message": {"content": each}, "done": False}
        if isinstance(each, str)
        else each
        for each in lines
    ]
    body = b"".join(json.dumps(piece).encode() + b"\n" for piece in pieces)
    stub.answers |= dict.fromkeys(
        ("/api/generate", "/api/chat"), (status, "application/x-ndjson", body)
    )


@pytest.mark.parametrize(
    ("lines", "status", "code", "output", "says"),
    [
        (("be", "", "cause", LAST), 200, 0, "because\n", ""),
        (("yes\n", LAST), 200, 0, "yes\n", ""),
        (({"error": "limit of 10 a minute"},), 429, 1, "", "Error: limit of 10 a minute\n"),
        (
            ({"error": "model 'm' not found"},),
            404,
            1,
            "",
            "Error: model 'm' not found; `hearth models` lists those that are there\n",
        ),
        (({"error": "refused\x07"},), 503, 1, "", "Error: refused\ufffd\n"),
        (
            ("half", {"error": "broke off\x07"}),
            200,
            1,
            "half",
            "Error: the answer ended with an error: broke off\ufffd\n",
        ),
        (("half",), 200, 1, "half", "Error: the answer ended early\n"),
    ],
)
def test_the_text_of_the_answer_is_the_output_and_a_failure_is_said(
    hearth, busy, lines, status, code, output, says
):
    answers(busy, *lines, status=status)
    result = hearth("submit", "--model", "m", "--url", busy.url, input="why?")
    assert (result.exit_code, result.stdout, result.stderr) == (code, output, says)
    assert busy.bodies[-1] == {"model": "m", "prompt": "why?", "stream": True}
    assert (busy.seen[-1]["content-type"], busy.seen[-1]["x-request-id"][:4]) == (
        "application/json",
        "req_",
    )
    # without a terminal, a failure ends it
    chat = hearth("chat", "m", "--url", busy.url, input="a\nb\n")
    assert (chat.exit_code, chat.stderr, busy.bodies[-1]["messages"][-1]["content"]) == (
        code,
        says,
        "a" if code else "b",
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xef\xbb\xbfhow?", ""),
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b" \n", "the text is empty"),
    ],
)
def test_a_file_is_read_as_text_and_what_is_no_prompt_is_not_sent(
    hearth, busy, tmp_path, content, says
):
    busy.bodies.clear()
    answers(busy, LAST)
    if content is not None:
        (tmp_path / f"prompt-{says}").write_bytes(content)
    result = hearth("submit", "-m", "m", f"prompt-{says}", "--url", busy.url)
    assert (result.exit_code, [body["prompt"] for body in busy.bodies]) == (
        (2, []) if says else (0, ["how?"])
    )
    assert says in result.stderr


def test_options_reach_the_model_and_the_queue_and_json_is_one_object(hearth, busy):
    answers(busy, "be", "cause", LAST)
    waits = {"X-Estimated-Wait-Seconds": "12.5", "X-Wait-Bound-Seconds": "30.0"}
    busy.answer_headers = {"X-Queue-Position": "3", **waits}
    options = (
        "--system",
        "be brief",
        "--max-tokens",
        "50",
        "--json-mode",
        "--task-type",
        "digest",
        "--priority",
        "background",
    )
    result = hearth(
        "submit",
        "--json",
        "-m",
        "m",
        "--url",
        busy.url,
        "--key",
        "hearth_k",
        *options,
        input="why?",
    )
    more = {"system": "be brief", "options": {"num_predict": 50}, "format": "json"}
    assert busy.bodies == [{"model": "m", "prompt": "why?", "stream": True} | more]
    asked = busy.seen[0]
    assert (asked["x-task-type"], asked["x-priority"], asked["authorization"]) == (
        "digest",
        "background",
        "Bearer hearth_k",
    )
    assert json.loads(result.stdout) == {
        "request_id": asked["x-request-id"],
        "model": "m",
        "output": "because",
        "prompt_tokens": 12,
        "output_tokens": 2,
        "queue_position": 3,
        "estimated_wait_s": 12.5,
        "wait_bound_s": 30.0,
        "served_by": None,
    }
    for odd in ("", "soon", "NaN", "[3]", "true"):
        busy.answer_headers = {"X-Estimated-Wait-Seconds": odd}
        printed = json.loads(
            hearth("submit", "--json", "-m", "m", "--url", busy.url, input="why?").stdout
        )
        assert printed["estimated_wait_s"] is None
    # what a terminal gets of an answer
    assert without_controls("a\x1b[2Jb\n\tc\rd") == "a\ufffd[2Jb\n\tc\ufffdd"


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        (recorded("status_busy")["gpu"], "qwen2.5-coder:14b"),
        ({"loaded_model": "nomic-embed-text:latest", "home_model": "home:1b"}, "home:1b"),
        ({"loaded_model": None, "home_model": ""}, None),
    ],
)
@pytest.mark.parametrize("command", ["submit", "chat"])
def test_without_a_model_it_is_the_loaded_one_else_home_else_advice(
    hearth, busy, gpu, model, command
):
    answers(busy, LAST)
    busy.put("/llm/queue/status", {"gpu": gpu})
    result = hearth(command, "--url", busy.url, input="why?")
    named = "name one (`hearth models` lists them)" in result.stderr
    assert (result.exit_code, named) == ((0, False) if model else (2, True))
    assert model is None or busy.bodies[-1]["model"] == model


def test_a_chat_on_a_terminal_does_not_begin_without_a_gateway():
    ours, its = pty.openpty()
    command = "from hearth.cli import main; main(['chat', 'm', '--url', 'localhost:9'])"
    done = subprocess.run(
        [sys.executable, "-c", command], stdin=its, capture_output=True, text=True, check=False
    )
    os.close(ours)
    os.close(its)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no gateway at http://localhost:9: " in done.stderr


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("a\nb\n", ["user: a", "assistant: yes", "user: b"]),
        ("a\n/clear\nb\n", ["user: b"]),
        ("\n  \nb", ["user: b"]),
        ('"""a\nb"""\n', ["user: a\nb"]),
        ('"""a"""\n', ["user: a"]),
        ('"""\na\n"""\n', ["user: a"]),
        ("b\n/bye\nc\n", ["user: b"]),
        ("/?\nb\n", ["user: b"]),
    ],
)
def test_what_was_said_goes_along_until_it_is_cleared_and_a_system_prompt_stays(
    hearth, busy, typed, asked
):
    answers(busy, "yes", LAST)
    for options, first in (((), []), (("-s", "be brief"), ["system: be brief"])):
        result = hearth("chat", "m", *options, "--url", busy.url, input=typed)
        assert (result.exit_code, "/clear starts" in result.stdout) == (0, "/?" in typed)
        assert [f"{each['role']}: {each['content']}" for each in busy.bodies[-1]["messages"]] == [
            *first,
            *asked,
        ]
    answers(busy, LAST)  # a message without an answer is not sent again
    hearth("chat", "m", "--url", busy.url, input="a\nb\n")
    assert [each["content"] for each in busy.bodies[-1]["messages"]] == ["b"]


async def test_a_real_gateway_answers_and_a_caller_who_leaves_takes_the_request_along(hearth):
    events = Recorder()
    async with running_gateway(
        GatewayConfig(), port=0, backend_mode=BackendMode.EMULATOR, sinks=(events,)
    ) as (_, url):
        submit = ("submit", "-m", "llama3.1:8b", "--max-tokens", "3", "--json", "--url", url)
        result = await asyncio.to_thread(hearth, *submit, input="why?")
        assert json.loads(result.stdout)["output_tokens"] == 3
        chat = await asyncio.to_thread(
            hearth,
            "chat",
            "llama3.1:8b",
            "--url",
            url,
            input="hello\nand then?\n/bye\nnever sent\n",
        )
        assert (chat.exit_code, chat.stderr) == (0, "")
        await asyncio.to_thread(leave_after_the_first_line, GatewayClient(url))
    assert [each.outcome.value for each in events.of(ItemEnded)] == ["completed"] * 3 + [
        "cancelled"
    ]


def leave_after_the_first_line(client: GatewayClient) -> None:
    body = {
        "model": "llama3.1:8b",
        "prompt": "a long story",
        "stream": True,
        "options": {"num_predict": 100_000},
    }
    with client.send("/api/generate", body, {}) as (_, lines):
        next(lines)


def test_a_reader_who_goes_away_is_not_taken_for_a_gateway_that_does(busy):
    answers(busy, "half", LAST)
    unread, output = os.pipe()
    os.close(unread)
    command = [
        sys.executable,
        "-c",
        "from hearth.cli import main; main()",
        "submit",
        "-m",
        "m",
        "--url",
        busy.url,
    ]
    result = subprocess.run(
        command, input=b"why?", stdout=output, stderr=subprocess.PIPE, timeout=WITHIN_S, check=False
    )
    os.close(output)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_connection_that_breaks_in_an_answer_is_an_unreachable_gateway():
    begun = threading.Event()

    def break_off() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"response": "half"}\n')
            begun.wait(WITHIN_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=break_off).start()
        client = GatewayClient(f"127.0.0.1:{server.getsockname()[1]}")
        with client.send("/api/generate", {}, {}) as (_, lines):
            assert next(lines) == {"response": "half"}
            begun.set()
            with pytest.raises(GatewayUnreachable, match="reset"):
                next(lines)


def test_ctrl_c_aborts_a_submit_and_stops_an_answer_but_not_the_chat(hearth, busy):
    half = b'{"response": "half", "message": {"content": "half"}, "done": false}\n'
    busy.answers |= dict.fromkeys(("/api/generate", "/api/chat"), (200, "text/event-stream", half))
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    aborted = hearth("submit", "-m", "m", "--url", busy.url, input="why?")
    assert (aborted.exit_code, "Aborted" in aborted.stderr) == (1, True)
    result = hearth("chat", "m", "--url", busy.url, input="a\nb\n")
    assert (result.exit_code, result.stdout.count(" (stopped)")) == (0, 2)
    assert busy.bodies[-1]["messages"][-1]["content"] == "b"


# The line that says how the wait goes.


def status(*waiting: str, ahead: int = 0, **more: Any) -> Fields:
    items = [
        {"request_id": name, "estimated_start_s": 75.0 * (index + 1)}
        for index, name in enumerate(waiting)
    ]
    return {
        "internal_queue": {"pending": ahead},
        "external_queue": {"pending": len(items), "next_items": items},
        **more,
    }


def mine(**fields: object) -> Fields:
    return {"external_queue": {"next_items": [{"request_id": "me", **fields}]}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status("me"), "next in line, starts in about 75 s"),
        (status("x", "me", ahead=3), "4 ahead, starts in about 2 min"),
        (
            status("me", gpu={"current_swap": {"to_model": "m\x1b"}}),
            "next in line, starts in about 75 s; m\ufffd is loading",
        ),
        (
            status("me", gpu={"residents": [{"model": "m", "phase": "loading"}]}),
            "next in line, starts in about 75 s; m is loading",
        ),
        (status("x", "y"), "waiting, 2 in the queue"),
        (status(running=[{"request_id": "me"}]), "the model reads the prompt"),
        (
            mine(estimated_start_s=9.0, estimate_is_rough=True),
            "next in line, starts in very roughly 9.0 s",
        ),
        (
            mine(estimated_start_s=9.0, start_bound_s=40.0),
            "next in line, starts in about 9.0 s (90 %: within 40 s)",
        ),
        (
            mine(estimated_start_s=0.0, start_bound_s=0.0),
            "next in line, starts in about 0.0 s",
        ),
        (mine(estimated_start_s=float("inf")), "next in line"),
        ({"running": 3, "internal_queue": [], "gpu": "x"}, "waiting"),
    ],
)
def test_the_wait_in_words(answer, words):
    assert waiting_words(answer, "me") == words


@pytest.mark.parametrize(("answer", "code"), [(status("x", "me"), 200), ({"error": "no"}, 403)])
def test_the_line_follows_the_status_until_the_answer_begins(busy, answer, code):
    busy.seen.clear()
    busy.put("/llm/queue/status", answer, code)
    terminal = Terminal()
    over = threading.Event()

    def pause(_over: threading.Event, _seconds: float) -> bool:
        """In place of waiting: over after two looks."""
        if len(busy.seen) == 2:
            over.set()
        return over.is_set()

    with waiting_line(
        GatewayClient(busy.url), "me", console_for(terminal, environ={"TERM": "xterm"}), pause=pause
    ) as end:
        assert over.wait(WITHIN_S)
        end()
        shown = terminal.getvalue()
        end()
    assert terminal.getvalue() == shown
    assert ("1 ahead, starts in about 2 min" in shown) is (code == 200)
