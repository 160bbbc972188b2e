"""The five steps of donna's page on preemption, with the configuration of that page
(`examples/donna.yaml`).
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.loading import load_gateway_config
from hearth.config.settings import Settings
from hearth.events import ItemDispatched, ItemInterrupted, ItemProtected
from hearth.types import Band, Priority
from tests.support.fake_gpu import FakeModel
from tests.support.house import ALL_DAY, House, body_of
from tests.support.places import ROOT
from tests.support.virtual_time import in_virtual_time

PAGE = ROOT / "examples" / "donna.yaml"
ANSWER_S = 30.0


def page() -> Settings:
    """In active hours; the home model of the page is not of interest here."""
    settings = load_gateway_config(PAGE).settings
    scheduling = settings.scheduling.replace(active_hours=ALL_DAY, time_zone="UTC")
    return settings.replace(scheduling=scheduling, gpu=settings.gpu.replace(home_model=""))


@pytest.mark.parametrize("priority", list(Priority))
@in_virtual_time
async def test_an_internal_request_interrupts_an_external_one_whatever_the_swap_costs(
    priority: Priority,
):
    models = (FakeModel(name="a"), FakeModel(name="b", load_s=60.0))
    async with House(*models, resident="a", settings=page()) as house:
        external = house.submit("a", service_s=ANSWER_S)
        waiting = house.submit("a", service_s=1.0)
        await asyncio.sleep(10)
        internal = house.internal("b", priority=priority, service_s=1.0)
        await asyncio.sleep(0.05)
        (interrupted,) = house.events.of(ItemInterrupted)  # 1: the external request is cancelled
        # 2: and counted
        assert (interrupted.sequence, interrupted.interrupt_count) == (external.sequence, 1)
        in_line = house.worker.scheduler.gateway.waiting.in_order(Band.INTERRUPTED, Band.EXTERNAL)
        # 4: the first in line
        assert [entry.item.sequence for entry in in_line] == [external.sequence, waiting.sequence]
        await body_of(internal)
        await body_of(external)
        await body_of(waiting)
        started = [event.sequence for event in house.events.of(ItemDispatched)]
        expected = [external.sequence, internal.sequence, external.sequence, waiting.sequence]
        assert started == expected  # 5: the internal request is next


@in_virtual_time
async def test_after_the_third_interruption_the_owner_is_warned_and_it_finishes():
    async with House(settings=page()) as house:
        external = house.submit("a", service_s=ANSWER_S)
        for number in range(1, 5):
            await asyncio.sleep(10)
            await body_of(house.internal("a", service_s=1.0))
            assert len(house.events.of(ItemInterrupted)) == min(number, 3)
        (starved,) = house.events.of(ItemProtected)  # 3: a starvation alert
        assert starved.sequence == external.sequence
        await body_of(external)
