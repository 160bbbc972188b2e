"""What docs/from-donna.md lists as different from Donna's gateway is so, and stands there."""

from __future__ import annotations

import pytest

from hearth.config.loading import load_gateway_config, parse_config
from hearth.config.settings import Settings
from hearth.errors import ConfigError, QueueFull
from hearth.queue.status import NEXT_ITEMS
from tests.api.house import ADMIN_KEY, HttpHouse
from tests.support.fields import Fields
from tests.support.house import House, in_house, settings_with
from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "from-donna.md").read_text("utf-8")
DONNA = ROOT / "examples" / "donna.yaml"


def listed(words: str) -> bool:
    """In a row of one of its tables?"""
    return any(words in line for line in PAGE.splitlines() if line.startswith("| "))


@pytest.mark.parametrize(
    ("row", "key", "without", "with_its_file"),
    [
        ("there is no home model", "gpu.home_model", "", "qwen2.5:32b-instruct-q6_K"),
        ("120, not 30", "gpu.restore_home_delay_s", 120.0, 30.0),
        ("10 a minute", "rate_limits.default.requests_per_minute", None, 10),
        ("100 an hour", "rate_limits.default.requests_per_hour", None, 100),
        ("5, not 3", "alerts.rate_limit_alert_threshold", 5, 5),
        ("of the machine, not America", "scheduling.time_zone", "local", "local"),
        ("`budget.daily_external_usd`, not 2", "cloud.daily_external_usd", None, None),
        ("off unless it is set", "gpu.alerts.swaps_per_hour_warning", None, 4),
        ("empty unless `server.prompt_previews`", "server.prompt_previews", False, False),
        ("by default the price", "scheduling.preemption", "priced", "at_once"),
    ],
)
def test_a_default_that_differs_is_listed(
    row: str, key: str, without: object, with_its_file: object
):
    assert listed(row)
    for settings, expected in (
        (Settings(), without),
        (load_gateway_config(DONNA, {}).settings, with_its_file),
    ):
        found = settings
        for name in key.split("."):
            found = getattr(found, name)
        assert found == expected


def test_an_unknown_priority_is_an_error():
    with pytest.raises(ConfigError) as error:
        parse_config("priority_map: {a: urgent}", source="f", environ={})
    words = str(error.value).partition(": ")[2]
    assert listed(words), words


@in_house("a", settings=settings_with(queue={"max_external_depth": 2}))
async def test_the_text_of_a_full_queue_and_its_class_are_listed(house: House):
    for number in range(2):
        house.submit("a", caller=f"caller {number}")
    with pytest.raises(QueueFull) as error:
        house.submit("a", caller="late")
    assert listed(str(error.value).replace("2 external", "20 external"))
    assert listed("`hearth.errors.QueueFull`")


@in_house("a")
async def test_so_many_items_are_shown_and_under_their_whole_name(house: House):
    for _ in range(NEXT_ITEMS + 2):
        house.internal("a")
    shown = house.status["internal_queue"]["next_items"]
    assert {item["model"] for item in shown} == {"a:latest"}
    assert listed(f"the first {len(shown)} of each queue")


@pytest.mark.parametrize(
    ("row", "body", "headers", "status"),
    [
        ('`{"error": "..."}`', {"prompt": "?", "model": "none"}, {}, 404),
        ("`caller` in the body is an error", {"prompt": "?", "caller": "me"}, {}, 400),
        ("a wrong key (401)", {"prompt": "?"}, {"key": "wrong"}, 401),
        ("else 421", {"prompt": "?"}, {"host": "gpu.example", "x_forwarded_host": "a"}, 421),
    ],
)
async def test_a_refusal_that_differs_is_listed(
    keyed: HttpHouse, row: str, body: Fields, headers: Fields, status: int
):
    assert listed(row)
    got = await keyed.ask("POST", "/llm/completions", body, **{"key": ADMIN_KEY, **headers})
    assert (got.status, "detail" in got.json, "error" in got.json) == (status, False, True)


async def test_models_are_objects_and_forwarded_names_are_not_read(keyed: HttpHouse):
    got = await keyed.ask("GET", "/llm/models", key=ADMIN_KEY, x_forwarded_host="gpu.example")
    assert got.json["models"][0]["name"]
    assert listed("is an object with a `name`")
    assert listed("`X-Forwarded-Host`")
