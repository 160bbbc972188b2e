"""The emulator answers only where nothing is configured, no service manager runs Hearth, and
nothing listens at the default address.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from hearth.bootstrap import build_gateway
from hearth.bootstrap.standin import Parent, named_server, parent_at, service_manager
from hearth.config.loading import parse_config
from hearth.config.rendering import shipped_config
from hearth.config.settings import (
    AuthSettings,
    BackendMode,
    GatewayConfig,
    GpuSettings,
    ModelSettings,
)
from hearth.events import EmulatorStarted
from tests.bootstrap.by_hand import free_address, tried, untouched
from tests.support.fields import Fields
from tests.support.keys import key_of
from tests.support.recorder import Recorder

MODEL = "llama3.1:8b"
KEY = key_of("owner", "hearth_owner", admin=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (shipped_config(), ""),
        ("{}", ""),
        ("ollama: {first_byte_timeout_s: 30}", ""),
        ("gpu: {swap_timeout_s: 60, home_model: ''}", ""),
        ("backend: auto", ""),
        ("ollama: {url: 'http://127.0.0.1:11434'}", "ollama.url"),
        ("ollama: {url: 'http://gpu:11434'}", "ollama.url"),
        ("ollama: {url: '${NOPE:-}'}", ""),
        ("ollama: {url: '${NOPE:-http://gpu:11434}'}", "ollama.url"),
        ("auth: {keys: [{name: a, key: '${K}'}]}", "auth.keys"),
        ("models: {'llama3.1:8b': {parallel: 2}}", "models"),
        ("gpu: {home_model: 'llama3.1:8b'}", "gpu.home_model"),
        ("cloud: {api_key: '${K}'}", "cloud.api_key"),
    ],
)
def test_a_setting_that_implies_a_model_server_is_found_and_none_is_shipped(text: str, named: str):
    assert (
        named_server(
            parse_config(text, source="file", environ={"K": "a-secret-of-16-chars"}).settings
        )
        == named
    )


@pytest.mark.parametrize(
    ("environ", "process", "manager"),
    [
        ({}, {}, ""),
        ({"NOTIFY_SOCKET": "/run/systemd/notify"}, {"at_terminal": True}, "systemd"),
        ({"INVOCATION_ID": "4f"}, {}, "systemd"),
        # a terminal of a desktop that systemd runs
        ({"INVOCATION_ID": "4f"}, {"at_terminal": True}, ""),
        ({"INVOCATION_ID": "4f", "SYSTEMD_EXEC_PID": "30"}, {"at_terminal": True}, "systemd"),
        ({"INVOCATION_ID": "4f", "SYSTEMD_EXEC_PID": "7"}, {"at_terminal": True}, ""),
        ({"SUPERVISOR_ENABLED": "1"}, {}, "supervisord"),
        ({"SUPERVISOR_ENABLED": "1"}, {"at_terminal": True}, ""),
        ({"RC_SVCNAME": "hearth"}, {}, "OpenRC"),
        ({"XPC_SERVICE_NAME": "org.example.hearth"}, {}, "launchd"),
        ({"XPC_SERVICE_NAME": "0"}, {}, ""),
        ({"XPC_SERVICE_NAME": "application.com.apple.Terminal.1"}, {}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}, ""),  # every shell of a pod has it
        ({}, {"pid": 1, "at_terminal": True}, "a container"),
        ({"pm_id": "0"}, {}, "pm2"),
        ({"pm_id": "0"}, {"at_terminal": True}, ""),
        ({}, {"parent": Parent(1, "tini", "tini"), "at_terminal": True}, "a container"),
        ({}, {"parent": Parent(7, "runsv", "runsv")}, "runit"),
        ({}, {"parent": Parent(7, "s6-supervise", "s6-supervise")}, "s6"),
        ({}, {"parent": Parent(7, "supervise-daemo", "supervise-daemon")}, "OpenRC"),
        ({}, {"parent": Parent(7, "PM2 v5.3.0: God", "PM2 v5.3.0: God ")}, "pm2"),
        ({}, {"parent": Parent(1, "systemd", "systemd")}, ""),  # its shell has ended
        ({}, {"parent": Parent(1, "sh", "sh")}, "a container"),
        ({}, {"parent": Parent(1, "entrypoint.sh", "bash")}, "a container"),
        ({}, {"parent": Parent(1, "bash", "bash"), "at_terminal": True}, ""),  # typed in it
        ({}, {"parent": Parent(7, "sh", "sh")}, ""),
    ],
)
def test_what_keeps_a_process_running_is_known_by_what_it_leaves_in_it(
    environ: dict[str, str], process: Fields, manager: str
):
    known: Fields = {
        "pid": 30,
        "parent": Parent(29, "bash", "bash"),
        "at_terminal": False,
    } | process
    assert service_manager(environ, **known) == manager


@pytest.mark.parametrize(
    ("name", "command", "parent"),
    [
        ("entrypoint.sh\n", b"/bin/sh\0/entrypoint.sh\0", Parent(1, "entrypoint.sh", "sh")),
        (
            "PM2 v5.3.0: God\n",
            b"PM2 v5.3.0: God \0",
            Parent(1, "PM2 v5.3.0: God", "PM2 v5.3.0: God "),
        ),
        ("kthreadd\n", b"", Parent(1, "kthreadd", "")),
    ],
)
def test_a_parent_is_known_by_its_name_and_by_the_program_that_runs_it(
    tmp_path: Path, name: str, command: bytes, parent: Parent
):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text(name)
    (tmp_path / "1" / "cmdline").write_bytes(command)
    assert parent_at(tmp_path, 1) == parent
    assert parent_at(tmp_path, 2) == Parent(2)


@pytest.mark.usefixtures("by_hand")
async def test_where_nothing_is_configured_and_nothing_listens_the_emulator_answers():
    async with tried(untouched(free_address())) as house:
        (started,) = house.events.of(EmulatorStarted)
        assert started.reason.startswith(
            "nothing is configured, and nothing listens at http://127.0.0.1:"
        )
        status, answer, _ = await house.post(
            "/api/generate", model=MODEL, prompt="hi", stream=False, options={"num_predict": 2}
        )
        assert (status, answer["done"]) == (200, True)
        assert await house.get("/readyz") == (200, {"ready": True})


CONFIGURED: list[Fields] = [
    {"models": {MODEL: ModelSettings(parallel=2)}},
    {"gpu": GpuSettings(home_model=MODEL)},
    {"auth": AuthSettings(keys=(KEY,))},
]


async def is_waited_for(house: Any) -> None:
    status, shown = await house.get("/readyz")
    assert (status, "does not answer" in shown["error"]) == (503, True)
    status, answer, headers = await house.post(
        "/api/generate", model=MODEL, prompt="hi", stream=False
    )
    assert (status, answer["error"]) == (503, "The model server cannot be reached.")
    assert int(headers["retry-after"]) > 0
    assert house.events.of(EmulatorStarted) == []


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("sections", CONFIGURED)
async def test_with_a_configuration_callers_get_503_until_the_server_is_there(sections: Fields):
    async with tried(untouched(free_address(), **sections)) as house:
        house.authorize("hearth_owner")
        await is_waited_for(house)


@pytest.mark.usefixtures("by_hand")
async def test_a_program_that_names_an_address_waits_for_what_is_there():
    async with tried(untouched(free_address()), backend_url=free_address()) as house:
        await is_waited_for(house)


@pytest.mark.usefixtures("by_hand")
async def test_an_ollama_that_takes_connections_and_says_nothing_is_waited_for():
    events = Recorder()
    writers = list[asyncio.StreamWriter]()
    hung = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    async with hung:
        gateway = await build_gateway(GatewayConfig(settings=untouched(url)), sinks=(events,))
        await gateway.stop()
    for writer in writers:
        writer.close()
    assert (gateway.model_server, events.of(EmulatorStarted)) == (url, [])


@pytest.mark.usefixtures("by_hand")
async def test_where_it_is_asked_for_the_emulator_answers_whatever_is_configured():
    async with tried(
        untouched(free_address(), models={MODEL: ModelSettings(parallel=2)}),
        backend_mode=BackendMode.EMULATOR,
    ) as house:
        assert [event.reason for event in house.events.of(EmulatorStarted)] == ["it was asked for"]


def test_a_gateway_that_a_service_manager_starts_before_its_ollama_waits_for_it(tmp_path: Path):
    command = [sys.executable, "-c", "from hearth.cli import main; main()", "serve", "--port", "0"]
    environ = {"HOME": str(tmp_path), "PATH": os.defpath, "INVOCATION_ID": "4f"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    how: Any = {"cwd": tmp_path, "env": environ, "text": True, **pipes}
    with subprocess.Popen(command, **how) as gateway:
        assert gateway.stdout is not None
        events = (json.loads(line)["event"] for line in gateway.stdout)
        assert "emulator_started" not in [
            *takewhile(lambda name: name != "gateway_started", events)
        ]
        gateway.terminate()
        gateway.stdout.read()
