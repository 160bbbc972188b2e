"""Every address of the running program, asked by everybody, with every method, over a socket. Deny by default: an address that is not in
the table fails, and so does a line of the table that is no address."""

from __future__ import annotations

import re

import pytest
from starlette.routing import Route

from hearth.admission.wrong_keys import WINDOW_S
from hearth.dialects.routes import TRANSCRIPTIONS_PATH
from tests.api.house import ADMIN_KEY, LOW_KEY, FakeGateway
from tests.api.test_app import ADDRESSES, ADMIN, ANY_KEY, ANYBODY, CHAT
from tests.security.house import STREAMS, described_routes, one_loop, request, tell

EXPECTED = ADDRESSES | dict.fromkeys(STREAMS, (ANY_KEY, ("GET",)))
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "SUBSCRIBE")


def templates() -> set[str]:
    """Every path that the program knows, as its description and its router have it."""
    return {*described_routes()["paths"], *(route.path for route in FakeGateway().app().routes.router.routes if isinstance(route, Route))}


def test_the_table_has_every_address_of_the_program_and_no_other():
    patterns = {template: re.compile(re.sub(r"\{[^}]*\}", "[^/]+", template)) for template in templates()}
    assert {template for template, pattern in patterns.items() if not any(map(pattern.fullmatch, EXPECTED))} == set()
    assert {path for path in EXPECTED if not any(pattern.fullmatch(path) for pattern in patterns.values())} == set()


def test_a_method_that_is_described_is_in_the_table():
    described = described_routes()["paths"]
    for template, methods in described.items():
        pattern = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", template))
        allowed = {method for path, (_, methods) in EXPECTED.items() if pattern.fullmatch(path) for method in methods}
        assert {method.upper() for method in methods} <= allowed, template


async def status(door, method: str, path: str, key: str) -> int:
    door[0].clock.now += WINDOW_S  # the wrong keys of a minute have a limit of their own
    seen = await tell(door[1], request(method, path, CHAT if method != "HEAD" else b"", key=key), head_only=True)
    return seen.status


@one_loop
@pytest.mark.parametrize("path", EXPECTED)
async def test_every_method_of_every_address_answers_each_caller_as_the_table_says(path, door):
    who, methods = EXPECTED[path]
    for method in METHODS:
        open_to_all = 200 if method in methods else 405
        for key in ("", "wrong", "hearth_" + "0" * 64):
            assert await status(door, method, path, key) == (open_to_all if who == ANYBODY else 401), (method, key)
        low, admin = await status(door, method, path, LOW_KEY), await status(door, method, path, ADMIN_KEY)
        assert (low == 403) is (who == ADMIN), (method, low)
        for got in (low, admin) if who != ADMIN else (admin,):
            assert (got == 405) is (method not in methods), (method, got)
            assert got < 500 or (got, path) == (501, TRANSCRIPTIONS_PATH)
            assert got not in {401, 403}


@one_loop
async def test_what_needs_a_key_reached_nobody_without_one(door):
    gateway, url = door
    gateway.worker.submitted.clear()
    gateway.backend.calls.clear()
    for path in EXPECTED:
        for method in ("GET", "POST", "DELETE"):
            await tell(url, request(method, path, CHAT), head_only=True)
    assert gateway.worker.submitted == []
    assert gateway.backend.calls == []
