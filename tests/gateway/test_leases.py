"""What the official clients get while another program has the GPU: a stream that has begun goes on
an hour later as one answer, and what has not begun gets 503 with the end of the lease.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.errors import CardTaken
from hearth.events import ItemInterrupted, ItemYielded
from tests.execution.test_resuming import TEXT, Model
from tests.gateway.test_waiting import CLIENTS, ERRORS, Ask, clients_of
from tests.support.fake_ollama import Service
from tests.support.house import House, settings_with
from tests.support.virtual_time import in_virtual_time

HOUR_S = 3600.0


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_a_stream_goes_on_an_hour_later_as_one_answer(ask: Ask):
    says = Model()
    house = House("a", resident="a", service=says)
    async with house, clients_of(house) as (clients, wire):
        asking = asyncio.ensure_future(ask(clients))
        await asyncio.sleep(2.5)
        house.gateway.leases.take(reason="game", source="api", lease_id="game")
        await asyncio.sleep(10.0)
        assert house.gateway.worker.runtime.view.residents == {}
        await asyncio.sleep(HOUR_S)
        assert not asking.done()
        house.gateway.leases.end("game", "released")
        assert await asking == TEXT
        assert len(house.events.of(ItemYielded)) == 1
        assert house.events.of(ItemInterrupted) == []
        signs = [at_s for at_s, _ in wire.calls[0].pieces if 15.0 < at_s < HOUR_S]
        assert len(signs) > HOUR_S / 20.0


@pytest.mark.parametrize(
    ("hold_s", "for_s", "retry_after"), [(5.0, 95.0, "90"), (5.0, None, "300"), (0.0, 40.0, "40")]
)
@in_virtual_time
async def test_what_has_not_begun_gets_503_and_the_end_of_the_lease(
    hold_s: float, for_s: float | None, retry_after: str
):
    settings = settings_with(gpu={"yield": YieldSettings(hold_s=hold_s)})
    house = House("a", settings=settings, service=lambda _: Service())
    async with house, clients_of(house) as (clients, wire):
        house.gateway.leases.take(reason="game", source="api", for_s=for_s)
        asking = [asyncio.ensure_future(ask(clients)) for ask in CLIENTS]
        await asyncio.sleep(hold_s + 1.0)
        for asked, error in zip(asking, ERRORS, strict=True):
            with pytest.raises(error, match="nother program has the GPU"):
                await asked
        assert {heard.status for heard in wire.calls} == {503}
        assert {heard.headers["retry-after"] for heard in wire.calls} == {retry_after}


@in_virtual_time
async def test_who_names_no_model_waits_where_none_is_left_for_a_lease():
    async with House("a", resident="a") as house:
        house.gateway.leases.take(reason="game", source="api", lease_id="game")
        await asyncio.sleep(1.0)
        answer = await house.gateway.worker.enqueue_internal("say hello")
        with pytest.raises(CardTaken):
            await answer
        assert house.now == 61.0
