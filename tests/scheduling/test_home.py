"""Back to the home model: when, how often, and that an arrival always wins."""

from __future__ import annotations

from hearth.config.settings import ModelSettings
from hearth.scheduling import inputs
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
