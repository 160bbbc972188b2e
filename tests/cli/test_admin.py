"""`hearth admin` and `hearth cancel`: alerts that are tried, commands that are sent, requests that are cancelled."""

from __future__ import annotations

import json

from tests.support.cases import for_each

ALERT_TEST = "/llm/admin/alert/test"


@for_each(
    ("answers", "code", "says"),
    [
        (["http_200", "http_204"], 0, "discord (discord.example): delivered\nntfy (ntfy.example): delivered\n"),
        (["http_200", "http_404"], 1, "there is nothing at the address"),
        (["http_200", "http_401"], 1, "copy it again"),
        (["http_200", "dns"], 1, "is the machine online?"),
        (["http_200", "http_500"], 1, "not delivered: http_500\n"),
        (["http_200", "timeout"], 1, "no answer in time"),
        (["http_200", "y\x07"], 1, "not delivered: y\ufffd\n"),
        (None, 1, ""),
        ("x", 1, ""),
        ([], 1, ""),
        ("refused", 1, ""),
    ],
)
def test_trying_the_alerts_says_what_each_target_answered_and_no_target_is_no_success(hearth, busy, answers, code, says):
    targets = [
        {"target": name, "host": f"{name}.example", "delivered": answer.startswith("http_2"), "answer": answer}
        for name, answer in (zip(("discord", "ntfy"), answers, strict=True) if answers and isinstance(answers, list) else ())
    ]
    answer = {"error": "set an address"} if answers == "refused" else {"targets": targets or answers}
    busy.put(ALERT_TEST, answer, 404 if "error" in answer else 200)
    result = hearth("admin", "alert", "test", "--url", busy.url, HEARTH_KEY="hearth_k")
    assert (result.exit_code, says in result.stdout, bool(targets) or result.stdout.strip() == "") == (code, True, True)
    assert answer.get("error", "") in result.stderr
    assert (busy.seen[-1]["method"], busy.seen[-1]["authorization"]) == ("POST", "Bearer hearth_k")
    as_json = hearth("admin", "alert", "test", "--json", "--url", busy.url)
    assert (as_json.exit_code, answer.get("error") or json.loads(as_json.stdout)) == (code, answer.get("error", answer))


FORCE = {"draining": True, "paused": ["external"], "pinned": "m:latest\x07", "loads": ["b"], "unloads": ["c"], "since": {}}
NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
IN_FORCE = "draining: new requests are refused\npaused: external requests wait\npinned: m:latest\ufffd\nto load: b\nto unload: c\n"
NOT_USABLE = {"error": "not usable", "problems": ["a.yaml:7: x", "a.yaml:9: y\x07"]}


@for_each(
    ("command", "answer", "status", "says"),
    [
        *((command, FORCE, 200, IN_FORCE) for command in ("drain", "pause", "resume", "unpin", "pin m", "load m", "unload m")),
        ("drain", NOTHING, 200, "no admin commands in force\n"),
        ("load m", {"error": "m is in use: 1 request runs on it"}, 409, "Error: m is in use: 1 request runs on it\n"),
        ("preempt", {"preempted": 0}, 200, "no running request can be interrupted\n"),
        ("preempt", {"preempted": 1}, 200, "1 request interrupted\n"),
        ("preempt", {"preempted": 3}, 200, "3 requests interrupted\n"),
        ("reload", {"reloaded": True, "restart_pending": []}, 200, "reloaded\n"),
        ("reload", {"reloaded": True, "restart_pending": ["server.port", "a"]}, 200, "reloaded; waits for a restart: server.port, a\n"),
        ("reload", NOT_USABLE, 422, "Error: not usable\n  a.yaml:7: x\n  a.yaml:9: y\ufffd\n"),
        ("confirm-clock", {}, 200, "the clock is confirmed; expired data is deleted again\n"),
    ],
)
def test_an_admin_command_is_posted_and_its_answer_said_in_words(hearth, busy, command, answer, status, says):
    name, *model = command.split()
    busy.put(f"/llm/admin/{name}", answer, status)
    result = hearth("admin", name, *model, "--url", busy.url)
    assert (result.exit_code, result.output) == (int(status != 200), says)
    assert busy.seen[-1]["method"] == "POST"
    if answer is FORCE:
        assert busy.bodies[-1] == ({"model": "m"} if model else {})
        assert hearth("admin", name, *(() if model else ("m",)), "--url", busy.url).exit_code == 2
    if status == 200 and answer:
        assert json.loads(hearth("admin", name, *model, "--json", "--url", busy.url).stdout) == answer


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
    for request_id, cancelled in (("req_1", False), ("req_3", True)):
        busy.put(f"/llm/requests/{request_id}/cancel", {"request_id": request_id, "cancelled": cancelled})
    busy.put("/llm/requests/req_2/cancel", {"error": "there is no such request"}, 404)
    result = hearth("cancel", "req_1", "req_2", "req_3", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (1, "req_1: had ended before\nreq_2: there is no such request\nreq_3: cancelled\n")
    result = hearth("cancel", "req_1", "req_3", "--json", "--url", busy.url)
    assert (result.exit_code, [json.loads(line)["cancelled"] for line in result.stdout.splitlines()]) == (1, [False, True])
    for args, code in (((), 2), (("req_1", "--caller", "n8n"), 2), (("req_1", "--url", "http://127.0.0.1:1"), 3)):
        assert hearth("cancel", *args).exit_code == code


@for_each(
    ("requests", "jobs", "batches", "says"),
    [
        (2, 1, 0, "a&b=c: 2 requests and 1 job cancelled\n"),
        (1, 0, 0, "a&b=c: 1 request cancelled\n"),
        (0, 3, 0, "a&b=c: 3 jobs cancelled\n"),
        (0, 0, 1, "a&b=c: 1 batch cancelled\n"),
        (1, 64, 2, "a&b=c: 1 request, 64 jobs and 2 batches cancelled\n"),
        (0, 0, 0, "a&b=c: nothing to cancel\n"),
    ],
)
def test_all_that_a_caller_has_is_cancelled_at_once_and_nothing_left_is_no_failure(hearth, busy, requests, jobs, batches, says):
    answer = {"cancelled": requests + jobs + batches, "requests": ["req_1"] * requests, "jobs": jobs, "batches": batches}
    busy.put("/llm/requests/cancel?caller=a%26b%3Dc", answer)
    result = hearth("cancel", "--caller", "a&b=c", "--url", busy.url)
    assert (result.exit_code, result.stdout, busy.seen[-1]["method"]) == (0, says, "POST")
    assert json.loads(hearth("cancel", "--caller", "a&b=c", "--json", "--url", busy.url).stdout) == answer
    busy.put("/llm/requests/cancel?caller=a%26b%3Dc", {"error": "others need an admin key"}, 403)
    refused = hearth("cancel", "--caller", "a&b=c", "--url", busy.url)
    assert (refused.exit_code, "others need an admin key" in refused.stderr) == (1, True)
