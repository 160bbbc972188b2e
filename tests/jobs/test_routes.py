"""`/llm/jobs` over HTTP, on a whole gateway with a store and an emulated model server."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hearth.config.settings import (
    AuthSettings,
    CallerLimits,
    GatewayConfig,
    JobSettings,
    RateLimitSettings,
    WebhookSettings,
)
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BadRequest
from hearth.events import ItemDispatched, SwapCompleted
from hearth.jobs.queue import body_of, endpoint_of
from hearth.types import JsonDict, Lane, Priority
from tests.gateway.test_traps import body_for
from tests.jobs.served import Life
from tests.support.fields import Fields
from tests.support.home import (
    ADMIN_KEY,
    CODER,
    FRIEND_KEY,
    GUEST_KEY,
    HOUSE_KEY,
    LLAMA,
    LONG_TOKENS,
    NARROW,
    SLOW,
)
from tests.support.http import Got
from tests.support.keys import key_of
from tests.support.sql import run_sql

HI = {"model": LLAMA, "prompt": "the canary prompt", "options": {"num_predict": 2}}
LONG = {"model": SLOW, "prompt": "x", "options": {"num_predict": LONG_TOKENS}}


async def post(house: Life, body: Any, key: str | None = None, **headers: str) -> Got:
    return await house.ask("POST", "/llm/jobs", body, key, **headers)


async def delete(house: Life, job_id: str, key: str | None = None) -> Got:
    return await house.ask("DELETE", f"/llm/jobs/{job_id}", key=key)


async def accepted(
    house: Life,
    request: Any = HI,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> str:
    got = await post(house, {"request": request, **more}, key, **(headers or {}))
    assert got.status == 202, got.body
    name: str = got.json["id"]
    assert got.headers["location"] == f"/llm/jobs/{name}"
    return name


async def until(house: Life, job_id: str, *states: str, key: str | None = None) -> Any:
    return (
        await house.shown(
            lambda: house.get(f"/llm/jobs/{job_id}", key), lambda got: got.json["state"] in states
        )
    ).json


@pytest.fixture
async def house(live) -> AsyncIterator[Life]:
    async with live() as house:
        yield house


async def test_a_job_of_every_dialect_has_one_whole_document_as_its_result(house):
    for path in INFERENCE_ROUTES:
        body = {name: value for name, value in body_for(path).items() if name != "stream"}
        shown = await until(
            house,
            await accepted(house, body | {"stream": True}, endpoint=path),
            "completed",
            "failed",
        )
        assert (shown["state"], shown["status"], shown["endpoint"]) == ("completed", 200, path)
        assert isinstance(shown["result"], dict)


async def test_all_jobs_of_one_type_go_first_with_one_swap_to_the_next_model(live):
    async with live(gpu=NARROW) as house:
        first = await accepted(house, LONG, task_type="letter")  # runs until all others have come
        models = {"letter": SLOW, "research": CODER}
        order = ("research", "letter") * 3 + ("letter",)
        names = [
            await accepted(house, HI | {"model": models[kind]}, task_type=kind) for kind in order
        ]
        await house.at_work()
        await delete(house, first)
        for name in names:
            await until(house, name, "completed")
        served = [event.model for event in house.events.of(ItemDispatched)]
        assert served == [SLOW] * 5 + [CODER] * 3
        assert [swap.to_model for swap in house.events.of(SwapCompleted)] == [SLOW, CODER]


def test_a_body_asks_for_one_whole_json_document_of_its_endpoint():
    bodies: tuple[JsonDict, ...] = ({"prompt": "x"}, {"messages": []}, {"input": "x"})
    assert [endpoint_of(body, None) for body in bodies] == [
        "/api/generate",
        "/api/chat",
        "/api/embed",
    ]
    asked = {"stream": True, "stream_options": {"include_usage": True}, "x": 1}
    assert json.loads(body_of("/v1/chat/completions", asked)) == {"stream": False, "x": 1}
    asked = {"stream": False, "Stream": True, "STREAM_OPTIONS": {}, "x": 1}
    assert json.loads(body_of("/v1/chat/completions", asked)) == {"stream": False, "x": 1}
    assert json.loads(body_of("/v1/embeddings", {"x": 1})) == {"x": 1}
    with pytest.raises(BadRequest, match="a number that JSON does not allow"):
        body_of("/api/chat", {"x": float("inf")})


RESULTS = (
    (b'{"x": 1.0}\n', b'{"x": 1.0}\n'),
    (b'{"x": "\\ud83d"}', b'{"x": "\\ud83d"}'),
    (b"[" * 400 + b"]" * 400, b"[" * 400 + b"]" * 400),
    (b"{", b'"{"'),
    (b"NaN", b'"NaN"'),
    (b"\xff", b'"\\ufffd"'),
    (b"\xef\xbb\xbf{}", b'"\\ufeff{}"'),
    (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
)


@pytest.mark.parametrize(("result", "shown"), RESULTS, ids=itertools.count())
async def test_a_result_is_shown_as_written_and_as_text_where_it_is_no_json(
    house, tmp_path, result: bytes, shown: bytes
):
    job_id = await accepted(house)
    await until(house, job_id, "completed")
    run_sql(tmp_path / "hearth.db", "UPDATE jobs SET result = ?", (result,))
    got = await house.get(f"/llm/jobs/{job_id}")
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert (got.json["id"], got.body.partition(b'"result":')[2]) == (job_id, shown + b"}")


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
        letter = await accepted(house, task_type="letter", job_key="7")
        assert [
            await accepted(house, task_type="letter", job_key=key) == letter for key in ("7", "8")
        ] == [True, False]


REFUSED: tuple[tuple[Fields, int, str], ...] = (
    ({}, 400, "request"),
    ({"request": "text"}, 400, "request"),
    ({"request": {"model": LLAMA}}, 400, "with messages, prompt or input"),
    ({"request": {"model": LLAMA, "prompt": ""}}, 400, "would generate nothing"),
    ({"request": {"model": LLAMA, "prompt": "", "keep_alive": 0}}, 400, "would generate nothing"),
    ({"request": {"model": "nowhere", "prompt": "x"}}, 404, "nowhere"),
    ({"request": {**HI, "think": True}}, 400, "does not support thinking"),
    ({"request": HI, "endpoint": "/api/pull"}, 400, "endpoint"),
    ({"request": HI, "priority": "urgent"}, 400, "priority"),
    ({"request": HI, "not_before": "tomorrow"}, 400, "not_before"),
    ({"request": HI, "not_before": "2030-01-01T00:00:00"}, 400, "not_before"),
    ({"request": HI, "window": "night"}, 400, "window"),
    ({"request": HI, "window": "offpeak"}, 400, "would never start"),
    ({"request": HI, "webhook": "ftp://x/"}, 400, "webhook"),
    ({"request": HI, "webhook": "http://hook.lan/x"}, 403, "not allowed"),
    ({"request": HI, "webhook": "http://hook.test/x"}, 400, "secret"),
    ({"request": HI, "caller": "me"}, 400, "caller"),
    ({"request": HI, "task_type": "a b"}, 400, "task type"),
)


@pytest.mark.parametrize(("body", "status", "says"), REFUSED)
async def test_what_cannot_be_done_is_refused_with_what_is_wrong(
    live, body: Fields, status: int, says: str
):
    async with live(
        jobs=JobSettings(webhooks=WebhookSettings(allowed_hosts=("hook.test",)))
    ) as house:
        got = await post(house, body)
        assert (got.status, says in got.json["error"]) == (status, True), got.json
        assert "hook.lan" not in got.json["error"]
        assert (await house.get("/llm/jobs")).json == {"jobs": []}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "\u00e9"])
async def test_a_key_that_is_none_is_refused(house, key: str):
    assert (await post(house, {"request": HI}, idempotency_key=key)).status == 400
    assert (await house.get("/llm/jobs")).json == {"jobs": []}


async def test_a_job_belongs_to_its_key_and_an_admin_never_sees_its_result(live):
    async with live(keys=True) as house:
        done, running = await accepted(house), await accepted(house, LONG)
        assert "result" in await until(house, done, "completed")
        missing = await house.get("/llm/jobs/job_0", HOUSE_KEY)
        for name in (done, running):
            assert (await house.get(f"/llm/jobs/{name}", HOUSE_KEY)).body == missing.body
            assert (await delete(house, name, HOUSE_KEY)).status == missing.status == 404
        for query in ("", "?caller=friend"):
            assert (await house.get(f"/llm/jobs{query}", HOUSE_KEY)).json == {"jobs": []}
            assert [
                shown["id"] for shown in (await house.get(f"/llm/jobs{query}")).json["jobs"]
            ] == [running, done]
        shown = (await house.get(f"/llm/jobs/{done}", ADMIN_KEY)).json
        assert (shown["state"], shown["caller"], "result" in shown) == (
            "completed",
            "friend",
            False,
        )
        for question, found in (
            ("state=completed", [done]),
            ("caller=friend", [running, done]),
            ("caller=house", []),
            ("task_type=x", []),
        ):
            assert [
                shown["id"]
                for shown in (await house.get(f"/llm/jobs?{question}", ADMIN_KEY)).json["jobs"]
            ] == found, question
        assert (await delete(house, running, ADMIN_KEY)).json == {
            "id": running,
            "cancelled": True,
            "state": "cancelled",
        }


async def test_what_waits_or_runs_is_listed_in_one_look_and_no_page_shows_a_request(house):
    done = await accepted(house)
    pages = [await until(house, done, "completed")]
    left = await accepted(house, LONG)
    assert [shown["id"] for shown in (await house.get("/llm/jobs?unended=true")).json["jobs"]] == [
        left
    ]
    pages.append((await house.get("/llm/jobs")).json)
    assert [shown["id"] for shown in pages[1]["jobs"]] == [left, done]
    assert [shown["id"] for shown in (await house.get("/llm/jobs?limit=1")).json["jobs"]] == [left]
    assert (await house.get("/llm/jobs?unended=true&state=completed")).json == {"jobs": []}
    assert "canary" not in json.dumps([*pages, (await house.get("/llm/queue/status")).json])


async def test_cancelling_is_idempotent_and_says_how_a_job_had_ended(house):
    running, done = await accepted(house, LONG), await accepted(house)
    await until(house, running, "running")
    for _ in range(2):
        assert (await delete(house, running)).json == {
            "id": running,
            "cancelled": True,
            "state": "cancelled",
        }
    await until(house, done, "completed")
    assert (await delete(house, done)).json == {
        "id": done,
        "cancelled": False,
        "state": "completed",
    }
    assert (await delete(house, "job_0")).status == 404


async def test_the_same_idempotency_key_is_the_same_job_and_another_body_is_422(house):
    key = {"idempotency_key": "k" * 255}
    first = await accepted(house, headers=key)
    await until(house, first, "completed")
    again = await post(house, {"request": HI}, **key)
    assert (again.status, again.json["id"], again.json["state"], again.json["new"]) == (
        202,
        first,
        "completed",
        False,
    )
    assert again.headers["idempotency-replayed"] == "true"
    other = await post(house, {"request": {**HI, "prompt": "y"}}, **key)
    assert (other.status, "Idempotency-Key" in other.json["error"]) == (422, True)
    assert len((await house.get("/llm/jobs")).json["jobs"]) == 1


async def test_a_job_counts_once_against_its_callers_limit_and_waits_in_its_lane(live):
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=2, requests_per_hour=100))
    async with live(keys=True, rate_limits=limits) as house:
        jobs = [await accepted(house, key=FRIEND_KEY) for _ in range(2)]
        assert (await post(house, {"request": HI}, FRIEND_KEY)).status == 429
        for job_id in jobs:
            assert (await until(house, job_id, "completed", key=FRIEND_KEY))["lane"] == "external"
        assert (
            await post(house, {"request": {"model": SLOW, "prompt": "x"}}, GUEST_KEY)
        ).status == 403
        own = await accepted(house, key=HOUSE_KEY)
        shown = await until(house, own, "completed", key=HOUSE_KEY)
        assert (shown["lane"], shown["priority"]) == ("internal", "background")


async def test_the_priority_is_the_task_types_or_asked_for_and_capped_by_the_key(live):
    keys = [
        key_of(key, key, lane=Lane.INTERNAL, max_priority=ceiling)
        for key, ceiling in ((HOUSE_KEY, Priority.CRITICAL), (FRIEND_KEY, Priority.NORMAL))
    ]
    async with live(
        auth=AuthSettings(keys=tuple(keys)), priority_map={"letter": Priority.NORMAL}
    ) as house:
        rows: tuple[tuple[Fields, str, str], ...] = (
            ({}, HOUSE_KEY, "background"),
            ({"task_type": "letter"}, HOUSE_KEY, "normal"),
            ({"task_type": "letter", "priority": "critical"}, HOUSE_KEY, "critical"),
            ({"priority": "critical"}, FRIEND_KEY, "normal"),
        )
        for asked, key, priority in rows:
            job_id = await accepted(house, key=key, **asked)
            assert (await house.get(f"/llm/jobs/{job_id}", key)).json["priority"] == priority, asked


async def test_without_a_store_there_are_no_jobs(live):
    async with live(store=False) as house:
        for got in (
            await post(house, {"request": HI}),
            await house.get("/llm/jobs"),
            await house.get("/llm/jobs/x"),
            await delete(house, "x"),
        ):
            assert (got.status, "storage.enabled" in got.json["error"]) == (404, True)


ALIASES = {"any": (CODER, LLAMA), "missing": ("nothing:1b",)}


async def test_a_job_for_an_alias_runs_on_one_of_its_models(live):
    async with live(aliases=ALIASES) as house:
        job_id = await accepted(house, {**HI, "model": "any"})
        got = await until(house, job_id, "completed")
        assert got["model"] == "any"
        assert got["result"]["model"] in (CODER, LLAMA)


async def test_a_job_for_an_alias_without_an_installed_model_is_refused(live):
    async with live(aliases=ALIASES) as house:
        assert (await post(house, {"request": {**HI, "model": "missing"}})).status == 404


async def test_an_alias_may_be_gone_when_a_job_for_it_starts(live):
    async with live(aliases=ALIASES) as house:
        await house.ask("POST", "/llm/admin/pause")
        job_id = await accepted(house, {**HI, "model": "any"})
        settings = house.gateway.settings.replace(aliases={})
        assert house.gateway.reload(GatewayConfig(settings=settings))
        await house.ask("POST", "/llm/admin/resume")
        got = await until(house, job_id, "failed", "completed")
        assert (got["state"], got["reason"]) == ("failed", "model_not_found")
