"""A ComfyUI whose queue is followed, in virtual time: when it has the GPU, and what happens when it
does not answer as it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import GatewayConfig, Settings
from hearth.events import (
    ComfyuiFollowed,
    ComfyuiGone,
    ComfyuiUnreadable,
    GpuLeaseEnded,
    GpuLeaseGranted,
    GpuLeaseTaken,
    ItemYielded,
)
from hearth.execution.gpu_leases import Lease
from hearth.types import DAY_S
from hearth.yielding.comfyui import (
    CALM_S,
    FREED_S,
    GONE_S,
    LEASE_ID,
    LOOK_INTERVAL_S,
    SILENT_S,
    ComfyuiWatch,
)
from tests.execution.test_gpu_watch import TOTAL_MIB, CardHouse
from tests.support.fake_comfyui import FakeComfyUi, MemoryRenderer
from tests.support.fake_webhooks import Reply
from tests.support.house import FULL_TEXT, body_of, settings_with, text_of, within
from tests.support.virtual_time import hold_up, in_virtual_time, sleep_until

URL = "http://comfyui:8188"
OTHER_URL = "http://other:8188"
PROMPTLY_S = 2 * LOOK_INTERVAL_S
ENDS_FROM_S = CALM_S - LOOK_INTERVAL_S
ENDS_AFTER_S = CALM_S + 2 * PROMPTLY_S
"""The least and the most from the end of the last job to the end of the lease."""
LONG_S = 10 * DAY_S


def following(comfyui: str = URL, **others: Any) -> Settings:
    settings = settings_with()
    under_yield = YieldSettings(comfyui=comfyui, **others)
    return settings.replace(gpu=settings.gpu.model_copy(update={"yield": under_yield}))


class RenderHouse(CardHouse):
    """A house beside a ComfyUI on the same card, whose queue is followed; `at`: what runs at each
    URL.
    """

    def __init__(self, **wanted: Any) -> None:
        super().__init__("a", **{"settings": following()} | wanted)
        self.comfyui = FakeComfyUi()
        self.comfyui.card = self.card
        self.at = {URL: self.comfyui}
        gateway = self.gateway
        watch = ComfyuiWatch(gateway.worker.runtime, gateway.leases, MemoryRenderer(self.at))
        gateway.on_reload(lambda _: watch.ring())
        gateway.accompany("ComfyUI", watch.run)

    def configure(self, settings: Settings) -> None:
        """Put settings in force while it runs."""
        self.gateway.in_force.take(GatewayConfig(settings=settings))

    @property
    def has_lease(self) -> bool:
        return LEASE_ID in self.gateway.leases.leases

    @property
    def taken(self) -> list[float | None]:
        """How much memory each lease was for when it was taken."""
        return [event.mib for event in self.events.of(GpuLeaseTaken)]

    @property
    def ends(self) -> list[str]:
        return [event.why for event in self.events.of(GpuLeaseEnded)]

    @property
    def freed(self) -> int:
        """How often it was told to free its memory."""
        return self.comfyui.asked.count("POST /free")

    async def until_ended(self, leases: int = 1) -> float:
        """When so many leases are over."""
        await self.events.until(lambda: len(self.ends) == leases)
        return self.now


@asynccontextmanager
async def open_house(**wanted: Any) -> AsyncIterator[RenderHouse]:
    house = RenderHouse(**wanted)
    async with house, house.comfyui:
        yield house


in_render_house = within(open_house)


@in_render_house
async def test_a_job_has_the_gpu_from_its_start_until_its_memory_is_free(house: RenderHouse):
    await sleep_until(10.5)
    assert house.taken == []
    house.comfyui.post(seconds=20.0)
    await asyncio.sleep(PROMPTLY_S)
    assert house.has_lease
    await sleep_until(31.0)
    assert (house.has_lease, house.freed, house.comfyui.holds_mib) == (True, 0, 8192.0)
    ended_at = await house.until_ended()
    assert 30.5 + ENDS_FROM_S <= ended_at <= 30.5 + ENDS_AFTER_S
    assert (house.comfyui.holds_mib, house.freed) == (0.0, 1)
    assert (house.taken, house.ends) == ([None], ["released"])


@pytest.mark.parametrize(("streams", "within_s"), [(False, 2.0), (True, 7.0)])
@in_virtual_time
async def test_its_memory_is_free_soon_and_an_answer_that_gave_way_goes_on(streams, within_s):
    async with open_house(resident="a") as house:
        asked = (
            house.submit("a", stream=True, ways=("replayed",), service_s=60.0) if streams else None
        )
        await sleep_until(10.1)
        house.comfyui.post(seconds=20.0, mib=TOTAL_MIB)
        await house.events.first(GpuLeaseGranted)
        assert (house.now <= 10.1 + within_s, house.gpu_status["resident_models"]) == (True, [])
        yielded = len(house.events.of(ItemYielded))
        loaded = len(house.ollama.control)
        await house.until_ended()
        assert len(house.ollama.control) == loaded  # nothing is loaded while it renders
        if asked is not None:
            assert text_of(await body_of(asked)) == FULL_TEXT
        assert (yielded, len(house.taken)) == (streams, 1)


@in_render_house
async def test_jobs_posted_one_after_the_other_are_one_lease(house: RenderHouse):
    for _ in range(40):
        house.comfyui.post(seconds=2.0)
        await asyncio.sleep(2.0 + CALM_S - PROMPTLY_S)
    assert (len(house.taken), house.ends, house.freed) == (1, [], 0)
    await house.until_ended()
    assert house.freed == 1


@in_render_house
async def test_a_job_that_comes_while_memory_is_being_freed_keeps_the_lease(house: RenderHouse):
    house.comfyui.frees = False
    house.comfyui.post(seconds=2.0)
    await sleep_until(2.0 + CALM_S + PROMPTLY_S)
    assert (house.has_lease, house.freed) == (True, 1)
    house.comfyui.post(seconds=60.0)
    await asyncio.sleep(30.0)
    assert (house.has_lease, house.ends) == (True, [])
    await house.until_ended()
    assert (len(house.taken), house.freed) == (1, 2)


@in_render_house
async def test_one_without_work_is_left_alone(house: RenderHouse):
    await sleep_until(600.0)
    assert (house.taken, set(house.comfyui.asked)) == ([], {"GET /prompt"})
    assert house.events.of(ComfyuiFollowed) == [ComfyuiFollowed(at=0.0, jobs=0)]


@in_virtual_time
async def test_work_that_is_there_at_the_start_is_seen_at_the_first_look():
    house = RenderHouse()
    house.comfyui.post(seconds=60.0)
    async with house, house.comfyui:
        assert house.has_lease
        assert house.events.of(GpuLeaseTaken)[0].at == 0.0


def kept_lease() -> Lease:
    """As one that the process before had a minute ago, which may last half a minute more."""
    return Lease(
        id=LEASE_ID,
        mib=None,
        reason="ComfyUI: 1 job",
        source="comfyui",
        taken_by="",
        taken_at=-60.0,
        asked_at=0.0,
        grace_s=5.0,
        until=30.0,
        expires_at=30.0,
    )


@in_virtual_time
async def test_after_a_restart_of_hearth_the_lease_lasts_as_long_as_the_queue():
    house = RenderHouse()
    house.gateway.leases.restore(kept_lease())
    house.comfyui.post(seconds=60.0)
    async with house, house.comfyui:
        await sleep_until(59.0)
        assert (house.has_lease, len(house.taken)) == (True, 1)
        await house.until_ended()
        assert house.ends == ["released"]


@in_virtual_time
async def test_after_a_restart_of_hearth_memory_of_ended_jobs_is_freed():
    house = RenderHouse()
    house.gateway.leases.restore(kept_lease())
    async with house, house.comfyui:
        assert await house.until_ended() <= ENDS_AFTER_S + FREED_S
        assert (house.ends, house.freed) == (["released"], 1)


@in_render_house
async def test_memory_that_does_not_become_free_ends_the_lease_all_the_same(house: RenderHouse):
    house.comfyui.frees = False
    house.comfyui.post(seconds=10.0)
    ended_at = await house.until_ended()
    assert 10.0 + ENDS_FROM_S + FREED_S <= ended_at <= 10.0 + FREED_S + ENDS_AFTER_S
    assert (house.freed, house.gpu_status["foreign_mib"]) == (1, 8192.0)


@in_render_house
async def test_the_reason_says_how_many_jobs_there_are(house: RenderHouse):
    for _ in range(2):
        house.comfyui.post(seconds=10.0)
    await asyncio.sleep(PROMPTLY_S)
    assert house.gateway.leases.leases[LEASE_ID].reason == "ComfyUI: 2 jobs"
    await sleep_until(10.0 + PROMPTLY_S)
    assert house.gateway.leases.leases[LEASE_ID].reason == "ComfyUI: 1 job"
    assert len(house.taken) == 1


@pytest.mark.parametrize(
    ("comfyui_gb", "mib"), [(None, None), (10, 10 * 1024.0), (24, 24 * 1024.0), (32, None)]
)
@in_virtual_time
async def test_it_gets_all_of_the_card_or_what_the_owner_says(comfyui_gb, mib):
    async with open_house(settings=following(comfyui_gb=comfyui_gb)) as house:
        await asyncio.sleep(PROMPTLY_S)
        house.comfyui.post(seconds=10.0)
        await house.until_ended()
        assert (house.card.total_mib, house.taken) == (TOTAL_MIB, [mib])


@in_render_house
async def test_how_much_it_gets_can_be_changed_while_it_works(house: RenderHouse):
    house.comfyui.post(seconds=60.0)
    await asyncio.sleep(PROMPTLY_S)
    house.configure(following(comfyui_gb=6))
    await asyncio.sleep(PROMPTLY_S)
    assert house.gateway.leases.leases[LEASE_ID].mib == 6 * 1024.0
    assert len(house.taken) == 1


# What does not answer as it should.

BAD: dict[str, tuple[Reply | None, float]] = {
    # what it answers in the middle of a job, None for nobody, and how long the lease lasts then
    "its process has ended": (None, GONE_S),
    "it resets connections": (Reply(reset=True), GONE_S),
    "it answers nothing, since it reads a model": (Reply(stall=True), SILENT_S),
    "a proxy answers for it": (Reply(502, {}, b"<html>"), GONE_S),
    "it wants a login": (Reply(401), GONE_S),
    "it leads elsewhere": (Reply(302, {"Location": "/"}), GONE_S),
    "another server answers": (Reply(200, {}, b"<html>"), GONE_S),
    "no number": (Reply(200, {}, b'{"exec_info": {"queue_remaining": null}}'), GONE_S),
}


@pytest.mark.parametrize("name", BAD)
@in_virtual_time
async def test_the_lease_of_one_that_no_longer_answers_ends(name):
    reply, lasts_s = BAD[name]
    async with open_house() as house:
        house.comfyui.post(seconds=LONG_S)
        await sleep_until(20.5)
        house.comfyui.reply = reply
        if reply is None:
            del house.at[URL]
        ended_at = await house.until_ended()
        assert house.ends == ["holder_gone"]
        assert 20.5 + lasts_s <= ended_at <= 20.5 + lasts_s + 10.0
        is_silent = reply is None or reply.stall or reply.reset
        kind = ComfyuiGone if is_silent else ComfyuiUnreadable
        assert len(house.events.of(kind)) == 1
        house.at[URL] = house.comfyui
        house.comfyui.reply = None  # it has come back, and still works
        await asyncio.sleep(10.0)
        assert (house.has_lease, len(house.taken)) == (True, 2)
        assert len(house.events.of(ComfyuiFollowed)) == 2


@in_render_house
async def test_one_that_restarts_within_a_batch_keeps_the_lease(house: RenderHouse):
    house.comfyui.post(seconds=LONG_S)
    await sleep_until(20.5)
    del house.at[URL]
    await asyncio.sleep(GONE_S - PROMPTLY_S)
    async with FakeComfyUi() as restarted:
        restarted.post(seconds=30.0)
        house.at[URL] = restarted
        await sleep_until(59.0)
        assert (house.has_lease, len(house.taken)) == (True, 1)
        await house.until_ended()
        assert house.ends == ["released"]


@in_render_house
async def test_one_that_is_not_there_costs_no_more_than_a_line_in_the_log(house: RenderHouse):
    del house.at[URL]
    await sleep_until(1_000.0)
    (gone,) = house.events.of(ComfyuiGone)
    assert (gone.problem, house.taken) == ("connect", [])


@in_render_house
async def test_a_refusal_to_free_memory_is_reported_and_keeps_nothing(house: RenderHouse):
    house.comfyui.refuses_to_free = True
    house.comfyui.post(seconds=10.0)
    ended_at = await house.until_ended()
    assert ended_at <= 10.0 + GONE_S + FREED_S + ENDS_AFTER_S
    (refused,) = house.events.of(ComfyuiUnreadable)
    assert (refused.problem, refused.path) == ("http_404", "/free")
    assert house.freed > 2


@in_render_house
async def test_a_queue_in_which_nothing_changes_has_the_gpu_for_a_day(house: RenderHouse):
    house.comfyui.post(seconds=1.1 * DAY_S)
    await asyncio.sleep(PROMPTLY_S)
    hold_up(0.99 * DAY_S)
    ended_at = await house.until_ended()
    assert (house.ends, DAY_S <= ended_at <= DAY_S + PROMPTLY_S) == (["expired"], True)
    hold_up(0.1 * DAY_S)
    await asyncio.sleep(ENDS_AFTER_S + FREED_S)
    assert (len(house.taken), house.freed) == (1, 1)
    house.comfyui.post(seconds=10.0)
    await house.until_ended(2)
    assert len(house.taken) == 2


@in_render_house
async def test_a_queue_whose_jobs_end_has_the_gpu_for_longer(house: RenderHouse):
    for _ in range(3):
        house.comfyui.post(seconds=0.9 * DAY_S)
    for _ in range(3):
        await asyncio.sleep(PROMPTLY_S)
        hold_up(0.9 * DAY_S)
    await house.until_ended()
    assert (house.ends, house.now > 2.7 * DAY_S) == (["released"], True)


@in_render_house
async def test_what_the_owner_ends_is_not_taken_again_for_the_same_queue(house: RenderHouse):
    house.comfyui.post(seconds=60.0)
    await sleep_until(10.0)
    assert house.gateway.leases.end(LEASE_ID, "owner")
    house.comfyui.post(seconds=60.0)
    await sleep_until(119.0)
    assert (house.has_lease, len(house.taken)) == (False, 1)
    await sleep_until(120.0 + ENDS_AFTER_S)
    house.comfyui.post(seconds=60.0)
    await asyncio.sleep(PROMPTLY_S)
    assert (house.has_lease, len(house.taken)) == (True, 2)


# The setting.


@in_render_house
async def test_an_url_that_is_removed_ends_the_lease_and_asks_no_more(house: RenderHouse):
    house.comfyui.post(seconds=LONG_S)
    await sleep_until(10.5)
    house.configure(following(""))
    await house.until_ended()
    asked = len(house.comfyui.asked)
    await sleep_until(100.0)
    assert (house.ends, len(house.comfyui.asked)) == (["owner"], asked)
    house.configure(following())
    await asyncio.sleep(PROMPTLY_S)
    assert house.has_lease


@in_render_house
async def test_another_url_is_followed_from_the_edit_on(house: RenderHouse):
    house.comfyui.post(seconds=LONG_S)
    await sleep_until(10.5)
    async with FakeComfyUi() as other:
        house.at[OTHER_URL] = other
        house.configure(following(OTHER_URL))
        await asyncio.sleep(PROMPTLY_S)
        assert not house.has_lease
        other.post(seconds=10.0)
        await asyncio.sleep(PROMPTLY_S)
        assert (house.has_lease, len(house.taken)) == (True, 2)
        await house.until_ended(2)
        assert house.ends == ["owner", "released"]


@in_virtual_time
async def test_nothing_is_asked_without_an_url():
    async with open_house(settings=following("")) as house:
        house.comfyui.post(seconds=60.0)
        await sleep_until(3_600.0)
        assert house.comfyui.asked == []


@in_render_house
async def test_one_that_answers_late_holds_up_nobody(house: RenderHouse):
    house.ollama.appear("a:latest")
    house.comfyui.reply = Reply(stall=True)
    await sleep_until(30.0)
    assert await house.answer("a", service_s=1.0)
    assert house.now <= 32.0
