"""Callers whom the owner has paused (`queue.paused_callers`), in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hearth.config.settings import GatewayConfig, Settings
from hearth.errors import QueueFull
from hearth.events import ItemEnded
from hearth.types import Lane, Outcome
from tests.jobs.house import JobHouse, job, with_jobs
from tests.queue.embedding_house import EmbeddingHouse, check_all, in_embedding_house
from tests.support.fields import Fields
from tests.support.house import FULL_TEXT, House, body_of, in_house, settings_with, settle, text_of
from tests.support.virtual_time import in_virtual_time, sleep_until


def paused(*callers: str, **queue: object) -> Settings:
    return settings_with(queue={"paused_callers": callers, **queue})


def pause(house: House, *callers: str) -> None:
    given = house.gateway.config
    queue = given.settings.queue.model_copy(update={"paused_callers": callers})
    house.gateway.reload(replace(given, settings=given.settings.replace(queue=queue)))


def waiting(house: House) -> list[tuple[str, str]]:
    """Who waits, and for what, in the order of the status."""
    status: Any = house.worker.get_status()
    lines = (status["internal_queue"], status["external_queue"])
    items = [item for line in lines for item in line["next_items"]]
    return [(item["caller"], item["waits_for"]["kind"]) for item in items]


@pytest.mark.parametrize("lane", list(Lane))
@in_virtual_time
async def test_requests_of_a_paused_caller_wait_and_others_go_on(lane: Lane):
    async with House(settings=paused("n8n")) as house:
        ticket = house.submit(lane=lane, caller="n8n")
        assert ticket.estimated_wait_s is None, "nobody knows when it starts"
        assert text_of(await body_of(house.submit(lane=lane, caller="other"))) == FULL_TEXT
        await sleep_until(600.0)
        assert waiting(house) == [("n8n", "caller_paused")]
        shown = house.worker.wait_of(ticket.sequence)
        assert shown is not None
        assert shown.state == "paused"
        pause(house)
        assert text_of(await body_of(ticket)) == FULL_TEXT


@in_house()
async def test_what_waits_when_its_caller_is_paused_keeps_its_place(house: House):
    house.submit(service_s=5.0, caller="other")
    first, second = house.submit(caller="n8n"), house.submit(caller="other")
    await settle()
    pause(house, "n8n")
    await sleep_until(2.0)
    assert waiting(house) == [("other", "slot"), ("n8n", "caller_paused")]
    pause(house)
    await body_of(first)
    assert waiting(house) == []
    await body_of(second)


@in_house()
async def test_what_runs_ends_and_a_stream_that_is_interrupted_waits(house: House):
    runs = house.submit(caller="n8n", service_s=5.0)
    stream = house.submit(caller="chat", service_s=20.0, stream=True)
    await settle()
    pause(house, "n8n", "chat")
    assert text_of(await body_of(runs)) == FULL_TEXT
    await sleep_until(60.0)
    assert waiting(house) == [("chat", "caller_paused")]
    pause(house, "n8n")
    await body_of(stream)


@in_house(settings=paused("n8n", max_external_depth=4))
async def test_a_paused_caller_takes_nobody_a_place_and_is_bounded(house: House):
    house.submit(service_s=5.0, caller="other")
    await settle()
    kept = [house.submit(caller=caller) for caller in ("n8n", "n8n", "other", "other", "third")]
    for caller in ("n8n", "other"):
        with pytest.raises(QueueFull, match="half of the queue"):
            house.submit(caller=caller)
    kept.append(house.submit(caller="third"))
    with pytest.raises(QueueFull, match="4 external requests are waiting"):
        house.submit(caller="fourth")
    await settle()
    assert len(waiting(house)) == 6
    pause(house)
    for ticket in kept:
        assert text_of(await body_of(ticket)) == FULL_TEXT


@in_house(settings=paused("n8n", max_wait_s=30.0))
async def test_a_time_limit_of_the_queue_holds_for_paused_callers_too(house: House):
    ticket = house.submit(caller="n8n")
    await sleep_until(29.0)
    assert waiting(house)
    await sleep_until(31.0)
    assert not waiting(house)
    assert (await house.end_of(ticket)).outcome is Outcome.EXPIRED


@in_house(
    "home",
    "b",
    settings=settings_with(
        gpu={"home_model": "home", "restore_home_delay_s": 1.0},
        queue={"paused_callers": ("n8n",)},
    ),
)
async def test_nothing_is_loaded_for_a_paused_caller(house: House):
    ticket = house.submit("b", caller="n8n")
    await sleep_until(300.0)
    assert [*house.worker.runtime.view.residents] == ["home:latest"]
    pause(house)
    await body_of(ticket)
    await sleep_until(400.0)


@in_virtual_time
async def test_a_pause_earns_no_share_of_the_gpu():
    settings = settings_with(queue={"sharing": "fair", "paused_callers": ("n8n",)})
    orders = list[list[str]]()
    for is_early in (True, False):
        async with House(settings=settings) as house:
            asks = partial(house.submit, caller="n8n", service_s=10.0)
            theirs = [asks() for _ in range(4)] if is_early else []
            for _ in range(4):
                await body_of(house.submit(caller="other", service_s=10.0))
            mine = [house.submit(caller="other", service_s=10.0) for _ in range(2)]
            await settle()
            pause(house)
            theirs = theirs or [asks() for _ in range(4)]
            for ticket in (*mine, *theirs):
                await body_of(ticket)
            orders.append([event.caller for event in house.events.of(ItemEnded)])
    assert orders[0] == orders[1]


def jobs_paused(*callers: str, **fields: object) -> Settings:
    given: Fields = fields
    settings = with_jobs(**given)
    queue = settings.queue.model_copy(update={"paused_callers": callers})
    return settings.replace(queue=queue)


@in_virtual_time
async def test_jobs_of_a_paused_caller_keep_no_other_job_from_the_queue():
    async with JobHouse(settings=jobs_paused("n8n", max_in_queue=1)) as house:
        await house.accept(job("theirs", caller="n8n"))
        await house.accept(job("mine", caller="other"))
        await house.ended("mine")
        await sleep_until(60.0)
        assert (await house.record("theirs")).state == "queued"
        house.gateway.reload(GatewayConfig(settings=jobs_paused(max_in_queue=1)))
        await house.ended("theirs")


@in_embedding_house(max_wait_ms=1000.0)
async def test_inputs_of_a_paused_caller_go_with_nobody_elses(house: EmbeddingHouse):
    house.reload(queue={"paused_callers": ("n8n",)}, embeddings={"max_wait_ms": 1000.0})
    others = {text: house.ask(text, caller="other") for text in ("one", "two")}
    theirs = {text: house.ask(text, caller="n8n") for text in ("three", "four")}
    await check_all(others)
    await sleep_until(60.0)
    assert house.sent() == [["one"], ["two"]]
    house.reload(embeddings={"max_wait_ms": 1000.0})
    await check_all(theirs)
