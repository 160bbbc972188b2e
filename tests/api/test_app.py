"""The door: who gets how far, at which address, in which order."""

from __future__ import annotations

import itertools
import json
from typing import Any, cast

from starlette.routing import compile_path

from hearth.admission.peers import WINDOW_S
from hearth.api.app import FAULT_TEXT, HearthApp
from hearth.api.dashboard.pages import DashboardPages
from hearth.config.settings import ServerSettings
from hearth.events import InternalFault, RequestRejected
from hearth.execution.request import Submission
from tests.api.house import ADMIN_KEY, HOUSE_KEY, IN_EVERY_DIALECT, KEYS, LOW_KEY, FakeExchange, FakeGateway, ask, drive, http_scope

CHAT = json.dumps({"model": "allowed", "messages": [{"role": "user", "content": "hi"}]}).encode()
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")

ANYBODY, ANY_KEY, ADMIN = "anybody", "any key", "admin"
ADDRESSES: dict[str, tuple[str, tuple[str, ...]]] = (
    {
        "/healthz": (ANYBODY, ("GET",)),
        "/readyz": (ANY_KEY, ("GET",)),
        "/metrics": (ANY_KEY, ("GET",)),
        "/openapi.json": (ADMIN, ("GET", "HEAD")),
        "/llm/queue/status": (ANY_KEY, ("GET",)),
        "/llm/queue/item/1": (ANY_KEY, ("GET",)),
        "/llm/queue/item/1/cancel": (ANY_KEY, ("POST",)),
        "/llm/log": (ANY_KEY, ("GET",)),
        "/llm/swaps": (ANY_KEY, ("GET",)),
        "/llm/models": (ANY_KEY, ("GET",)),
        "/llm/health": (ANY_KEY, ("GET",)),
        "/llm/requests/req_1/cancel": (ANY_KEY, ("POST",)),
        "/llm/requests/cancel": (ANY_KEY, ("POST",)),
        "/llm/completions": (ANY_KEY, ("POST",)),
        "/llm/jobs": (ANY_KEY, ("GET", "POST")),
        "/llm/jobs/job_1": (ANY_KEY, ("GET", "DELETE")),
        "/llm/admin/preempt": (ADMIN, ("POST",)),
        "/llm/admin/announce": (ADMIN, ("POST",)),
        "/llm/admin/confirm-clock": (ADMIN, ("POST",)),
        "/llm/admin/stored": (ADMIN, ("GET",)),
        "/llm/admin/files": (ADMIN, ("GET",)),
        "/llm/admin/files/1": (ADMIN, ("DELETE",)),
        "/llm/admin/alert/test": (ADMIN, ("POST",)),
        "/llm/admin/config": (ADMIN, ("GET",)),
        "/llm/admin/reload": (ADMIN, ("POST",)),
        "/llm/admin/orders": (ADMIN, ("GET",)),
    }
    | dict.fromkeys((f"/llm/admin/{order}" for order in ("drain", "pause", "resume", "pin", "unpin", "load", "unload")), (ADMIN, ("POST",)))
    | {
        "/api/chat": (ANY_KEY, ("POST",)),
        "/api/generate": (ANY_KEY, ("POST",)),
        "/api/embed": (ANY_KEY, ("POST",)),
        "/api/embeddings": (ANY_KEY, ("POST",)),
        "/v1/chat/completions": (ANY_KEY, ("POST",)),
        "/v1/completions": (ANY_KEY, ("POST",)),
        "/v1/embeddings": (ANY_KEY, ("POST",)),
        "/v1/responses": (ANY_KEY, ("POST",)),
        "/v1/files": (ANY_KEY, ("GET", "POST")),
        "/v1/files/file-1": (ANY_KEY, ("GET", "DELETE")),
        "/v1/files/file-1/content": (ANY_KEY, ("GET",)),
        "/v1/batches": (ANY_KEY, ("GET", "POST")),
        "/v1/batches/batch_1": (ANY_KEY, ("GET",)),
        "/v1/batches/batch_1/cancel": (ANY_KEY, ("POST",)),
        "/v1/messages": (ANY_KEY, ("POST",)),
        "/v1/messages/count_tokens": (ANY_KEY, ("POST",)),
        "/v1/audio/transcriptions": (ANY_KEY, ("POST",)),
        "/": (ANY_KEY, ("GET", "HEAD")),
        "/api/version": (ANY_KEY, ("GET", "HEAD")),
        "/api/tags": (ANY_KEY, ("GET", "HEAD")),
        "/api/ps": (ANY_KEY, ("GET",)),
        "/api/status": (ANY_KEY, ("GET",)),
        "/api/show": (ANY_KEY, ("POST",)),
        "/v1/models": (ANY_KEY, ("GET",)),
        "/v1/models/llama3.1:8b": (ANY_KEY, ("GET",)),
        "/api/pull": (ADMIN, ("POST",)),
        "/api/push": (ADMIN, ("POST",)),
        "/api/create": (ADMIN, ("POST",)),
        "/api/copy": (ADMIN, ("POST",)),
        "/api/delete": (ADMIN, ("DELETE",)),
        "/api/blobs/sha256:abc": (ADMIN, ("HEAD", "POST")),
    }
    | dict.fromkeys(DashboardPages().paths, (ANYBODY, ("GET", "HEAD")))
)
"""Every address, who may use it, with which methods."""
STREAMS = ("/llm/queue/stream", "/llm/dashboard/stream")
"""They never end, and have tests of their own."""

UNKNOWN = (
    "/nope",
    "/llm",
    "/llm/",
    "/llm/admin/",
    "/api",
    "/api/chat/",
    "/v1/models/",
    "/v1/models/m/",
    "/api/blobs/",
    "/docs",
    "/redoc",
    "/metrics/",
)
ODD = (
    "//api/chat",
    "/api//chat",
    "/api/chat;x",
    "/api/./chat",
    "/api/../api/chat",
    "/api/chat\x00",
    "/api/chat\n",
    "/API/CHAT",
    "api/chat",
    "http://localhost/api/chat",
    "*",
    "/api\\chat",
    "/healthz/../llm/queue/status",
    "/healthz;/llm/queue/status",
    "/v1/models/../../api/pull",
)


def test_the_table_has_every_address_and_method_of_the_program_and_no_other(keyed_app):
    served = {path: set(address.handlers) for path, address in keyed_app.routes.addresses.items() if path not in STREAMS}
    patterns = {path: compile_path(path)[0] for path in served}
    for template, pattern in patterns.items():
        listed = {method for path, (_, methods) in ADDRESSES.items() if pattern.match(path) for method in methods}
        assert served[template] <= listed, template
    for path, (_, methods) in ADDRESSES.items():
        assert {*methods} == {method for template in served if patterns[template].match(path) for method in served[template]}, path
    described = keyed_app.routes.openapi["paths"]
    for template in served.keys() & described.keys():
        assert {method.upper() for method in described[template]} <= served[template], template
    assert described.keys() <= {path.replace(":path", "") for path in (*served, *STREAMS)}


def answering(gateway: FakeGateway) -> None:
    gateway.backend.answer = FakeExchange(200, (), (b"{}",))


async def test_without_a_key_every_address_but_the_public_ones_is_closed_for_every_method(keyed, keyed_app):
    answering(keyed)
    for path, method, key in itertools.product((*ADDRESSES, *STREAMS), METHODS, (None, "wrong", "0" * 64)):
        keyed.clock.now += WINDOW_S  # the wrong keys of a minute have a limit of their own
        got = await ask(keyed_app, method, path, CHAT, key=key, content_type="application/json")
        if ADDRESSES.get(path, (ANY_KEY,))[0] == ANYBODY:
            assert got.status == (200 if method in ADDRESSES[path][1] else 405), (method, path)
        else:
            assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
    assert keyed.worker.submitted == []
    assert keyed.backend.calls == []


async def test_a_key_opens_what_it_may_and_other_methods_do_not_exist(keyed, keyed_app):
    answering(keyed)
    for (path, (who, methods)), method in itertools.product(ADDRESSES.items(), METHODS):
        for key in (LOW_KEY, HOUSE_KEY, ADMIN_KEY):
            keyed.clock.now += WINDOW_S
            got = await ask(keyed_app, method, path, CHAT, key=key, content_type="application/json")
            if who == ADMIN and key != ADMIN_KEY:
                assert got.status == 403, (method, path)
            elif method not in methods:
                assert got.status == 405, (method, path)
                assert got.headers["allow"] == ", ".join(sorted(methods)), (method, path)
            else:
                assert got.status in {200, 400, 404, 501}, (method, path)


async def test_an_unknown_or_odd_address_is_401_without_a_key_and_404_with_one(keyed, keyed_app):
    wire = ((b"host", b"localhost"), (b"content-type", b"application/json"))
    for path, method in itertools.product((*UNKNOWN, *ODD), ("GET", "POST")):
        for key, status in (((), 401), (((b"x-api-key", ADMIN_KEY.encode()),), 404)):
            assert (await drive(keyed_app, http_scope(method, path, (*wire, *key), "127.0.0.1"), CHAT)).status == status, path
    assert (await ask(keyed_app, "GET", "/llm/admin/nothing", key=LOW_KEY)).status == 403
    assert keyed.worker.submitted == []
    assert keyed.backend.calls == []


async def test_an_escaped_spelling_of_an_address_does_not_exist(keyed_app):
    scope = http_scope("POST", "/api/chat", ((b"host", b"localhost"), (b"x-api-key", ADMIN_KEY.encode())), "127.0.0.1")
    for raw in (b"/api/%63hat", b"/%61pi/chat", b"/api%2fchat", b"/healthz%00"):
        assert (await drive(keyed_app, {**scope, "headers": [*scope["headers"]], "raw_path": raw}, CHAT)).status == 404, raw


async def test_unknown_addresses_and_wrong_methods_have_the_texts_of_ollama(app):
    got = await ask(app, "GET", "/nope")
    assert (got.status, got.body, got.headers["content-type"]) == (404, b"404 page not found", "text/plain")
    got = await ask(app, "GET", "/api/chat")
    assert (got.status, got.body, got.headers["allow"]) == (405, b"405 method not allowed", "POST")


async def test_a_preflight_gets_no_permission(app):
    got = await ask(app, "OPTIONS", "/api/chat", origin="http://localhost:8411", access_control_request_method="POST")
    assert got.status == 405
    assert not any(name.startswith("access-control") for name in got.headers)


async def test_the_path_of_the_scope_decides_and_nothing_in_the_host_header(keyed_app):
    for host in ("localhost:8411/healthz?x=", "localhost:8411@healthz", "healthz"):
        assert (await ask(keyed_app, "GET", "/llm/queue/status", host=host)).status in {400, 421}


async def test_managing_models_needs_an_admin_key_even_on_loopback_and_the_answer_says_how(app, gateway):
    for path in ("/api/pull", "/api/delete", "/api/blobs/sha256:abc"):
        got = await ask(app, "POST", path, CHAT)
        assert got.status == 403
        assert "hearth admin key new" in got.json["error"]
        assert f"OLLAMA_HOST={gateway.config.settings.ollama.url}" in got.json["error"]
    assert gateway.backend.calls == []


async def test_without_keys_only_this_machine_comes_in(app):
    assert (await ask(app, "GET", "/llm/health", peer="127.0.0.1")).status == 200
    got = await ask(app, "GET", "/llm/health", peer="192.168.1.9", x_forwarded_for="127.0.0.1")
    assert got.status == 401
    assert (await ask(app, "GET", "/healthz", peer="192.168.1.9")).status == 200


async def test_keys_in_the_query_are_not_keys(keyed_app):
    assert (await ask(keyed_app, "GET", f"/llm/health?api_key={ADMIN_KEY}&x-api-key={ADMIN_KEY}&key={ADMIN_KEY}")).status == 401


async def test_two_credentials_are_a_bad_request(keyed_app):
    assert (await ask(keyed_app, "GET", "/llm/health", key=ADMIN_KEY, x_api_key=ADMIN_KEY)).status == 400


async def test_a_length_and_a_transfer_coding_together_are_a_bad_request(app):
    got = await ask(app, "POST", "/api/chat", CHAT, content_length="3", transfer_encoding="chunked")
    assert got.status == 400


@IN_EVERY_DIALECT
async def test_refusals_have_the_shape_of_the_dialect_and_an_id(path, read, keyed_app):
    got = await ask(keyed_app, "POST", path, CHAT, x_request_id="mine")
    assert got.status == 401
    assert "API key" in read(got.json)
    assert got.headers["x-request-id"] == "mine"
    assert got.headers["content-type"].startswith("application/json")


async def test_every_refusal_at_the_door_is_an_event_without_the_name_of_an_unknown_caller(keyed, keyed_app):
    await ask(keyed_app, "POST", "/api/chat", CHAT, key="wrong", x_request_id="mine")
    await ask(keyed_app, "GET", "/api/chat", key=LOW_KEY)
    await ask(keyed_app, "GET", "/" + "x" * 500, key=LOW_KEY)
    first, second, third = keyed.events.seen
    assert isinstance(first, RequestRejected)
    assert (first.caller, first.status, first.reason, first.path, first.request_id) == ("", 401, "unauthenticated", "/api/chat", "mine")
    assert isinstance(second, RequestRejected)
    assert (second.caller, second.status) == ("low", 405)
    assert isinstance(third, RequestRejected)
    assert len(third.path) == 200


async def test_a_reloaded_configuration_is_in_force_with_the_next_request(gateway, app):
    assert (await ask(app, "GET", "/llm/health")).status == 200
    changed = FakeGateway(keys=KEYS, server=ServerSettings(allowed_hosts=("gpu-box.lan",)))
    gateway.config = changed.config
    assert (await ask(app, "GET", "/llm/health")).status == 401
    assert (await ask(app, "GET", "/llm/health", key=LOW_KEY, host="gpu-box.lan:8411")).status == 200


async def test_the_name_that_is_listened_on_counts_until_the_restart_that_changes_it():
    gateway = FakeGateway(server=ServerSettings(host="gpu-box.lan"))
    app = HearthApp(cast("Any", gateway))
    gateway.config = FakeGateway(server=ServerSettings(host="0.0.0.0")).config
    assert (await ask(app, "GET", "/llm/health", host="gpu-box.lan:8411")).status == 200
    gateway.config = FakeGateway(server=ServerSettings(host="other.lan")).config
    assert (await ask(app, "GET", "/llm/health", host="other.lan:8411")).status == 421


async def test_a_name_to_listen_on_that_the_command_line_gives_counts_like_one_of_the_file():
    app = HearthApp(cast("Any", FakeGateway()), host="gpu-box.lan")
    assert (await ask(app, "GET", "/llm/health", host="gpu-box.lan:8411")).status == 200


async def test_a_defect_becomes_a_500_in_the_dialect_and_an_event_without_its_text(gateway, app):
    def defective(new: Submission) -> None:
        raise RuntimeError("the prompt was: secret")

    gateway.worker.submit = defective
    got = await ask(app, "POST", "/v1/chat/completions", CHAT, content_type="application/json")
    assert got.status == 500
    assert "secret" not in got.body.decode()
    assert got.json["error"]["type"] == "api_error"
    faults = [event for event in gateway.events.seen if isinstance(event, InternalFault)]
    assert len(faults) == 1
    assert faults[0].where == "POST /v1/chat/completions"
    assert "RuntimeError at" in faults[0].detail
    assert "secret" not in faults[0].detail


async def test_a_defect_on_an_own_page_is_a_500_too(gateway, app):
    def defective() -> dict[str, object]:
        raise RuntimeError("secret")

    gateway.health = defective
    got = await ask(app, "GET", "/llm/health")
    assert got.status == 500
    assert got.json == {"error": FAULT_TEXT}
    assert any(isinstance(event, InternalFault) for event in gateway.events.seen)


async def test_a_defect_after_the_head_leaves_the_answer_unfinished(gateway, app):
    gateway.backend.answer = FakeExchange(200, (), (b"a", RuntimeError("secret")))
    got = await ask(app, "GET", "/api/tags")
    assert got.status == 200
    assert got.body == b"a"
    assert not got.complete
