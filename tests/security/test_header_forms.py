"""What a header says about its sender: the three forms of a key say the same, everything else says nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hearth.admission.wrong_keys import WINDOW_S
from hearth.events import RequestRejected
from hearth.types import Lane, Priority
from tests.api.house import ADMIN_KEY, HOUSE_KEY, LOW_KEY
from tests.api.test_app import ADDRESSES, ADMIN, CHAT
from tests.security.house import method_of, one_loop, open_door, request, tell

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


async def status(door, path: str, query: str = "", **headers: str) -> int:
    door[0].clock.now += WINDOW_S  # the wrong keys of a minute have a limit of their own
    return (await tell(door[1], request(method_of(path), path + query, CHAT, **headers), head_only=True)).status


@one_loop
@pytest.mark.parametrize("path", SAMPLE)
@pytest.mark.parametrize("key", [ADMIN_KEY, HOUSE_KEY, LOW_KEY])
async def test_every_form_of_a_key_opens_the_same(path, key, door):
    plain = await status(door, path, authorization=f"Bearer {key}")
    assert (plain == 403) is (ADDRESSES[path][0] == ADMIN and key != ADMIN_KEY)
    for form in FORMS.values():
        assert await status(door, path, **form(key)) == plain


@one_loop
@pytest.mark.parametrize("path", SAMPLE)
@pytest.mark.parametrize("form", NO_FORMS)
async def test_nothing_that_only_looks_like_a_key_is_one(path, form, door):
    assert await status(door, path, **NO_FORMS[form](ADMIN_KEY)) == 401


@one_loop
@pytest.mark.parametrize("path", SAMPLE)
async def test_two_keys_are_one_too_many_wherever_they_stand_and_whosesoever_they_are(path, door):
    for (_, first), (_, second) in itertools.permutations(FORMS.items(), 2):
        for keys in ((LOW_KEY, ADMIN_KEY), (ADMIN_KEY, ADMIN_KEY), ("wrong", ADMIN_KEY)):
            sent = first(keys[0]), second(keys[1])
            if len({**sent[0], **sent[1]}) == 2:
                assert await status(door, path, **sent[0], **sent[1]) == 400
    for name in (b"authorization: Bearer ", b"x-api-key: ", b"api-key: "):
        twice = name + ADMIN_KEY.encode() + b"\r\n"
        raw = request(method_of(path), path, CHAT).replace(b"host:", twice + twice + b"host:", 1)
        assert (await tell(door[1], raw, head_only=True)).status == 400


@one_loop
@pytest.mark.parametrize("path", SAMPLE)
async def test_a_key_in_the_query_is_none_and_does_not_count_beside_a_real_one(path, door):
    query = "?" + "&".join(f"{name}={ADMIN_KEY}" for name in ("key", "api_key", "api-key", "x-api-key", "token", "access_token"))
    assert await status(door, path, query) == 401
    assert (await status(door, path, query, key=LOW_KEY) == 403) is (ADDRESSES[path][0] == ADMIN)


@one_loop
async def test_no_header_lets_anybody_in_or_makes_him_more_than_his_key(door):
    for name, value in CLAIMS.items():
        assert await status(door, "/llm/health", **{name: value}) == 401, name
        assert await status(door, "/llm/admin/config", key=LOW_KEY, **{name: value}) == 403, name
        assert await status(door, "/api/pull", key=HOUSE_KEY, **{name: value}) == 403, name


async def test_no_header_and_no_field_of_a_body_changes_whose_a_request_is_or_moves_it_forward():
    body = CHAT.replace(b"{", b'{"user":"owner","caller":"owner","lane":"internal","priority":0,"task_type":"router",', 1)
    async with open_door() as (gateway, url):
        for claim in ({}, *({name: value} for name, value in CLAIMS.items()), CLAIMS):
            gateway.clock.now += 60.0  # the limit of one caller by a minute; no claim has made it another caller's
            assert (await tell(url, request("POST", "/api/chat", body, key=LOW_KEY, **claim))).status == 200
            assert (await tell(url, request("POST", "/api/chat", body, key=HOUSE_KEY, **claim))).status == 200
        low, house = gateway.worker.submitted[::2], gateway.worker.submitted[1::2]
        assert {(new.caller, new.lane, new.priority) for new in low} == {("low", Lane.EXTERNAL, Priority.NORMAL)}
        assert {(new.caller, new.lane) for new in house} == {("house", Lane.INTERNAL)}
        assert {new.priority for new in house} == {Priority.NORMAL}  # its key allows no more, whatever it claims
        usage = gateway.rate_limiter.get_all_usage(gateway.clock.monotonic())
        assert set(usage) == {"low"}


async def test_an_id_that_could_disturb_a_log_is_replaced():
    async with open_door() as (gateway, url):
        for own in ("a b", "x" * 65, "a\tb", "\xe9", '"}', "../x", ""):
            seen = await tell(url, request("GET", "/llm/health", x_request_id=own))
            assert seen.status == 401
            assert seen.headers["x-request-id"].startswith("req_"), own
        assert all(event.request_id.startswith("req_") for event in gateway.events.seen if isinstance(event, RequestRejected))


async def test_unknown_and_wrong_keys_are_answered_alike():
    async with open_door() as (_, url):
        answers = [
            await tell(url, request("GET", path, x_request_id="same", **sent))
            for path in ("/llm/health", "/llm/admin/config", "/nope")
            for sent in (dict[str, Any](), {"x_api_key": "wrong"}, {"x_api_key": ADMIN_KEY[:-1]}, {"authorization": f"Bearer {ADMIN_KEY}x"})
        ]
        assert len({(seen.status, tuple(sorted(seen.headers.items())), seen.body) for seen in answers}) == 1
