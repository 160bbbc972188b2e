"""What an owner sees of aging, of rounds of admission, and of a model that can never fit."""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.settings import AgingSettings, ModelSettings, PackingMode, PackingSettings
from hearth.errors import NeverFits
from hearth.events import ItemDispatched, ItemPromoted
from hearth.types import Priority
from tests.support.fake_ollama import FakeModel
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, settings_with

QUICK = settings_with(scheduling={"aging": AgingSettings(promote_after_s=20.0)})


@in_house("a", resident=("a",), settings=QUICK)
async def test_a_promotion_is_told_once_and_counted_and_seen_in_the_status(house: House):
    tickets = [house.internal("a", priority=Priority.CRITICAL, service_s=30.0), house.internal("a", priority=Priority.BACKGROUND)]
    await sleep_until(25.0)
    (promoted,) = house.events.of(ItemPromoted)
    assert (promoted.sequence, promoted.band, promoted.waited_s, promoted.at) == (tickets[1].sequence, "normal", 20.0, 20.0)
    shown = house.status
    assert shown["promotions"] == 1
    assert shown["internal_queue"]["next_items"][0]["band"] == "normal"
    await asyncio.gather(*map(body_of, tickets))


@in_virtual_time
async def test_the_live_queue_begins_the_next_round_with_the_first_byte_of_the_last_prompt():
    packing = PackingSettings(mode=PackingMode.PACK, prefill_max_tokens=100)
    settings = settings_with(scheduling={"packing": packing}, gpu={"parallel": 4})
    async with House(FakeModel(name="a", parallel=4), resident=("a",), settings=settings) as house:
        asked = {"stream": True, "first_byte_s": 0.02, "service_s": 1.0}
        tickets = [house.submit("a", prompt_tokens=tokens, **asked) for tokens in (90, 95, 20, 30)]
        await asyncio.gather(*map(body_of, tickets))
        starts = [(event.sequence, round(event.at, 2)) for event in house.events.of(ItemDispatched)]
        assert starts == [(1, 0.0), (3, 0.02), (4, 0.02), (2, 0.04)]


@in_virtual_time
async def test_what_can_never_fit_is_refused_with_the_numbers():
    settings = settings_with(gpu={"vram_gb": 16.0}).replace(models={"a": ModelSettings(vram_gb=30.0)})
    async with House("a", settings=settings) as house:
        with pytest.raises(NeverFits, match=r"needs 30\.0 GiB of GPU memory, the GPU has 16\.0 GiB"):
            await body_of(house.submit("a"))
