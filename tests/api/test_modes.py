"""Modes over HTTP: who may switch them, what is asked and answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hearth.config.settings import ModeSettings
from tests.api.house import HttpHouse
from tests.support.house import within
from tests.support.http import Got
from tests.support.keys import key_of

BOSS = "hearth_the_boss_of_the_house"
PLAIN = "hearth_somebody_in_the_house"
HOME = "hearth_home_assistant_key"
KEYS = (
    key_of("boss", BOSS, admin=True),
    key_of("plain", PLAIN),
    key_of("home", HOME, may_set_mode=True),
)
MODES = {
    "gaming": ModeSettings.model_validate({"queue": {"paused_callers": ["plain"]}}),
    "night": ModeSettings.model_validate({"when": "12:00-13:00"}),
}


def house() -> HttpHouse:
    return HttpHouse(keys=KEYS, modes=MODES)


async def switch(house: HttpHouse, body: Mapping[str, Any], key: str, method: str = "PUT") -> Got:
    return await house.ask(method, "/llm/mode", body, key=key, content_type="application/json")


@within(house)
async def test_every_caller_is_shown_the_mode_and_whether_it_may_switch_it(house):
    for key, may_set in ((PLAIN, False), (HOME, True), (BOSS, True)):
        shown: Any = (await house.ask("GET", "/llm/mode", key=key)).json
        assert (shown["mode"], shown["names"]) == (None, ["gaming", "night"])
        assert shown["may_set"] is may_set


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("key", [HOME, BOSS])
@within(house)
async def test_a_key_with_the_right_switches(house, key: str, method: str):
    got = await switch(house, {"mode": "gaming"}, key, method)
    by = "home" if key == HOME else "boss"
    assert (got.status, got.json["mode"], got.json["by"]) == (200, "gaming", by)
    status = (await house.ask("GET", "/llm/queue/status", key=PLAIN)).json
    assert status["modes"]["mode"] == "gaming"
    page = (await house.ask("GET", "/llm/admin/config", key=BOSS)).json
    origin = {"path": ["queue", "paused_callers"], "from": "mode", "line": None}
    assert (page["mode"], page["origins"]) == ("gaming", [origin])
    assert page["settings"]["queue"]["paused_callers"] == ["plain"]
    for off in (None, "off"):
        assert (await switch(house, {"mode": off}, key, method)).json["mode"] is None


@within(house)
async def test_others_are_refused_and_the_owner_learns_the_remedy(house):
    got = await switch(house, {"mode": "gaming"}, PLAIN)
    assert (got.status, "`may_set_mode: true`" in got.json["error"]) == (403, True)
    assert house.gateway.modes.mode is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"mode": "party"}, "there is no mode party; the modes are gaming, night"),
        ({"mode": 5}, "mode: "),
        ({}, "mode: "),
        ({"mode": "night", "for_s": 1}, "for_s: unknown field"),
    ],
)
@within(house)
async def test_what_is_no_mode_changes_nothing(house, body: Mapping[str, Any], said: str):
    got = await switch(house, body, HOME)
    assert (got.status, got.json["error"][: len(said)]) == (400, said)
    assert house.gateway.modes.mode is None
