"""What the owner has ordered outlives `kill -9` right after it was acknowledged."""

from __future__ import annotations

import aiohttp
import pytest

from tests.reliability.model_server import ModelServer
from tests.reliability.served import CONFIG
from tests.support.fields import Fields

STORE = """
storage: {{path: "{path}", reserve_mib: 0}}
"""


async def asked(method: str, url: str, body: Fields | None = None) -> Fields:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.request(method, url, json=body) as response,
    ):
        answer: Fields = await response.json()
        return answer


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
