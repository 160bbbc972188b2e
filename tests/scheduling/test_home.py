"""Back to the home model: when, how often, and that an arrival always wins."""

from __future__ import annotations

from hearth.config.settings import ModelSettings
from hearth.scheduling import inputs
from hearth.scheduling.home import LATE, LATE_S, MIN_ENDS
from hearth.types import Lane, Priority
from tests.support.shell import Shell, house_settings


def away() -> Shell:
    """The home model is h, c is in memory, and the last item has just ended at t = 10."""
    house = Shell(house_settings(home="h"), resident=("c",))
    house.arrive("c")
    house.at(10.0).finish(1)
    return house


def test_the_home_model_comes_back_after_the_delay_of_complete_idleness():
    house = away()
    house.at(39.9)
    assert not house.unloading
    house.at(40.0)
    assert house.log[-1] == (40.0, "unload c")
    assert house.unloaded() == ["load h"]
    assert house.loaded() == []
    assert house.timer is None


def test_an_arrival_starts_the_delay_anew():
    house = away()
    house.at(39.0).arrive("c")
    house.at(41.0).finish(2)
    house.at(70.9)
    assert not house.unloading
    house.at(71.0)
    assert house.unloading == ["c"]


def test_nothing_is_restored_where_the_home_model_is_in_memory():
    house = Shell(house_settings(home="h"), resident=("h",))
    house.finish(house.arrive("h"))
    assert house.timer is None


def test_nothing_is_restored_where_there_is_no_home():
    house = Shell(resident=("c",))
    house.finish(house.arrive("c"))
    assert house.timer is None


def test_a_request_that_arrives_as_the_home_timer_fires_wins():
    house = away()
    house.now = 40.0
    house.arrive("c")
    assert house.said == ["start 2 on c"]
    house.timer = house.timer or 40.0
    assert house.fire() == []


def test_a_request_that_arrives_while_the_home_model_loads_is_served_after_that_load():
    house = away().at(40.0)
    house.unloaded()
    house.arrive("c")
    assert house.said == []
    assert house.loaded() == ["unload h"]
    assert house.unloaded() == ["load c"]


def test_a_restore_that_fails_is_tried_again_ever_later_and_then_left_alone():
    house = Shell(house_settings(home="h", restore_home_delay_s=30.0))
    house.tell(inputs.TimerFired())
    instants = []
    while house.timer is not None:
        house.fire()
        if house.loading:
            instants.append(house.now)
            house.load_failed(permanent=True)
    assert instants == [30.0, 60.0, 120.0, 240.0, 480.0]


def given_up() -> Shell:
    """Every restore of the home model h has failed."""
    house = Shell(house_settings(home="h"))
    house.tell(inputs.TimerFired())
    while house.timer is not None:
        house.fire()
        if house.loading:
            house.load_failed(permanent=True)
    return house


def test_new_settings_give_the_home_model_another_chance():
    house = given_up()
    assert house.tell(inputs.PolicyChanged(settings=house.settings)) == ["load h"]


def test_a_load_that_succeeds_gives_the_home_model_another_chance():
    house = given_up()
    house.arrive("c")
    house.loaded()
    house.finish(1)
    assert house.timer == house.now + 30.0


def test_a_home_model_that_can_never_fit_is_not_tried():
    house = Shell(house_settings(home="h", vram_gb=8.0, models={"h": ModelSettings(vram_gb=20.0)}))
    house.tell(inputs.TimerFired())
    assert house.timer is None


def test_the_home_model_comes_back_beside_what_it_fits_beside():
    models = {name: ModelSettings(vram_gb=10.0) for name in "ch"}
    house = Shell(house_settings(home="h", vram_gb=24.0, models=models), resident=("c",))
    house.finish(house.arrive("c"))
    house.at(30.0)
    assert house.log[-1] == (30.0, "load h")


def test_a_new_home_in_the_settings_takes_effect_without_an_arrival():
    house = Shell(house_settings(home="h"), resident=("h",))
    house.tell(inputs.PolicyChanged(settings=house_settings(home="c", restore_home_delay_s=5.0)))
    assert house.timer == 5.0
    house.at(5.0)
    assert house.unloading == ["h"]


def test_idleness_counts_anew_after_the_backend_was_down():
    house = away()
    house.at(20.0).tell(inputs.BackendDown())
    house.at(200.0).tell(inputs.BackendUp())
    assert house.timer == 230.0


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


def test_the_home_model_waits_for_those_who_were_soon_back_for_another_one_so_far():
    house = after_idle_times(*[(20.0, "c", None)] * MIN_ENDS)
    assert house.timer == house.now + 20.0 * LATE + LATE_S


def test_the_home_model_comes_between_those_who_are_soon_back_and_those_who_come_for_it():
    house = after_idle_times(*[(4.0, "c", None), (90.0, "h", None)] * MIN_ENDS)
    assert house.timer == house.now + 4.0 * LATE + LATE_S


def test_the_home_model_is_never_later_than_the_owner_has_said():
    house = after_idle_times(*[(20.0, "c", None)] * MIN_ENDS, setting_s=25.0)
    assert house.timer == house.now + 25.0


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
