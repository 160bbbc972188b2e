"""Who gets past the checks at every address: names of the host, pages of other origins, forms of a
key, and who tries keys.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
from ipaddress import ip_network

import pytest

from hearth.admission.peers import PER_WINDOW
from hearth.alerts.rules import RULES
from hearth.api.routes import PROBED
from hearth.config.settings import AuthSettings, ServerSettings
from hearth.events import ItemQueued, KeysTried, RequestRejected
from tests.api.house import ADMIN_KEY, HOUSE_KEY, KEYS, LOW_KEY, HttpHouse
from tests.api.test_app import ADDRESSES, ADMIN, CHAT, JSON, STREAMS
from tests.security.house import method_of, open_door, request, tell
from tests.support.fields import Fields
from tests.support.house import within
from tests.support.http import IN_EVERY_DIALECT, Got

PATHS = (*ADDRESSES, *STREAMS, "/nope")
FETCH = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
CROSS = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}
PREFLIGHT = {
    "access_control_request_method": "POST",
    "access_control_request_headers": "authorization, x-stainless-lang",
}
EXTENSION = "vscode-webview://1a2b"
LOCAL = "http://localhost:5173"
NOT_ALLOWED = (
    "null",
    "",
    "http://localhost",
    "http://localhost:x",
    "http://localhost:1@evil.test",
    "https://localhost:1",
    EXTENSION + "/b",
)
SHARED = ("/api/chat", "/v1/chat/completions", "/api/tags", "/v1/models")


PEERS = (str(address) for address in itertools.cycle(ip_network("10.0.0.0/8")))


async def ask(house: HttpHouse, method: str, path: str, **headers: str) -> Got:
    """What a house says; where keys are asked for, each time to somebody who has tried none yet."""
    body = CHAT if method == "POST" else b""
    peer = next(PEERS) if house.gateway.settings.auth.keys else "127.0.0.1"
    own = {"host": "localhost", "content_type": "application/json", "peer": peer}
    return await house.ask(method, path, body, **{**own, **headers})


def shared(got: Got) -> bool:
    return any(name.startswith("access-control") for name in got.headers)


async def test_no_address_answers_another_name_or_serves_a_foreign_page(keyed):
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS"):
            under_another = await ask(keyed, method, path, key=ADMIN_KEY, host="evil.test")
            assert (under_another.status == 421) is (path not in PROBED), (path, method)
        for method in ("POST", "DELETE", "OPTIONS"):
            got = await ask(keyed, method, path, key=ADMIN_KEY, origin="null", **PREFLIGHT)
            assert (got.status, shared(got)) == (403, False), (path, method)
        for method in ("GET", "HEAD", "POST"):
            assert (await ask(keyed, method, path, key=ADMIN_KEY, **FETCH)).status == 403, (
                path,
                method,
            )
        # what a browser sends without asking is not taken from its own page
        if "POST" in ADDRESSES.get(path, ("", ()))[1]:
            simple = {"content_type": "text/plain", "sec_fetch_site": "same-origin"}
            got = await ask(keyed, "POST", path, key=ADMIN_KEY, **simple)
            assert got.status == 415, path
    assert keyed.reached == []
    for path in (path for path in PATHS if path not in STREAMS):
        assert not shared(
            await ask(keyed, "GET", path, key=ADMIN_KEY, origin="http://evil.test")
        ), path


async def test_a_link_on_a_foreign_page_leads_to_hearths_own_pages_only(house):
    own = ("/", "/llm/queue/status", "/llm/health")
    others = ("/api/tags", "/api/ps", "/v1/models")
    for site in ("cross-site", "same-site"):
        link = {
            "sec_fetch_site": site,
            "sec_fetch_mode": "navigate",
            "sec_fetch_dest": "document",
            "accept": "text/html",
        }
        assert [(await ask(house, "GET", path, **link)).status for path in own + others] == [
            200
        ] * 3 + [403] * 3
        assert (await ask(house, "GET", "/", **{**link, "accept": "*/*"})).status == 403
        assert house.reached == []
    assert (
        await ask(house, "GET", "/api/tags", **{**link, "sec_fetch_site": "none"})
    ).status == 200


ALLOWED_ORIGINS = ServerSettings(allowed_origins=("vscode-webview://*", "http://localhost:*"))


@within(lambda: HttpHouse(keys=KEYS, server=ALLOWED_ORIGINS))
async def test_pages_of_an_allowed_origin_use_the_model_apis_and_nothing_else(house):
    own = ("/llm/", "/v1/files", "/v1/batches", "/metrics", "/api/pull", "/api/delete")
    for origin in (EXTENSION, LOCAL):
        for path in SHARED:
            asked = await ask(house, "OPTIONS", path, origin=origin, **PREFLIGHT, **CROSS)
            assert (
                asked.status,
                asked.headers["access-control-allow-origin"],
                asked.headers["vary"],
            ) == (204, origin, "Origin"), path
            for key, status in ((ADMIN_KEY, 200), ("wrong", 401)):
                got = await ask(house, method_of(path), path, key=key, origin=origin, **CROSS)
                assert (got.status, got.headers["access-control-allow-origin"]) == (
                    status,
                    origin,
                ), path
        for path in (path for path in PATHS if path == "/" or path.startswith(own)):
            got = await ask(house, "POST", path, key=ADMIN_KEY, origin=origin, **CROSS)
            assert (got.status, shared(got)) == (403, False), path
    for origin in NOT_ALLOWED:
        got = await ask(
            house, "POST", "/api/chat", key=ADMIN_KEY, host="localhost:8411", origin=origin
        )
        assert (got.status, shared(got)) == (403, False), origin


# What a header says about its sender: the three forms of a key say the same, everything else says
# nothing.

FORMS = {
    "authorization": "Bearer {}",
    "Authorization": "BEARER {}",
    "x_api_key": "{}",
    "api_key": "{}",
}
NO_FORMS = (
    *(
        ("authorization", form)
        for form in (
            "Basic {}",
            "{}",
            "Token {}",
            "Bearer x {}",
            "Bearer {0}, Bearer {0}",
            "Bearer ",
        )
    ),
    *(("x_api_key", form) for form in ('"{}"', "{}x", "0" * 64)),
    *(("cookie", "key={0}; authorization=Bearer {0}"), ("proxy_authorization", "Bearer {}")),
    *((name, "{}") for name in ("x_auth_token", "x_goog_api_key", "x__api__key")),
)
CLAIMS = {
    **dict.fromkeys(("x_forwarded_for", "x_real_ip"), "127.0.0.1"),
    **dict.fromkeys(
        ("x_caller", "x_user", "x_remote_user", "x_forwarded_user", "x_request_id"), "owner"
    ),
    **dict.fromkeys(("x_original_url", "x_rewrite_url"), "/llm/admin/config"),
    "forwarded": "for=127.0.0.1;by=owner",
    "x_forwarded_host": "localhost",
    "x_forwarded_proto": "https",
    "via": "1.1 owner",
    "x_http_method_override": "DELETE",
    "x_lane": "internal",
    "x_priority": "critical",
    "x_task_type": "router",
    "user_agent": "hearth",
}
SAMPLE = ("/llm/health", "/llm/admin/config", "/api/chat", "/api/pull", "/v1/messages")


async def test_every_form_of_a_key_opens_the_same_and_lookalikes_nothing(keyed):
    async def status(path: str, query: str = "", **headers: str) -> int:
        return (
            await ask(
                keyed,
                method_of(path),
                path + query,
                **{name.lower(): value for name, value in headers.items()},
            )
        ).status

    query = "?" + "&".join(
        f"{name}={ADMIN_KEY}"
        for name in ("key", "api_key", "api-key", "x-api-key", "token", "access_token")
    )
    for path in SAMPLE:
        for key in (ADMIN_KEY, HOUSE_KEY, LOW_KEY):
            opened = {
                await status(path, **{name: form.format(key)}) for name, form in FORMS.items()
            }
            opened.add(await status(path, query, key=key))  # keys in the query do not count
            assert len(opened) == 1
            assert (opened == {403}) is (ADDRESSES[path][0] == ADMIN and key != ADMIN_KEY)
        for name, form in NO_FORMS:
            assert await status(path, **{name: form.format(ADMIN_KEY)}) == 401, (path, name, form)
        assert await status(path, query) == 401
    for name, value in CLAIMS.items():
        assert await status("/llm/health", **{name: value}) == 401, name
        assert await status("/llm/admin/config", key=LOW_KEY, **{name: value}) == 403, name
        assert await status("/api/pull", key=HOUSE_KEY, **{name: value}) == 403, name


async def test_no_header_or_field_changes_whose_a_request_is_or_its_place(keyed):
    body = CHAT.replace(
        b"{",
        b'{"user":"owner","caller":"owner","lane":"internal","priority":0,"task_type":"router",',
        1,
    )
    for claim in (*({name: value} for name, value in CLAIMS.items()), CLAIMS):
        for key in (LOW_KEY, HOUSE_KEY):
            assert (
                await keyed.ask("POST", "/api/chat", body, key=key, **JSON, **claim)
            ).status == 200
    items = [keyed.item(event.sequence) for event in keyed.events.of(ItemQueued)]
    low, house = (
        {(item["caller"], item["type"], item["priority"]) for item in items[first::2]}
        for first in (0, 1)
    )
    assert low == {("low", "external", None)}
    assert house == {("house", "internal", "normal")}, (
        "this key allows no more than normal, whatever it claims"
    )
    usage = keyed.gateway.rate_limiter.get_all_usage(keyed.clock.monotonic())
    assert set(usage) == {"low"}


# Who tries keys is slowed and seen; who has one notices nothing of it.

LAN = "192.168.1.9"
FRESH = (f"hearth_{hashlib.sha256(str(each).encode()).hexdigest()}" for each in itertools.count())
SLOWED = [401] * PER_WINDOW + [429]
BLANK = ("", "Basic b3duZXI6")


BASIC = "Basic"


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"user:{key}".encode()).decode()


keyed_house = within(lambda: HttpHouse(keys=KEYS))


async def tried(
    house: HttpHouse,
    peer: str = LAN,
    path: str = "/llm/health",
    *,
    key: str = "",
    **headers: str,
) -> int:
    method = "GET" if path.startswith("/llm") else "POST"
    shown: Fields = headers or {"authorization": f"Bearer {key or next(FRESH)}"}
    return (await house.ask(method, path, CHAT, peer=peer, **shown)).status


@keyed_house
async def test_a_wrong_key_too_many_is_429_in_the_dialect_and_ends_the_connection(house):
    assert [await tried(house) for _ in range(PER_WINDOW + 1)] == SLOWED
    await asyncio.sleep(20.0)
    unknown: tuple[Fields, ...] = (
        {},
        {"x_api_key": "wrong"},
        {"x_api_key": ADMIN_KEY[:-1]},
        {"authorization": "Bearer x"},
    )
    for path in IN_EVERY_DIALECT:
        got = await house.ask("POST", path, CHAT, key=next(FRESH), peer=LAN)
        assert (got.status, got.headers["retry-after"], got.headers["connection"]) == (
            429,
            "40",
            "close",
        )
        assert "wrong key" in got.error
    house.reload(auth=AuthSettings(keys=KEYS[:2]))  # which forgets nothing
    assert await tried(house) == 429
    await asyncio.sleep(40.0)
    assert await tried(house) == 401
    answers = [
        await house.ask("GET", path, peer=next(PEERS), x_request_id="same", **each)
        for path in ("/llm/health", "/llm/admin/config", "/nope")
        for each in unknown
    ]
    assert all(each == answers[0] for each in answers), "unknown and wrong keys are answered alike"


@keyed_house
async def test_right_keys_come_in_from_where_wrong_ones_come_without_end(house):
    for _ in range(3 * PER_WINDOW):
        await tried(house)
        right = [await tried(house, key=key) for key in (ADMIN_KEY, HOUSE_KEY, LOW_KEY)]
        assert right == [200] * 3
        assert [await tried(house, authorization=blank) for blank in BLANK] == [401] * 2


NETWORK = tuple(f"fd00:1:2:3::{number}" for number in range(PER_WINDOW + 1))


@pytest.mark.parametrize(
    ("peers", "others"),
    [
        ((LAN, f"::ffff:{LAN}"), ("127.0.0.1", "192.168.1.8", "10.0.0.1")),
        (NETWORK, ("fd00:1:2:4::1", "10.0.0.1")),
    ],
)
@keyed_house
async def test_wrong_keys_count_by_machine_whatever_their_form_or_claim(house, peers, others):
    forms = itertools.cycle(
        [
            ("authorization", "Bearer {}"),
            ("authorization", BASIC),
            ("x_api_key", "{}"),
            ("api_key", "{}"),
        ]
    )
    paths = itertools.cycle(["/api/chat", "/nowhere", "/llm/health"])
    turns = itertools.cycle(peers)
    found = list[int]()
    for blank in BLANK * PER_WINDOW:
        assert await tried(house, authorization=blank) == 401  # who shows no key tries none
    for number in range(PER_WINDOW + 1):
        form, spelled = next(forms)
        claims: Fields = {
            "x_forwarded_for": f"10.0.0.{number}",
            "forwarded": f"for=10.0.0.{number}",
        }
        key = next(FRESH)
        claims[form] = basic(key) if spelled is BASIC else spelled.format(key)
        found.append(await tried(house, next(turns), next(paths), **claims))
    assert found == SLOWED
    assert {await tried(house, other) for other in others} == {401}


@keyed_house
async def test_the_owner_hears_of_it_once_a_minute_without_any_key(house):
    sent = [next(FRESH) for _ in range(180)]
    for key in sent:
        await tried(house, key=key)
        await asyncio.sleep(1.0)
    events = house.events.of(KeysTried)
    assert [(event.peer, event.wrong) for event in events] == [(LAN, 11), (LAN, 60), (LAN, 60)]
    (alert,) = RULES[KeysTried](events[0])
    assert alert.text.startswith(f"11 requests with a wrong key came from {LAN}:")
    assert not any(key in repr(event) for key in sent for event in house.events.all)
    reasons = [event.reason for event in house.events.of(RequestRejected)]
    assert (reasons.count("unauthenticated"), reasons.count("too_many_wrong_keys")) == (30, 150)


async def test_over_a_socket_every_further_wrong_key_costs_a_connection():
    async with open_door() as (house, url):
        keep = {"connection": "keep-alive"}
        wrong = b"".join(
            request("POST", "/api/chat", CHAT, key=next(FRESH), **keep)
            for _ in range(PER_WINDOW + 5)
        )
        seen = await tell(url, wrong)
        assert (
            seen.status,
            seen.body.count(b"HTTP/1.1 401 "),
            seen.body.count(b"HTTP/1.1 429 "),
        ) == (401, PER_WINDOW - 1, 1)
        assert (await tell(url, request("POST", "/api/chat", CHAT, key=ADMIN_KEY))).status == 200
        assert len(house.ollama.calls) == 1
