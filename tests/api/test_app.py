"""The door: who gets how far, at which address, in which order."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import compile_path

from hearth.api.app import FAULT_TEXT, HearthApp
from hearth.api.dashboard.page import FILES
from hearth.api.routes import PROBED
from hearth.config.settings import AuthSettings, ServerSettings
from hearth.events import InternalFault, RequestRejected
from hearth.types import BackendCall
from tests.api.house import ADMIN_KEY, KEYS, LOW_KEY, HttpHouse
from tests.support.fake_ollama import FakeOllama
from tests.support.http import IN_EVERY_DIALECT, ask, drive, http_scope
from tests.support.taking import Taking

CHAT = json.dumps({"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}).encode()
JSON = {"content_type": "application/json"}

ANYBODY = "anybody"
ANY_KEY = "any key"
LEASE = "keys with may_lease"
MODE = "keys with may_set_mode, reading for all"
ADMIN = "admin"
ADDRESSES: dict[str, tuple[str, tuple[str, ...]]] = {
    path: (who, tuple(methods.split()))
    for who, methods, paths in (
        (ANYBODY, "GET", "/healthz /llm/gpu/status"),
        (LEASE, "GET POST DELETE", "/llm/gpu/leases"),
        (LEASE, "PUT DELETE", "/llm/gpu/leases/1"),
        (MODE, "GET PUT POST", "/llm/mode"),
        (ANYBODY, "GET HEAD", " ".join(FILES)),
        (ANYBODY, "GET HEAD", "/dashboard /dashboard/keys"),
        (
            ANY_KEY,
            "GET",
            (
                "/readyz /metrics /llm/queue/status /llm/queue/item/1 /llm/log /llm/swaps "
                "/llm/history /llm/models /llm/health /llm/log/export"
            ),
        ),
        (
            ANY_KEY,
            "GET",
            (
                "/v1/files/file-1/content /v1/batches/batch_1 /api/ps /api/status /v1/models "
                "/v1/models/llama3.1:8b"
            ),
        ),
        (ANY_KEY, "GET HEAD", "/ /api/version /api/tags"),
        (ANY_KEY, "GET POST", "/llm/jobs /v1/files /v1/batches /v1/messages/batches"),
        (
            ANY_KEY,
            "GET DELETE",
            "/llm/jobs/job_1 /v1/files/file-1 /v1/messages/batches/msgbatch_1",
        ),
        (ANY_KEY, "GET", "/v1/messages/batches/msgbatch_1/results"),
        (ANY_KEY, "POST", "/v1/messages/batches/msgbatch_1/cancel"),
        (
            ANY_KEY,
            "POST",
            (
                "/llm/queue/item/1/cancel /llm/requests/req_1/cancel /llm/requests/cancel "
                "/llm/completions"
            ),
        ),
        (
            ANY_KEY,
            "POST",
            (
                "/api/chat /api/generate /api/embed /api/embeddings /api/show "
                "/v1/batches/batch_1/cancel"
            ),
        ),
        (
            ANY_KEY,
            "POST",
            (
                "/v1/chat/completions /v1/completions /v1/embeddings /v1/responses "
                "/v1/audio/transcriptions /v1/audio/translations /v1/audio/speech "
                "/v1/images/generations /v1/rerank"
            ),
        ),
        (ANY_KEY, "POST", "/v1/audio/transcriptions/req_1/cancel"),
        (ANY_KEY, "POST", "/v1/messages /v1/messages/count_tokens"),
        (
            ADMIN,
            "GET",
            "/llm/admin/stored /llm/admin/files /llm/admin/config /llm/admin/orders",
        ),
        (ADMIN, "GET", "/llm/admin/models/log /llm/admin/config/pending /llm/admin/logs"),
        (ADMIN, "GET POST", "/llm/admin/keys"),
        (ADMIN, "POST", "/llm/admin/keys/rotate /llm/admin/keys/revoke"),
        (ANY_KEY, "GET", "/llm/key"),
        (ADMIN, "GET HEAD", "/openapi.json"),
        (ADMIN, "DELETE", "/llm/admin/files/1 /api/delete"),
        (
            ADMIN,
            "POST",
            (
                "/llm/admin/preempt /llm/admin/announce /llm/admin/confirm-clock "
                "/llm/admin/alert/test /llm/admin/reload"
            ),
        ),
        (
            ADMIN,
            "POST",
            (
                "/llm/admin/drain /llm/admin/pause /llm/admin/resume /llm/admin/pin "
                "/llm/admin/unpin /llm/admin/load"
            ),
        ),
        (ADMIN, "POST", "/llm/admin/unload /api/pull /api/push /api/create /api/copy"),
        (ADMIN, "HEAD POST", "/api/blobs/sha256:abc"),
    )
    for path in paths.split()
}
"""Every address, who may use it, with which methods."""
STREAMS = (
    "/llm/queue/stream",
    "/llm/dashboard/stream",
    "/llm/admin/logs/stream",
    "/llm/gpu/leases/hold",
)
"""They never end, and have tests of their own."""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNKNOWN = words(
    "/nope /llm /llm/ /llm/admin/ /api /api/blobs/ /docs /redoc /v1/models/ "
    "/v1/models/m/ /metrics/ //nope //evil.test/x"
)
ODD = (
    *words(
        "/api/chat;x /api/./chat /api/../api/chat /API/CHAT api/chat "
        "http://localhost/api/chat * /api\\chat"
    ),
    *words("/healthz/../llm/queue/status /healthz;/llm/queue/status /v1/models/../../api/pull"),
    "/api/chat\x00",
    "/api/chat\n",
)
ESCAPED = (b"/api/%63hat", b"/%61pi/chat", b"/api%2fchat", b"/healthz%00")


def test_the_table_has_every_address_and_method_of_the_program_and_no_other(house):
    served = {
        path: set(address.handlers)
        for path, address in house.app.routes.addresses.items()
        if path not in STREAMS
    }
    patterns = {path: compile_path(path)[0] for path in served}
    for template, pattern in patterns.items():
        listed = {
            method
            for path, (_, methods) in ADDRESSES.items()
            if pattern.match(path)
            for method in methods
        }
        assert served[template] <= listed, template
    for path, (_, methods) in ADDRESSES.items():
        assert {*methods} == {
            method
            for template in served
            if patterns[template].match(path)
            for method in served[template]
        }, path
    described = house.app.routes.openapi["paths"]
    for template in served.keys() & described.keys():
        assert {method.upper() for method in described[template]} <= served[template], template
    assert described.keys() <= {path.replace(":path", "") for path in (*served, *STREAMS)}


async def test_every_address_is_open_to_whom_the_table_says_and_has_no_other_method(keyed):
    for key, (path, (who, methods)) in itertools.product(
        (None, LOW_KEY, ADMIN_KEY), ADDRESSES.items()
    ):
        for method in {*methods, "PATCH", "HEAD"}:
            got = await keyed.ask(method, path, CHAT, key=key, **JSON)
            if key is None and who != ANYBODY:
                assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer"), (
                    method,
                    path,
                )
            elif key != ADMIN_KEY and (
                who in (LEASE, ADMIN) or (who == MODE and method not in ("GET", "HEAD"))
            ):
                assert got.status == 403, (method, path)
            elif method not in methods:
                assert (got.status, got.headers["allow"]) == (405, ", ".join(sorted(methods))), (
                    method,
                    path,
                )
            else:
                assert got.status in ({200} if who == ANYBODY else {200, 400, 404, 501}), (
                    method,
                    path,
                )
        assert key or not keyed.reached, path
    assert [(await keyed.ask("GET", path)).status for path in STREAMS] == [401] * len(STREAMS)


async def test_an_odd_or_escaped_address_is_401_without_a_key_and_404_with_one(keyed):
    paths = [(path, path.encode("latin-1")) for path in (*UNKNOWN, *ODD)] + [
        ("/api/chat", raw) for raw in ESCAPED
    ]
    for (path, raw), key in itertools.product(paths, ("", ADMIN_KEY)):
        wire = (
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"x-api-key", key.encode()),
        )
        got = await drive(
            keyed.app, {**http_scope("POST", path, wire, "127.0.0.1"), "raw_path": raw}, CHAT
        )
        assert got.status == (404 if key else 401), (path, raw)
    assert (await keyed.ask("GET", "/llm/admin/nothing", key=LOW_KEY)).status == 403
    preflight = await keyed.ask(
        "OPTIONS", "/api/chat", origin="http://localhost:8411", access_control_request_method="POST"
    )
    assert not any(name.startswith("access-control") for name in preflight.headers)
    assert keyed.reached == []


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("POST", "/api/chat/", 307, "/api/chat"),  # as captured
        ("POST", "//api/chat", 307, "/api/chat"),
        ("POST", "/api//chat//?a=//b/", 307, "/api/chat?a=//b/"),
        ("POST", "///v1/chat/completions", 307, "/v1/chat/completions"),
        ("GET", "/v1/models/", 301, "/v1/models"),
        ("GET", "//v1/models", 307, "/v1/models"),
        ("GET", "/v1/models/a%2fb:1/", 301, "/v1/models/a%2fb:1"),
        ("HEAD", "/api/tags/", 307, "/api/tags"),
        ("GET", "//", 307, "/"),
        ("GET", "/llm/queue/status/", 301, "/llm/queue/status"),
        ("GET", "/healthz/", 301, "/healthz"),
    ],
)
async def test_a_slash_too_many_is_redirected_as_in_ollama(keyed, method, target, status, location):
    got = await keyed.ask(method, target, CHAT, key=LOW_KEY, **JSON)
    assert (got.status, got.headers.get("location"), got.body) == (status, location, b"")
    if location != "/healthz":
        assert (await keyed.ask(method, target, CHAT, **JSON)).status == 401
    assert (await keyed.ask("PATCH", target, CHAT, key=LOW_KEY, **JSON)).status == 404
    assert keyed.reached == []


@pytest.mark.parametrize(
    "path",
    [
        "//evil.test/api/chat",
        "/\\evil.test/",
        "//evil.test/..",
        "/api/./chat/",
        "/api/chat/;x/",
    ],
)
async def test_a_redirect_leads_to_no_other_host_and_opens_nothing(keyed, path):
    got = await keyed.ask("POST", path, CHAT, key=ADMIN_KEY, **JSON)
    assert (got.status, "location" in got.headers) == (404, False)
    assert (await keyed.ask("POST", "/api/pull/", CHAT, key=LOW_KEY, **JSON)).status == 403


@pytest.fixture
async def below(tmp_path: Path) -> AsyncIterator[HttpHouse]:
    """Behind a proxy that leaves the path it is reached by."""
    server = ServerSettings(base_path="/home/hearth")
    async with HttpHouse(keys=KEYS, server=server, source=tmp_path / "below.yaml") as house:
        yield house


async def test_every_address_is_also_there_below_the_path_of_a_proxy(keyed, below):
    for path, (_, methods) in ADDRESSES.items():
        for method, key in itertools.product(methods, (None, ADMIN_KEY)):
            plain = await keyed.ask(method, path, CHAT, key=key, **JSON)
            for prefix in ("", "/home/hearth"):
                got = await below.ask(method, prefix + path, CHAT, key=key, **JSON)
                assert (got.status, got.headers.get("content-type")) == (
                    plain.status,
                    plain.headers.get("content-type"),
                ), prefix + path
    assert {call.path for call in below.ollama.calls} == {call.path for call in keyed.ollama.calls}
    got = await below.ask("GET", "/home/hearth", key=ADMIN_KEY)
    assert got.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/home/hearth/api/tags/",
        "//api/tags",
        "/home/hearth//api/tags",
        "/api/tags/",
        "//home/hearth/api/tags",
        "/home//hearth/api/tags",
        "///home//hearth//api/tags/",
    ],
)
async def test_a_slash_too_many_is_redirected_below_the_path_of_a_proxy(below, path):
    redirected = await below.ask("GET", path, key=ADMIN_KEY)
    assert redirected.headers["location"] == "/home/hearth/api/tags"
    assert (await below.ask("GET", path)).status == 401


async def test_links_lead_below_the_path_of_a_proxy(keyed, below):
    got = await below.ask("POST", "//home/hearth/api/chat?a=//b", CHAT, key=LOW_KEY, **JSON)
    assert (got.status, got.headers["location"]) == (307, "/home/hearth/api/chat?a=//b")
    got = await below.ask("GET", "//home/hearth", key=ADMIN_KEY)
    assert got.headers["location"] == "/home/hearth/"
    described = await below.ask("GET", "/home/hearth/openapi.json", key=ADMIN_KEY)
    assert described.json["servers"] == [{"url": "/home/hearth"}]
    assert "servers" not in (await keyed.ask("GET", "/openapi.json", key=ADMIN_KEY)).json


@pytest.mark.parametrize(
    "path",
    [
        "/home",
        "/home/hearthx/api/tags",
        "//home/hearthx/api/tags",
        "/hearth/api/tags",
        "/home/hearth/home/hearth/api/tags",
        "/home/hearth//home/hearth/api/tags",
    ],
)
async def test_what_only_resembles_the_path_of_a_proxy_leads_nowhere(below, path):
    assert (await below.ask("GET", path, key=ADMIN_KEY)).status == 404
    assert (await below.ask("GET", path)).status == 401


@pytest.mark.parametrize(
    "raw",
    [
        b"/%68ome/hearth/api/tags",
        b"//%68ome/hearth/api/tags",
        b"/home/hearth%2fapi/tags",
        b"/home/hearth/%61pi/tags",
    ],
)
async def test_an_escaped_path_of_a_proxy_leads_nowhere(below, raw):
    wire = ((b"host", b"localhost"), (b"x-api-key", ADMIN_KEY.encode()))
    scope = {**http_scope("GET", "/home/hearth/api/tags", wire, "127.0.0.1"), "raw_path": raw}
    assert (await drive(below.app, scope, b"")).status == 404


@pytest.mark.parametrize("path", IN_EVERY_DIALECT)
async def test_an_error_below_the_path_of_a_proxy_is_in_the_dialect_of_the_address(
    keyed, below, path
):
    plain = await keyed.ask("POST", path, CHAT)
    got = await below.ask("POST", f"/home/hearth{path}", CHAT)
    assert (got.status, got.json.keys()) == (401, plain.json.keys())


@pytest.mark.parametrize("host", ["10.0.0.9:8411", "some.name"])
async def test_a_probe_may_use_any_name_of_the_machine_and_no_other_address_may(house, keyed, host):
    for path in PROBED:
        assert (await keyed.ask("GET", path, key=LOW_KEY, host=host)).status == 200
        assert (await house.ask("GET", path, host=host)).status == 200
    assert (await keyed.ask("GET", "/llm/health", key=LOW_KEY, host="some.name")).status == 421
    assert (await house.ask("GET", "/llm/health", host=host)).status == 421


@pytest.mark.parametrize("path", ["/api/pull", "/api/create", "/api/blobs/sha256:abc"])
async def test_where_there_are_keys_managing_models_needs_that_of_an_admin(house, keyed, path):
    got = await keyed.ask("POST", path, CHAT, key=LOW_KEY)
    assert got.status == 403
    assert "hearth key new NAME --admin" in got.error
    assert "OLLAMA_HOST=http://fake" in got.error
    far = await keyed.ask("POST", path, CHAT, key=LOW_KEY, peer="192.168.1.9")
    assert (far.status, "http" in far.error) == (403, False)
    assert keyed.reached == []
    await house.ask("POST", path, CHAT)
    assert [call.path for call in house.ollama.calls] == [path]


async def test_without_keys_only_this_machine_comes_in_and_two_lengths_are_400(house):
    assert (await house.ask("GET", "/llm/health", peer="127.0.0.1")).status == 200
    assert (
        await house.ask("GET", "/llm/health", peer="192.168.1.9", x_forwarded_for="127.0.0.1")
    ).status == 401
    assert (await house.ask("GET", "/healthz", peer="192.168.1.9")).status == 200
    assert (
        await house.ask("POST", "/api/chat", CHAT, content_length="3", transfer_encoding="chunked")
    ).status == 400


async def test_every_refusal_at_the_door_is_an_event_without_unknown_names(keyed):
    await keyed.ask("POST", "/api/chat", CHAT, key="wrong", x_request_id="mine")
    await keyed.ask("GET", "/api/chat", key=LOW_KEY)
    await keyed.ask("GET", "/" + "x" * 500, key=LOW_KEY)
    first, second, third = keyed.events.of(RequestRejected)
    assert (first.caller, first.status, first.reason, first.path, first.request_id) == (
        "",
        401,
        "unauthenticated",
        "/api/chat",
        "mine",
    )
    assert (second.caller, second.status) == ("low", 405)
    assert len(third.path) == 200


async def test_the_names_of_a_machine_are_those_of_the_host_it_listens_on():
    async with HttpHouse(server=ServerSettings(host="gpu-box.lan")) as house:
        for host, name, status in (
            ("gpu-box.lan", "localhost:8411", 200),
            ("0.0.0.0", "gpu-box.lan:8411", 200),
            ("other.lan", "other.lan:8411", 421),
        ):
            house.reload(server=ServerSettings(host=host))
            assert (await house.ask("GET", "/llm/health", host=name)).status == status


async def test_a_configuration_is_in_force_with_the_next_request(house):
    allowed = ServerSettings(allowed_hosts=("cat.lan",))
    for keys, server, key, status in (
        ((), ServerSettings(), None, 421),
        (KEYS, allowed, None, 401),
        (KEYS, allowed, LOW_KEY, 200),
        ((), ServerSettings(), None, 421),
    ):
        house.reload(auth=AuthSettings(keys=keys), server=server)
        asked = {"key": key, "host": "cat.lan:8411"}
        assert (await house.ask("GET", "/llm/health", **asked)).status == status
        assert (await house.ask("GET", "/llm/health", key=key, host="cat.lan.evil")).status == 421


async def test_a_host_given_on_the_command_line_is_a_name_of_the_machine(house):
    app = HearthApp(house.gateway, host="gpu-box.lan")
    assert (await ask(app, "GET", "/llm/health", host="gpu-box.lan:8411")).status == 200


class HalfAnAnswer(Taking):
    """One with a defect behind its beginning."""

    status = 200
    headers = ()

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"a"
        raise RuntimeError("the prompt was: secret")

    def close(self) -> None:
        """Nothing is open."""


class DefectiveOllama(FakeOllama):
    """An adapter with a defect, whose error quotes a prompt."""

    async def open(self, call: BackendCall) -> Any:
        if call.path == "/api/ps":
            return HalfAnAnswer()
        raise RuntimeError("the prompt was: secret")


async def test_a_defect_becomes_a_500_in_the_dialect_and_an_event_without_its_text():
    async with HttpHouse(engine=DefectiveOllama, expect_faults=True) as house:
        for path in ("/v1/models", "/api/tags"):
            got = await house.ask("GET", path)
            assert (got.status, got.error) == (500, FAULT_TEXT)
        got = await house.ask("GET", "/api/ps")  # after the head, the answer stays unfinished
        assert (got.status, got.body, got.complete) == (200, b"a", False)
        faults = house.events.of(InternalFault)
    assert [fault.where for fault in faults] == ["GET /v1/models", "GET /api/tags", "GET /api/ps"]
    assert all(
        "RuntimeError at" in fault.detail and "secret" not in fault.detail for fault in faults
    )
