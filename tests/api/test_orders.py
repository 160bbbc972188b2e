"""The owner's orders over HTTP: who may give them, what they take, what they answer, and what
callers get meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.house import ADMIN_KEY, LOW_KEY, HttpHouse
from tests.support.house import within
from tests.support.http import Got

NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content_type": "application/json"}


async def order(
    house: HttpHouse, name: str, body: bytes | Mapping[str, Any] = b"", **headers: str
) -> Got:
    return await house.ask("POST", f"/llm/admin/{name}", body, **JSON, **headers)


@within(HttpHouse)
async def test_an_order_answers_with_all_that_are_in_force_and_so_does_asking(house):
    at = house.clock.wall()
    assert (await house.ask("GET", "/llm/admin/orders")).json == NOTHING
    assert (await order(house, "pause", {})).json == NOTHING | {
        "paused": ["external"],
        "since": {"paused": at},
    }
    pinned = {"paused": ["external"], "pinned": "m:latest", "since": {"paused": at, "pinned": at}}
    assert (await order(house, "pin", {"model": "m"})).json == NOTHING | pinned
    drained = (await order(house, "drain")).json  # without a body will do
    assert drained["draining"] is True
    assert (await house.ask("GET", "/llm/admin/orders")).json == drained
    assert (await order(house, "resume", {})).json["since"] == {"pinned": at}
    assert (await order(house, "unpin", {})).json == NOTHING


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
    house, name, body, status, said
):
    got = await order(house, name, body)
    assert (got.status, got.json["error"][: len(said)]) == (status, said)
    assert house.gateway.orders.shown() == NOTHING


async def test_what_contradicts_what_is_so_is_409_with_the_reason(house):
    await order(house, "pin", {"model": "m"})
    got = await order(house, "unload", {"model": "m"})
    assert (got.status, got.json) == (409, {"error": "m:latest is pinned: unpin it first"})
    house.ollama.install("other:latest")
    assert (await order(house, "load", {"model": "other"})).status == 409


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [(LOW_KEY, {}, 403), (ADMIN_KEY, {"origin": "http://evil.example"}, 403), (ADMIN_KEY, {}, 200)],
)
async def test_orders_are_for_admins_and_not_for_other_sites(keyed, key, headers, status):
    assert (await order(keyed, "drain", {}, key=key, **headers)).status == status
    assert keyed.gateway.orders.draining is (status == 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", CHAT),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT | {"max_tokens": 5}),
        ("/api/embed", {"model": "m", "input": "hi"}),
        ("/llm/completions", {"prompt": "hi"}),
    ],
)
async def test_every_kind_of_call_is_refused_with_advice_while_draining(house, path, body):
    await order(house, "drain")
    got = await house.ask("POST", path, body, **JSON)
    assert (got.status, got.headers["retry-after"], house.reached) == (503, "30", [])
    assert "draining" in got.error
    await order(house, "resume")
    assert (await house.ask("POST", path, body, **JSON)).status == 200
