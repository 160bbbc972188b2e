"""Names under which a gateway is called, and pages of other origins, at every address. The rules themselves are tested with
`hearth.admission.http_checks`; here is what they do together."""

from __future__ import annotations

import itertools

from hearth.config.settings import ServerSettings
from tests.api.house import ADMIN_KEY, KEYS, Got
from tests.api.test_app import ADDRESSES, STREAMS
from tests.security.house import Front, method_of

PATHS = (*ADDRESSES, *STREAMS, "/nope")
SAMPLE = ("/llm/admin/preempt", "/api/chat", "/api/pull", "/v1/files", "/healthz", "/static/app.js", "/nope")
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
FOREIGN = (
    "http://evil.test",
    "null",
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
EXTENSION, LOCAL = "vscode-webview://1a2b", "http://localhost:5173"
ALLOWED = ServerSettings(allowed_origins=("vscode-webview://*", "http://localhost:*"))
SHARED = ("/api/chat", "/v1/chat/completions", "/api/tags", "/v1/models")
PREFLIGHT = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-stainless-lang"}
CROSS = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}


def shared(got: Got) -> bool:
    return any(name.startswith("access-control") for name in got.headers)


async def test_under_another_name_no_address_answers_whoever_asks():
    front = Front(keys=KEYS)
    for path, host in (*itertools.product(PATHS, REBOUND[:2]), *itertools.product(SAMPLE, REBOUND)):
        for method in ("GET", "POST", "OPTIONS"):
            assert (await front.ask(method, path, key=ADMIN_KEY, host=host)).status in {400, 421}, (path, host, method)
    assert front.nothing_passed()


async def test_a_page_of_another_origin_changes_nothing_anywhere_and_is_never_given_leave_to_read():
    front = Front(keys=KEYS)
    for path, origin in (*itertools.product(PATHS, FOREIGN[:2]), *itertools.product(SAMPLE, FOREIGN)):
        for method in ("POST", "DELETE", "OPTIONS"):
            asked = {"origin": origin, "access_control_request_method": "POST", "access_control_request_headers": "content-type"}
            got = await front.ask(method, path, key=ADMIN_KEY, **asked)
            assert (got.status, shared(got)) == (403, False), (path, origin, method)
    assert front.nothing_passed()
    for path, origin in itertools.product([path for path in PATHS if path not in STREAMS], FOREIGN[:2]):
        assert not shared(await front.ask("GET", path, key=ADMIN_KEY, origin=origin)), (path, origin)


async def test_what_a_browser_sends_without_asking_is_not_taken_from_its_own_page():
    front = Front(keys=KEYS)
    for path in [path for path, (_, methods) in ADDRESSES.items() if "POST" in methods]:
        got = await front.ask("POST", path, key=ADMIN_KEY, content_type="text/plain", sec_fetch_site="same-origin")
        assert got.status == 415, path
    assert front.nothing_passed()


async def test_nothing_that_a_foreign_page_fetches_reaches_anybody_even_where_no_key_is_needed():
    front = Front()
    for path, fetch in (*itertools.product(PATHS, FETCHES[:1]), *itertools.product(SAMPLE, FETCHES)):
        for method in ("GET", "HEAD", "POST"):
            assert (await front.ask(method, path, **fetch)).status == 403, (path, method, fetch)
    assert front.nothing_passed()


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
    own = [
        path
        for path in PATHS
        if path == "/" or path.startswith(("/llm/", "/v1/files", "/v1/batches", "/metrics", "/api/pull", "/api/delete"))
    ]
    for origin in (EXTENSION, LOCAL):
        for path in SHARED:
            asked = await front.ask("OPTIONS", path, origin=origin, **PREFLIGHT, **CROSS)
            assert (asked.status, asked.headers["access-control-allow-origin"], asked.headers["vary"]) == (204, origin, "Origin"), path
            for key, status in ((ADMIN_KEY, 200), ("wrong", 401)):
                got = await front.ask(method_of(path), path, key=key, origin=origin, **CROSS)
                assert (got.status, got.headers["access-control-allow-origin"]) == (status, origin), path
        for path in own:
            got = await front.ask("POST", path, key=ADMIN_KEY, origin=origin, **CROSS)
            assert (got.status, shared(got)) == (403, False), path
    for origin in (
        "null",
        "",
        "http://localhost",
        "http://localhost:x",
        "http://localhost:1@evil.test",
        "https://localhost:1",
        "vscode-webview://a/b",
    ):
        got = await front.ask("POST", "/api/chat", key=ADMIN_KEY, host="localhost:8411", origin=origin)
        assert (got.status, shared(got)) == (403, False), origin
