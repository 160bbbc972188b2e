"""Modes in a running gateway, in virtual time: by hand, by the calendar, over a reload."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from hearth.config.settings import GatewayConfig, ModeSettings, QueueSettings, Settings
from hearth.errors import BadRequest
from hearth.events import ConfigReloaded, ModeSwitched, OwnerWarned
from hearth.queue.modes import Modes
from hearth.types import DAY_S, HOUR_S, Lane
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.house import FULL_TEXT, House, body_of, in_house, settings_with, settle, text_of
from tests.support.virtual_time import in_virtual_time, sleep_until

NIGHT = {"when": "22:00-06:00", "queue": {"sharing": "fair"}}
DAY = {"when": "0 6 * * *"}
GAMING = {"queue": {"paused_callers": ["n8n"]}, "scheduling": {"policy": "fifo"}}


def with_modes(**modes: Fields) -> Settings:
    found = {name: ModeSettings.model_validate(mode) for name, mode in modes.items()}
    return settings_with().replace(modes=found)


def switches(house: House) -> list[tuple[str | None, str]]:
    return [(event.mode, event.by) for event in house.events.of(ModeSwitched)]


async def until_hour(house: House, hour: float) -> None:
    """Sleep until the next time the clock on the wall shows this hour, in UTC."""
    clock = house.gateway.clock
    left_s = (hour * HOUR_S - clock.wall()) % DAY_S
    await sleep_until(house.now + left_s)
    await settle()


@in_house(settings=with_modes(gaming=GAMING))
async def test_a_switch_is_in_force_at_once_and_the_queue_is_kept(house: House):
    first = house.submit(service_s=5.0, caller="chat")
    theirs, mine = house.submit(caller="n8n"), house.submit(caller="chat")
    await sleep_until(1.0)
    house.gateway.modes.switch("gaming", by="boss")
    assert house.gateway.settings.scheduling.policy.value == "fifo", "at the same instant"
    assert house.worker.runtime.settings.queue.paused_callers == ("n8n",)
    for ticket in (first, mine):
        assert text_of(await body_of(ticket)) == FULL_TEXT
    await sleep_until(100.0)
    assert house.state_of(theirs.sequence) == "waiting"
    house.gateway.modes.switch(None, by="boss")
    assert text_of(await body_of(theirs)) == FULL_TEXT
    assert switches(house) == [("gaming", "boss"), (None, "boss")]
    (on, _) = house.events.of(ModeSwitched)
    assert on.changed == ("scheduling.policy", "queue.paused_callers")
    assert not house.events.of(ConfigReloaded)


@in_house(settings=with_modes(night=NIGHT))
async def test_hours_switch_a_mode_on_and_off_at_the_minute(house: House):
    modes = house.gateway.modes
    await until_hour(house, 21.999)
    assert switches(house)[-1:] == [(None, "times")]
    await until_hour(house, 22.0)
    assert (modes.mode, house.gateway.settings.queue.sharing) == ("night", "fair")
    shown: Any = modes.shown()
    assert shown["until"] == shown["since"] + 8 * HOUR_S
    await until_hour(house, 6.0)
    assert (modes.mode, house.gateway.settings.queue.sharing) == (None, "fifo")
    assert switches(house)[-2:] == [("night", "times"), (None, "times")]


@in_house(settings=with_modes(night=NIGHT, day=DAY, gaming=GAMING))
async def test_a_switch_by_hand_holds_until_the_next_mode_begins(house: House):
    modes: Any = house.gateway.modes
    await until_hour(house, 12.0)
    assert modes.mode == "day", "a cron expression that has begun it, before this process"
    modes.switch("gaming", by="boss")
    await until_hour(house, 21.9)
    assert modes.mode == "gaming"
    await until_hour(house, 22.0)
    assert modes.mode == "night"
    modes.switch(None, by="boss")
    await until_hour(house, 5.9)
    assert modes.mode is None, "its own hours go on, and the owner has ended it"
    await until_hour(house, 6.0)
    assert modes.mode == "day"


@in_house(settings=with_modes(night=NIGHT, gaming=GAMING))
async def test_a_mode_that_is_switched_on_by_hand_ends_with_its_own_hours(house: House):
    modes = house.gateway.modes
    await until_hour(house, 23.0)
    modes.switch("gaming", by="boss")
    await until_hour(house, 6.5)
    assert modes.mode == "gaming", "the end of another mode's hours is nothing to it"
    await until_hour(house, 23.0)
    modes.switch(None, by="boss")
    modes.switch("night", by="boss")
    await until_hour(house, 6.0)
    assert modes.mode is None


@in_house(settings=with_modes(gaming=GAMING))
async def test_an_edit_of_the_file_keeps_the_mode_and_changes_what_it_means(house: House):
    modes = house.gateway.modes
    modes.switch("gaming", by="boss")
    edited = with_modes(gaming={**GAMING, "queue": {"paused_callers": ["other"]}})
    edited = edited.replace(queue=edited.queue.model_copy(update={"max_external_depth": 3}))
    house.gateway.reload(GatewayConfig(settings=edited))
    queue = house.gateway.settings.queue
    assert (modes.mode, queue.paused_callers, queue.max_external_depth) == ("gaming", ("other",), 3)
    assert house.gateway.settings.scheduling.policy.value == "fifo"
    await settle()


@in_house(settings=with_modes(gaming=GAMING, night=NIGHT))
async def test_a_mode_that_is_gone_from_the_file_ends_with_a_warning(house: House):
    modes = house.gateway.modes
    await until_hour(house, 23.0)
    modes.switch("gaming", by="boss")
    house.gateway.reload(GatewayConfig(settings=with_modes(night=NIGHT)))
    assert house.gateway.settings.queue.paused_callers == ()
    (warning,) = house.events.of(OwnerWarned)
    assert "the mode gaming is no longer in the configuration" in warning.text
    await settle()
    assert modes.mode == "night", "its hours go on"


@in_house(settings=with_modes(gaming=GAMING, day=DAY))
async def test_a_mode_that_there_is_not_is_refused_with_those_that_there_are(house: House):
    with pytest.raises(BadRequest, match="there is no mode party; the modes are gaming, day"):
        house.gateway.modes.switch("party", by="boss")


@in_virtual_time
async def test_times_that_are_new_in_the_file_count_at_once():
    async with House(settings=with_modes(gaming=GAMING)) as house:
        await until_hour(house, 23.0)
        house.gateway.reload(GatewayConfig(settings=with_modes(gaming=GAMING, night=NIGHT)))
        await settle()
        assert house.gateway.modes.mode == "night"


@in_house(settings=with_modes(gaming=GAMING))
async def test_a_clock_that_is_set_back_makes_no_choice_last_longer(house: House):
    modes: Modes = house.gateway.modes
    modes.switch("gaming", by="boss")
    clock: Any = house.gateway.clock
    clock.slept_s -= 30 * DAY_S
    house.gateway.reload(GatewayConfig(settings=with_modes(gaming=GAMING, day=DAY)))
    await settle()
    assert modes.mode == "gaming"
    await sleep_until(house.now + DAY_S)
    assert modes.mode == "day"


POLICIES = ("fifo", "affinity", "cost_aware", "time_slice", "adaptive")


def drawn_mode(rng: Random) -> Fields:
    return {
        "queue": {
            "paused_callers": rng.sample(["one", "two", "three"], rng.randrange(3)),
            "sharing": rng.choice(["fifo", "fair"]),
        },
        "scheduling": {
            "policy": rng.choice(POLICIES),
            "active_hours": rng.choice([[], ["00:00-24:00"]]),
        },
        "gpu": {"home_model": rng.choice(["a", "b", ""]), "parallel": rng.choice([1, 2])},
    }


@pytest.mark.parametrize("seed", range(20))
@in_virtual_time
async def test_whatever_modes_come_and_go_nothing_accepted_is_lost(seed: int):
    rng = Random(seed)
    modes = {f"m{number}": drawn_mode(rng) for number in range(3)}
    settings = with_modes(**modes)
    settings = settings.replace(queue=QueueSettings(max_external_depth=1000))
    models = [FakeModel(name=name, parallel=2) for name in "ab"]
    async with House(*models, resident="a", settings=settings) as house:
        tickets = []
        for _ in range(60):
            await sleep_until(house.now + rng.choice((0.0, 0.1, 1.0, 5.0)))
            if rng.random() < 0.3:
                house.gateway.modes.switch(rng.choice([None, *modes]), by="boss")
            tickets.append(
                house.submit(
                    rng.choice("ab"),
                    caller=rng.choice(("one", "two", "three")),
                    lane=rng.choice(list(Lane)),
                    service_s=rng.choice((0.1, 1.0, 10.0)),
                )
            )
        house.gateway.modes.switch(None, by="boss")
        assert [text_of(await body_of(ticket)) for ticket in tickets] == [FULL_TEXT] * 60
