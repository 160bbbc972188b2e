"""Hearth's own pages."""

from __future__ import annotations

import json

from hearth.config.settings import CallerLimits, ModelSettings, RateLimitSettings
from hearth.errors import BackendGone, RateLimited
from hearth.events import RequestRejected
from hearth.types import Lane, Priority, WorkKind
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, RESIDENT, FakeGateway, scripted
from tests.support.cases import for_each

CHAT = {"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}
NONE = {"cancelled": 0, "requests": [], "jobs": 0, "batches": 0}


async def begin(keyed: FakeGateway, *names: str, key: str = LOW_KEY) -> None:
    for name in names:
        await keyed.ask("POST", "/api/chat", CHAT, key=key, x_request_id=name)


async def test_pages_show_what_the_gateway_says(gateway):
    status = await gateway.ask("GET", "/llm/queue/status", x_request_id="mine")
    assert (status.status, status.json, status.headers["x-request-id"]) == (200, gateway.worker.get_status(), "mine")
    assert (await gateway.ask("GET", "/llm/models")).json == {"models": [{"name": "m", "resident": True}]}
    assert (await gateway.ask("GET", "/llm/health")).json == gateway.health()
    assert (await gateway.ask("POST", "/llm/admin/preempt")).json == {"preempted": 2}
    assert "/llm/completions" in (await gateway.ask("GET", "/openapi.json")).json["paths"]


async def test_life_is_public_and_says_loudly_when_the_emulator_answers(gateway):
    assert (await gateway.ask("GET", "/healthz", peer="10.0.0.9")).json == {"service": "hearth", "status": "ok", "emulator": False}
    gateway.emulated = True
    said = (await gateway.ask("GET", "/healthz", peer="10.0.0.9")).json
    assert (said["emulator"], "EMULATOR" in said["warning"]) == (True, True)


async def test_readiness_is_503_with_the_reason(gateway):
    assert (await gateway.ask("GET", "/readyz")).json == {"ready": True}
    gateway.store_fault = "disk_full"
    assert "disk_full" in (await gateway.ask("GET", "/readyz")).error
    gateway.not_ready = "the model server is down"
    got = await gateway.ask("GET", "/readyz")
    assert (got.status, got.error, got.headers["retry-after"]) == (503, "the model server is down", "5")


async def test_an_item_is_shown_to_its_caller_and_to_admins_and_cannot_be_told_from_unknown_ones_by_others(keyed):
    await begin(keyed, "one")
    for key in (LOW_KEY, ADMIN_KEY):
        assert (await keyed.ask("GET", "/llm/queue/item/1", key=key)).json["request_id"] == "one"
    pairs = [
        ("GET", "/llm/queue/item/1", "/llm/queue/item/2"),
        ("POST", "/llm/queue/item/1/cancel", "/llm/queue/item/2/cancel"),
        ("POST", "/llm/requests/one/cancel", "/llm/requests/none/cancel"),
    ]
    for method, *paths in pairs:
        others, unknown = [await keyed.ask(method, path, key=HOUSE_KEY, x_request_id="q") for path in paths]
        assert others == unknown
        assert (others.status, others.error.startswith("there is no such ")) == (404, True)
    assert keyed.worker.cancelled == []


async def test_an_item_number_is_a_number(gateway):
    for method, path in (("GET", "/llm/queue/item/abc"), ("POST", "/llm/queue/item/abc/cancel")):
        got = await gateway.ask(method, path)
        assert (got.status, got.error[:10]) == (400, "sequence: ")


async def test_a_request_or_an_item_is_cancelled_by_its_caller_or_an_admin_and_again_without_error(keyed):
    await begin(keyed, "one", "two", "two", "cancel")
    for key, name in ((LOW_KEY, "one"), (LOW_KEY, "one"), (ADMIN_KEY, "two"), (LOW_KEY, "cancel")):
        got = await keyed.ask("POST", f"/llm/requests/{name}/cancel", key=key)
        assert (got.status, got.json) == (200, {"request_id": name, "cancelled": True})
    for key in (LOW_KEY, ADMIN_KEY):
        got = await keyed.ask("POST", "/llm/queue/item/3/cancel", key=key)
        assert (got.status, got.json) == (200, {"sequence": 3, "request_id": "two", "cancelled": True})
    assert keyed.worker.cancelled == [1, 1, 2, 4, 3, 3]


async def test_a_key_cancels_all_of_its_own_and_an_admin_those_of_anybody(keyed):
    await begin(keyed, "one", "two")
    await begin(keyed, "theirs", key=HOUSE_KEY)
    for key, query, caller, expected in (
        (ADMIN_KEY, "", "owner", []),
        (LOW_KEY, "", "low", ["one", "two"]),
        (LOW_KEY, "?caller=low", "low", []),
        (ADMIN_KEY, "?caller=house", "house", ["theirs"]),
        (ADMIN_KEY, "?caller=nobody", "nobody", []),
    ):
        got = await keyed.ask("POST", f"/llm/requests/cancel{query}", key=key)
        assert (got.status, got.json) == (200, NONE | {"caller": caller, "cancelled": len(expected), "requests": expected})
    assert keyed.worker.cancelled == [1, 2, 3]


async def test_a_key_cannot_cancel_those_of_another_caller_and_nobody_guesses_whose(keyed):
    await begin(keyed, "theirs", key=HOUSE_KEY)
    for caller in ("owner", "house", "nobody", ""):
        got = await keyed.ask("POST", f"/llm/requests/cancel?caller={caller}", key=LOW_KEY)
        assert (got.status, "its own requests" in got.error) == (403, True)
    got = await keyed.ask("POST", "/llm/requests/cancel?name=low", key=ADMIN_KEY)
    assert (got.status, "name: unknown field" in got.error) == (400, True)
    assert keyed.worker.cancelled == []


async def test_an_owner_announces_a_task_at_a_time_in_either_form(gateway):
    for at in ("2030-01-01T08:00:00+01:00", 1893481200):
        assert (await gateway.ask("POST", "/llm/admin/announce", {"task_type": "digest", "at": at})).status == 200
    assert gateway.worker.announced == [("digest", 1893481200.0)] * 2


@for_each(
    ("path", "body", "words"),
    [
        *(
            ("/llm/admin/announce", body, words)
            for body, words in (
                ({"task_type": "digest", "at": "2030-01-01T08:00:00"}, "at: "),
                ({"task_type": "digest", "at": "2020-01-01T08:00:00Z"}, "at: this time has passed"),
                ({"task_type": "digest"}, "at: Field required"),
                ({"task_type": "", "at": 1893481200}, "task_type: "),
                ({"task_type": "digest", "at": 1893481200, "when": 1}, "when: unknown field; leave it out"),
                (b"{", "JSON"),
                (b"", "body"),
                (b"[" * 50_000, "JSON"),
            )
        ),
        *(
            ("/llm/completions", body, words)
            for body, words in (
                ({}, "prompt: Field required"),
                ({"prompt": ""}, "prompt: "),
                ({"prompt": "x", "max_tokens": 0}, "max_tokens: "),
                ({"prompt": "x", "max_tokens": 2**63}, "max_tokens: "),
                ({"prompt": "x", "max_tokens": "5"}, "max_tokens: "),
                ({"prompt": "x", "stream": True}, "stream: unknown field; leave it out"),
                ({"prompt": "x", "caller": "owner"}, "caller: unknown field; leave it out"),
                ({"prompt": "x", "task_type": "two words"}, "a task type is"),
                ({"prompt": "x", "model": "a\nb"}, "invalid model name"),
                (b'{"prompt": Say hello}', "the body is not valid JSON: invalid JSON near character 11: Expecting value"),
            )
        ),
    ],
)
async def test_a_wrong_body_is_a_400_that_says_what_to_do(path, body, words):
    gateway = FakeGateway()
    got = await gateway.ask("POST", path, body)
    assert (got.status, words in got.error) == (400, True), got.error
    assert not gateway.worker.announced
    assert not gateway.worker.submitted


async def test_a_refusal_is_not_as_long_as_whatever_was_sent(gateway):
    got = await gateway.ask("POST", "/llm/admin/announce", {f"{number}{'x' * 1000}": 1 for number in range(50)})
    assert got.error.endswith("; and 42 more")
    assert len(got.error) < 10 * 500 + 50


def answer(**fields: object) -> bytes:
    return json.dumps({"model": "m", "response": "Hello!", "done": True, "prompt_eval_count": 7, "eval_count": 3, **fields}).encode()


ANSWERS = scripted(answer(), headers=())


async def test_a_completion_goes_through_the_queue(gateway):
    gateway.worker.serve = ANSWERS
    asked = {"prompt": "Say hello", "model": "m", "max_tokens": 9, "json_mode": True, "allow_cloud": True}
    got = await gateway.ask("POST", "/llm/completions", asked, content_type="application/x-www-form-urlencoded")  # as `curl -d` has it
    assert got.status == 200
    assert got.json == {"output": "Hello!", "model": "m", "tokens_in": 7, "tokens_out": 3, "latency_ms": 0, "parsed": None, "cost_usd": 0.0}
    assert (got.headers["x-queue-position"], got.headers["x-estimated-wait-seconds"]) == ("0", "7.4")
    assert got.headers["x-estimated-wait-rough"] == "true"
    (new,) = gateway.worker.submitted
    assert (new.kind, new.streaming, new.model, new.max_tokens) == (WorkKind.GENERATE, False, "m", 9)
    assert json.loads(gateway.worker.calls[0].body)["format"] == "json"
    assert got.headers["x-request-id"] == new.request_id


async def test_a_completion_without_a_model_runs_on_whatever_is_resident(gateway):
    gateway.worker.serve = scripted(answer(model=RESIDENT), headers=())
    got = await gateway.ask("POST", "/llm/completions", {"prompt": "Say hello"})
    assert gateway.worker.submitted[0].model is None
    assert json.loads(gateway.worker.calls[0].body)["model"] == got.json["model"] == RESIDENT


async def test_a_completion_has_the_pinned_options_of_its_model_and_the_band_of_its_task_type():
    gateway = FakeGateway(keys=KEYS, priority_map={"digest": Priority.BACKGROUND}, models={"m": ModelSettings(num_ctx=2048)})
    gateway.worker.serve = ANSWERS
    asked = {"prompt": "x", "model": "m", "max_tokens": 3, "task_type": "digest"}
    assert (await gateway.ask("POST", "/llm/completions", asked, key=HOUSE_KEY)).status == 200
    assert json.loads(gateway.worker.calls[0].body)["options"] == {"num_predict": 3, "num_ctx": 2048}
    (new,) = gateway.worker.submitted
    assert (new.lane, new.priority, new.task_type) == (Lane.INTERNAL, Priority.BACKGROUND, "digest")


async def test_a_completion_counts_against_the_rate_of_its_caller():
    gateway = FakeGateway(rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=10)))
    gateway.worker.serve = ANSWERS
    statuses = [(await gateway.ask("POST", "/llm/completions", {"prompt": "x"})).status for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    assert [event.reason for event in gateway.events.all if isinstance(event, RequestRejected)] == [RateLimited.reason]


@for_each(
    ("serve", "status", "words"),
    [
        (scripted(BackendGone()), 502, "closed the connection"),
        (scripted(b'{"error":"model \'m\' not found"}', status=404), 404, "model 'm' not found"),
        (scripted(b'{"error":"\\"m\\" does not support generate"}', status=400), 400, '"m" does not support generate'),
        (scripted(b'{"error":"out of memory"}', status=500), 502, "answered 500: out of memory"),
        (scripted(b"<html>", status=500), 502, "answered 500: no reason given"),
        (scripted(b'{"response":"Hel","done":false}'), 502, "ended the answer early"),
    ],
)
async def test_a_completion_that_comes_to_nothing_says_why_and_is_no_refusal(serve, status, words):
    gateway = FakeGateway()
    gateway.worker.serve = serve
    got = await gateway.ask("POST", "/llm/completions", {"prompt": "x", "model": "m"})
    assert (got.status, words in got.error) == (status, True), got.error
    assert gateway.events.all == []


async def test_an_owner_has_the_file_read_again_and_one_that_is_not_usable_is_a_422_with_every_problem(gateway):
    got = await gateway.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json) == (200, {"reloaded": True, "generation": 2, "problems": []})
    gateway.problems = ["f.yaml:1: queue: what, and what to do", "f.yaml:2: gpu: what, and what to do"]
    got = await gateway.ask("POST", "/llm/admin/reload")
    assert (got.status, got.json["reloaded"], got.json["problems"]) == (422, False, gateway.problems)
    assert "nothing was changed" in got.error
    gateway.stopping = True
    assert (await gateway.ask("POST", "/llm/admin/reload")).status == 503


async def test_the_configuration_is_shown_to_admins_without_whole_digests(keyed):
    got = await keyed.ask("GET", "/llm/admin/config", key=ADMIN_KEY)
    assert got.json["settings"]["queue"]["max_external_depth"] == 20
    shown = got.json["settings"]["auth"]["keys"]
    assert [(key["name"], key["sha256"]) for key in shown] == [(key.name, key.sha256[:8] + "…") for key in KEYS]
