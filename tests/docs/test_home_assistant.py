"""What the page for Home Assistant has people paste asks for what the gateway has, and switches
a lease on and off. Home Assistant itself renders the templates; here jinja2 does, with the few
filters of its own that the page uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import yaml
from jinja2 import Environment

from hearth.config.settings import GpuSettings, ModeSettings
from hearth.execution.gpu_tracker import CardUse
from hearth.types import GpuReading
from tests.api.house import HttpHouse
from tests.support.fake_ollama import FakeModel
from tests.support.house import settle, within
from tests.support.keys import key_of
from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "home-assistant.md").read_text("utf-8")
KEY = "hearth_home_assistant"
TEMPLATES = Environment(autoescape=False)
TEMPLATES.filters["to_json"] = json.dumps
TEMPLATES.globals["as_datetime"] = lambda at: datetime.fromtimestamp(at, UTC)


class Loader(yaml.SafeLoader):
    """With the secret of the page."""


Loader.add_constructor("!secret", lambda *_: KEY)


def parts(name: str) -> Iterator[Any]:
    """What stands under a name of `configuration.yaml`, in each of its fences."""
    for text in re.findall(r'```yaml title="configuration.yaml"\n(.*?)```', PAGE, re.DOTALL):
        found = yaml.load(text, Loader)
        yield from found.get(name, ()) if name != "rest_command" else [found.get(name, {})]


def house() -> HttpHouse:
    return HttpHouse(
        FakeModel(name="m"),
        keys=(key_of("ha", KEY, may_lease=True, may_set_mode=True),),
        gpu=GpuSettings(home_model=""),
        modes={"gaming": ModeSettings(), "night": ModeSettings()},
    )


async def rendered(house: HttpHouse) -> dict[str, str | None]:
    """The state of every entity, None for one that is unavailable."""
    shown: dict[str, str | None] = {}
    for rest in parts("rest"):
        path = rest["resource"].removeprefix("http://gpu-box:8411")
        key = rest.get("headers", {}).get("x-api-key")
        answer = (await house.ask("GET", path, key=key)).json
        for entity in (*rest.get("sensor", ()), *rest.get("binary_sensor", ())):
            available, state = (
                TEMPLATES.from_string(entity.get(name, "{{ true }}")).render(value_json=answer)
                for name in ("availability", "value_template")
            )
            shown[entity["name"]] = state if available == "True" else None
    return shown


async def command(house: HttpHouse, name: str, **data: Any) -> int:
    asked = {key: each for found in parts("rest_command") for key, each in found.items()}[name]
    path = asked["url"].removeprefix("http://gpu-box:8411")
    body = TEMPLATES.from_string(asked.get("payload", "")).render(**data)
    got = await house.ask(
        asked["method"].upper(),
        path,
        body.encode(),
        key=asked["headers"]["x-api-key"],
        content_type=asked.get("content_type", "application/json"),
    )
    return got.status


@within(house)
async def test_the_page_for_home_assistant_shows_the_gpu_and_switches_it(house):
    before = await rendered(house)
    assert before == {
        "GPU": "free",
        "GPU yielded until": None,
        "GPU temperature": None,
        "GPU power": None,
        "GPU memory used": None,
        "GPU requests waiting": "0",
        "GPU model": "none",
        "GPU lease": "False",
        "Hearth mode": "off",
    }
    reading = GpuReading(name="card", temperature_c=61.0, power_w=250.0, used_mib=1024.0)
    house.worker.tracker.record_reading(reading, CardUse())
    assert await command(house, "gpu_yield", hours=3, reason='a "film"') == 201
    await settle()
    during = await rendered(house)
    assert (during["GPU"], during["GPU lease"]) == ("yielded", "True")
    assert [during[f"GPU {name}"] for name in ("temperature", "power", "memory used")] == [
        "61.0",
        "250.0",
        "1024.0",
    ]
    until = datetime.fromisoformat(during["GPU yielded until"] or "")
    assert until.timestamp() - house.clock.wall() == 3 * 3600
    assert await command(house, "gpu_yield") == 200
    assert await command(house, "gpu_take_back") == 200
    assert (await rendered(house))["GPU lease"] == "False"
    assert await command(house, "gpu_take_back") == 404


@within(house)
async def test_the_select_of_the_page_switches_modes(house):
    (select,) = [found["select"][0] for found in parts("template") if "select" in found]
    sensors = [each for rest in parts("rest") for each in rest.get("sensor", ())]
    (sensor,) = [each for each in sensors if each["name"] == "Hearth mode"]
    names = (await house.ask("GET", "/llm/mode", key=KEY)).json["names"]
    assert (names, "names" in sensor["json_attributes"]) == (["gaming", "night"], True)
    assert "state_attr('sensor.hearth_mode', 'names')" in select["options"]
    for option, state in (("gaming", "gaming"), ("off", "off")):
        data = TEMPLATES.from_string(select["select_option"][0]["data"]["mode"])
        assert await command(house, "hearth_mode", mode=data.render(option=option)) == 200
        assert (await rendered(house))["Hearth mode"] == state
    assert await command(house, "hearth_mode", mode="party") == 400
