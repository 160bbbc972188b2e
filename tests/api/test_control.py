"""Hearth's own pages."""

from __future__ import annotations

import json

import pytest

from hearth.config.settings import CallerLimits, ModelSettings, RateLimitSettings
from hearth.errors import BackendGone, RateLimited
from hearth.events import RequestRejected
from hearth.execution.request import Reply, ReplyHead, Submission
from hearth.types import Lane, Priority, WorkKind
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, RESIDENT, FakeGateway, ask

CHAT = {"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}


async def test_readiness_says_no_while_the_store_cannot_be_written(app, gateway):
    gateway.store_fault = "disk_full"
    got = await ask(app, "GET", "/readyz")
    assert (got.status, "disk_full" in got.json["error"]) == (503, True)
    gateway.store_fault = ""
    assert (await ask(app, "GET", "/readyz")).status == 200


async def test_the_status_is_the_worker_s_own(gateway, app):
    got = await ask(app, "GET", "/llm/queue/status", x_request_id="mine")
    assert got.status == 200
    assert got.json == gateway.worker.get_status()
    assert got.headers["x-request-id"] == "mine"


async def test_models_are_listed(app):
    assert (await ask(app, "GET", "/llm/models")).json == {"models": [{"name": "m", "resident": True}]}


async def test_an_item_is_shown_to_its_caller_and_to_admins_and_is_unknown_to_others(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY)
    for key, status in ((LOW_KEY, 200), (ADMIN_KEY, 200), (HOUSE_KEY, 404)):
        assert (await ask(keyed_app, "GET", "/llm/queue/item/1", key=key)).status == status
    unknown = await ask(keyed_app, "GET", "/llm/queue/item/2", key=ADMIN_KEY)
    others = await ask(keyed_app, "GET", "/llm/queue/item/1", key=HOUSE_KEY)
    assert unknown.status == 404
    assert unknown.json == others.json == {"error": "there is no such item"}


async def test_an_item_number_is_a_number(app):
    for method, path in (("GET", "/llm/queue/item/abc"), ("POST", "/llm/queue/item/abc/cancel")):
        got = await ask(app, method, path)
        assert got.status == 400
        assert got.json["error"].startswith("sequence: ")


async def test_life_is_public_and_says_loudly_when_the_emulator_answers(gateway, app):
    assert (await ask(app, "GET", "/healthz", peer="10.0.0.9")).json == {"service": "hearth", "status": "ok", "emulator": False}
    gateway.emulated = True
    said = (await ask(app, "GET", "/healthz", peer="10.0.0.9")).json
    assert said["emulator"] is True
    assert "EMULATOR" in said["warning"]


async def test_readiness_is_503_with_the_reason(gateway, app):
    assert (await ask(app, "GET", "/readyz")).json == {"ready": True}
    gateway.not_ready = "the model server is down"
    got = await ask(app, "GET", "/readyz")
    assert got.status == 503
    assert got.json["error"] == "the model server is down"
    assert got.headers["retry-after"] == "5"


async def test_health_is_the_gateway_s_own(gateway, app):
    assert (await ask(app, "GET", "/llm/health")).json == gateway.health()


async def test_a_request_is_cancelled_by_its_caller_or_an_admin_and_again_without_error(keyed, keyed_app):
    for name in ("one", "two"):
        await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id=name)
    for key, name in ((LOW_KEY, "one"), (LOW_KEY, "one"), (ADMIN_KEY, "two")):
        got = await ask(keyed_app, "POST", f"/llm/requests/{name}/cancel", key=key)
        assert got.status == 200
        assert got.json == {"request_id": name, "cancelled": True}
    assert keyed.worker.cancelled == [1, 1, 2]


async def test_an_item_is_cancelled_by_its_number_and_again_without_error(keyed, keyed_app):
    for _ in range(2):
        await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id="one")
    for key, number in ((LOW_KEY, 2), (ADMIN_KEY, 2)):
        got = await ask(keyed_app, "POST", f"/llm/queue/item/{number}/cancel", key=key)
        assert (got.status, got.json) == (200, {"sequence": 2, "request_id": "one", "cancelled": True})
    assert keyed.worker.cancelled == [2, 2]


async def test_items_of_others_cannot_be_told_from_unknown_ones(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY)
    others, unknown = [await ask(keyed_app, "POST", f"/llm/queue/item/{n}/cancel", key=HOUSE_KEY, x_request_id="q") for n in (1, 2)]
    assert others == unknown
    assert (others.status, others.json) == (404, {"error": "there is no such item"})
    assert keyed.worker.cancelled == []


async def test_requests_of_others_cannot_be_told_from_unknown_ones(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id="one")
    others = await ask(keyed_app, "POST", "/llm/requests/one/cancel", key=HOUSE_KEY, x_request_id="q")
    unknown = await ask(keyed_app, "POST", "/llm/requests/none/cancel", key=HOUSE_KEY, x_request_id="q")
    assert others == unknown
    assert others.status == 404
    assert keyed.worker.cancelled == []


async def cancel_all(app, key: str, caller: str | None = None, *, query: str = ""):
    return await ask(app, "POST", "/llm/requests/cancel" + (query or ("" if caller is None else f"?caller={caller}")), key=key)


async def test_a_key_cancels_all_of_its_own_with_and_without_its_name_and_again_without_error(keyed, keyed_app):
    for name in ("one", "two"):
        await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id=name)
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=HOUSE_KEY, x_request_id="theirs")
    first, again, named = [await cancel_all(keyed_app, LOW_KEY, caller) for caller in (None, None, "low")]
    assert first.status == 200
    assert first.json == {"caller": "low", "cancelled": 2, "requests": ["one", "two"], "jobs": 0, "batches": 0}
    assert again.json == named.json == {"caller": "low", "cancelled": 0, "requests": [], "jobs": 0, "batches": 0}
    assert keyed.worker.cancelled == [1, 2]


async def test_an_admin_cancels_all_of_anybody_and_without_a_name_its_own(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id="one")
    assert (await cancel_all(keyed_app, ADMIN_KEY)).json == {"caller": "owner", "cancelled": 0, "requests": [], "jobs": 0, "batches": 0}
    assert (await cancel_all(keyed_app, ADMIN_KEY, "low")).json["requests"] == ["one"]
    assert (await cancel_all(keyed_app, ADMIN_KEY, "nobody")).json["cancelled"] == 0


@pytest.mark.parametrize("caller", ["owner", "house", "nobody", ""])
async def test_a_key_cannot_cancel_those_of_another_caller_be_there_one_or_not(caller, keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=HOUSE_KEY)
    got = await cancel_all(keyed_app, LOW_KEY, caller)
    assert got.status == 403
    assert "its own requests only" in got.json["error"]
    assert keyed.worker.cancelled == []


async def test_whose_requests_are_cancelled_is_not_guessed_from_another_parameter(keyed, keyed_app):
    got = await cancel_all(keyed_app, ADMIN_KEY, query="?name=low")
    assert got.status == 400
    assert "name: unknown field" in got.json["error"]


async def test_a_request_with_the_id_cancel_is_still_cancelled_by_its_id(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key=LOW_KEY, x_request_id="cancel")
    assert (await ask(keyed_app, "POST", "/llm/requests/cancel/cancel", key=LOW_KEY)).json == {"request_id": "cancel", "cancelled": True}


async def test_an_owner_preempts(app):
    assert (await ask(app, "POST", "/llm/admin/preempt")).json == {"preempted": 2}


@pytest.mark.parametrize("at", ["2030-01-01T08:00:00+01:00", 1893481200])
async def test_an_owner_announces_a_task_at_a_time_in_either_form(at, gateway, app):
    got = await ask(app, "POST", "/llm/admin/announce", {"task_type": "digest", "at": at})
    assert got.status == 200
    assert gateway.worker.announced == [("digest", 1893481200.0)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"task_type": "digest", "at": "2030-01-01T08:00:00"}, "at: "),
        ({"task_type": "digest", "at": "2020-01-01T08:00:00Z"}, "at: this time has passed"),
        ({"task_type": "digest"}, "at: Field required"),
        ({"task_type": "", "at": 1893481200}, "task_type: "),
        ({"task_type": "digest", "at": 1893481200, "when": 1}, "when: unknown field; leave it out"),
        (b"{", "JSON"),
        (b"", "body"),
        (b"[" * 50_000, "JSON"),
    ],
)
async def test_a_wrong_announcement_is_a_400_that_names_the_field(body, words, gateway, app):
    got = await ask(app, "POST", "/llm/admin/announce", body)
    assert got.status == 400
    assert words in got.json["error"]
    assert gateway.worker.announced == []


async def test_a_refusal_is_not_as_long_as_whatever_was_sent(app):
    got = await ask(app, "POST", "/llm/admin/announce", {f"{number}{'x' * 1000}": 1 for number in range(50)})
    assert got.json["error"].endswith("; and 42 more")
    assert len(got.json["error"]) < 10 * 500 + 50


async def test_the_schema_is_served_from_here_and_no_page_of_it_from_elsewhere(app):
    got = await ask(app, "GET", "/openapi.json")
    assert "/llm/completions" in got.json["paths"]
    for page in ("/docs", "/redoc"):
        assert (await ask(app, "GET", page)).status == 404


async def answers(new: Submission, reply: Reply) -> None:
    body = {"model": new.item.model, "response": "Hello!", "done": True, "prompt_eval_count": 7, "eval_count": 3}
    reply.start(ReplyHead(status=200, headers=()))
    reply.push(json.dumps(body).encode())
    reply.finish()


async def test_a_completion_goes_through_the_queue(gateway, app):
    gateway.worker.serve = answers
    asked = {"prompt": "Say hello", "model": "m", "max_tokens": 9, "json_mode": True, "allow_cloud": True}
    got = await ask(app, "POST", "/llm/completions", asked)
    assert got.status == 200
    assert got.json == {"output": "Hello!", "model": "m", "tokens_in": 7, "tokens_out": 3, "latency_ms": 0, "parsed": None, "cost_usd": 0.0}
    assert (got.headers["x-queue-position"], got.headers["x-estimated-wait-seconds"]) == ("0", "7.4")
    assert got.headers["x-estimated-wait-rough"] == "true"
    (new,) = gateway.worker.submitted
    assert (new.kind, new.streaming, new.model, new.max_tokens) == (WorkKind.GENERATE, False, "m", 9)
    assert json.loads(gateway.worker.calls[0].body)["format"] == "json"
    assert got.headers["x-request-id"] == new.request_id


async def test_a_completion_may_be_sent_as_curl_does_it(gateway, app):
    gateway.worker.serve = answers
    got = await ask(app, "POST", "/llm/completions", {"prompt": "x"}, content_type="application/x-www-form-urlencoded")
    assert got.status == 200


async def test_a_completion_without_a_model_runs_on_whatever_is_resident(gateway, app):
    gateway.worker.serve = answers
    got = await ask(app, "POST", "/llm/completions", {"prompt": "Say hello"})
    (new,) = gateway.worker.submitted
    assert new.model is None
    assert json.loads(gateway.worker.calls[0].body)["model"] == RESIDENT
    assert got.json["model"] == RESIDENT


async def test_a_completion_is_called_with_the_pinned_options_of_its_model():
    gateway = FakeGateway(models={"m": ModelSettings(num_ctx=2048)})
    gateway.worker.serve = answers
    await ask(gateway.app(), "POST", "/llm/completions", {"prompt": "x", "model": "m", "max_tokens": 3})
    assert json.loads(gateway.worker.calls[0].body)["options"] == {"num_predict": 3, "num_ctx": 2048}


async def test_the_task_type_of_a_completion_sets_its_band(gateway):
    gateway = FakeGateway(keys=KEYS, priority_map={"digest": Priority.BACKGROUND})
    gateway.worker.serve = answers
    got = await ask(gateway.app(), "POST", "/llm/completions", {"prompt": "x", "task_type": "digest"}, key=HOUSE_KEY)
    assert got.status == 200
    (new,) = gateway.worker.submitted
    assert (new.lane, new.priority, new.task_type) == (Lane.INTERNAL, Priority.BACKGROUND, "digest")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": ""}, "prompt: "),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens: "),
        ({"prompt": "x", "max_tokens": 2**63}, "max_tokens: "),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens: "),
        ({"prompt": "x", "stream": True}, "stream: unknown field; leave it out"),
        ({"prompt": "x", "caller": "owner"}, "caller: unknown field; leave it out"),
        ({"prompt": "x", "task_type": "two words"}, "a task type is"),
        ({"prompt": "x", "model": "a\nb"}, "invalid model name"),
    ],
)
async def test_a_wrong_completion_is_a_400_that_says_what_to_do(body, words, gateway, app):
    got = await ask(app, "POST", "/llm/completions", body)
    assert got.status == 400
    assert words in got.json["error"]
    assert gateway.worker.submitted == []


async def test_a_body_that_is_not_json_is_told_where_it_stops_being_that(app):
    got = await ask(app, "POST", "/llm/completions", b'{"prompt": Say hello}')
    assert got.json == {"error": "the body is not usable JSON: invalid JSON near character 11: Expecting value"}


async def test_a_completion_counts_against_the_rate_of_its_caller():
    gateway = FakeGateway(rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=10)))
    app = gateway.app()
    gateway.worker.serve = answers
    statuses = [(await ask(app, "POST", "/llm/completions", {"prompt": "x"})).status for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    assert [event.reason for event in gateway.events.seen if isinstance(event, RequestRejected)] == [RateLimited.reason]


async def gone(new: Submission, reply: Reply) -> None:
    raise BackendGone


async def not_found(new: Submission, reply: Reply) -> None:
    reply.start(ReplyHead(status=404, headers=()))
    reply.push(b'{"error":"model \'m\' not found"}')
    reply.finish()


async def unable(new: Submission, reply: Reply) -> None:
    reply.start(ReplyHead(status=400, headers=()))
    reply.push(b'{"error":"\\"m\\" does not support generate"}')
    reply.finish()


async def refused(new: Submission, reply: Reply) -> None:
    reply.start(ReplyHead(status=500, headers=()))
    reply.push(b'{"error":"out of memory"}')
    reply.finish()


async def garbled(new: Submission, reply: Reply) -> None:
    reply.start(ReplyHead(status=500, headers=()))
    reply.push(b"<html>")
    reply.finish()


async def truncated(new: Submission, reply: Reply) -> None:
    reply.start(ReplyHead(status=200, headers=()))
    reply.push(b'{"response":"Hel","done":false}')
    reply.finish()


@pytest.mark.parametrize(
    ("serve", "status", "words"),
    [
        (gone, 502, "closed the connection"),
        (not_found, 404, "model 'm' not found"),
        (unable, 400, '"m" does not support generate'),
        (refused, 502, "answered 500: out of memory"),
        (garbled, 502, "answered 500: no reason given"),
        (truncated, 502, "broke off"),
    ],
)
async def test_a_completion_that_comes_to_nothing_says_why_and_is_no_refusal(serve, status, words, gateway, app):
    gateway.worker.serve = serve
    got = await ask(app, "POST", "/llm/completions", {"prompt": "x", "model": "m"})
    assert got.status == status
    assert words in got.json["error"]
    assert gateway.events.seen == []


async def test_an_owner_has_the_file_read_again(app):
    got = await ask(app, "POST", "/llm/admin/reload")
    assert (got.status, got.json) == (200, {"reloaded": True, "generation": 2, "problems": []})


async def test_a_file_that_is_not_usable_is_a_422_with_every_problem(gateway, app):
    gateway.problems = ["f.yaml:1: queue: what, and what to do", "f.yaml:2: gpu: what, and what to do"]
    got = await ask(app, "POST", "/llm/admin/reload")
    assert got.status == 422
    assert (got.json["reloaded"], got.json["problems"]) == (False, gateway.problems)
    assert "nothing was changed" in got.json["error"]


async def test_nothing_is_reloaded_on_the_way_out(gateway, app):
    gateway.stopping = True
    assert (await ask(app, "POST", "/llm/admin/reload")).status == 503


async def test_the_configuration_is_shown_to_admins_without_whole_digests(keyed_app):
    got = await ask(keyed_app, "GET", "/llm/admin/config", key=ADMIN_KEY)
    assert got.json["settings"]["queue"]["max_external_depth"] == 20
    shown = got.json["settings"]["auth"]["keys"]
    assert [key["name"] for key in shown] == [key.name for key in KEYS]
    assert [key["sha256"] for key in shown] == [key.sha256[:8] + "…" for key in KEYS]
