"""`hearth cancel`: by id or by number, several at once, and what a script sees of it."""

from __future__ import annotations

import json

import pytest


def cancelling(stub, request_id: str, *, cancelled: bool = True) -> None:
    stub.put(f"/llm/requests/{request_id}/cancel", {"request_id": request_id, "cancelled": cancelled})


def test_a_request_is_cancelled_by_its_id(hearth, busy):
    cancelling(busy, "req_1")
    result = hearth("cancel", "req_1", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, "req_1: cancelled\n")
    assert [request["method"] for request in busy.seen] == ["POST"]


@pytest.mark.parametrize("number", ["17", "#17"])
def test_a_number_as_the_status_shows_it_will_do(hearth, busy, number):
    busy.put("/llm/queue/item/17/cancel", {"sequence": 17, "request_id": "req_1", "cancelled": True})
    result = hearth("cancel", number, "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, f"{number}: cancelled\n")
    assert [(request["method"], request["path"]) for request in busy.seen] == [("POST", "/llm/queue/item/17/cancel")]


def test_what_had_ended_or_is_unknown_ends_with_1_and_the_others_are_cancelled_all_the_same(hearth, busy):
    cancelling(busy, "req_1", cancelled=False)
    busy.put("/llm/requests/req_2/cancel", {"error": "there is no such request"}, 404)
    busy.put("/llm/queue/item/9/cancel", {"error": "there is no such item"}, 404)
    cancelling(busy, "req_3")
    result = hearth("cancel", "req_1", "req_2", "9", "req_3", "--url", busy.url)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "req_1: had ended before",
        "req_2: there is no such request",
        "9: there is no such item",
        "req_3: cancelled",
    ]


def test_json_prints_an_object_for_each(hearth, busy):
    cancelling(busy, "req_1")
    cancelling(busy, "req_2", cancelled=False)
    result = hearth("cancel", "req_1", "req_2", "--json", "--url", busy.url)
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"request_id": "req_1", "cancelled": True},
        {"request_id": "req_2", "cancelled": False},
    ]


def test_an_id_is_one_part_of_an_address(hearth, busy):
    hearth("cancel", "../../admin/preempt", "--url", busy.url)
    assert [request["path"] for request in busy.seen] == ["/llm/requests/..%2F..%2Fadmin%2Fpreempt/cancel"]


def test_digits_of_another_script_are_no_number_and_the_others_are_cancelled_all_the_same(hearth, busy):
    busy.put("/llm/requests/%D9%A3/cancel", {"error": "there is no such request"}, 404)
    cancelling(busy, "req_1")
    result = hearth("cancel", "\u0663", "req_1", "--url", busy.url)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "req_1: cancelled")


def test_nothing_to_cancel_is_a_usage_error(hearth):
    assert hearth("cancel").exit_code == 2


def test_nobody_there_ends_with_3(hearth):
    assert hearth("cancel", "req_1", "--url", "http://127.0.0.1:1").exit_code == 3


def cancelling_all_of(stub, caller: str, requests: list[str], jobs: int, batches: int = 0) -> None:
    answer = {"caller": caller, "cancelled": len(requests) + jobs + batches, "requests": requests, "jobs": jobs, "batches": batches}
    stub.put(f"/llm/requests/cancel?caller={caller}", answer)


@pytest.mark.parametrize(
    ("requests", "jobs", "batches", "said"),
    [
        (["req_1", "req_2"], 1, 0, "n8n: 2 requests and 1 job cancelled\n"),
        (["req_1"], 0, 0, "n8n: 1 request cancelled\n"),
        ([], 3, 0, "n8n: 3 jobs cancelled\n"),
        ([], 0, 1, "n8n: 1 batch cancelled\n"),
        (["req_1"], 64, 2, "n8n: 1 request, 64 jobs and 2 batches cancelled\n"),
        ([], 0, 0, "n8n: nothing to cancel\n"),
    ],
)
def test_all_that_a_caller_has_is_cancelled_at_once_and_nothing_left_is_no_failure(hearth, busy, requests, jobs, batches, said):
    cancelling_all_of(busy, "n8n", requests, jobs, batches)
    result = hearth("cancel", "--caller", "n8n", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, said)
    assert [request["method"] for request in busy.seen] == ["POST"]


def test_json_prints_the_answer_about_a_caller(hearth, busy):
    cancelling_all_of(busy, "n8n", ["req_1"], 2)
    result = hearth("cancel", "--caller", "n8n", "--json", "--url", busy.url)
    assert json.loads(result.stdout) == {"caller": "n8n", "cancelled": 3, "requests": ["req_1"], "jobs": 2, "batches": 0}


def test_a_caller_whose_requests_this_key_may_not_cancel_ends_with_1(hearth, busy):
    busy.put("/llm/requests/cancel?caller=n8n", {"error": "those of others need an admin key"}, 403)
    result = hearth("cancel", "--caller", "n8n", "--url", busy.url)
    assert result.exit_code == 1
    assert "those of others need an admin key" in result.stderr


def test_a_name_is_one_value_of_an_address(hearth, busy):
    hearth("cancel", "--caller", "a&caller=b", "--url", busy.url)
    assert [request["path"] for request in busy.seen] == ["/llm/requests/cancel?caller=a%26caller%3Db"]


def test_requests_and_a_caller_together_are_a_usage_error(hearth):
    assert hearth("cancel", "req_1", "--caller", "n8n").exit_code == 2
