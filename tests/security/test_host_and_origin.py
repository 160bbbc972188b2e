"""Names under which a gateway is called, and pages of other origins, at every address. The rules themselves are tested with
`hearth.admission.http_checks`; here is what they do together."""

from __future__ import annotations

from hearth.config.settings import ServerSettings
from tests.api.house import ADMIN_KEY, KEYS, Got
from tests.api.test_app import ADDRESSES, STREAMS
from tests.security.house import Front, method_of

PATHS = (*ADDRESSES, *STREAMS, "/nope")
FETCH = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
EXTENSION, LOCAL = "vscode-webview://1a2b", "http://localhost:5173"
ALLOWED = ServerSettings(allowed_origins=("vscode-webview://*", "http://localhost:*"))
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
PREFLIGHT = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-stainless-lang"}
CROSS = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}


def shared(got: Got) -> bool:
    return any(name.startswith("access-control") for name in got.headers)


async def test_no_address_answers_under_another_name_or_lets_a_foreign_page_change_or_fetch_anything():
    front = Front(keys=KEYS)
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS"):
            assert (await front.ask(method, path, key=ADMIN_KEY, host="evil.test")).status == 421, (path, method)
        for method in ("POST", "DELETE", "OPTIONS"):
            got = await front.ask(method, path, key=ADMIN_KEY, origin="null", **PREFLIGHT)
            assert (got.status, shared(got)) == (403, False), (path, method)
        for method in ("GET", "HEAD", "POST"):
            assert (await front.ask(method, path, key=ADMIN_KEY, **FETCH)).status == 403, (path, method)
        if "POST" in ADDRESSES.get(path, ("", ()))[1]:  # what a browser sends without asking is not taken from its own page
            got = await front.ask("POST", path, key=ADMIN_KEY, content_type="text/plain", sec_fetch_site="same-origin")
            assert got.status == 415, path
    assert front.nothing_passed()
    for path in (path for path in PATHS if path not in STREAMS):
        assert not shared(await front.ask("GET", path, key=ADMIN_KEY, origin="http://evil.test")), path


async def test_a_link_on_a_foreign_page_leads_to_hearths_own_pages_and_asks_the_model_server_nothing():
    front, own, others = Front(), ("/", "/llm/queue/status", "/llm/health"), ("/api/tags", "/api/ps", "/v1/models")
    for site in ("cross-site", "same-site"):
        link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document", "accept": "text/html"}
        assert [(await front.ask("GET", path, **link)).status for path in own + others] == [200] * 3 + [403] * 3
        assert (await front.ask("GET", "/", **{**link, "accept": "*/*"})).status == 403
        assert front.gateway.backend.calls == []
    assert (await front.ask("GET", "/api/tags", **{**link, "sec_fetch_site": "none"})).status == 200


async def test_names_that_the_owner_allows_are_names_at_once_and_no_longer_once_they_are_gone():
    front, changed = Front(keys=KEYS), Front(keys=KEYS, server=ServerSettings(allowed_hosts=("gpu-box.lan",))).gateway.config
    before = front.gateway.config
    for config, status in ((before, 421), (changed, 200), (before, 421)):
        front.gateway.config = config
        assert (await front.ask("GET", "/llm/health", key=ADMIN_KEY, host="gpu-box.lan:8411")).status == status
        assert (await front.ask("GET", "/llm/health", key=ADMIN_KEY, host="gpu-box.lan.evil.test")).status == 421


async def test_pages_of_an_origin_that_the_owner_allows_use_the_model_apis_and_nothing_else():
    front = Front(keys=KEYS, server=ALLOWED)
    own = ("/llm/", "/v1/files", "/v1/batches", "/metrics", "/api/pull", "/api/delete")
    for origin in (EXTENSION, LOCAL):
        for path in SHARED:
            asked = await front.ask("OPTIONS", path, origin=origin, **PREFLIGHT, **CROSS)
            assert (asked.status, asked.headers["access-control-allow-origin"], asked.headers["vary"]) == (204, origin, "Origin"), path
            for key, status in ((ADMIN_KEY, 200), ("wrong", 401)):
                got = await front.ask(method_of(path), path, key=key, origin=origin, **CROSS)
                assert (got.status, got.headers["access-control-allow-origin"]) == (status, origin), path
        for path in (path for path in PATHS if path == "/" or path.startswith(own)):
            got = await front.ask("POST", path, key=ADMIN_KEY, origin=origin, **CROSS)
            assert (got.status, shared(got)) == (403, False), path
    for origin in NOT_ALLOWED:
        got = await front.ask("POST", "/api/chat", key=ADMIN_KEY, host="localhost:8411", origin=origin)
        assert (got.status, shared(got)) == (403, False), origin
