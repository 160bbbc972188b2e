"""`hearth status`, `log`, `models` and `top` against a real HTTP server: how the gateway is asked, and what ends how."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from functools import partial

import pytest

from hearth.cli import GatewayUnreachable
from hearth.cli.client import GatewayClient
from hearth.cli.status import looks
from tests.cli.stub_gateway import StubGateway, recorded
from tests.support.cases import for_each

STATUS, STREAM = "/llm/queue/status", "/llm/queue/stream"
LOG = "/llm/log?caller=n8n+%261&model=llama3.1%3A8b&outcome=failed&since=1h&limit=5"
OPTIONS = ("--caller", "n8n &1", "--model", "llama3.1:8b", "--outcome", "failed", "--since", "1h", "--limit", "5")


@for_each(
    ("command", "path", "answer", "drawn"),
    [
        (("status",), STATUS, recorded("status_busy"), "waits (external)"),
        (("models",), "/llm/models", {"models": [1]}, "no models are known"),
        (("log",), "/llm/log?limit=50", {"items": [1]}, "no finished request matches"),
        (("log", *OPTIONS), LOG, {"items": []}, "no finished request matches"),
    ],
)
def test_json_is_the_gateways_own_answer_asked_with_the_key_and_else_it_is_drawn(hearth, busy, command, path, answer, drawn):
    busy.put(path, answer)
    result = hearth(*command, "--json", HEARTH_URL=busy.url, HEARTH_KEY="hearth_k")
    assert (result.exit_code, json.loads(result.stdout)) == (0, answer)
    assert busy.seen[-1]["authorization"] == "Bearer hearth_k"
    assert drawn in hearth(*command, "--url", busy.url).stdout


def test_an_address_may_lack_its_scheme_and_have_a_path_and_no_proxy_is_asked(hearth, busy):
    busy.answers = {path: answer for known, answer in busy.answers.items() for path in (known, f"/hearth{known}")}
    for url in (busy.url.removeprefix("http://"), f"{busy.url}/hearth/"):
        assert hearth("status", "--json", "--url", url, http_proxy="http://127.0.0.1:1", HTTP_PROXY="http://127.0.0.1:1").exit_code == 0
    assert not any("authorization" in request for request in busy.seen)


@for_each(
    ("args", "code", "says"),
    [
        *(
            (("status", "--url", url), 2, "not an address")
            for url in ("ftp://x", "http://", "file:///etc/passwd", "http://x:port", "http://x:0")
        ),
        *((("status", "--key", key), 1, "--key") for key in ("hearth_a\u2013b", "\u043a\u043b\u044e\u0447", "hearth_k\n")),
        (("status", "--watch"), 1, "--json --watch"),
        (("top",), 1, "hearth status --json --watch"),
        (("log", "--limit", "0"), 2, "--limit"),
        (("log", "--limit", "1001"), 2, "--limit"),
        (("log", "--outcome", "lost"), 2, "--outcome"),
    ],
)
def test_what_cannot_be_done_here_is_refused_with_what_can_and_shows_no_key(hearth, busy, args, code, says):
    result = hearth(*args, HEARTH_URL=busy.url)
    assert (result.exit_code, says in result.stderr, busy.seen) == (code, True, [])
    assert "--key" not in args or args[-1].strip() not in result.stderr


@for_each(
    ("status", "body", "code", "says"),
    [
        (404, {}, 3, "it answered 404, so it is not Hearth"),
        (404, {"detail": "Not Found"}, 3, "it answered 404"),
        (500, {}, 3, "it answered 500"),
        (200, ["not", "an object"], 3, "not a JSON object"),
        (200, None, 3, "not JSON"),
        (401, {"error": "no"}, 1, "HEARTH_KEY (no)"),
        (403, {"error": "no"}, 1, "HEARTH_KEY"),
        (421, {"error": "no"}, 1, "server.allowed_hosts"),
        (404, {"error": "no log is kept here"}, 1, "Error: no log is kept here"),
        (503, {"error": "not available\x07"}, 1, "Error: not available\ufffd"),
        (400, {"error": "since: must be an age"}, 2, "Error: since: must be an age"),
    ],
)
def test_a_refusal_and_what_is_no_hearth_end_in_words(hearth, busy, status, body, code, says):
    busy.put(STATUS, body, status)
    if body is None:
        busy.answers[STATUS] = (200, "text/html", b"<html>")
    result = hearth("status", "--url", busy.url)
    assert (result.exit_code, result.stdout, says in result.stderr) == (code, "", True)


@for_each("said", [None, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_nobody_there_and_a_server_that_hangs_up_or_speaks_something_else_end_with_3_and_advice(hearth, said):
    def hang_up() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        if said is None:
            server.close()
        else:
            threading.Thread(target=hang_up).start()
        result = hearth("status", "--url", url)
    assert (result.exit_code, result.stdout, url in result.stderr, "hearth serve" in result.stderr) == (3, "", True, True)


def test_a_redirect_is_not_followed_with_the_key(hearth, busy):
    other = StubGateway()
    with other.listening():
        busy.answers[STATUS] = (307, "text/plain", f"{other.url}{STATUS}".encode())
        assert hearth("status", "--url", busy.url, "--key", "hearth_k").exit_code == 3
    assert other.seen == []


def test_watch_as_json_prints_a_line_per_change_until_the_stream_ends(hearth, busy):
    events = b': heartbeat\n\nid: 1\ndata: {"mode": "active"}\n\nid: 2\ndata: {"mode": "quiet"}\n\n'
    busy.answers[STREAM] = (200, "text/event-stream", events)
    result = hearth("status", "--json", "--watch", "--url", busy.url)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"mode": "active"}, {"mode": "quiet"}]


@for_each(("path", "args", "code"), [(STREAM, ("--watch",), 0), (STATUS, (), 1)])
def test_ctrl_c_is_the_ordinary_end_of_watching_and_else_an_abort(hearth, busy, path, args, code):
    busy.answers[path] = (200, "text/event-stream", b'data: {"mode": "active"}\n\n')
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    result = hearth("status", "--json", *args, "--url", busy.url)
    assert (result.exit_code, "Aborted" in result.output) == (code, code == 1)


def test_top_needs_a_gateway_that_answers_once_and_says_when_it_went_away(busy):
    with pytest.raises(GatewayUnreachable):
        next(looks(GatewayClient("http://127.0.0.1:1"), lambda: None))
    looking = looks(GatewayClient(busy.url), lambda: busy.put(STATUS, ["no"], 500))
    assert next(looking) == recorded("status_busy")
    assert "no gateway at" in str(next(looking))
