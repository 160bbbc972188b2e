"""`/llm/jobs` over HTTP, on a whole gateway with a store and an emulated model server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from hearth.admission.auth import digest_of
from hearth.config.settings import AuthSettings, CallerLimits, JobSettings, KeySettings, RateLimitSettings, WebhookSettings
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BadRequest
from hearth.jobs.queue import body_of
from hearth.types import Lane, Priority
from tests.api.house import Got
from tests.clients.home import ADMIN_KEY, FRIEND_KEY, GUEST_KEY, HOUSE_KEY, LLAMA, SLOW
from tests.jobs.served import Life
from tests.test_traps import body_for

HI = {"model": LLAMA, "prompt": "the canary prompt", "options": {"num_predict": 2}}
LONG = {"model": SLOW, "prompt": "x", "options": {"num_predict": 2000}}


async def post(house: Life, body: Any, key: str | None = None, **headers: str) -> Got:
    return await house.ask("POST", "/llm/jobs", body, key, **headers)


async def delete(house: Life, job_id: str, key: str | None = None) -> Got:
    return await house.ask("DELETE", f"/llm/jobs/{job_id}", key=key)


async def accepted(house: Life, request: Any = HI, key: str | None = None, headers: dict[str, str] | None = None, **more: Any) -> str:
    got = await post(house, {"request": request, **more}, key, **(headers or {}))
    assert got.status == 202, got.body
    name: str = got.json["id"]
    assert got.headers["location"] == f"/llm/jobs/{name}"
    return name


async def until(house: Life, job_id: str, *states: str, key: str | None = None) -> Any:
    return (await house.shown(lambda: house.get(f"/llm/jobs/{job_id}", key), lambda got: got.json["state"] in states)).json


@pytest.mark.parametrize("path", INFERENCE_ROUTES)
async def test_a_job_of_every_dialect_has_one_whole_document_as_its_result(live, path):
    async with live() as house:
        body = {name: value for name, value in body_for(path).items() if name != "stream"}
        job_id = await accepted(house, body | {"stream": True}, endpoint=path)
        shown = await until(house, job_id, "completed", "failed")
        assert (shown["state"], shown["status"], shown["endpoint"]) == ("completed", 200, path)
        assert isinstance(shown["result"], dict)


def test_the_body_of_a_job_asks_for_one_whole_document_and_is_json():
    asked = {"stream": True, "stream_options": {"include_usage": True}, "x": 1}
    assert json.loads(body_of("/v1/chat/completions", asked)) == {"stream": False, "x": 1}
    assert json.loads(body_of("/v1/embeddings", {"x": 1})) == {"x": 1}
    with pytest.raises(BadRequest, match="a number that JSON does not have"):
        body_of("/api/chat", {"x": float("inf")})


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (b'{"x": 1.0}\n', b'{"x": 1.0}\n'),
        (b'{"x": "\\ud83d"}', b'{"x": "\\ud83d"}'),
        (b"[" * 400 + b"]" * 400, b"[" * 400 + b"]" * 400),
        (b"{", b'"{"'),
        (b"NaN", b'"NaN"'),
        (b"\xff", b'"\\ufffd"'),
        (b"\xef\xbb\xbf{}", b'"\\ufeff{}"'),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
    ],
)
async def test_a_result_is_shown_as_the_model_server_wrote_it_and_as_text_where_it_is_no_json(live, tmp_path, result, shown):
    async with live() as house:
        job_id = await accepted(house)
        await until(house, job_id, "completed")
    with closing(sqlite3.connect(tmp_path / "hearth.db")) as connection, connection:
        connection.execute("UPDATE jobs SET result = ?", (result,))
    async with live() as house:
        got = await house.get(f"/llm/jobs/{job_id}")
        assert (got.status, got.headers["content-type"], got.body.partition(b'"result":')[2]) == (200, "application/json", shown + b"}")
        assert got.json["id"] == job_id


@pytest.mark.parametrize(
    ("request_", "endpoint"),
    [
        ({"model": LLAMA, "prompt": "x"}, "/api/generate"),
        ({"model": LLAMA, "messages": [{"role": "user", "content": "x"}]}, "/api/chat"),
        ({"model": "nomic-embed-text", "input": "x"}, "/api/embed"),
    ],
)
async def test_without_an_endpoint_the_native_one_that_takes_such_a_body_is_meant(live, request_, endpoint):
    async with live() as house:
        job_id = await accepted(house, request_)
        assert (await house.get(f"/llm/jobs/{job_id}")).json["endpoint"] == endpoint


async def test_the_answer_to_an_accepted_job_says_where_it_stands(live):
    async with live(jobs=JobSettings(max_in_queue=1)) as house:
        first = await accepted(house, LONG)
        await until(house, first, "running")
        got = await post(house, {"request": HI})
        assert got.status == 202
        assert (got.json["state"], got.json["new"], got.json["position"]) == ("queued", True, 0)
        shown = (await house.get(f"/llm/jobs/{got.json['id']}")).json
        assert (shown["position"], shown["sequence"], shown["attempts"]) == (0, None, 0)
        assert (await house.get("/llm/queue/status")).json["jobs"] == {"waiting": 1, "running": 1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "request"),
        ({"request": "text"}, "request"),
        ({"request": {"model": LLAMA}}, "neither messages, prompt nor input"),
        ({"request": {"model": LLAMA, "prompt": ""}}, "asks for nothing"),
        ({"request": {"model": LLAMA, "prompt": "", "keep_alive": 0}}, "asks for nothing"),
        ({"request": HI, "endpoint": "/api/pull"}, "endpoint"),
        ({"request": HI, "priority": "urgent"}, "priority"),
        ({"request": HI, "not_before": "tomorrow"}, "not_before"),
        ({"request": HI, "not_before": "2030-01-01T00:00:00"}, "not_before"),
        ({"request": HI, "window": "night"}, "window"),
        ({"request": HI, "window": "offpeak"}, "never comes"),
        ({"request": HI, "webhook": "ftp://x/"}, "webhook"),
        ({"request": HI, "caller": "me"}, "caller"),
        ({"request": HI, "task_type": "a b"}, "task type"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_what_is_wrong(live, body, says):
    async with live() as house:
        got = await post(house, body)
        assert (got.status, says in got.json["error"]) == (400, True), got.json
        assert (await house.get("/llm/jobs")).json == {"jobs": []}


async def test_a_model_that_is_not_installed_is_refused_at_once(live):
    async with live() as house:
        assert (await post(house, {"request": {"model": "nowhere", "prompt": "x"}})).status == 404


async def test_a_job_belongs_to_its_key_and_does_not_exist_for_others(live):
    async with live(keys=True) as house:
        job_id = await accepted(house, key=FRIEND_KEY)
        await until(house, job_id, "completed")
        assert (await house.get(f"/llm/jobs/{job_id}", HOUSE_KEY)).status == 404
        assert (await delete(house, job_id, HOUSE_KEY)).status == 404
        missing = await house.get("/llm/jobs/job_0", HOUSE_KEY)
        assert (await house.get(f"/llm/jobs/{job_id}", HOUSE_KEY)).body == missing.body
        assert (await house.get("/llm/jobs", HOUSE_KEY)).json == {"jobs": []}
        assert (await house.get("/llm/jobs?caller=friend", HOUSE_KEY)).json == {"jobs": []}
        assert [shown["id"] for shown in (await house.get("/llm/jobs")).json["jobs"]] == [job_id]


async def test_an_admin_sees_that_a_job_is_there_and_may_cancel_it_but_never_sees_its_result(live):
    async with live(keys=True) as house:
        done, running = await accepted(house), await accepted(house, LONG)
        assert "result" in await until(house, done, "completed")
        shown = (await house.get(f"/llm/jobs/{done}", ADMIN_KEY)).json
        assert (shown["state"], shown["caller"], "result" in shown) == ("completed", "friend", False)
        for question, found in (("state=completed", [done]), ("caller=friend", [running, done]), ("caller=house", []), ("task_type=x", [])):
            assert [shown["id"] for shown in (await house.get(f"/llm/jobs?{question}", ADMIN_KEY)).json["jobs"]] == found, question
        assert (await delete(house, running, ADMIN_KEY)).json == {"id": running, "cancelled": True, "state": "cancelled"}


async def test_what_waits_or_runs_is_listed_in_one_look(live):
    async with live() as house:
        done = await accepted(house)
        await until(house, done, "completed")
        left = await accepted(house, LONG)
        assert [shown["id"] for shown in (await house.get("/llm/jobs?unended=true")).json["jobs"]] == [left]
        assert [shown["id"] for shown in (await house.get("/llm/jobs")).json["jobs"]] == [left, done]
        assert (await house.get("/llm/jobs?unended=true&state=completed")).json == {"jobs": []}


async def test_no_request_is_shown_anywhere(live):
    async with live() as house:
        job_id = await accepted(house)
        shown = await until(house, job_id, "completed")
        pages = [shown, (await house.get("/llm/jobs")).json, (await house.get("/llm/queue/status")).json]
        assert "canary" not in json.dumps(pages)


async def test_cancelling_is_idempotent_and_says_how_a_job_had_ended(live):
    async with live() as house:
        running, done = await accepted(house, LONG), await accepted(house)
        await until(house, running, "running")
        for _ in range(2):
            assert (await delete(house, running)).json == {"id": running, "cancelled": True, "state": "cancelled"}
        await until(house, done, "completed")
        assert (await delete(house, done)).json == {"id": done, "cancelled": False, "state": "completed"}
        assert (await delete(house, "job_0")).status == 404


async def test_the_same_idempotency_key_is_the_same_job_and_another_body_is_422(live):
    async with live() as house:
        key = {"idempotency_key": "k" * 255}
        first = await accepted(house, headers=key)
        await until(house, first, "completed")
        again = await post(house, {"request": HI}, **key)
        assert (again.status, again.json["id"], again.json["state"], again.json["new"]) == (202, first, "completed", False)
        assert again.headers["idempotency-replayed"] == "true"
        other = await post(house, {"request": {**HI, "prompt": "y"}}, **key)
        assert (other.status, "Idempotency-Key" in other.json["error"]) == (422, True)
        assert len((await house.get("/llm/jobs")).json["jobs"]) == 1


async def test_a_key_that_a_job_of_the_same_job_key_answered_is_answered_with_it_after_its_end(live):
    letter = {"request": HI, "task_type": "letter", "job_key": "7"}
    async with live(jobs=JobSettings(max_in_queue=1)) as house:
        before = await accepted(house, LONG)
        first = await accepted(house, HI, task_type="letter", job_key="7")
        answered = await post(house, letter, idempotency_key="k")
        assert (answered.status, answered.json["id"], answered.json["new"]) == (202, first, False)
        await delete(house, before)
        await until(house, first, "completed")
        again = await post(house, letter, idempotency_key="k")
        assert (again.status, again.json["id"], again.json["state"]) == (202, first, "completed")
        assert again.headers["idempotency-replayed"] == "true"
        assert (await post(house, {**letter, "priority": "normal"}, idempotency_key="k")).status == 422
        assert len((await house.get("/llm/jobs")).json["jobs"]) == 2


async def test_the_idempotency_key_of_another_caller_is_another_job(live):
    async with live(keys=True) as house:
        key = {"idempotency_key": "key-1"}
        assert await accepted(house, key=FRIEND_KEY, headers=key) != await accepted(house, key=GUEST_KEY, headers=key)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "\u00e9"])
async def test_an_idempotency_key_that_is_none_is_refused(live, key):
    async with live() as house:
        assert (await post(house, {"request": HI}, idempotency_key=key)).status == 400


async def test_of_requests_with_one_key_at_the_same_moment_one_is_taken(live):
    async with live() as house:
        got = await asyncio.gather(*(post(house, {"request": HI}, idempotency_key="k") for _ in range(8)))
        assert {answer.status for answer in got} <= {202, 409}
        assert len({answer.json["id"] for answer in got if answer.status == 202}) == 1
        assert len((await house.get("/llm/jobs")).json["jobs"]) == 1


async def test_jobs_survive_a_restart_in_order_and_are_done_by_the_next_process(live):
    async with live(jobs=JobSettings(max_in_queue=1)) as first:
        running = await accepted(first, LONG)
        waiting = [await accepted(first) for _ in range(3)]
        await until(first, running, "running")
    async with live() as second:
        assert [job["id"] for job in (await second.get("/llm/jobs")).json["jobs"]] == [*reversed(waiting), running]
        for job_id in waiting:
            assert (await until(second, job_id, "completed"))["attempts"] == 1
        assert (await delete(second, running)).json["cancelled"]


async def test_a_job_counts_once_against_the_limit_of_its_caller_and_waits_in_its_lane(live):
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=2, requests_per_hour=100))
    async with live(keys=True, rate_limits=limits) as house:
        jobs = [await accepted(house, key=FRIEND_KEY) for _ in range(2)]
        assert (await post(house, {"request": HI}, FRIEND_KEY)).status == 429
        for job_id in jobs:
            assert (await until(house, job_id, "completed", key=FRIEND_KEY))["lane"] == "external"
        own = await accepted(house, key=HOUSE_KEY)
        shown = await until(house, own, "completed", key=HOUSE_KEY)
        assert (shown["lane"], shown["priority"]) == ("internal", "background")


async def test_a_key_may_use_its_own_models_only(live):
    async with live(keys=True) as house:
        assert (await post(house, {"request": {"model": SLOW, "prompt": "x"}}, GUEST_KEY)).status == 403


@pytest.mark.parametrize(
    ("asked", "ceiling", "priority"),
    [
        ({}, Priority.CRITICAL, "background"),
        ({"task_type": "letter"}, Priority.CRITICAL, "normal"),
        ({"task_type": "letter", "priority": "critical"}, Priority.CRITICAL, "critical"),
        ({"priority": "critical"}, Priority.NORMAL, "normal"),
    ],
)
async def test_the_priority_is_that_of_the_task_type_or_what_is_asked_for_and_capped_by_the_key(live, asked, ceiling, priority):
    key = KeySettings(name="house", sha256=digest_of(HOUSE_KEY), lane=Lane.INTERNAL, max_priority=ceiling)
    async with live(auth=AuthSettings(keys=(key,)), priority_map={"letter": Priority.NORMAL}) as house:
        job_id = await accepted(house, key=HOUSE_KEY, **asked)
        assert (await house.get(f"/llm/jobs/{job_id}", HOUSE_KEY)).json["priority"] == priority


async def test_a_webhook_takes_an_allowed_host_and_a_secret(live):
    async with live() as house:
        got = await post(house, {"request": HI, "webhook": "http://hook.lan/x"})
        assert (got.status, "allowed_hosts" in got.json["error"], "hook.lan" in got.json["error"]) == (403, True, False)
    allowed = JobSettings(webhooks=WebhookSettings(allowed_hosts=("hook.lan",)))
    async with live(jobs=allowed) as house:
        assert "secret" in (await post(house, {"request": HI, "webhook": "http://hook.lan/x"})).json["error"]


async def test_without_a_store_there_are_no_jobs(live):
    async with live(store=False) as house:
        for got in (
            await post(house, {"request": HI}),
            await house.get("/llm/jobs"),
            await house.get("/llm/jobs/x"),
            await delete(house, "x"),
        ):
            assert (got.status, "storage.enabled" in got.json["error"]) == (404, True)
