"""What a header says about its sender: the three forms of a key say the same, everything else says nothing."""

from __future__ import annotations

from typing import Any

from hearth.admission.peers import WINDOW_S
from hearth.types import Lane, Priority
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, FakeGateway
from tests.api.test_app import ADDRESSES, ADMIN, CHAT, JSON
from tests.security.house import Front, method_of

FORMS = {"authorization": "Bearer {}", "Authorization": "BEARER {}", "x_api_key": "{}", "api_key": "{}"}
"""By header; names of headers are written in small letters on their way."""
NO_FORMS = (
    *(("authorization", form) for form in ("Basic {}", "{}", "Token {}", "Bearer x {}", "Bearer {0}, Bearer {0}", "Bearer ")),
    *(("x_api_key", form) for form in ('"{}"', "{}x", "0" * 64)),
    ("cookie", "key={0}; authorization=Bearer {0}"),
    ("proxy_authorization", "Bearer {}"),
    ("x_auth_token", "{}"),
    ("x_goog_api_key", "{}"),
    ("x__api__key", "{}"),
)
CLAIMS = {
    "x_forwarded_for": "127.0.0.1",
    "forwarded": "for=127.0.0.1;by=owner",
    "x_real_ip": "127.0.0.1",
    **dict.fromkeys(("x_caller", "x_user", "x_remote_user", "x_forwarded_user", "x_request_id"), "owner"),
    "x_forwarded_host": "localhost",
    "x_forwarded_proto": "https",
    **dict.fromkeys(("x_original_url", "x_rewrite_url"), "/llm/admin/config"),
    "x_http_method_override": "DELETE",
    "x_lane": "internal",
    "x_priority": "critical",
    "x_task_type": "router",
    "user_agent": "hearth",
    "via": "1.1 owner",
}
SAMPLE = ("/llm/health", "/llm/admin/config", "/api/chat", "/api/pull", "/v1/messages")


async def status(front: Front, path: str, query: str = "", **headers: str) -> int:
    front.gateway.clock.now += WINDOW_S  # the wrong keys of a minute have a limit of their own
    return (await front.ask(method_of(path), path + query, **{name.lower(): value for name, value in headers.items()})).status


async def test_every_form_of_a_key_opens_the_same_and_what_only_looks_like_one_opens_nothing():
    front = Front(keys=KEYS)
    query = "?" + "&".join(f"{name}={ADMIN_KEY}" for name in ("key", "api_key", "api-key", "x-api-key", "token", "access_token"))
    for path in SAMPLE:
        for key in (ADMIN_KEY, HOUSE_KEY, LOW_KEY):
            opened = {await status(front, path, **{name: form.format(key)}) for name, form in FORMS.items()}
            opened.add(await status(front, path, query, key=key))  # keys in the query do not count
            assert len(opened) == 1
            assert (opened == {403}) is (ADDRESSES[path][0] == ADMIN and key != ADMIN_KEY)
        for name, form in NO_FORMS:
            assert await status(front, path, **{name: form.format(ADMIN_KEY)}) == 401, (path, name, form)
        assert await status(front, path, query) == 401


async def test_no_header_lets_anybody_in_or_makes_him_more_than_his_key():
    front = Front(keys=KEYS)
    for name, value in CLAIMS.items():
        assert await status(front, "/llm/health", **{name: value}) == 401, name
        assert await status(front, "/llm/admin/config", key=LOW_KEY, **{name: value}) == 403, name
        assert await status(front, "/api/pull", key=HOUSE_KEY, **{name: value}) == 403, name


async def test_no_header_and_no_field_of_a_body_changes_whose_a_request_is_or_moves_it_forward():
    body = CHAT.replace(b"{", b'{"user":"owner","caller":"owner","lane":"internal","priority":0,"task_type":"router",', 1)
    gateway = FakeGateway(keys=KEYS)
    for claim in (*({name: value} for name, value in CLAIMS.items()), CLAIMS):
        for key in (LOW_KEY, HOUSE_KEY):
            assert (await gateway.ask("POST", "/api/chat", body, key=key, **JSON, **claim)).status == 200
    low, house = gateway.worker.submitted[::2], gateway.worker.submitted[1::2]
    assert {(new.caller, new.lane, new.priority) for new in low} == {("low", Lane.EXTERNAL, Priority.NORMAL)}
    # The key of the house allows no more than normal, whatever it claims.
    assert {(new.caller, new.lane, new.priority) for new in house} == {("house", Lane.INTERNAL, Priority.NORMAL)}
    assert set(gateway.rate_limiter.get_all_usage(gateway.clock.monotonic())) == {"low"}


async def test_unknown_and_wrong_keys_are_answered_alike():
    gateway, unknown = FakeGateway(keys=KEYS), ({"x_api_key": "wrong"}, {"x_api_key": ADMIN_KEY[:-1]}, {"authorization": "Bearer x"})
    sent: tuple[dict[str, Any], ...] = ({}, *unknown)
    answers = [
        await gateway.ask("GET", path, x_request_id="same", **each)
        for path in ("/llm/health", "/llm/admin/config", "/nope")
        for each in sent
    ]
    assert all(each == answers[0] for each in answers)
