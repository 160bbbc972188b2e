"""Names under which a gateway is called, and pages of other origins, at every address over a socket. The rules themselves are tested with
the door (`tests/admission/test_door.py`); here is what they do together."""

from __future__ import annotations

import pytest

from hearth.config.settings import ServerSettings
from tests.api.house import ADMIN_KEY, FakeGateway
from tests.api.test_app import ADDRESSES, CHAT
from tests.security.house import STREAMS, method_of, one_loop, open_door, request, tell

PATHS = (*ADDRESSES, *STREAMS, "/nope")
REBOUND = (
    "evil.test",
    "evil.test:8411",
    "localhost.evil.test",
    "127.0.0.1.evil.test",
    "localhost.",
    "0.0.0.0",
    "[::]",
    "127.1",
    "2130706433",
)
OWN = "http://localhost"
FOREIGN = (
    "null",
    "http://evil.test",
    "https://evil.test",
    "http://localhost.evil.test",
    "http://evil-localhost",
    "http://localhost:1",
    "http://localhost:8411",
    "http://localhost@evil.test",
    "http://localhost/",
    "http://localhost evil.test",
    "http://[::1]",
    "http://127.0.0.1",
    "ftp://localhost",
    "file://",
    "chrome-extension://localhost",
    "localhost",
    "",
)
"""Origins for a request to `localhost` without a port; only the very same is its own."""
_WAYS = (
    ("no-cors", "image"),
    ("no-cors", "script"),
    ("cors", "empty"),
    ("navigate", "iframe"),
    ("navigate", "object"),
    ("websocket", "empty"),
)
FETCHES = tuple(
    {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest} for site in ("cross-site", "same-site") for mode, dest in _WAYS
)


@one_loop
@pytest.mark.parametrize("path", PATHS)
async def test_under_another_name_no_address_answers_whoever_asks(path, door):
    for host in REBOUND:
        for method in ("GET", "POST", "OPTIONS"):
            seen = await tell(door[1], request(method, path, CHAT, key=ADMIN_KEY, host=host), head_only=True)
            assert seen.status in {400, 421}, (host, method)


@one_loop
@pytest.mark.parametrize("path", PATHS)
async def test_a_page_of_another_origin_changes_nothing_anywhere_and_is_never_given_leave_to_read(path, door):
    for origin in FOREIGN:
        for method in ("POST", "DELETE", "OPTIONS"):
            asked = {"origin": origin, "access_control_request_method": "POST", "access_control_request_headers": "content-type"}
            seen = await tell(door[1], request(method, path, CHAT, key=ADMIN_KEY, **asked), head_only=True)
            assert seen.status == 403, (origin, method)
            assert not any(name.startswith("access-control") for name in seen.headers)
        seen = await tell(door[1], request("GET", path, key=ADMIN_KEY, origin=origin), head_only=True)
        assert not any(name.startswith("access-control") for name in seen.headers)


@pytest.mark.parametrize("fetch", FETCHES, ids=lambda fetch: "-".join(fetch.values()))
async def test_nothing_that_a_foreign_page_fetches_reaches_anybody_even_where_no_key_is_needed(fetch):
    async with open_door(keys=()) as (gateway, url):
        for path in PATHS:
            for method in ("GET", "HEAD", "POST"):
                seen = await tell(url, request(method, path, CHAT if method == "POST" else b"", **fetch), head_only=True)
                assert seen.status == 403, (path, method)
        assert gateway.worker.submitted == []
        assert gateway.backend.calls == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_on_a_foreign_page_leads_to_hearths_own_pages_and_asks_the_model_server_nothing(site):
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document", "accept": "text/html"}
    async with open_door(keys=()) as (gateway, url):
        for path, status in {
            "/": 200,
            "/llm/queue/status": 200,
            "/llm/health": 200,
            "/api/tags": 403,
            "/api/ps": 403,
            "/v1/models": 403,
        }.items():
            assert (await tell(url, request("GET", path, **link), head_only=True)).status == status, path
        bare = {**link, "accept": "*/*"}
        assert (await tell(url, request("GET", "/", **bare), head_only=True)).status == 403
        assert gateway.backend.calls == []
        typed = {**link, "sec_fetch_site": "none"}
        assert (await tell(url, request("GET", "/api/tags", **typed), head_only=True)).status == 200


async def test_names_that_the_owner_allows_are_names_at_once_and_no_longer_once_they_are_gone():
    async with open_door() as (gateway, url):
        before = gateway.config
        asked = request("GET", "/llm/health", key=ADMIN_KEY, host="gpu-box.lan:8411")
        assert (await tell(url, asked)).status == 421
        gateway.config = FakeGateway(keys=before.settings.auth.keys, server=ServerSettings(allowed_hosts=("gpu-box.lan",))).config
        assert (await tell(url, asked)).status == 200
        assert (await tell(url, request("GET", "/llm/health", key=ADMIN_KEY, host="gpu-box.lan.evil.test"))).status == 421
        gateway.config = before
        assert (await tell(url, asked)).status == 421


EXTENSION, LOCAL = "vscode-webview://1a2b", "http://localhost:5173"
SHARED = ("/api/chat", "/v1/chat/completions", "/api/tags", "/v1/models")
PREFLIGHT = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-stainless-lang"}
CROSS = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}


async def test_pages_of_an_origin_that_the_owner_allows_use_the_model_apis_and_nothing_else():
    allowed = ServerSettings(allowed_origins=("vscode-webview://*", "http://localhost:*"))
    async with open_door(server=allowed) as (_, url):
        for origin in (EXTENSION, LOCAL):
            for path in SHARED:
                asked = await tell(url, request("OPTIONS", path, b"", origin=origin, **PREFLIGHT, **CROSS))
                assert (asked.status, asked.headers["access-control-allow-origin"], asked.headers["vary"]) == (204, origin, "Origin"), path
                sent = request(method_of(path), path, CHAT if method_of(path) == "POST" else b"", key=ADMIN_KEY, origin=origin, **CROSS)
                for raw, status in ((sent, 200), (sent.replace(ADMIN_KEY.encode(), b"wrong"), 401)):
                    seen = await tell(url, raw, head_only=True)
                    assert (seen.status, seen.headers["access-control-allow-origin"]) == (status, origin), path
            for path in [
                path for path in PATHS if path.startswith(("/llm/", "/v1/files", "/v1/batches", "/metrics", "/api/pull", "/api/delete"))
            ]:
                seen = await tell(url, request("POST", path, CHAT, key=ADMIN_KEY, origin=origin, **CROSS), head_only=True)
                assert (seen.status, "access-control-allow-origin" in seen.headers) == (403, False), path


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://localhost", "http://localhost:x", "http://localhost:1@evil.test", "https://localhost:1", "vscode-webview://a/b"],
)
async def test_an_origin_that_is_only_like_an_allowed_one_is_another_one(origin):
    async with open_door(server=ServerSettings(allowed_origins=("vscode-webview://*", "http://localhost:*"))) as (_, url):
        seen = await tell(url, request("POST", "/api/chat", CHAT, key=ADMIN_KEY, host="localhost:8411", origin=origin))
        assert (seen.status, "access-control-allow-origin" in seen.headers) == (403, False)
