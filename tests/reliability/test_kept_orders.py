"""What the owner has ordered, and who has the GPU, outlives `kill -9` right after it was
acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.reliability.model_server import ModelServer
from tests.reliability.nursery import Life
from tests.reliability.served import CONFIG
from tests.support.fields import Fields
from tests.support.patience import in_time

STORE = """
storage: {{path: "{path}", reserve_mib: 0}}
"""
HOME = ('home_model: ""', 'home_model: "one:latest", restore_home_delay_s: 0.0')
HEARTH = (sys.executable, "-c", "from hearth.cli import main; main(prog_name='hearth')")
LEASES = "/llm/gpu/leases"


async def asked(method: str, url: str, body: Fields | None = None) -> Fields:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.request(method, url, json=body) as response,
    ):
        answer: Fields = await response.json()
        return answer


async def lease_when(url: str, holds: Callable[[Fields], object]) -> Fields:
    """The one lease of a gateway, once it is as wanted."""
    async with in_time():
        while True:
            for lease in (await asked("GET", f"{url}{LEASES}"))["leases"]:
                if holds(lease):
                    found: Fields = lease
                    return found


async def when(model: ModelServer, holds: Callable[[], object]) -> None:
    """Once it holds, looked at with each request to the model server."""
    async with in_time():
        while not holds():
            model.moved.clear()
            await model.moved.wait()


@pytest.mark.timeout(120)
async def test_an_acknowledged_command_is_in_force_after_a_kill(nursery, tmp_path):
    config = tmp_path / "config.yaml"
    commands: list[tuple[str, Fields]] = [
        ("pause", {}),
        ("pin", {"model": "two"}),
        ("resume", {}),
        ("unpin", {}),
    ]
    async with ModelServer() as model:
        config.write_text((CONFIG + STORE).format(url=model.url, path=tmp_path / "hearth.db"))
        before: Fields = {}
        for name, body in (*commands, ("", {})):
            life = await nursery.birth("serve", config=str(config))
            url = f"{await life.url()}/llm/admin"
            after = await asked("GET", f"{url}/orders")
            assert (after["paused"], after["pinned"], after["since"]) == (
                before.get("paused", []),
                before.get("pinned"),
                before.get("since", {}),
            )
            if name:
                before = await asked("POST", f"{url}/{name}", body)
            await life.end()


@pytest.mark.timeout(120)
async def test_a_mode_that_was_switched_to_is_in_force_after_a_kill(nursery, tmp_path):
    config = tmp_path / "config.yaml"
    text = CONFIG + STORE + "modes: {{gaming: {{}}, night: {{}}}}\n"
    in_force: str | None = None
    async with ModelServer() as model:
        config.write_text(text.format(url=model.url, path=tmp_path / "hearth.db"))
        for wanted in ("gaming", "night", None, None):
            life = await nursery.birth("serve", config=str(config))
            url = f"{await life.url()}/llm/mode"
            assert (await asked("GET", url))["mode"] == in_force
            assert (await asked("PUT", url, {"mode": wanted}))["mode"] == wanted
            in_force = wanted
            await life.end()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restart_loads_nothing_into_memory_that_a_lease_has(nursery, tmp_path, by):
    config = tmp_path / "config.yaml"
    async with ModelServer() as model:
        text = (CONFIG.replace(*HOME) + STORE).format(url=model.url, path=tmp_path / "hearth.db")
        config.write_text(text)
        life = await nursery.birth("serve", config=str(config))
        await when(model, lambda: model.loads == ["one:latest"])
        taken = await asked("POST", f"{await life.url()}{LEASES}", {"for_s": 3600, "wait_s": 60})
        assert taken["granted"]
        await life.end(by)
        model.loads.clear()
        life = await nursery.birth("serve", config=str(config))
        url = await life.url()
        kept = await lease_when(url, lambda lease: lease["granted"])
        assert {**kept, "since": 0, "until": 0} == {**taken, "since": 0, "until": 0}
        assert kept["until"] == pytest.approx(taken["until"], abs=0.5)
        assert model.loads == []
        await asked("DELETE", f"{url}{LEASES}/{taken['id']}")
        await when(model, lambda: model.loads == ["one:latest"])
        await life.end(signal.SIGTERM)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
async def test_a_command_that_holds_the_gpu_holds_it_over_a_restart(nursery, tmp_path, by):
    config = tmp_path / "config.yaml"
    async with ModelServer() as model:
        text = (CONFIG.replace(*HOME) + STORE).format(url=model.url, path=tmp_path / "hearth.db")
        config.write_text(text)
        life: Life = await nursery.birth("serve", config=str(config))
        url = await life.url()
        process = await asyncio.create_subprocess_exec(
            *(*HEARTH, "yield", "--url", url, "--reason", "a game", "--", "cat"),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        taken = await lease_when(url, lambda lease: lease["granted"])
        assert (taken["reason"], taken["until"]) == ("a game", None)
        await life.end(by)
        model.loads.clear()
        again = {"config": str(config), "port": urlsplit(url).port}
        life = await nursery.birth("serve", **again)
        assert await life.url() == url
        kept = await lease_when(url, lambda lease: lease["granted"] and lease["until"] is None)
        assert kept["id"] == taken["id"]
        assert model.loads == []
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0
        await when(model, lambda: model.loads == ["one:latest"])
        await life.end(signal.SIGTERM)
