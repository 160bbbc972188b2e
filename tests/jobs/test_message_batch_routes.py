"""`/v1/messages/batches` over HTTP: Anthropic's own client, keys, limits, and what each request
comes to.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from hearth.config.settings import BatchSettings, CallerLimits, JobSettings, RateLimitSettings
from tests.jobs.served import Life
from tests.support.fields import Fields
from tests.support.home import (
    ADMIN_KEY,
    FRIEND_KEY,
    GUEST_KEY,
    HOUSE_KEY,
    LLAMA,
    LONG_TOKENS,
    SLOW,
)
from tests.support.http import Got

PATH = "/v1/messages/batches"
HELLO = {"model": LLAMA, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
SLOWLY = HELLO | {"model": SLOW, "max_tokens": LONG_TOKENS}


def wanted(*params: Fields) -> list[Any]:
    """Requests r0, r1, ..."""
    return [{"custom_id": f"r{number}", "params": each} for number, each in enumerate(params)]


async def until_ended(house: Life, claude: anthropic.AsyncAnthropic, batch_id: str) -> Any:
    return await house.shown(
        lambda: claude.messages.batches.retrieve(batch_id),
        lambda batch: batch.processing_status == "ended",
    )


async def results_of(claude: anthropic.AsyncAnthropic, batch_id: str) -> Fields:
    """The results by custom_id; each once."""
    found = [each async for each in await claude.messages.batches.results(batch_id)]
    results = {each.custom_id: each.result for each in found}
    assert len(results) == len(found)
    return results


async def test_the_official_client_drives_a_batch_from_its_requests_to_its_results(live):
    async with live() as house, house.claude() as claude:
        batch = await claude.messages.batches.create(requests=wanted(*[HELLO] * 3))
        assert batch.id.startswith("msgbatch_")
        assert (batch.type, batch.processing_status, batch.results_url, batch.ended_at) == (
            "message_batch",
            "in_progress",
            None,
            None,
        )
        assert batch.request_counts.to_dict() == {
            "processing": 3,
            "succeeded": 0,
            "errored": 0,
            "canceled": 0,
            "expired": 0,
        }
        assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
        ended = await until_ended(house, claude, batch.id)
        assert ended.results_url == f"{PATH}/{batch.id}/results"
        assert (ended.request_counts.processing, ended.request_counts.succeeded) == (0, 3)
        assert ended.created_at <= ended.ended_at
        results = await results_of(claude, batch.id)
        assert sorted(results) == ["r0", "r1", "r2"]
        for result in results.values():
            assert (result.type, result.message.usage.output_tokens) == ("succeeded", 3)
            assert result.message.content[0].text
        got = await house.get(ended.results_url)
        assert got.headers["content-type"] == "application/x-jsonl"
        assert int(got.headers["content-length"]) == len(got.body)


ALONE: dict[str, tuple[Fields, str, str]] = {
    "unknown model": (HELLO | {"model": "nowhere"}, "not_found_error", "not installed"),
    "no model": ({"max_tokens": 3}, "invalid_request_error", "model"),
    "stream": (HELLO | {"stream": True}, "invalid_request_error", "stream"),
    "no tokens": (HELLO | {"max_tokens": 0}, "invalid_request_error", "max_tokens"),
    "wrong type": (HELLO | {"max_tokens": "many"}, "invalid_request_error", "max_tokens"),
    "no messages": (HELLO | {"messages": 7}, "invalid_request_error", "messages"),
}


async def test_a_request_that_is_not_in_order_fails_alone_in_anthropic_s_words(live):
    async with live() as house, house.claude() as claude:
        requests = [
            *wanted(HELLO),
            *(
                {"custom_id": name.replace(" ", "_"), "params": params}
                for name, (params, _, _) in ALONE.items()
            ),
        ]
        batch = await claude.messages.batches.create(requests=requests)
        ended = await until_ended(house, claude, batch.id)
        assert (ended.request_counts.succeeded, ended.request_counts.errored) == (1, len(ALONE))
        results = await results_of(claude, batch.id)
        assert results.pop("r0").type == "succeeded"
        for name, (_, kind, says) in ALONE.items():
            result = results[name.replace(" ", "_")]
            assert (result.type, result.error.error.type) == ("errored", kind), name
            assert says in result.error.error.message


async def test_a_model_that_a_key_may_not_use_is_a_permission_error_of_its_request(live):
    async with live(keys=True) as house, house.claude(GUEST_KEY) as claude:
        batch = await claude.messages.batches.create(requests=wanted(HELLO, SLOWLY))
        await until_ended(house, claude, batch.id)
        results = await results_of(claude, batch.id)
        assert {each.error.error.type for each in results.values() if each.type == "errored"} == {
            "permission_error"
        }


@pytest.mark.parametrize("at_work", [True, False], ids=("running", "at once"))
async def test_each_request_of_a_cancelled_batch_has_a_result(live, at_work: bool):
    async with live() as house, house.claude() as claude:
        batch = await claude.messages.batches.create(requests=wanted(*[SLOWLY] * 5))
        with pytest.raises(anthropic.NotFoundError, match="ended"):
            await claude.get(f"{PATH}/{batch.id}/results", cast_to=object)
        with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
            await claude.messages.batches.delete(batch.id)
        if at_work:
            await house.at_work()
        cancelled = await claude.messages.batches.cancel(batch.id)
        assert cancelled.processing_status in ("canceling", "ended")
        assert cancelled.cancel_initiated_at is not None
        ended = await until_ended(house, claude, batch.id)
        assert ended.request_counts.to_dict() == {
            "processing": 0,
            "succeeded": 0,
            "errored": 0,
            "canceled": 5,
            "expired": 0,
        }
        assert await claude.messages.batches.cancel(batch.id) == ended
        results = await results_of(claude, batch.id)
        assert [each.type for each in results.values()] == ["canceled"] * 5


async def test_a_deleted_batch_is_gone_with_its_results(live):
    async with live() as house, house.claude() as claude, house.gpt() as gpt:
        batch = await claude.messages.batches.create(requests=wanted(HELLO, {"max_tokens": 3}))
        await until_ended(house, claude, batch.id)
        assert len([each async for each in gpt.files.list()]) == 2
        deleted = await claude.messages.batches.delete(batch.id)
        assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
        for asking in (
            claude.messages.batches.retrieve(batch.id),
            claude.messages.batches.delete(batch.id),
            claude.get(f"{PATH}/{batch.id}/results", cast_to=object),
        ):
            with pytest.raises(anthropic.NotFoundError):
                await asking
        assert [each async for each in gpt.files.list()] == []


async def test_results_whose_file_was_deleted_are_not_found(live):
    async with live() as house, house.claude() as claude, house.gpt() as gpt:
        batch = await claude.messages.batches.create(requests=wanted(HELLO))
        await until_ended(house, claude, batch.id)
        (file,) = [each async for each in gpt.files.list()]
        assert file.purpose == "batch_output"
        await gpt.files.delete(file.id)
        with pytest.raises(anthropic.NotFoundError, match="deleted"):
            await results_of(claude, batch.id)


async def test_batches_are_listed_latest_first_and_in_their_own_api_only(live):
    async with live() as house, house.claude() as claude, house.gpt() as gpt:
        made = [(await claude.messages.batches.create(requests=wanted(HELLO))).id for _ in range(4)]
        for batch_id in made:
            await until_ended(house, claude, batch_id)
        latest_first = made[::-1]
        batches = claude.messages.batches
        assert [each.id async for each in batches.list(limit=1)] == latest_first
        page = await batches.list(limit=3)
        assert ([each.id for each in page.data], page.has_more) == (latest_first[:3], True)
        assert (page.first_id, page.last_id) == (latest_first[0], latest_first[2])
        page = await batches.list(after_id=latest_first[0], limit=2)
        assert ([each.id for each in page.data], page.has_more) == (latest_first[1:3], True)
        page = await batches.list(before_id=latest_first[3], limit=2)
        assert ([each.id for each in page.data], page.has_more) == (latest_first[1:3], True)
        page = await batches.list(before_id=latest_first[1], limit=2)
        assert ([each.id for each in page.data], page.has_more) == (latest_first[:1], False)
        page = await batches.list(after_id=latest_first[3])
        assert (page.data, page.has_more, page.first_id, page.last_id) == ([], False, None, None)
        with pytest.raises(anthropic.NotFoundError, match="after_id: there is no such batch"):
            await batches.list(after_id="msgbatch_0")
        with pytest.raises(anthropic.NotFoundError, match="before_id: there is no such batch"):
            await batches.list(before_id="msgbatch_0")
        with pytest.raises(anthropic.BadRequestError, match="one of them"):
            await batches.list(after_id=made[0], before_id=made[1])
        assert [each.id async for each in gpt.batches.list()] == []
        with pytest.raises(openai.NotFoundError):
            await gpt.batches.retrieve(made[0])
        file = await gpt.files.create(file=("x.jsonl", b"x"), purpose="batch")
        other = await gpt.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        for asking in (batches.retrieve(other.id), batches.cancel(other.id)):
            with pytest.raises(anthropic.NotFoundError):
                await asking


async def test_batches_of_a_key_do_not_exist_for_others(live):
    async with live(keys=True) as house, house.claude(FRIEND_KEY) as claude:
        batch = await claude.messages.batches.create(requests=wanted(HELLO))
        await until_ended(house, claude, batch.id)
        for key in (HOUSE_KEY, ADMIN_KEY):
            for method, path in (
                ("GET", f"{PATH}/{batch.id}"),
                ("DELETE", f"{PATH}/{batch.id}"),
                ("POST", f"{PATH}/{batch.id}/cancel"),
                ("GET", f"{PATH}/{batch.id}/results"),
                ("GET", f"{PATH}?after_id={batch.id}"),
            ):
                got = await house.ask(method, path, key=key)
                missing = await house.ask(method, path.replace(batch.id, "msgbatch_0"), key=key)
                assert (got.status, without_id(got)) == (404, without_id(missing))
            assert (await house.ask("GET", PATH, key=key)).json["data"] == []


def without_id(got: Got) -> Fields:
    error: Fields = got.json | {"request_id": None}
    assert error["type"] == "error"
    return error


UNUSABLE: list[tuple[Any, str]] = [
    ({}, "requests: Field required"),
    ([], "body"),
    ({"requests": []}, "requests"),
    ({"requests": {}}, "requests"),
    ({"requests": wanted(HELLO), "model": LLAMA}, "model: unknown field"),
    ({"requests": [{"params": HELLO}]}, "requests.0.custom_id"),
    ({"requests": [{"custom_id": "x"}]}, "requests.0.params"),
    ({"requests": [{"custom_id": "x", "params": []}]}, "requests.0.params"),
    ({"requests": [*wanted(HELLO), {"custom_id": "a b", "params": HELLO}]}, "requests.1.custom_id"),
    ({"requests": [{"custom_id": "", "params": HELLO}]}, "requests.0.custom_id"),
    ({"requests": [{"custom_id": "x\n", "params": HELLO}]}, "requests.0.custom_id"),
    ({"requests": [{"custom_id": "x" * 65, "params": HELLO}]}, "requests.0.custom_id"),
    ({"requests": [{"custom_id": 7, "params": HELLO}]}, "requests.0.custom_id"),
    ({"requests": wanted(HELLO) * 2}, "requests.1.custom_id"),
    ({"requests": wanted(*[HELLO] * 11)}, "batches.max_requests"),
    (b"{", "not valid JSON"),
    (b'{"requests": [{"custom_id": "x", "params": {"top_p": 1e999}}]}', "not valid JSON"),
]


@pytest.mark.parametrize(("body", "says"), UNUSABLE)
async def test_a_batch_that_cannot_be_taken_is_refused_and_leaves_nothing(
    live, body: Any, says: str
):
    async with live(batches=BatchSettings(max_requests=10)) as house:
        got = await house.ask("POST", PATH, body)
        assert (got.status, got.json["type"], got.json["error"]["type"]) == (
            400,
            "error",
            "invalid_request_error",
        )
        assert says in got.json["error"]["message"]
        assert (await house.get(PATH)).json["data"] == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batches": BatchSettings(max_open=1)}, "batches.max_open"),
        ({"jobs": JobSettings(max_stored_mib=0.001)}, "jobs.max_stored_mib"),
    ],
    ids=("open", "stored"),
)
async def test_what_finds_no_room_is_overloaded_and_keeps_none(live, settings: Fields, says: str):
    async with live(**settings) as house:
        await house.ask("POST", PATH, {"requests": wanted(SLOWLY)})
        big = {"requests": wanted(SLOWLY | {"system": "x" * 2000})}
        got = await house.ask("POST", PATH, big)
        assert (got.status, got.json["error"]["type"]) == (503, "overloaded_error")
        assert says in got.json["error"]["message"]
        stored = (await house.get("/llm/admin/stored")).json["callers"]
        assert sum(each["file_bytes"] for each in stored) < 2000 or says == "batches.max_open"


async def test_a_batch_is_taken_once_for_a_key_and_counts_once_against_the_rate(live):
    key = {"Idempotency-Key": "night-7"}
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=2, requests_per_hour=20))
    async with live(keys=True, rate_limits=limits) as house, house.claude(FRIEND_KEY) as claude:
        batches = claude.messages.batches.with_raw_response
        first = await batches.create(requests=wanted(*[HELLO] * 3), extra_headers=key)
        again = await batches.create(requests=wanted(*[HELLO] * 3), extra_headers=key)
        taken = (await first.parse()).id
        assert (await again.parse()).id == taken
        assert again.headers["idempotency-replayed"] == "true"
        await until_ended(house, claude, taken)
        with pytest.raises(anthropic.RateLimitError):
            await claude.messages.batches.create(requests=wanted(HELLO))
        now = house.gateway.clock.monotonic()
        assert house.gateway.rate_limiter.get_usage("friend", now).hour == 2
    async with live(keys=True, rate_limits=limits) as house:
        now = house.gateway.clock.monotonic()
        assert house.gateway.rate_limiter.get_usage("friend", now).hour == 1


async def test_a_long_request_and_odd_texts_reach_the_model_as_they_were_sent(live):
    texts = ("x" * 400_000, "line\nbreak \u2028 \U0001f469 \x7f", "<b>&</b>")
    async with live() as house, house.claude() as claude:
        greedy = HELLO | {"temperature": 0}
        asked = [greedy | {"messages": [{"role": "user", "content": text}]} for text in texts]
        batch = await claude.messages.batches.create(requests=wanted(*asked))
        ended = await until_ended(house, claude, batch.id)
        assert ended.request_counts.succeeded == 3
        results = await results_of(claude, batch.id)
        plain = [(await house.post("/v1/messages", each)).json["content"] for each in asked]
        assert [[results[f"r{n}"].message.content[0].text] for n in range(3)] == [
            [block["text"] for block in each] for each in plain
        ]


async def test_a_batch_may_name_an_alias(live):
    async with live(aliases={"any": (LLAMA,)}) as house, house.claude() as claude:
        batch = await claude.messages.batches.create(requests=wanted(HELLO | {"model": "any"}))
        await until_ended(house, claude, batch.id)
        assert (await results_of(claude, batch.id))["r0"].message.model == LLAMA


async def test_without_a_store_there_are_no_batches(live):
    async with live(store=False) as house:
        for method, path in (("GET", PATH), ("GET", f"{PATH}/x/results")):
            got = await house.ask(method, path)
            assert (got.status, got.json["error"]["type"]) == (404, "not_found_error")
            assert "storage.enabled" in got.json["error"]["message"]


async def test_cancelling_all_of_a_caller_s_work_ends_its_batches(live):
    async with live(keys=True) as house, house.claude(FRIEND_KEY) as claude:
        batch = await claude.messages.batches.create(requests=wanted(*[SLOWLY] * 20))
        await house.at_work()
        got = await house.ask("POST", "/llm/requests/cancel", b"{}", key=FRIEND_KEY)
        assert got.json["batches"] == 1
        ended = await until_ended(house, claude, batch.id)
        assert ended.request_counts.canceled == 20
        assert json.loads((await house.get("/llm/queue/status", ADMIN_KEY)).body)
