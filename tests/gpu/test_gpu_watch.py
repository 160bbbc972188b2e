"""The card in the whole gateway: what it changes in what is loaded, what an owner sees, and what happens when it is gone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hearth.errors import GpuFault
from hearth.events import GpuCooledDown, GpuFound, GpuLost, GpuOverheated, GpuRecovered, GpuUnreadable, SwapCompleted
from hearth.execution.gpu_watch import UNKNOWN_RETRY_S
from hearth.scheduling.inputs import GpuSampled
from tests.gpu.card_house import GIB, TOTAL_MIB, CardHouse, model, sized
from tests.support.cases import for_each
from tests.support.fake_gpu import FakeGpu
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, body_of, settle, text_of

TEN = (model("a", 10), model("b", 10))


@in_virtual_time
async def test_the_cards_own_size_lets_models_share_it():
    async with CardHouse(*TEN, resident=("a",), settings=sized(a=10, b=10)) as house:
        await body_of(house.submit("b"))
        assert house.orders() == ["load b:latest"]
        assert house.told == [GpuSampled(capacity_mib=TOTAL_MIB, foreign_mib=0.0)]
        (found,) = house.events.of(GpuFound)
        assert (found.name, found.total_mib) == ("Fake 3090", TOTAL_MIB)


ONE_AT_A_TIME: dict[str, tuple[float, float, dict[str, Any], float | None]] = {
    "what the driver keeps for itself is no room for models": (12, 12, {"reserved_mib": 400.0}, None),
    "without a reading": (10, 10, {"fault": GpuFault.NO_DRIVER}, None),
    "a card without a size": (10, 10, {"total_mib": None}, None),
    "a card that the models cannot be on": (10, 10, {"gpu": FakeGpu(())}, None),
    "what others hold counts against the owner's number too": (10, 10, {"foreign_mib": 8 * GIB}, 24.0),
    "a model larger than the card is loaded alone and not refused": (4, 30, {}, None),
}


@for_each("name", ONE_AT_A_TIME)
def test_where_there_is_no_room_for_both_one_model_is_loaded_at_a_time(name):
    a_gib, b_gib, card, vram_gb = ONE_AT_A_TIME[name]

    @in_virtual_time
    async def scenario() -> None:
        known = sized(a=a_gib, b=b_gib)
        settings = known.replace(gpu=known.gpu.replace(vram_gb=vram_gb))
        capacity = {"capacity_mib": None} if b_gib > 24 else {}
        async with CardHouse(model("a", a_gib), model("b", b_gib), resident=("a",), settings=settings, card=card, **capacity) as house:
            assert text_of(await body_of(house.submit("b"))) == FULL_TEXT
            assert house.orders() == ["unload a:latest", "load b:latest"]

    scenario()


@pytest.mark.parametrize("names", [True, False])
@in_virtual_time
async def test_memory_that_a_game_holds_makes_a_model_go_that_could_have_stayed(names):
    async with CardHouse(*TEN, resident=("a",), settings=sized(a=10, b=10), card={"names": names, "foreign_mib": 8 * GIB}) as house:
        await body_of(house.submit("b"))
        assert house.orders() == ["unload a:latest", "load b:latest"]
        house.card.foreign_mib = 0.0
        await sleep_until(house.now + 10.0)
        await body_of(house.submit("a"))
        assert house.orders()[2:] == ["load a:latest"]


@in_virtual_time
async def test_a_rise_counts_when_it_is_seen_twice_and_a_fall_at_once():
    async with CardHouse("a") as house:
        await sleep_until(1.0)
        house.card.foreign_mib = 3 * GIB
        await sleep_until(6.0)
        assert house.gpu_status["foreign_mib"] == 0.0
        await sleep_until(11.0)
        assert house.gpu_status["foreign_mib"] == 3 * GIB
        house.card.foreign_mib = 1 * GIB
        await sleep_until(16.0)
        assert house.gpu_status["foreign_mib"] == 1 * GIB
        assert [told.foreign_mib for told in house.told] == [0.0, 3 * GIB, 1 * GIB]


@in_virtual_time
async def test_a_desktop_that_breathes_is_no_news_for_the_scheduler():
    async with CardHouse("a", card={"foreign_mib": 500.0}) as house:
        for beat in range(1, 20):
            await sleep_until(beat * 5.0 - 1.0)
            house.card.foreign_mib = 500.0 + 50.0 * (beat % 3)
        assert len(house.told) == 1
        assert len(house.card.reads) == 19


@pytest.mark.parametrize("names", [True, False])
@in_virtual_time
async def test_swaps_never_look_like_other_programs(names):
    large = [replace(model(name, 14), load_s=12.0) for name in ("a", "b")]
    async with CardHouse(*large, card={"names": names, "overhead_mib": 100.0}) as house:
        for _ in range(20):
            await body_of(house.submit("a", service_s=0.7))
            await body_of(house.submit("b", service_s=1.3))
        assert len(house.events.of(SwapCompleted)) == 40
        assert len(house.card.reads) > 100
        assert max(told.foreign_mib for told in house.told) <= 100.0


@in_virtual_time
async def test_without_a_driver_there_is_one_quiet_word_and_hardly_a_question():
    async with CardHouse("a", resident=("a",), card={"fault": GpuFault.NO_DRIVER}) as house:
        await sleep_until(3600.0)
        (word,) = house.events.of(GpuUnreadable)
        assert (word.at, word.reason) == (0.0, "no_driver")
        assert house.events.of(GpuLost) == []
        assert house.card.reads[:7] == [0.0, 10.0, 30.0, 70.0, 150.0, 310.0, 310.0 + UNKNOWN_RETRY_S]
        assert len(house.card.reads) == 16
        assert (house.told, house.gpu_status["readings"]) == ([], "unknown")
        house.card.fault = None
        await sleep_until(3600.0 + UNKNOWN_RETRY_S)
        assert [event.name for event in house.events.of(GpuFound)] == ["Fake 3090"]
        first, second = house.card.reads[-2:]
        assert second - first == 5.0


@in_virtual_time
async def test_a_card_that_is_lost_and_comes_back_is_told_of_once_each_and_counts_again():
    async with CardHouse(*TEN, resident=("a",), settings=sized(a=10, b=10)) as house:
        await sleep_until(1.0)
        house.card.fault = GpuFault.LOST
        await sleep_until(500.0)
        (lost,) = house.events.of(GpuLost)
        assert (lost.at, lost.reason, lost.detail) == (5.0, "gpu_lost", "it is gone")
        assert house.told[-1] == GpuSampled(capacity_mib=None, foreign_mib=0.0)
        assert max(later - earlier for earlier, later in pairwise(house.card.reads)) == 60.0
        shown = house.gpu_status
        assert (shown["readings"], shown["memory_used_mib"], shown["temperature_c"], shown["device"]) == ("lost", None, None, "Fake 3090")
        house.card.fault = None
        await sleep_until(560.0)
        (back,) = house.events.of(GpuRecovered)
        assert back.lost_s == back.at - 5.0
        assert house.told[-1] == GpuSampled(capacity_mib=TOTAL_MIB, foreign_mib=0.0)
        await body_of(house.submit("b"))
        assert house.orders() == ["load b:latest"]
        assert len(house.events.of(GpuFound)) == 1


@in_virtual_time
async def test_a_reading_that_never_ends_delays_nobody():
    async with CardHouse("a", resident=("a",), card={"hangs": True}) as house:
        assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
        assert house.now == 1.0
        assert house.gpu_status["readings"] == "unknown"


@in_virtual_time
async def test_a_model_server_that_is_down_leaves_the_card_readable():
    async with CardHouse("a", card={"names": False}) as house:
        await sleep_until(1.0)
        house.ollama.go_down()
        house.card.temperature_c = 77.0
        await sleep_until(6.0)
        assert (house.gpu_status["temperature_c"], house.gpu_status["readings"]) == (77.0, "ok")
        assert len(house.told) == 1
        house.ollama.come_up()


@in_virtual_time
async def test_a_card_that_hovers_at_the_limit_is_hot_once():
    async with CardHouse("a") as house:
        for beat, temperature_c in enumerate((84.9, 85.0, 84.0, 91.0, 80.1, 80.0, 84.0, 85.5, None, 50.0)):
            await sleep_until(max(0.0, beat * 5.0 - 1.0))
            house.card.temperature_c = temperature_c
            await sleep_until(beat * 5.0)
            await settle()
        assert [(event.at, event.temperature_c, event.limit_c) for event in house.events.of(GpuOverheated)] == [
            (5.0, 85.0, 85.0),
            (35.0, 85.5, 85.0),
        ]
        assert [(event.at, event.temperature_c, event.hot_s) for event in house.events.of(GpuCooledDown)] == [
            (25.0, 80.0, 20.0),
            (45.0, 50.0, 10.0),
        ]


@in_virtual_time
async def test_the_status_shows_what_the_card_says():
    async with CardHouse("a", resident=("a",), card={"foreign_mib": 1000.04}) as house:
        expected = {
            "readings": "ok",
            "device": "Fake 3090",
            "memory_used_mib": 9192.0,
            "memory_total_mib": TOTAL_MIB,
            "foreign_mib": 1000.0,
            "utilisation_pct": 3.1,
            "temperature_c": 50.0,
            "power_w": None,
            "power_limit_w": None,
            "throttled": False,
            "throttle_reasons": [],
        }
        assert {key: house.gpu_status[key] for key in expected} == expected
