"""What a header says about its sender: the three forms of a key say the same, everything else says nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hearth.admission.peers import WINDOW_S
from hearth.events import RequestRejected
from hearth.types import Lane, Priority
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, FakeGateway, ask, drive, http_scope
from tests.api.test_app import ADDRESSES, ADMIN, CHAT
from tests.security.house import Front, method_of, open_door, request, tell

Form = Callable[[str], dict[str, str]]
FORMS: dict[str, Form] = {
    "bearer": lambda key: {"authorization": f"Bearer {key}"},
    "bearer in capitals": lambda key: {"authorization": f"BEARER {key}"},
    "x-api-key": lambda key: {"x_api_key": key},
    "api-key": lambda key: {"api_key": key},
}
NO_FORMS: dict[str, Form] = {
    "basic": lambda key: {"authorization": f"Basic {key}"},
    "no scheme": lambda key: {"authorization": key},
    "token": lambda key: {"authorization": f"Token {key}"},
    "two words": lambda key: {"authorization": f"Bearer x {key}"},
    "a list": lambda key: {"authorization": f"Bearer {key}, Bearer {key}"},
    "quoted": lambda key: {"x_api_key": f'"{key}"'},
    "cookie": lambda key: {"cookie": f"key={key}; authorization=Bearer {key}"},
    "proxy": lambda key: {"proxy_authorization": f"Bearer {key}"},
    "x-auth-token": lambda key: {"x_auth_token": key},
    "x-goog-api-key": lambda key: {"x_goog_api_key": key},
    "underscores": lambda key: {"x__api__key": key},
    "in capitals": lambda key: {"x_api_key": key.upper()},
    "a longer one": lambda key: {"x_api_key": key + "x"},
    "a shorter one": lambda key: {"x_api_key": key[:-1]},
    "its digest": lambda key: {"x_api_key": "0" * 64},
    "empty": lambda key: {"authorization": "Bearer "},
}
CLAIMS = {
    "x_forwarded_for": "127.0.0.1",
    "forwarded": "for=127.0.0.1;by=owner",
    "x_real_ip": "127.0.0.1",
    "x_caller": "owner",
    "x_user": "owner",
    "x_remote_user": "owner",
    "x_forwarded_user": "owner",
    "x_forwarded_host": "localhost",
    "x_forwarded_proto": "https",
    "x_original_url": "/llm/admin/config",
    "x_rewrite_url": "/llm/admin/config",
    "x_http_method_override": "DELETE",
    "x_lane": "internal",
    "x_priority": "critical",
    "x_task_type": "router",
    "x_request_id": "owner",
    "user_agent": "hearth",
    "via": "1.1 owner",
}
SAMPLE = ("/llm/health", "/llm/admin/config", "/api/chat", "/api/pull", "/v1/messages", "/v1/chat/completions", "/llm/requests/cancel")


async def status(front: Front, path: str, query: str = "", **headers: str) -> int:
    front.gateway.clock.now += WINDOW_S  # the wrong keys of a minute have a limit of their own
    return (await front.ask(method_of(path), path + query, **headers)).status


async def test_every_form_of_a_key_opens_the_same_and_what_only_looks_like_one_opens_nothing():
    front = Front(keys=KEYS)
    for path, key in itertools.product(SAMPLE, (ADMIN_KEY, HOUSE_KEY, LOW_KEY)):
        plain = await status(front, path, authorization=f"Bearer {key}")
        assert (plain == 403) is (ADDRESSES[path][0] == ADMIN and key != ADMIN_KEY)
        for name, form in FORMS.items():
            assert await status(front, path, **form(key)) == plain, (path, name)
    for path, (name, form) in itertools.product(SAMPLE, NO_FORMS.items()):
        assert await status(front, path, **form(ADMIN_KEY)) == 401, (path, name)


async def test_two_keys_are_one_too_many_wherever_they_stand_and_whosesoever_they_are():
    front = Front(keys=KEYS)
    pairs = [(LOW_KEY, ADMIN_KEY), (ADMIN_KEY, ADMIN_KEY), ("wrong", ADMIN_KEY)]
    for path, (first, second), keys in itertools.product(SAMPLE, itertools.permutations(FORMS.values(), 2), pairs):
        both = {**first(keys[0]), **second(keys[1])}
        if len(both) == 2:
            assert await status(front, path, **both) == 400, (path, both)
    for path, name in itertools.product(SAMPLE, (b"authorization", b"x-api-key", b"api-key")):
        twice = (name, b"Bearer " * (name == b"authorization") + ADMIN_KEY.encode())
        scope = http_scope(method_of(path), path, ((b"host", b"localhost"), twice, twice), "127.0.0.1")
        assert (await drive(front.app, scope, CHAT)).status == 400, (path, name)


async def test_a_key_in_the_query_is_none_and_does_not_count_beside_a_real_one():
    front = Front(keys=KEYS)
    query = "?" + "&".join(f"{name}={ADMIN_KEY}" for name in ("key", "api_key", "api-key", "x-api-key", "token", "access_token"))
    for path in SAMPLE:
        assert await status(front, path, query) == 401
        assert (await status(front, path, query, key=LOW_KEY) == 403) is (ADDRESSES[path][0] == ADMIN)


async def test_no_header_lets_anybody_in_or_makes_him_more_than_his_key():
    front = Front(keys=KEYS)
    for name, value in CLAIMS.items():
        assert await status(front, "/llm/health", **{name: value}) == 401, name
        assert await status(front, "/llm/admin/config", key=LOW_KEY, **{name: value}) == 403, name
        assert await status(front, "/api/pull", key=HOUSE_KEY, **{name: value}) == 403, name


async def test_no_header_and_no_field_of_a_body_changes_whose_a_request_is_or_moves_it_forward():
    body = CHAT.replace(b"{", b'{"user":"owner","caller":"owner","lane":"internal","priority":0,"task_type":"router",', 1)
    gateway = FakeGateway(keys=KEYS)
    app = gateway.app()
    for claim in ({}, *({name: value} for name, value in CLAIMS.items()), CLAIMS):
        gateway.clock.now += 60.0  # the limit of one caller by a minute; no claim has made it another caller's
        for key in (LOW_KEY, HOUSE_KEY):
            assert (await ask(app, "POST", "/api/chat", body, key=key, content_type="application/json", **claim)).status == 200
    low, house = gateway.worker.submitted[::2], gateway.worker.submitted[1::2]
    assert {(new.caller, new.lane, new.priority) for new in low} == {("low", Lane.EXTERNAL, Priority.NORMAL)}
    # the key of the house allows no more than normal, whatever it claims
    assert {(new.caller, new.lane, new.priority) for new in house} == {("house", Lane.INTERNAL, Priority.NORMAL)}
    assert set(gateway.rate_limiter.get_all_usage(gateway.clock.monotonic())) == {"low"}


async def test_an_id_that_could_disturb_a_log_is_replaced():
    async with open_door() as (gateway, url):
        for own in ("a b", "x" * 65, "a\tb", "\xe9", '"}', "../x", ""):
            seen = await tell(url, request("GET", "/llm/health", x_request_id=own))
            assert seen.status == 401
            assert seen.headers["x-request-id"].startswith("req_"), own
        assert all(event.request_id.startswith("req_") for event in gateway.events.seen if isinstance(event, RequestRejected))


async def test_unknown_and_wrong_keys_are_answered_alike():
    app = FakeGateway(keys=KEYS).app()
    answers = [
        await ask(app, "GET", path, x_request_id="same", **sent)
        for path in ("/llm/health", "/llm/admin/config", "/nope")
        for sent in (dict[str, Any](), {"x_api_key": "wrong"}, {"x_api_key": ADMIN_KEY[:-1]}, {"authorization": f"Bearer {ADMIN_KEY}x"})
    ]
    assert all(each == answers[0] for each in answers)
