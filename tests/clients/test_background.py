"""A program's own calls beside its user's turns, over HTTP: Open WebUI sends the title of a
conversation a moment before the person's message.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hearth.config.settings import BackgroundRequest, ClientSettings, Settings
from hearth.events import ItemDispatched, ItemEnded, ItemInterrupted
from hearth.types import Outcome
from tests.clients.test_quirks import recording
from tests.support.fields import Fields
from tests.support.home import HOUSE_KEY, KEYS, NARROW, SLOW, StartHome, house_settings
from tests.support.patience import in_time

TITLE: Fields = {**recording("open_webui_title")["body"], "model": SLOW}
CHAT: Fields = {
    "model": SLOW,
    "messages": [{"role": "user", "content": "How do I descale a kettle?"}],
    "stream": False,
    "options": {"num_predict": 1},
}
SETTINGS = house_settings(gpu=NARROW)


def tokens(body: Fields, count: int, **more: object) -> Fields:
    return {**body, "options": {"num_predict": count}, **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_title_is_interrupted_for_the_chat_that_comes_after_it(
    start_home: StartHome, stream: bool
):
    home = await start_home(SETTINGS)
    title = asyncio.create_task(home.post("/api/chat", tokens(TITLE, 40, stream=stream)))
    shown = await home.running(SLOW)
    assert (shown["background"], shown["band"]) == ("open-webui-title", "external_background")

    async with in_time():
        assert (await home.post("/api/chat", CHAT)).status == 200
        assert not title.done()
        assert (await title).status == 200

    assert [event.sequence for event in home.events.of(ItemInterrupted)] == [1]
    ended = home.events.of(ItemEnded)
    assert [(event.sequence, event.outcome, event.background) for event in ended] == [
        (2, Outcome.COMPLETED, None),
        (1, Outcome.COMPLETED, "open-webui-title"),
    ]


async def test_a_title_waits_behind_the_chat_that_comes_after_it(start_home: StartHome):
    home = await start_home(SETTINGS)
    running = asyncio.create_task(home.post("/api/chat", tokens(CHAT, 20)))
    await home.running(SLOW)
    title = asyncio.create_task(home.post("/api/chat", tokens(TITLE, 1)))
    await home.until(lambda status: status["external_queue"]["pending"] == 1)
    chat = asyncio.create_task(home.post("/api/chat", CHAT))
    status = await home.until(lambda status: status["external_queue"]["pending"] == 2)

    assert [item["background"] for item in status["external_queue"]["next_items"]] == [
        None,
        "open-webui-title",
    ]
    async with in_time():
        assert {got.status for got in await asyncio.gather(running, title, chat)} == {200}
    assert [event.sequence for event in home.events.of(ItemDispatched)] == [1, 3, 2]
    assert home.events.of(ItemInterrupted) == []


OWN = ClientSettings(
    background=(BackgroundRequest(name="kettle", starts_with="How do I descale", place="last"),)
)
TURN = ClientSettings(
    background=(
        BackgroundRequest(
            name="my-title", starts_with="### Task:\n", place="only", background=False
        ),
    )
)


@pytest.mark.parametrize(
    ("settings", "body", "key", "shown"),
    [
        (SETTINGS, CHAT, None, (None, "external")),
        (SETTINGS.replace(clients=OWN), CHAT, None, ("kettle", "external_background")),
        (SETTINGS.replace(clients=TURN), TITLE, None, (None, "external")),
        # the owner's own programs have their bands
        (house_settings(gpu=NARROW, keys=KEYS), TITLE, HOUSE_KEY, (None, "normal")),
    ],
)
async def test_the_owner_has_the_last_word_on_what_goes_behind(
    start_home: StartHome, settings: Settings, body: Fields, key: str | None, shown: object
):
    home = await start_home(settings)
    asked = asyncio.create_task(home.post("/api/chat", tokens(body, 1000), key))
    item = await home.running(SLOW)
    assert (item["background"], item["band"]) == shown
    asked.cancel()
    with suppress(asyncio.CancelledError):
        await asked
