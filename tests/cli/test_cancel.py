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
    busy.put("/llm/queue/item/17", {"sequence": 17, "request_id": "req_1"})
    cancelling(busy, "req_1")
    result = hearth("cancel", number, "--url", busy.url)
    assert (result.exit_code, result.stdout) == (0, f"{number}: cancelled\n")


def test_what_had_ended_or_is_unknown_ends_with_1_and_the_others_are_cancelled_all_the_same(hearth, busy):
    cancelling(busy, "req_1", cancelled=False)
    busy.put("/llm/requests/req_2/cancel", {"error": "there is no such request"}, 404)
    busy.put("/llm/queue/item/9", {"error": "there is no such item"}, 404)
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


def test_nothing_to_cancel_is_a_usage_error(hearth):
    assert hearth("cancel").exit_code == 2


def test_nobody_there_ends_with_3(hearth):
    assert hearth("cancel", "req_1", "--url", "http://127.0.0.1:1").exit_code == 3
