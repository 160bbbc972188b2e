"""A load that is cut has to give its memory back, where that can be seen; a server that goes on
loading is not asked a third time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hearth.events import LoadCut, LoadCuttingStopped
from hearth.execution.swapper import CUT_TIMEOUT_S
from hearth.types import Priority
from tests.execution.test_gpu_watch import TOTAL_MIB, CardHouse, FakeCard, sized
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import FakeModel, LoadFault
from tests.support.fields import Fields
from tests.support.house import FULL_TEXT, House, body_of, text_of
from tests.support.virtual_time import in_virtual_time, sleep_until

ONE_AT_A_TIME = sized(a=20.0, b=20.0, c=20.0)
MODELS = [FakeModel(name=name, vram_mib=6144.0, load_s=8.0) for name in "abc"]
"""The card has room for all, so that a load which goes on breaks no rule of the fake."""


async def cut_of(house: House, model: str) -> tuple[bool, float]:
    """Have a load for others be cut for the house.

    Returns whether that was clean, and after how long the next load began.
    """
    known = len(house.events.of(LoadCut))
    theirs = house.submit(model)
    while house.ollama.gpu.place(f"{model}:latest") is not Place.LOADING:
        await sleep_until(house.now + 0.25)
    await sleep_until(house.now + 3.0)
    asked_at = house.now
    ours = house.internal("a", priority=Priority.CRITICAL)
    while len(house.events.of(LoadCut)) == known:
        await sleep_until(house.now + 0.25)
    house.cancel(theirs)
    assert text_of(await body_of(ours)) == FULL_TEXT
    began_at = next(
        record.at
        for record in house.ollama.control
        if record.kind == "load" and record.at >= asked_at
    )
    return house.events.of(LoadCut)[-1].clean, began_at - asked_at


@pytest.mark.parametrize("card", [{}, {"names": False}, {"overhead_mib": 300.0}])
@in_virtual_time
async def test_a_load_whose_memory_comes_back_is_cut_at_once_however_often(card: Fields):
    """Also while other programs take more, as far as the driver names them."""
    async with CardHouse(*MODELS, resident="a", settings=ONE_AT_A_TIME, card=card) as house:
        for model in ("b", "c", "b"):
            asyncio.get_running_loop().call_later(2.0, play, house.card)
            clean, after_s = await cut_of(house, model)
            assert clean
            assert after_s < 0.5
        assert house.events.of(LoadCuttingStopped) == []


def play(card: FakeCard) -> None:
    card.foreign_mib += 2048.0 if card.names else 256.0


def on_a_card(**card: Any) -> House:
    return CardHouse(*MODELS, resident="a", settings=ONE_AT_A_TIME, card=card)


def in_main_memory() -> House:
    house = unseen()
    house.ollama.process_mib = lambda now: 100.0 + sum(house.ollama.gpu.taken_mib(now))
    return house


def unseen() -> House:
    return House(*MODELS, resident="a", settings=ONE_AT_A_TIME, capacity_mib=TOTAL_MIB)


@pytest.mark.parametrize(
    ("house_of", "is_seen"),
    [
        (on_a_card, True),
        (partial(on_a_card, names=False), True),
        (in_main_memory, True),
        (unseen, False),
    ],
)
@in_virtual_time
async def test_a_server_that_goes_on_loading_is_found_out_and_not_cut_a_third_time(
    house_of: Callable[[], House], is_seen: bool
):
    async with house_of() as house:
        for model in ("b", "c"):
            house.ollama.next_loads(LoadFault.UNCUT)
            clean, after_s = await cut_of(house, model)
            assert clean is not is_seen
            assert after_s < CUT_TIMEOUT_S + 0.1
            await sleep_until(house.now + 60.0)
        assert [event.failures for event in house.events.of(LoadCuttingStopped)] == (
            [2] if is_seen else []
        )
        theirs = house.submit("b")
        while house.ollama.gpu.place("b:latest") is not Place.LOADING:
            await sleep_until(house.now + 0.25)
        await body_of(house.internal("a", priority=Priority.CRITICAL))
        await body_of(theirs)
        assert len(house.events.of(LoadCut)) == (2 if is_seen else 3)
