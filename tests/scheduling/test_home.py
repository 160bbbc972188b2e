"""Back to the home model: when, how often, and that an arrival always wins."""

from __future__ import annotations

from hearth.scheduling import inputs
from hearth.scheduling.home import LATE, LATE_S, MIN_ENDS
from hearth.types import Lane, Priority
from tests.support.shell import Shell, house_settings


def after_idle_times(*ends: tuple[float, str, Priority | None], setting_s: float = 120.0) -> Shell:
    """The home model is h, and c has just answered once more. After each answer of c before, some seconds later somebody asked for a
    model, the house's own work where it has a priority. A load takes 10 s."""
    house = Shell(house_settings(home="h", restore_home_delay_s=setting_s))
    asked(house, "c")
    for gap_s, model, priority in ends:
        house.at(house.now + gap_s)
        asked(house, model, priority)
        if model != "c":
            asked(house, "c")
    house.log.clear()
    return house


def asked(house: Shell, model: str, priority: Priority | None = None) -> None:
    """One request, from its arrival to its end, all swaps before it included."""
    settled(house)
    sequence = house.arrive(model) if priority is None else house.arrive(model, lane=Lane.INTERNAL, priority=priority)
    settled(house)
    house.finish(sequence)


def settled(house: Shell) -> None:
    """Let the swap under way end, and the one that may begin with that."""
    for _ in range(2):
        while house.unloading:
            house.unloaded()
        if house.loading:
            house.at(house.now + 10.0).loaded()


def test_the_home_model_comes_at_once_where_it_was_asked_for_next_so_far():
    house = after_idle_times(*[(60.0, "h", None)] * MIN_ENDS)
    assert house.unloading == ["c"]


def test_the_home_model_comes_between_those_who_are_soon_back_and_those_who_come_for_it():
    house = after_idle_times(*[(4.0, "c", None), (90.0, "h", None)] * MIN_ENDS)
    assert house.timer == house.now + 4.0 * LATE + LATE_S


def test_where_the_owner_allows_too_little_to_wait_for_those_who_come_back_the_home_model_comes_at_once():
    house = after_idle_times(*[(100.0, "c", None), (60.0, "h", None)] * MIN_ENDS, setting_s=30.0)
    assert house.unloading == ["c"]


def test_too_few_idle_times_teach_nothing():
    house = after_idle_times(*[(60.0, "h", None)] * (MIN_ENDS - 1))
    assert house.timer == house.now + 120.0


def test_urgent_work_for_the_home_model_counts_more_than_others_who_come_back():
    others, rare = [(60.0, "c", None)] * 3, (60.0, "h", Priority.CRITICAL)
    assert after_idle_times(*(*others, rare) * 3).unloading
    assert not after_idle_times(*(*others, (60.0, "h", None)) * 3).unloading


def test_new_habits_replace_old_ones():
    house = after_idle_times(*[(60.0, "h", None)] * 40, *[(60.0, "c", None)] * 40)
    assert not house.unloading


def test_external_work_that_is_paused_ends_no_idle_time():
    house = after_idle_times(*[(60.0, "h", None)] * (MIN_ENDS - 1))
    house.tell(inputs.ExternalPaused(paused=True))
    house.at(house.now + 5.0).arrive("h")
    assert len(house.state.estimates.idle_ends(("c",))) == MIN_ENDS - 1


def test_a_model_that_the_owner_has_loaded_stays_for_the_whole_setting():
    house = after_idle_times(*[(60.0, "h", None)] * MIN_ENDS)
    settled(house)
    house.tell(inputs.LoadOrdered(model="c"))
    settled(house)
    assert house.timer == house.now + 120.0


def test_those_who_would_come_into_the_load_of_the_home_model_count_for_the_rest_of_it():
    ends = [(2.0, "c", None), (10.0, "h", Priority.CRITICAL), (10.0, "h", Priority.CRITICAL)]
    assert after_idle_times(*ends * 4).unloading == ["c"]
