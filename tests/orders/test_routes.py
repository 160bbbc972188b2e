"""The owner's orders over HTTP: who may give them, what they take, what they answer, and what callers get meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hearth.scheduling import inputs
from tests.api.house import ADMIN_KEY, KEYS, LOW_KEY, FakeGateway, ask
from tests.support.cases import for_each

NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
CALLS: Mapping[str, Mapping[str, Any]] = {
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    "/api/embed": {"model": "m", "input": "hi"},
    "/llm/completions": {"prompt": "hi"},
}
JSON = {"content_type": "application/json"}


@pytest.fixture
def gateway() -> FakeGateway:
    """Without keys: whoever is on this machine is its owner."""
    return FakeGateway()


async def order(gateway: FakeGateway, name: str, body: bytes | Mapping[str, Any] = b"", **headers: str):
    return await ask(gateway.app(), "POST", f"/llm/admin/{name}", body, **JSON, **headers)


async def test_an_order_answers_with_all_that_are_in_force_and_so_does_asking(gateway):
    app = gateway.app()
    assert (await ask(app, "GET", "/llm/admin/orders")).json == NOTHING
    wall_s = gateway.clock.wall()
    assert (await order(gateway, "pause", {})).json == NOTHING | {"paused": ["external"], "since": {"paused": wall_s}}
    pinned = await order(gateway, "pin", {"model": "m"})
    assert pinned.json == NOTHING | {
        "paused": ["external"],
        "pinned": "m",
        "loads": ["m"],
        "since": {"paused": wall_s, "pinned": wall_s},
    }
    drained = (await order(gateway, "drain")).json  # without a body will do
    assert drained["draining"] is True
    assert (await ask(app, "GET", "/llm/admin/orders")).json == drained
    assert (await order(gateway, "resume", {})).json["since"] == {"pinned": wall_s}
    assert (await order(gateway, "unpin", {})).json == NOTHING


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("pause", {"lane": "external"}, "lane: unknown field"),
        ("pin", {}, "model: "),
        ("pin", {"model": ""}, "model: "),
        ("pin", {"model": 7}, "model: "),
        ("load", {"model": "m", "now": True}, "now: unknown field"),
        ("unload", {"model": "a b"}, "invalid model name"),
    ],
)
async def test_an_order_that_is_not_understood_changes_nothing(gateway, name, body, said):
    got = await order(gateway, name, body)
    assert got.status == 400
    assert got.json["error"].startswith(said)
    assert gateway.orders.shown() == NOTHING


@for_each("name", ["pin", "load", "unload"])
async def test_a_model_that_is_not_installed_is_404(gateway, name):
    gateway.missing = {"nope"}
    got = await order(gateway, name, {"model": "nope"})
    assert (got.status, got.json) == (404, {"error": "model 'nope' not found"})


async def test_what_contradicts_what_is_so_is_409_with_the_reason(gateway):
    gateway.worker.post(inputs.Loaded(model="m"))
    await order(gateway, "pin", {"model": "m"})
    got = await order(gateway, "unload", {"model": "m"})
    assert (got.status, got.json) == (409, {"error": "m is pinned: unpin it first"})
    assert (await order(gateway, "load", {"model": "other"})).status == 409


async def test_orders_are_for_admins_and_not_for_other_sites():
    keyed = FakeGateway(keys=KEYS)
    app = keyed.app()
    assert (await ask(app, "POST", "/llm/admin/drain", {}, key=LOW_KEY, **JSON)).status == 403
    assert (await ask(app, "POST", "/llm/admin/drain", {}, key=ADMIN_KEY, origin="http://evil.example", **JSON)).status == 403
    assert keyed.orders.shown() == NOTHING
    assert (await ask(app, "POST", "/llm/admin/drain", {}, key=ADMIN_KEY, **JSON)).status == 200


@pytest.mark.parametrize("path", CALLS)
async def test_while_draining_every_kind_of_call_is_refused_with_advice_in_its_own_words(gateway, path):
    app = gateway.app()
    await order(gateway, "drain")
    got = await ask(app, "POST", path, CALLS[path], **JSON)
    assert got.status == 503
    assert got.headers["retry-after"] == "30"
    text = got.json["error"] if isinstance(got.json["error"], str) else got.json["error"]["message"]
    assert "draining" in text
    assert gateway.worker.submitted == []
    await order(gateway, "resume")
    served = 502 if path == "/llm/completions" else 200  # what the fake says is no completion
    assert (await ask(app, "POST", path, CALLS[path], **JSON)).status == served
