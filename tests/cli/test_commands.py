"""Commands that ask a gateway, against a real HTTP server: what they ask, what they say of its
answer, and how they end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import threading
from functools import partial

import pytest

from hearth.cli import GatewayUnreachable
from hearth.cli.client import GatewayClient
from hearth.cli.status import looks
from hearth.errors import Unauthenticated
from tests.cli.stub_gateway import recorded
from tests.support.cases import for_each
from tests.support.fields import Fields

STATUS = "/llm/queue/status"
STREAM = "/llm/queue/stream"
LOG_OPTIONS = "--caller 'n8n &1' --model llama3.1:8b --outcome failed --since 1h --limit 5"
LOG = "GET /llm/log?caller=n8n+%261&model=llama3.1%3A8b&outcome=failed&since=1h&limit=5"
NO_KEY = {"error": Unauthenticated().message}
ALL_OF_A_CALLER = "POST /llm/requests/cancel?caller=a%26b%3Dc"
IN_FORCE = {
    "draining": True,
    "paused": ["external"],
    "pinned": "m\x07",
    "loads": ["b"],
    "unloads": ["c"],
    "since": {},
}
IN_WORDS = (
    "draining: new requests are refused\npaused: external requests wait\npinned: "
    "m\ufffd\nto load: b\nto unload: c\n"
)
IN_MODE: Fields = {
    "mode": "night",
    "since": 1795289852.3,
    "by": "boss",
    "until": None,
    "names": ["night", "day"],
}
NOT_USABLE = {"error": "not usable", "problems": ["a.yaml:7: x", "a.yaml:9: y\x07"]}
CANCELLED = {"cancelled": True}
DELIVERED = "discord (discord.org): delivered\n"
ALERT = ("admin alert test", "POST /llm/admin/alert/test")


def tried(*answers: str, problem: str | None = None) -> Fields:
    """What each target of alerts answered."""
    named = zip(("discord", "ntfy"), answers, strict=True)
    return {
        "targets": [
            {
                "target": name,
                "host": f"{name}.org",
                "delivered": said[:6] == "http_2",
                "answer": said,
                "problem": None if said[:6] == "http_2" else problem,
            }
            for name, said in named
        ]
    }


def all_of_caller(requests: int, jobs: int, batches: int) -> Fields:
    return {"requests": ["req_1"] * requests, "jobs": jobs, "batches": batches}


@for_each(
    ("command", "asked", "status", "answer", "code", "says"),
    [
        ("status", f"GET {STATUS}", 200, recorded("status_busy"), 0, "waits (external)"),
        ("models", "GET /llm/models", 200, {"models": [1]}, 0, "no models are known"),
        (
            "models log qwen3:8b",
            "GET /llm/admin/models/log?model=qwen3%3A8b&after=0",
            200,
            {"lines": ["one", "two\x1b[2J"], "next": 2},
            0,
            "one\ntwo\ufffd[2J\n",
        ),
        (
            "log --format csv --engine box",
            "GET /llm/log/export?engine=box&format=csv",
            200,
            {"a": "b"},
            0,
            '{"a": "b"}',
        ),
        (f"log {LOG_OPTIONS}", LOG, 200, {"items": [1]}, 0, "no finished request matches\n"),
        (
            "jobs list --state failed",
            "GET /llm/jobs?state=failed&limit=50",
            200,
            {"jobs": []},
            0,
            "no jobs match\n",
        ),
        # A refusal, and what is no Hearth.
        ("status", f"GET {STATUS}", 404, {}, 3, "it answered 404, so it is not Hearth"),
        ("status", f"GET {STATUS}", 404, {"detail": "Not Found"}, 3, "it answered 404"),
        ("status", f"GET {STATUS}", 200, ["not", "an object"], 3, "not a JSON object"),
        ("status", f"GET {STATUS}", 200, b"<html>", 3, "not JSON"),
        # not followed with the key
        ("status", f"GET {STATUS}", 307, b"http://127.0.0.1:1/", 3, "it answered 307"),
        (
            "status",
            f"GET {STATUS}",
            401,
            NO_KEY,
            1,
            "does not know the key of --key",
        ),
        (
            "status",
            f"GET {STATUS}",
            401,
            {"error": "only this machine may"},
            1,
            "refuses: only this",
        ),
        ("status", f"GET {STATUS}", 403, {"error": "no"}, 1, "does not allow that: no.\nUse a key"),
        ("status", f"GET {STATUS}", 421, {"error": "no"}, 1, "server.allowed_hosts"),
        (
            "status",
            f"GET {STATUS}",
            503,
            {"error": "not available\x07"},
            1,
            "Error: not available\ufffd\n",
        ),
        (
            "status",
            f"GET {STATUS}",
            400,
            {"error": "since: must be an age"},
            2,
            "Error: since: must be an age\n",
        ),
        # What cannot be asked.
        *(
            (f"status --url {url}", "", 200, {}, 2, "not an address")
            for url in ("ftp://x", "http://", "file:///etc", "http://x:p", "x:0")
        ),
        *(
            (f"status --key '{key}'", "", 200, {}, 1, "the key (--key")
            for key in ("hearth_a\u2013b", "\u043a\u043b\u044e\u0447", "hearth_\n")
        ),
        ("status --watch", "", 200, {}, 1, "--json --watch"),
        ("top", "", 200, {}, 1, "hearth status --json --watch"),
        ("cancel", "", 200, {}, 2, "name what to cancel: numbers as `hearth status` shows them"),
        ("cancel req_1 --caller n8n", "", 200, {}, 2, "not both"),
        ("admin pin", "", 200, {}, 2, "MODEL"),
        ("admin drain m", "", 200, {}, 2, "unexpected"),
        # What changes something.
        *(
            (f"admin {name}", f"POST /llm/admin/{name} {{}}", 200, IN_FORCE, 0, IN_WORDS)
            for name in ("drain", "pause", "resume", "unpin")
        ),
        *(
            (
                f"admin {name} m",
                f'POST /llm/admin/{name} {{"model": "m"}}',
                200,
                IN_FORCE,
                0,
                IN_WORDS,
            )
            for name in ("pin", "load", "unload")
        ),
        (
            "admin resume",
            "POST /llm/admin/resume {}",
            200,
            {"draining": False, "paused": []},
            0,
            "no admin commands in force\n",
        ),
        (
            "admin unload m",
            'POST /llm/admin/unload {"model": "m"}',
            409,
            {"error": "m is in use"},
            1,
            "Error: m is in use\n",
        ),
        ("mode", "GET /llm/mode", 200, {"names": []}, 0, "there are no modes; add some as `modes:"),
        (
            "mode",
            "GET /llm/mode",
            200,
            IN_MODE | {"mode": None, "since": None},
            0,
            "no mode\nothers: ",
        ),
        (
            "mode night",
            'PUT /llm/mode {"mode": "night"}',
            200,
            IN_MODE,
            0,
            "by boss\nothers: day",
        ),
        ("mode --off", 'PUT /llm/mode {"mode": null}', 200, IN_MODE, 0, "night, since "),
        ("mode party", 'PUT /llm/mode {"mode": "party"}', 400, {"error": "no mode party"}, 2, "no"),
        ("mode night --off", "", 200, {}, 2, "name a mode or use --off, not both"),
        (
            "admin preempt",
            "POST /llm/admin/preempt",
            200,
            {"preempted": 0},
            0,
            "no running request can be interrupted\n",
        ),
        (
            "admin preempt",
            "POST /llm/admin/preempt",
            200,
            {"preempted": 1},
            0,
            "1 request interrupted\n",
        ),
        (
            "admin preempt",
            "POST /llm/admin/preempt",
            200,
            {"preempted": 3},
            0,
            "3 requests interrupted\n",
        ),
        ("admin reload", "POST /llm/admin/reload", 200, {"restart_pending": []}, 0, "reloaded\n"),
        (
            "admin reload",
            "POST /llm/admin/reload",
            200,
            {"restart_pending": ["a", "b"]},
            0,
            "reloaded; waits for a restart: a, b\n",
        ),
        (
            "admin reload",
            "POST /llm/admin/reload",
            422,
            NOT_USABLE,
            1,
            "Error: not usable\n  a.yaml:7: x\n  a.yaml:9: y\ufffd\n",
        ),
        (
            "admin confirm-clock",
            "POST /llm/admin/confirm-clock",
            200,
            {},
            0,
            "the clock is confirmed; expired data is deleted again\n",
        ),
        (*ALERT, 200, tried("http_200", "http_204"), 0, f"{DELIVERED}ntfy (ntfy.org): delivered\n"),
        (
            *ALERT,
            200,
            tried("http_200", "http_404", problem="there is\nnothing"),
            1,
            f"{DELIVERED}ntfy (ntfy.org): not delivered: http_404 (there is\ufffdnothing)\n",
        ),
        (
            *ALERT,
            200,
            tried("http_200", "http_500"),
            1,
            f"{DELIVERED}ntfy (ntfy.org): not delivered: http_500\n",
        ),
        (
            *ALERT,
            200,
            tried("http_200", "y\x07"),
            1,
            f"{DELIVERED}ntfy (ntfy.org): not delivered: y\ufffd\n",
        ),
        *((*ALERT, 200, {"targets": odd}, 1, "\n") for odd in (None, ["x"], [])),
        (*ALERT, 404, {"error": "set an address"}, 1, "Error: set an address\n"),
        (
            "cancel req_1",
            "POST /llm/requests/req_1/cancel",
            200,
            CANCELLED,
            0,
            "req_1: cancelled\n",
        ),
        ("cancel 17", "POST /llm/queue/item/17/cancel", 200, CANCELLED, 0, "17: cancelled\n"),
        ("cancel '#17'", "POST /llm/queue/item/17/cancel", 200, CANCELLED, 0, "#17: cancelled\n"),
        (
            "cancel \u0663",
            "POST /llm/requests/%D9%A3/cancel",
            200,
            CANCELLED,
            0,
            "\u0663: cancelled\n",
        ),
        (
            "cancel ../../admin/x",
            "POST /llm/requests/..%2F..%2Fadmin%2Fx/cancel",
            200,
            CANCELLED,
            0,
            "../../admin/x: cancelled\n",
        ),
        (
            "cancel req_1",
            "POST /llm/requests/req_1/cancel",
            200,
            {"cancelled": False},
            1,
            "req_1: had ended before\n",
        ),
        (
            "cancel --caller a&b=c",
            ALL_OF_A_CALLER,
            200,
            all_of_caller(2, 1, 0),
            0,
            "a&b=c: 2 requests and 1 job cancelled\n",
        ),
        (
            "cancel --caller a&b=c",
            ALL_OF_A_CALLER,
            200,
            all_of_caller(1, 64, 2),
            0,
            "a&b=c: 1 request, 64 jobs and 2 batches cancelled\n",
        ),
        (
            "cancel --caller a&b=c",
            ALL_OF_A_CALLER,
            200,
            all_of_caller(0, 0, 1),
            0,
            "a&b=c: 1 batch cancelled\n",
        ),
        (
            "cancel --caller a&b=c",
            ALL_OF_A_CALLER,
            200,
            all_of_caller(0, 0, 0),
            0,
            "a&b=c: nothing to cancel\n",
        ),
        (
            "cancel --caller a&b=c",
            ALL_OF_A_CALLER,
            403,
            {"error": "others need an admin key"},
            1,
            "others need an admin key",
        ),
    ],
)
def test_a_command_asks_with_the_key_and_says_what_came_of_it(
    hearth, busy, command, asked, status, answer, code, says
):
    busy.answers.clear()
    busy.seen.clear()
    busy.bodies.clear()
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    busy.otherwise = (status, "application/json", body)
    result = hearth(*shlex.split(command), HEARTH_URL=busy.url, HEARTH_KEY="hearth_k")
    seen = [f"{each['method']} {each['path']}" for each in busy.seen]
    sent = " ".join((*seen, *map(json.dumps, busy.bodies)))
    assert (result.exit_code, sent) == (code, asked)
    assert result.output == says if says.endswith("\n") else says in result.output
    assert {each.get("authorization") for each in busy.seen} <= {"Bearer hearth_k"}
    assert "--key" not in command or "hearth_" not in result.output
    if code == 0 and answer:
        as_json = hearth(
            *shlex.split(command), "--json", HEARTH_URL=busy.url, HEARTH_KEY="hearth_k"
        )
        assert json.loads(as_json.stdout) == answer


def test_unknown_or_ended_ends_with_1_and_the_others_are_cancelled(hearth, busy):
    for request_id, cancelled in (("req_1", False), ("req_3", True)):
        busy.put(
            f"/llm/requests/{request_id}/cancel", {"request_id": request_id, "cancelled": cancelled}
        )
    busy.put("/llm/requests/req_2/cancel", {"error": "there is no such request"}, 404)
    result = hearth("cancel", "req_1", "req_2", "req_3", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (
        1,
        "req_1: had ended before\nreq_2: there is no such request\nreq_3: cancelled\n",
    )
    result = hearth("cancel", "req_1", "req_3", "--json", "--url", busy.url)
    assert (
        result.exit_code,
        [json.loads(line)["cancelled"] for line in result.stdout.splitlines()],
    ) == (1, [False, True])


def test_an_address_may_lack_its_scheme_and_have_a_path_and_no_proxy_is_asked(hearth, busy):
    busy.put("/hearth/llm/queue/status", {})
    for url in (busy.url.removeprefix("http://"), f"{busy.url}/hearth/"):
        assert (
            hearth(
                "status",
                "--json",
                "--url",
                url,
                http_proxy="http://127.0.0.1:1",
                HTTP_PROXY="http://127.0.0.1:1",
            ).exit_code
            == 0
        )
    assert [request["path"] for request in busy.seen] == [STATUS, f"/hearth{STATUS}"]
    assert not any("authorization" in request for request in busy.seen)


@pytest.mark.parametrize(
    "said",
    [None, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"SSH-2.0-OpenSSH_9.2\r\n"],
)
def test_nobody_there_or_a_broken_server_ends_with_3_and_advice(hearth, said):
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
    assert (
        result.exit_code,
        result.stdout,
        url in result.stderr,
        "hearth serve" in result.stderr,
    ) == (3, "", True, True)


def test_https_where_there_is_none_is_said_without_the_words_of_the_library(hearth, busy):
    result = hearth("status", "--url", busy.url.replace("http:", "https:"))
    assert (result.exit_code, "it does not speak HTTPS; write http://" in result.stderr) == (
        3,
        True,
    )


@pytest.fixture
def interruptible():
    """Ctrl-C is heard, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("path", "args", "ends"),
    [(STREAM, ("--watch",), False), (STREAM, ("--watch",), True), (STATUS, (), True)],
)
def test_watching_prints_a_line_per_change_until_the_end_or_ctrl_c(hearth, busy, path, args, ends):
    events = b': heartbeat\n\nid: 1\ndata: {"mode": "active"}\n\nid: 2\ndata: {"mode": "quiet"}\n\n'
    busy.answers[path] = (200, "text/event-stream", events)
    busy.after_stream = partial(os.kill, os.getpid(), signal.SIGINT) if ends else None
    result = hearth("status", "--json", *args, "--url", busy.url)
    assert (result.exit_code, "Aborted" in result.output) == ((0, False) if args else (1, True))
    assert ends or [json.loads(line) for line in result.stdout.splitlines()] == [
        {"mode": "active"},
        {"mode": "quiet"},
    ]


def test_top_needs_a_gateway_that_answers_once_and_says_when_it_went_away(busy):
    with pytest.raises(GatewayUnreachable):
        next(looks(GatewayClient("http://127.0.0.1:1"), lambda: None))
    looking = looks(GatewayClient(busy.url), lambda: busy.put(STATUS, ["no"], 500))
    assert next(looking) == recorded("status_busy")
    assert "no gateway at" in str(next(looking))


def test_a_gateway_that_wants_a_key_says_how_one_is_given(hearth, busy):
    busy.put("/llm/queue/status", NO_KEY, 401)
    refused = hearth("status", "--url", busy.url)
    assert refused.exit_code == 1
    assert f"{busy.url} requires an API key: use --key or HEARTH_KEY." in refused.stderr
