"""`hearth status` against a real HTTP server with recorded answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from functools import partial

import pytest

from tests.cli.stub_gateway import StubGateway, recorded


def test_the_table_shows_what_runs_who_waits_the_gpu_and_the_backend(hearth, busy):
    result = hearth("status", "--url", busy.url)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "runs 42 continue qwen2.5-coder:14b 3.4 s" in lines
    assert "waits (internal) 44 router qwen2.5:32b-instruct-q6_K parse_task 0.4 s" in lines
    assert "waits (external) 41 open-webui llama3.1:8b 2 min" in lines
    assert "waits (external) 43 n8n any 12 s" in lines
    assert "... and 3 more external" in lines
    assert "GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K" in lines
    assert "1 swap this hour, the last took 11 s; 12 % of the work spent on swaps" in lines
    assert "backend Ollama 0.33.0 at http://127.0.0.1:11434 up" in lines
    assert "mode active" in lines
    assert "24 hours 150 internal and 30 external completed, 2 interrupted" in lines


def test_json_is_the_gateways_own_answer(hearth, busy):
    result = hearth("status", "--json", "--url", busy.url)
    assert json.loads(result.stdout) == recorded("status_busy")


def test_the_address_and_the_key_can_come_from_the_environment(hearth, busy):
    assert hearth("status", "--json", HEARTH_URL=busy.url, HEARTH_KEY="hearth_k").exit_code == 0
    assert {request["authorization"] for request in busy.seen} == {"Bearer hearth_k"}


@pytest.mark.parametrize("key", ["hearth_a\u2013b", "\u043a\u043b\u044e\u0447", "hearth_k\n"])
def test_a_key_that_no_header_can_carry_ends_with_1_and_is_not_shown(hearth, busy, key):
    result = hearth("status", "--url", busy.url, "--key", key)
    assert (result.exit_code, busy.seen) == (1, [])
    assert "--key" in result.stderr
    assert key.strip() not in result.stderr


def test_without_a_key_no_authorization_is_sent(hearth, busy):
    hearth("status", "--json", "--url", busy.url)
    assert not any("authorization" in request for request in busy.seen)


def test_proxy_variables_are_ignored(hearth, busy):
    assert hearth("status", "--json", "--url", busy.url, http_proxy="http://127.0.0.1:1", HTTP_PROXY="http://127.0.0.1:1").exit_code == 0


def test_a_bare_host_and_port_is_an_address(hearth, busy):
    assert hearth("status", "--json", "--url", busy.url.removeprefix("http://")).exit_code == 0


def test_a_trailing_slash_and_a_path_before_llm_are_kept_apart(hearth, busy):
    busy.answers = {f"/hearth{path}": answer for path, answer in busy.answers.items()}
    assert hearth("status", "--json", "--url", f"{busy.url}/hearth/").exit_code == 0


def test_nobody_there_ends_with_3_and_advice(hearth):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = hearth("status", "--url", url)
    assert (result.exit_code, result.stdout) == (3, "")
    assert url in result.stderr
    assert "hearth serve" in result.stderr


@pytest.mark.parametrize(("status", "body"), [(404, {}), (500, {}), (200, ["not", "an object"])])
def test_something_else_at_the_address_ends_with_3(hearth, busy, status, body):
    busy.put("/llm/queue/status", body, status)
    assert hearth("status", "--url", busy.url).exit_code == 3


def test_an_answer_that_is_not_json_ends_with_3(hearth, busy):
    busy.answers["/llm/queue/status"] = (200, "text/html", b"<html>")
    result = hearth("status", "--url", busy.url)
    assert result.exit_code == 3
    assert "not JSON" in result.stderr


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_a_server_that_hangs_up_or_speaks_something_else_ends_with_3(hearth, said):
    def hang_up() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=hang_up)
        answering.start()
        result = hearth("status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        answering.join()
    assert result.exit_code == 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_with_1_and_says_how_to_give_one(hearth, busy, status):
    busy.put("/llm/queue/status", {"error": "no"}, status)
    result = hearth("status", "--url", busy.url)
    assert result.exit_code == 1
    assert "HEARTH_KEY" in result.stderr


def test_a_host_that_is_not_allowed_is_explained(hearth, busy):
    busy.put("/llm/queue/status", {"error": "no"}, 421)
    assert "server.allowed_hosts" in hearth("status", "--url", busy.url).stderr


def test_a_redirect_is_not_followed_with_the_key(hearth, busy):
    other = StubGateway()
    with other.listening():
        busy.answers["/llm/queue/status"] = (307, "text/plain", f"{other.url}/llm/queue/status".encode())
        assert hearth("status", "--url", busy.url, "--key", "hearth_k").exit_code == 3
    assert other.seen == []


@pytest.mark.parametrize("url", ["ftp://x", "http://", "file:///etc/passwd", "http://x:port", "http://x:0"])
def test_an_address_that_is_none_is_refused(hearth, url):
    result = hearth("status", "--url", url)
    assert result.exit_code == 2
    assert "not an address" in result.stderr


def test_watch_as_json_prints_a_line_per_change_until_the_stream_ends(hearth, busy):
    events = b': heartbeat\n\nid: 1\ndata: {"mode": "active"}\n\nid: 2\ndata: {"mode": "quiet"}\n\n'
    busy.answers["/llm/queue/stream"] = (200, "text/event-stream", events)
    result = hearth("status", "--json", "--watch", "--url", busy.url)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"mode": "active"}, {"mode": "quiet"}]


def test_watch_on_a_pipe_names_the_way_that_works(hearth, busy):
    result = hearth("status", "--watch", "--url", busy.url)
    assert result.exit_code == 1
    assert "--json --watch" in result.stderr


def test_ctrl_c_is_the_ordinary_end_of_watching(hearth, busy):
    busy.answers["/llm/queue/stream"] = (200, "text/event-stream", b'data: {"mode": "active"}\n\n')
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    result = hearth("status", "--json", "--watch", "--url", busy.url)
    assert result.exit_code == 0
    assert "Aborted" not in result.output


def test_ctrl_c_while_asking_once_is_an_abort(hearth, busy):
    busy.answers["/llm/queue/status"] = (200, "text/event-stream", b"{}")
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT)
    assert hearth("status", "--json", "--url", busy.url).exit_code == 1
