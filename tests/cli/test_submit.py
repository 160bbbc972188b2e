"""`hearth submit`: the prompt goes in, the text comes out, and the wait is told on a terminal only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hearth.bootstrap import running_gateway
from hearth.cli import GatewayUnreachable, main
from hearth.cli.answering import waiting_line, waiting_words
from hearth.cli.client import GatewayClient, without_controls
from hearth.cli.views import console_for
from hearth.config.settings import BackendMode, GatewayConfig, Settings
from hearth.events import ItemEnded
from tests.cli.stub_gateway import StubGateway, recorded
from tests.cli.test_views import Terminal
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder

LAST = {"response": "", "done": True, "prompt_eval_count": 12, "eval_count": 2}


def answers(stub: StubGateway, *lines: object, status: int = 200) -> None:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    stub.answers["/api/generate"] = (status, "application/x-ndjson", body)


def submitted(stub: StubGateway, *args: str, prompt: str | bytes = "why?", **environ: str) -> Result:
    clean = dict.fromkeys(("HEARTH_KEY", "HEARTH_URL"))
    return CliRunner().invoke(main, ["submit", "--url", stub.url, *args], input=prompt, env={**clean, **environ})


def piece(text: str) -> dict[str, object]:
    return {"response": text, "done": False}


@for_each(
    ("lines", "status", "code", "output", "says"),
    [
        ((piece("be"), piece(""), piece("cause"), LAST), 200, 0, "because\n", ""),
        ((piece("yes\n"), LAST), 200, 0, "yes\n", ""),
        (({"error": "model 'm' not found"},), 404, 1, "", "Error: model 'm' not found\n"),
        (({"error": "limit of 10 a minute"},), 429, 1, "", "Error: limit of 10 a minute\n"),
        (({"error": "refused\x07"},), 503, 1, "", "Error: refused\ufffd\n"),
        (
            (piece("half"), {"error": "the model server broke off\x07"}),
            200,
            1,
            "half",
            "Error: the answer ended with an error: the model server broke off\ufffd\n",
        ),
        ((piece("half"),), 200, 1, "half", "Error: the answer ended early\n"),
    ],
)
def test_the_text_of_the_answer_is_the_output_and_a_failure_is_said_in_the_gateways_words(busy, lines, status, code, output, says):
    answers(busy, *lines, status=status)
    result = submitted(busy, "--model", "m")
    assert (result.exit_code, result.stdout, result.stderr) == (code, output, says)
    assert busy.bodies[-1] == {"model": "m", "prompt": "why?", "stream": True}
    assert (busy.seen[-1]["content-type"], busy.seen[-1]["x-request-id"][:4]) == ("application/json", "req_")


@for_each(
    ("content", "code", "says"),
    [
        (b"\xef\xbb\xbfhow?", 0, ""),
        (None, 2, "cannot be read"),
        (b"\xff\xfe\x00", 2, "UTF-8"),
        (b" \n", 2, "the text is empty"),
    ],
)
def test_a_file_is_read_as_text_and_what_is_no_prompt_is_not_sent(busy, tmp_path: Path, content, code, says):
    busy.bodies.clear()
    answers(busy, LAST)
    file = tmp_path / f"prompt-{code}-{says}"
    if content is not None:
        file.write_bytes(content)
    result = submitted(busy, "-m", "m", str(file), prompt="")
    assert (result.exit_code, [body["prompt"] for body in busy.bodies]) == (code, ["how?"] if code == 0 else [])
    assert says in result.stderr


def test_options_reach_the_model_and_the_queue(busy):
    answers(busy, LAST)
    options = ("--system", "be brief", "--max-tokens", "50", "--json-mode", "--task-type", "digest", "--priority", "background")
    submitted(busy, "-m", "m", "--key", "hearth_k", *options)
    assert busy.bodies[0] == {
        "model": "m",
        "prompt": "why?",
        "stream": True,
        "system": "be brief",
        "options": {"num_predict": 50},
        "format": "json",
    }
    request = busy.seen[0]
    assert (request["x-task-type"], request["x-priority"], request["authorization"]) == ("digest", "background", "Bearer hearth_k")


def test_without_a_model_it_is_the_loaded_one_else_the_home_model_else_an_advice(busy):
    answers(busy, LAST)
    status = recorded("status_busy")
    submitted(busy)
    status["gpu"]["loaded_model"] = None
    busy.put("/llm/queue/status", status)
    submitted(busy)
    assert [body["model"] for body in busy.bodies] == ["qwen2.5-coder:14b", "qwen2.5:32b-instruct-q6_K"]
    busy.put("/llm/queue/status", {"gpu": {"loaded_model": None, "home_model": ""}})
    result = submitted(busy)
    assert result.exit_code == 2
    assert "--model" in result.stderr


def test_json_prints_one_object_with_what_it_took(busy):
    answers(busy, {"response": "be", "done": False}, {"response": "cause", "done": False}, LAST)
    busy.answer_headers = {"X-Queue-Position": "3", "X-Estimated-Wait-Seconds": "12.5"}
    result = json.loads(submitted(busy, "--model", "m", "--json").stdout)
    assert result.pop("request_id") == busy.seen[0]["x-request-id"]
    assert result == {
        "model": "m",
        "output": "because",
        "prompt_tokens": 12,
        "output_tokens": 2,
        "queue_position": 3,
        "estimated_wait_s": 12.5,
        "served_by": None,
    }
    for odd in ("", "soon", "NaN", "[3]", "true"):
        busy.answer_headers = {"X-Estimated-Wait-Seconds": odd}
        assert json.loads(submitted(busy, "--model", "m", "--json").stdout)["estimated_wait_s"] is None
    assert without_controls("a\x1b[2Jb\n\tc\rd") == "a\ufffd[2Jb\n\tc\ufffdd"  # what a terminal gets of it


async def test_a_real_gateway_answers_and_a_caller_who_leaves_takes_the_request_along():
    events = Recorder()
    config = GatewayConfig(settings=Settings(), source=None)
    async with running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR, sinks=(events,)) as (_, url):
        stub = StubGateway(url=url)
        result = await asyncio.to_thread(submitted, stub, "-m", "llama3.1:8b", "--max-tokens", "3", "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["output_tokens"] == 3
        client = GatewayClient(url)
        await asyncio.to_thread(leave_after_the_first_line, client)
    completed, left = events.of(ItemEnded)
    assert (completed.outcome.value, left.outcome.value) == ("completed", "cancelled")


def leave_after_the_first_line(client: GatewayClient) -> None:
    body = {"model": "llama3.1:8b", "prompt": "a long story", "stream": True, "options": {"num_predict": 100_000}}
    with client.send("/api/generate", body, {}) as (_, lines):
        next(lines)


def test_a_reader_of_the_answer_who_goes_away_is_not_taken_for_a_gateway_that_does(busy):
    answers(busy, {"response": "half", "done": False}, LAST)
    unread, output = os.pipe()
    os.close(unread)
    command = [sys.executable, "-c", "from hearth.cli import main; main()", "submit", "-m", "m", "--url", busy.url]
    result = subprocess.run(command, input=b"why?", stdout=output, stderr=subprocess.PIPE, timeout=WITHIN_S, check=False)
    os.close(output)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_connection_that_breaks_within_an_answer_is_a_gateway_that_cannot_be_reached():
    begun = threading.Event()

    def break_off() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"response": "half"}\n')
            begun.wait(30)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=break_off).start()
        client = GatewayClient(f"127.0.0.1:{server.getsockname()[1]}")
        with client.send("/api/generate", {}, {}) as (_, lines):
            assert next(lines) == {"response": "half"}
            begun.set()
            with pytest.raises(GatewayUnreachable, match="reset"):
                next(lines)


def test_ctrl_c_is_an_abort(busy):
    busy.answers["/api/generate"] = (200, "text/event-stream", b'{"response": "half", "done": false}\n')
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    result = submitted(busy, "-m", "m")
    assert result.exit_code == 1
    assert "Aborted" in result.stderr


# The line that tells how the wait goes.


def status(*waiting: str, ahead: int = 0, **more: Any) -> dict[str, Any]:
    items = [{"request_id": name, "estimated_start_s": 75.0 * (index + 1)} for index, name in enumerate(waiting)]
    return {"internal_queue": {"pending": ahead}, "external_queue": {"pending": len(items), "next_items": items}, **more}


WORDS = [
    (status("me"), "next in line, starts in about 75 s"),
    (status("x", "me"), "1 ahead, starts in about 2 min"),
    (status("x", "me", ahead=3), "4 ahead, starts in about 2 min"),
    (status("me", gpu={"current_swap": {"to_model": "m\x1b"}}), "next in line, starts in about 75 s; m\ufffd is loading"),
    (status("me", gpu={"residents": [{"model": "m", "phase": "loading"}]}), "next in line, starts in about 75 s; m is loading"),
    (status("x", "y"), "waiting, 2 in the queue"),
    (status(running=[{"request_id": "me"}]), "the model reads the prompt"),
    (
        {"external_queue": {"next_items": [{"request_id": "me", "estimated_start_s": 9.0, "estimate_is_rough": True}]}},
        "next in line, starts in very roughly 9.0 s",
    ),
    ({"external_queue": {"next_items": [{"request_id": "me"}]}}, "next in line"),
    ({"external_queue": {"next_items": [{"request_id": "me", "estimated_start_s": float("inf")}]}}, "next in line"),
    ({}, "waiting"),
    ({"running": 3, "internal_queue": [], "gpu": "x"}, "waiting"),
]


@for_each(("answer", "words"), WORDS)
def test_the_wait_in_words(answer, words):
    assert waiting_words(answer, "me") == words


class Pauses:
    """In place of waiting: over after so many looks, which sets `over`."""

    def __init__(self, looks: int) -> None:
        self._left = looks
        self.over = threading.Event()

    def __call__(self, _over: threading.Event, _seconds: float) -> bool:
        self._left -= 1
        if self._left < 0:
            self.over.set()
        return self._left < 0


def test_the_line_follows_the_status_until_the_answer_begins(busy):
    busy.put("/llm/queue/status", status("x", "me"))
    terminal, pauses = Terminal(), Pauses(2)
    with waiting_line(GatewayClient(busy.url), "me", console_for(terminal, environ={"TERM": "xterm"}), pause=pauses) as end:
        assert pauses.over.wait(30)
        end()
        shown = terminal.getvalue()
        end()
    assert terminal.getvalue() == shown
    assert "1 ahead, starts in about 2 min" in shown
    assert len(busy.seen) == 2


def test_a_gateway_that_does_not_say_how_it_is_does_not_disturb_the_answer(busy):
    busy.put("/llm/queue/status", {"error": "no"}, 403)
    pauses = Pauses(1)
    with waiting_line(GatewayClient(busy.url), "me", console_for(Terminal(), environ={}), pause=pauses):
        assert pauses.over.wait(30)
    assert len(busy.seen) == 1
