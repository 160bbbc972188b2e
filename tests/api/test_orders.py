"""The owner's orders over HTTP: who may give them, what they take, what they answer, and what
callers get meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hearth.scheduling import inputs
from tests.api.house import ADMIN_KEY, KEYS, LOW_KEY, FakeGateway, ask

NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content_type": "application/json"}


@pytest.fixture
def gateway() -> FakeGateway:
    """Without keys: whoever is on this machine is its owner."""
    return FakeGateway()


async def order(
    gateway: FakeGateway, name: str, body: bytes | Mapping[str, Any] = b"", **headers: str
):
    return await ask(gateway.app(), "POST", f"/llm/admin/{name}", body, **JSON, **headers)


async def test_an_order_answers_with_all_that_are_in_force_and_so_does_asking(gateway):
    app = gateway.app()
    at = gateway.clock.wall()
    assert (await ask(app, "GET", "/llm/admin/orders")).json == NOTHING
    assert (await order(gateway, "pause", {})).json == NOTHING | {
        "paused": ["external"],
        "since": {"paused": at},
    }
    in_force = {
        "paused": ["external"],
        "pinned": "m",
        "loads": ["m"],
        "since": {"paused": at, "pinned": at},
    }
    assert (await order(gateway, "pin", {"model": "m"})).json == NOTHING | in_force
    drained = (await order(gateway, "drain")).json  # without a body will do
    assert drained["draining"] is True
    assert (await ask(app, "GET", "/llm/admin/orders")).json == drained
    assert (await order(gateway, "resume", {})).json["since"] == {"pinned": at}
    assert (await order(gateway, "unpin", {})).json == NOTHING


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("pause", {"lane": "external"}, 400, "lane: unknown field"),
        *(("pin", body, 400, "model: ") for body in ({}, {"model": ""}, {"model": 7})),
        ("load", {"model": "m", "now": True}, 400, "now: unknown field"),
        ("unload", {"model": "a b"}, 400, "invalid model name"),
        *(
            (name, {"model": "nope"}, 404, "model 'nope' not found")
            for name in ("pin", "load", "unload")
        ),
    ],
)
async def test_an_order_that_is_not_understood_or_is_for_no_model_changes_nothing(
    name, body, status, said
):
    gateway = FakeGateway()
    gateway.missing = {"nope"}
    got = await order(gateway, name, body)
    assert (got.status, got.json["error"][: len(said)]) == (status, said)
    assert gateway.orders.shown() == NOTHING


async def test_what_contradicts_what_is_so_is_409_with_the_reason(gateway):
    gateway.worker.post(inputs.Loaded(model="m"))
    await order(gateway, "pin", {"model": "m"})
    got = await order(gateway, "unload", {"model": "m"})
    assert (got.status, got.json) == (409, {"error": "m is pinned: unpin it first"})
    assert (await order(gateway, "load", {"model": "other"})).status == 409


async def test_orders_are_for_admins_and_not_for_other_sites():
    keyed = FakeGateway(keys=KEYS)
    evil = {"origin": "http://evil.example"}
    for key, headers, status in ((LOW_KEY, {}, 403), (ADMIN_KEY, evil, 403), (ADMIN_KEY, {}, 200)):
        assert keyed.orders.shown() == NOTHING
        assert (
            await ask(keyed.app(), "POST", "/llm/admin/drain", {}, key=key, **headers, **JSON)
        ).status == status


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", CHAT, 200),
        ("/v1/chat/completions", CHAT, 200),
        ("/v1/messages", CHAT | {"max_tokens": 5}, 200),
        ("/api/embed", {"model": "m", "input": "hi"}, 200),
        ("/llm/completions", {"prompt": "hi"}, 502),  # what the fake says is no completion
    ],
)
async def test_every_kind_of_call_is_refused_with_advice_while_draining(
    gateway, path, body, status
):
    app = gateway.app()
    await order(gateway, "drain")
    got = await ask(app, "POST", path, body, **JSON)
    assert (got.status, got.headers["retry-after"], gateway.worker.submitted) == (503, "30", [])
    assert "draining" in (
        got.json["error"] if isinstance(got.json["error"], str) else got.json["error"]["message"]
    )
    await order(gateway, "resume")
    assert (await ask(app, "POST", path, body, **JSON)).status == status
