"""Rule 5: waiting raises internal work by a band at a time, up to a ceiling, and never reaches across the lanes."""

from __future__ import annotations

from hearth.config.settings import AgingSettings, SchedulerSettings, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.forecast import forecast
from hearth.scheduling.inputs import Fault
from hearth.types import Band, Lane, Priority
from tests.support.shell import Shell, house_settings

CRITICAL, NORMAL, BACKGROUND = Priority


def aging(after_s: float = 100.0, ceiling: Priority = NORMAL) -> SchedulerSettings:
    return house_settings(scheduling=SchedulingSettings(aging=AgingSettings(promote_after_s=after_s, ceiling=ceiling)))


def busy(settings: SchedulerSettings) -> Shell:
    """Model a works on something urgent that does not end by itself."""
    house = Shell(settings, resident=("a",))
    house.internal("a", CRITICAL)
    return house


def bands(house: Shell, lane: Lane = Lane.INTERNAL) -> list[tuple[int, Band]]:
    return [(entry.item.sequence, entry.band) for entry in house.state.waiting.in_order() if entry.item.lane is lane]


def test_an_item_that_has_waited_long_enough_rises_one_band():
    house = busy(aging())
    house.internal("a", BACKGROUND)
    assert bands(house.at(99.9)) == [(2, Band.BACKGROUND)]
    assert bands(house.at(100.0)) == [(2, Band.NORMAL)]
    assert house.log[-1] == (100.0, "promote 2 to normal")


def test_nothing_becomes_critical_by_waiting_unless_the_owner_says_so():
    house = busy(aging())
    house.internal("a", BACKGROUND)
    house.internal("a", NORMAL)
    assert bands(house.at(10_000.0)) == [(2, Band.NORMAL), (3, Band.NORMAL)]
    assert house.state.promotions == 1
    assert house.timer is None


def test_with_a_higher_ceiling_an_item_rises_again_after_as_long():
    house = busy(aging(ceiling=CRITICAL))
    house.internal("a", BACKGROUND)
    assert bands(house.at(199.9)) == [(2, Band.NORMAL)]
    assert bands(house.at(200.0)) == [(2, Band.CRITICAL)]
    assert house.state.promotions == 2


def test_with_a_lower_ceiling_nothing_rises():
    house = busy(aging(ceiling=BACKGROUND))
    house.internal("a", BACKGROUND)
    assert bands(house.at(10_000.0)) == [(2, Band.BACKGROUND)]


def test_a_risen_item_stands_before_what_came_later_and_behind_what_came_earlier():
    house = busy(aging())
    house.internal("a", NORMAL)
    house.internal("a", BACKGROUND)
    house.at(50.0).internal("a", NORMAL)
    assert [sequence for sequence, _ in bands(house)] == [2, 4, 3]
    assert [sequence for sequence, _ in bands(house.at(100.0))] == [2, 3, 4]
    assert house.finish(1) == ["start 2 on a"]
    assert house.finish(2) == ["start 3 on a"]


def test_external_work_keeps_its_place_however_long_it_waits():
    house = busy(aging(ceiling=CRITICAL))
    house.arrive("a")
    house.at(1000.0).internal("a", BACKGROUND)
    assert bands(house, Lane.EXTERNAL) == [(2, Band.EXTERNAL)]
    assert house.finish(1) == ["start 3 on a"]


def test_waiting_raises_nobody_where_aging_is_switched_off():
    house = busy(aging(after_s=0.0))
    house.internal("a", BACKGROUND)
    assert bands(house.at(1e6)) == [(2, Band.BACKGROUND)]


def test_a_risen_item_may_be_the_reason_for_a_swap():
    house = busy(aging())
    house.internal("b", BACKGROUND)
    house.at(50.0).internal("a", BACKGROUND)
    house.at(100.0)
    assert house.finish(1) == ["unload a"]


def test_what_is_put_back_after_a_fault_is_as_old_as_it_is():
    house = Shell(aging(), resident=("a",))
    first = house.internal("a", BACKGROUND)
    house.at(130.0).arrive("a")
    house.fail(first, Fault.BACKEND_GONE)
    assert house.said == [f"promote {first} to normal", f"start {first} on a"]


def test_who_left_while_waiting_rises_no_more():
    house = busy(aging())
    house.cancel(house.internal("a", BACKGROUND))
    assert house.timer is None
    house.at(200.0)
    assert house.state.promotions == 0


def test_a_shorter_time_counts_at_once_for_what_waits_already():
    house = busy(aging(after_s=1000.0, ceiling=CRITICAL))
    house.internal("a", BACKGROUND)
    house.at(250.0).tell(inputs.PolicyChanged(settings=aging(after_s=100.0, ceiling=CRITICAL)))
    assert house.said == ["promote 2 to normal", "promote 2 to critical"]


def test_nobody_falls_back_when_the_ceiling_is_lowered():
    house = busy(aging())
    house.internal("a", BACKGROUND)
    house.at(100.0).tell(inputs.PolicyChanged(settings=aging(ceiling=BACKGROUND)))
    assert bands(house) == [(2, Band.NORMAL)]


def test_looking_at_the_queue_raises_nobody():
    house = busy(aging())
    house.internal("a", BACKGROUND)
    house.now = 150.0
    assert bands(house) == [(2, Band.BACKGROUND)]
    assert house.state.promotions == 0


def test_an_early_timer_raises_nobody_too_soon_and_is_armed_again():
    house = busy(aging())
    house.internal("a", BACKGROUND)
    assert house.fire(early_s=1e-9) == []
    assert house.timer == 100.0
    assert house.fire() == ["promote 2 to normal"]


def test_an_estimated_wait_knows_that_the_item_will_rise():
    house = Shell(aging(after_s=10.0), resident=("a",))
    house.internal("a", CRITICAL)
    for _ in range(3):
        house.internal("a", NORMAL)
    old = house.internal("a", BACKGROUND)
    house.at(1.0)
    for _ in range(5):
        house.internal("a", NORMAL)
    starts = forecast(house.state, house.now)
    assert starts[old] < max(starts.values())
    assert house.state.promotions == 0


def test_aging_is_by_the_clock_and_not_by_how_often_anybody_looks():
    often, seldom = busy(aging(ceiling=CRITICAL)), busy(aging(ceiling=CRITICAL))
    for house in (often, seldom):
        house.internal("a", BACKGROUND)
    for second in range(250):
        often.at(float(second)).tell(inputs.TimerFired())
    seldom.lose_timer()
    seldom.at(249.0).tell(inputs.TimerFired())
    assert bands(often) == bands(seldom) == [(2, Band.CRITICAL)]


def test_the_defaults_let_background_work_rise_to_normal_after_five_minutes():
    house = busy(house_settings())
    house.internal("a", BACKGROUND)
    assert bands(house.at(299.0)) == [(2, Band.BACKGROUND)]
    assert bands(house.at(300.0)) == [(2, Band.NORMAL)]
