"""Where the value of each setting comes from, and what a saved file would change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hearth.bootstrap.serving import running_gateway
from hearth.config.loading import load_gateway_config, parse_config
from hearth.config.settings import BackendMode, GatewayConfig
from tests.api.house import HttpHouse
from tests.support.house import within

FILE = """\
ollama: {url: "http://${HOST}:1"}
server:
  allowed_hosts: ["a", "${NAME}"]
scheduling: {timezone: UTC}
backend: emulator
auth:
  keys:
    - {name: a, key: "${KEY}"}
alerts: {ntfy_url: "${NTFY:-}"}
models:
  "a:1b": {parallel: 2}
modes:
  night:
    queue: {paused_callers: [n8n]}
    scheduling: {time_zone: Europe/Berlin}
"""
ENVIRON = {"HOST": "h", "NAME": "n", "KEY": "hearth_key_of_the_tests"}


def origins(config: GatewayConfig) -> dict[str, tuple[str, int | None]]:
    return {".".join(path): (origin.source, origin.line) for path, origin in config.origins.items()}


def test_each_value_that_is_written_has_its_line_and_says_if_it_is_the_environments():
    config = parse_config(FILE, source="f", environ=ENVIRON)
    found = origins(config)
    assert {path: found[path] for path in found if not path.startswith("modes")} == {
        "ollama.url": ("environment", 1),
        "server.allowed_hosts": ("environment", 3),
        "scheduling.time_zone": ("file", 4),
        "backend.mode": ("file", 5),
        "auth.keys": ("environment", 7),
        "models.a:1b.parallel": ("file", 11),
    }
    in_mode = origins(config.in_mode("night"))
    assert in_mode["queue.paused_callers"] == ("mode", 14)
    assert in_mode["scheduling.time_zone"] == ("mode", 15)


async def test_options_of_the_command_are_named_with_their_values():
    config = parse_config("server: {port: 9}", source="f", environ={})
    running = running_gateway(config, port=0, backend_mode=BackendMode.EMULATOR)
    async with running as (gateway, _):
        page: Any = gateway.config_in_force()
    by_command = [each["path"] for each in page["origins"] if each["from"] == "command line"]
    assert by_command == [["server", "port"], ["backend", "mode"]]
    assert page["command_line"] == {"server.port": 0, "backend.mode": "emulator"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f.yaml"


async def pending(house: HttpHouse) -> Any:
    got = await house.ask("GET", "/llm/admin/config/pending")
    assert got.status == 200
    return got.json


def on_file(file: Path, text: str) -> Any:
    file.write_text(text)
    house = HttpHouse(source=file)
    file.write_text(text)  # the house has written its own settings there
    house.gateway.reload(load_gateway_config(file))
    return house


def save(file: Path, text: str) -> None:
    file.write_text(text)


async def changes(house: HttpHouse) -> dict[str, tuple[object, object, bool]]:
    found = (await pending(house))["changes"]
    return {each["path"]: (each["old"], each["new"], each["hot"]) for each in found}


BEFORE = "queue: {max_external_depth: 5}\nmodes: {x: {queue: {max_wait_s: 9}}}\n"


def test_what_a_saved_file_would_change_is_asked_without_changing_anything(file: Path):
    @within(lambda: on_file(file, BEFORE))
    async def scenario(house: HttpHouse) -> None:
        house.gateway.modes.switch("x", by="boss")
        assert await changes(house) == {}, "the mode stays"
        text = BEFORE.replace("5", "7") + "server: {port: 9}\nalerts: {ntfy_url: 'http://h/secret'}"
        save(file, text)
        assert await changes(house) == {
            "queue.max_external_depth": (5, 7, True),
            "alerts.ntfy_url": ("", "http://h/…", True),
            "server.port": (8411, 9, False),
        }
        assert house.gateway.settings.queue.max_external_depth == 5
        house.gateway.reload(load_gateway_config(file))
        assert await changes(house) == {"server.port": (8411, 9, False)}, "until the restart"

    scenario()


def test_a_saved_file_with_problems_has_them_in_place_of_changes(file: Path):
    @within(lambda: on_file(file, BEFORE))
    async def scenario(house: HttpHouse) -> None:
        save(file, "queue: {max_external_depth: 0}\n")
        page = await pending(house)
        assert page["changes"] == []
        assert page["problems"] == [
            f"{file}:1: queue.max_external_depth: must be at least 1, not 0"
        ]

    scenario()
