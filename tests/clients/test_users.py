"""Users of one program below its key, over HTTP: each has a share, a limit and a history, and no
right of its own.
"""

from __future__ import annotations

import asyncio
from functools import partial

import aiohttp
import pytest

from hearth.config.settings import GatewayConfig, QueueSettings, Settings
from hearth.events import ItemEnded
from tests.support.fields import Fields
from tests.support.home import ADMIN_KEY, KEYS, NARROW, SLOW, Home, StartHome, house_settings
from tests.support.keys import key_of
from tests.support.patience import in_time

WEBUI_KEY = "hearth_webui_key"
WEBUI = key_of("webui", WEBUI_KEY, users_from="x-openwebui-user-id")
FAIR = house_settings(
    gpu=NARROW, keys=(*KEYS, WEBUI), queue=QueueSettings(max_external_depth=20, sharing="fair")
)


async def chat(home: Home, user: str, *, tokens: int = 1, key: str = WEBUI_KEY) -> int:
    body: Fields = {
        "model": SLOW,
        "messages": [{"role": "user", "content": "How do I descale a kettle?"}],
        "stream": False,
        "options": {"num_predict": tokens},
    }
    headers = {"x-openwebui-user-id": user}
    return (await home.post("/api/chat", body, key, **headers)).status


def has_waiting(count: int, status: Fields) -> bool:
    return bool(status["external_queue"]["pending"] == count)


async def in_line(home: Home, users: list[str]) -> list[asyncio.Task[int]]:
    """One request that runs, and those of these users behind it, in this order."""
    tasks = [asyncio.create_task(chat(home, users[0], tokens=20))]
    await home.running(SLOW)
    for user in users[1:]:
        tasks.append(asyncio.create_task(chat(home, user)))
        ahead = len(tasks) - 1
        await home.until(partial(has_waiting, ahead))
    return tasks


async def test_users_of_one_key_share_and_are_shown_in_status_and_history(start_home: StartHome):
    home = await start_home(FAIR)
    tasks = await in_line(home, ["ann", "ann", "ann", "bob"])
    status = await home.until(lambda status: status["external_queue"]["pending"] == 3)
    shown = [(item["caller"], item["user"]) for item in status["external_queue"]["next_items"]]
    assert shown == [("webui", "bob"), ("webui", "ann"), ("webui", "ann")]
    shares = {(each["caller"], each["user"]): each for each in status["shares"]}
    assert set(shares) == {("webui", "ann"), ("webui", "bob")}
    assert (shares["webui", "ann"]["share_pct"], shares["webui", "ann"]["requests"]) == (100.0, 3)

    async with in_time():
        assert set(await asyncio.gather(*tasks)) == {200}
    ended = home.events.of(ItemEnded)
    assert [(event.caller, event.user) for event in ended][:2] == [
        ("webui", "ann"),
        ("webui", "bob"),
    ]


async def test_a_user_without_a_name_or_below_another_key_is_the_key_itself(start_home: StartHome):
    home = await start_home(FAIR)
    async with in_time():
        for user, key in (("", WEBUI_KEY), ("two words", WEBUI_KEY), ("ann", ADMIN_KEY)):
            assert await chat(home, user, key=key) == 200
    assert [event.user for event in home.events.of(ItemEnded)] == [None, None, None]


async def test_a_user_has_half_of_its_keys_limit(start_home: StartHome):
    home = await start_home(house_settings(gpu=NARROW, keys=(*KEYS, WEBUI), per_minute=4))
    async with in_time():
        codes = [await chat(home, user) for user in ("ann", "ann", "ann", "bob", "bob", "eve")]
    assert codes == [200, 200, 429, 200, 200, 429]


async def test_rights_are_those_of_the_key_and_not_of_the_user(start_home: StartHome):
    home = await start_home(FAIR)
    (task,) = await in_line(home, ["ann"])
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(
            f"{home.url}/llm/requests/cancel",
            headers={"authorization": f"Bearer {WEBUI_KEY}", "x-openwebui-user-id": "bob"},
        ) as got,
    ):
        assert (got.status, (await got.json())["caller"]) == (200, "webui")
    async with in_time():
        assert await task != 200


@pytest.mark.parametrize("settings", [FAIR])
async def test_a_reload_decides_whether_users_are_told_apart_from_the_next_request_on(
    start_home: StartHome, settings: Settings
):
    home = await start_home(settings)
    auth = settings.auth.replace(keys=(*KEYS, WEBUI.replace(users_from="")))
    async with in_time():
        assert await chat(home, "ann") == 200
        home.gateway.reload(GatewayConfig(settings=settings.replace(auth=auth)))
        assert await chat(home, "ann") == 200
    assert [event.user for event in home.events.of(ItemEnded)] == ["ann", None]
