"""`hearth admin` and `hearth cancel`: alerts that are tried, commands that are sent, requests that are cancelled."""

from __future__ import annotations

import json

from tests.support.cases import for_each

ALERT_TEST = "/llm/admin/alert/test"


def tried(target: str, answer: str) -> dict[str, object]:
    return {"target": target, "host": f"{target}.example", "delivered": answer.startswith("http_2"), "answer": answer}


@for_each(
    ("answer", "code", "says"),
    [
        ("http_204", 0, "ntfy (ntfy.example): delivered\n"),
        ("http_404", 1, "there is nothing at the address"),
        ("http_401", 1, "copy it again"),
        ("dns", 1, "is the machine online?"),
        ("http_500", 1, "not delivered: http_500\n"),
        ("timeout", 1, "no answer in time"),
        ("y\x07", 1, "not delivered: y\ufffd\n"),
    ],
)
def test_trying_the_alerts_says_what_each_target_answered(hearth, busy, answer, code, says):
    targets = {"targets": [tried("discord", "http_200"), tried("ntfy", answer)]}
    busy.put(ALERT_TEST, targets)
    result = hearth("admin", "alert", "test", "--url", busy.url, HEARTH_KEY="hearth_k")
    assert result.exit_code == code
    assert result.stdout.startswith("discord (discord.example): delivered\n")
    assert says in result.stdout
    assert (busy.seen[-1]["method"], busy.seen[-1]["authorization"]) == ("POST", "Bearer hearth_k")
    as_json = hearth("admin", "alert", "test", "--json", "--url", busy.url)
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (code, targets)


@for_each("answer", [{}, {"targets": None}, {"targets": ["x"]}, {"targets": []}, {"error": "set alerts.discord_webhook_url"}])
def test_an_answer_without_targets_is_no_success(hearth, busy, answer):
    busy.put(ALERT_TEST, answer, 404 if "error" in answer else 200)
    result = hearth("admin", "alert", "test", "--url", busy.url)
    assert (result.exit_code, result.stdout.strip()) == (1, "")
    assert answer.get("error", "") in result.stderr


FORCE = {"draining": True, "paused": ["external"], "pinned": "m:latest\x07", "loads": ["b"], "unloads": ["c"], "since": {}}
NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
WORDS = (
    "draining: new requests are refused\npaused: external requests wait\npinned: m:latest\ufffd\nto load: b\nto unload: c\n",
    "no admin commands in force\n",
)


@for_each("command", [("drain",), ("pause",), ("resume",), ("unpin",), ("pin", "m"), ("load", "m"), ("unload", "m")])
def test_an_admin_command_is_posted_and_answered_with_those_in_force(hearth, busy, command):
    path = f"/llm/admin/{command[0]}"
    for answer, says in zip((FORCE, NOTHING), WORDS, strict=True):
        busy.put(path, answer)
        result = hearth("admin", *command, "--url", busy.url)
        assert (result.exit_code, result.stdout) == (0, says)
    assert (busy.seen[-1]["method"], busy.bodies[-1]) == ("POST", {"model": "m"} if command[1:] else {})
    assert json.loads(hearth("admin", *command, "--json", "--url", busy.url).stdout) == NOTHING
    busy.put(path, {"error": "m is in use: 1 request runs on it"}, 409)
    refused = hearth("admin", *command, "--url", busy.url)
    assert (refused.exit_code, refused.stderr) == (1, "Error: m is in use: 1 request runs on it\n")
    assert hearth("admin", *command[:1], *(() if command[1:] else ("m",)), "--url", busy.url).exit_code == 2


def cancelling(stub, request_id: str, *, cancelled: bool = True) -> None:
    stub.put(f"/llm/requests/{request_id}/cancel", {"request_id": request_id, "cancelled": cancelled})


@for_each(
    ("request_", "path"),
    [
        ("req_1", "/llm/requests/req_1/cancel"),
        ("17", "/llm/queue/item/17/cancel"),
        ("#17", "/llm/queue/item/17/cancel"),
        ("\u0663", "/llm/requests/%D9%A3/cancel"),
        ("../../admin/preempt", "/llm/requests/..%2F..%2Fadmin%2Fpreempt/cancel"),
    ],
)
def test_a_request_is_cancelled_by_its_id_or_by_the_number_that_the_status_shows(hearth, busy, request_, path):
    busy.put(path, {"request_id": "req_1", "cancelled": True})
    result = hearth("cancel", request_, "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, f"{request_}: cancelled\n")
    assert (busy.seen[-1]["method"], busy.seen[-1]["path"]) == ("POST", path)


def test_what_had_ended_or_is_unknown_ends_with_1_and_the_others_are_cancelled_all_the_same(hearth, busy):
    cancelling(busy, "req_1", cancelled=False)
    busy.put("/llm/requests/req_2/cancel", {"error": "there is no such request"}, 404)
    cancelling(busy, "req_3")
    result = hearth("cancel", "req_1", "req_2", "req_3", "--url", busy.url)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["req_1: had ended before", "req_2: there is no such request", "req_3: cancelled"]
    result = hearth("cancel", "req_1", "req_3", "--json", "--url", busy.url)
    assert result.exit_code == 1
    assert [json.loads(line)["cancelled"] for line in result.stdout.splitlines()] == [False, True]


@for_each(("args", "code"), [((), 2), (("req_1", "--caller", "n8n"), 2), (("req_1", "--url", "http://127.0.0.1:1"), 3)])
def test_what_cannot_be_cancelled_is_no_success(hearth, args, code):
    assert hearth("cancel", *args).exit_code == code


@for_each(
    ("requests", "jobs", "batches", "says"),
    [
        (["req_1", "req_2"], 1, 0, "n8n: 2 requests and 1 job cancelled\n"),
        (["req_1"], 0, 0, "n8n: 1 request cancelled\n"),
        ([], 3, 0, "n8n: 3 jobs cancelled\n"),
        ([], 0, 1, "n8n: 1 batch cancelled\n"),
        (["req_1"], 64, 2, "n8n: 1 request, 64 jobs and 2 batches cancelled\n"),
        ([], 0, 0, "n8n: nothing to cancel\n"),
    ],
)
def test_all_that_a_caller_has_is_cancelled_at_once_and_nothing_left_is_no_failure(hearth, busy, requests, jobs, batches, says):
    answer = {"caller": "n8n", "cancelled": len(requests) + jobs + batches, "requests": requests, "jobs": jobs, "batches": batches}
    busy.put("/llm/requests/cancel?caller=n8n", answer)
    result = hearth("cancel", "--caller", "n8n", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, says)
    assert busy.seen[-1]["method"] == "POST"
    assert json.loads(hearth("cancel", "--caller", "n8n", "--json", "--url", busy.url).stdout) == answer


def test_a_caller_is_one_value_of_an_address_and_a_refusal_ends_with_1(hearth, busy):
    busy.put("/llm/requests/cancel?caller=a%26caller%3Db", {"error": "others need an admin key"}, 403)
    result = hearth("cancel", "--caller", "a&caller=b", "--url", busy.url)
    assert result.exit_code == 1
    assert "others need an admin key" in result.stderr


@for_each(
    ("count", "says"), [(0, "no running request can be interrupted\n"), (1, "1 request interrupted\n"), (3, "3 requests interrupted\n")]
)
def test_preempt_says_how_many_running_requests_are_interrupted(hearth, busy, count, says):
    busy.put("/llm/admin/preempt", {"preempted": count})
    result = hearth("admin", "preempt", "--url", busy.url)
    assert (result.exit_code, result.stdout, busy.seen[-1]["method"]) == (0, says, "POST")


@for_each(
    ("answer", "status", "code", "says"),
    [
        ({"reloaded": True, "restart_pending": []}, 200, 0, "reloaded\n"),
        (
            {"reloaded": True, "restart_pending": ["server.port", "ollama.url"]},
            200,
            0,
            "reloaded; waits for a restart: server.port, ollama.url\n",
        ),
        (
            {"error": "not usable", "problems": ["a.yaml:7: x", "a.yaml:9: y\x07"]},
            422,
            1,
            "Error: not usable\n  a.yaml:7: x\n  a.yaml:9: y\ufffd\n",
        ),
    ],
)
def test_reload_says_what_waits_for_a_restart_or_every_problem(hearth, busy, answer, status, code, says):
    busy.put("/llm/admin/reload", answer, status)
    result = hearth("admin", "reload", "--url", busy.url)
    assert (result.exit_code, result.output) == (code, says)
