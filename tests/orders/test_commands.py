"""`hearth admin drain` and the like: what is sent, what is said."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import busy, hearth

__all__ = ["busy", "hearth"]

FORCE = {"draining": True, "paused": ["external"], "pinned": "m:latest", "loads": ["b"], "unloads": ["c"], "since": {}}
NOTHING = {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}
WORDS = [
    "draining: new requests are refused",
    "paused: external requests wait",
    "pinned: m:latest",
    "to load: b",
    "to unload: c",
]


@pytest.mark.parametrize("order", ["drain", "pause", "resume", "unpin"])
def test_a_plain_order_is_posted_and_answered_in_words(hearth, busy, order):
    busy.put(f"/llm/admin/{order}", FORCE)
    result = hearth("admin", order, "--url", busy.url)
    assert (result.exit_code, result.stdout.splitlines()) == (0, WORDS)
    assert [(request["method"], request["path"]) for request in busy.seen] == [("POST", f"/llm/admin/{order}")]
    assert busy.bodies == [{}]


@pytest.mark.parametrize("order", ["pin", "load", "unload"])
def test_an_order_about_a_model_names_it(hearth, busy, order):
    busy.put(f"/llm/admin/{order}", NOTHING)
    result = hearth("admin", order, "m", "--url", busy.url)
    assert (result.exit_code, result.stdout, busy.bodies) == (0, "no admin commands in force\n", [{"model": "m"}])
    assert hearth("admin", order, "--url", busy.url).exit_code == 2


def test_a_refusal_ends_with_1_and_its_reason(hearth, busy):
    busy.put("/llm/admin/unload", {"error": "m is in use: 1 request runs on it"}, 409)
    result = hearth("admin", "unload", "m", "--url", busy.url)
    assert result.exit_code == 1
    assert result.stderr == "Error: m is in use: 1 request runs on it\n"


def test_json_prints_the_answer(hearth, busy):
    busy.put("/llm/admin/drain", FORCE)
    assert json.loads(hearth("admin", "drain", "--json", "--url", busy.url).stdout) == FORCE


def test_a_name_cannot_drive_the_terminal(hearth, busy):
    busy.put("/llm/admin/pin", NOTHING | {"pinned": "\x07m"})
    stdout = hearth("admin", "pin", "m", "--url", busy.url).stdout
    assert stdout.startswith("pinned: ")
    assert "\x07" not in stdout  # an escape sequence would be taken out by the runner
