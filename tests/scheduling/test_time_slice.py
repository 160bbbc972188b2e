"""Time slices: how long a model serves while others wait, and who is next; a swap costs 10 s until one was measured."""

from __future__ import annotations

from hearth.config.settings import PolicyName, SchedulingSettings, TimeSliceSettings
from tests.support.shell import Shell, house_settings

SLICED = SchedulingSettings(policy=PolicyName.TIME_SLICE, residency_factor=1.0, time_slice=TimeSliceSettings(min_slice_factor=2.0))


def house_of(a: int, b: int, rules: SchedulingSettings = SLICED) -> Shell:
    """So many items of 5 s wait for a, which is in memory since 0, and for b."""
    house = Shell(house_settings(scheduling=rules), resident=("a",))
    for model, count in (("a", a), ("b", b)):
        for _ in range(count):
            house.arrive(model)
    return house


def slice_of(house: Shell) -> float:
    """Serve items of 5 s until a is left, or has no work."""
    while house.running:
        house.at(house.now + 5.0).finish(min(house.running))
    return house.now


def test_equals_get_the_least_slice_each():
    assert slice_of(house_of(20, 20)) == 20.0


def test_no_slice_ends_before_the_model_has_earned_its_place():
    assert slice_of(house_of(20, 20, SLICED.replace(residency_factor=5.0))) == 50.0


def test_a_model_with_most_of_the_work_gets_most_of_the_round():
    assert slice_of(house_of(20, 1)) == 40.0


def test_a_model_with_little_work_gives_the_rest_of_its_slice_away():
    assert slice_of(house_of(2, 20)) == 10.0


def test_what_waits_longest_is_next():
    house = Shell(house_settings(scheduling=SLICED), resident=("a",))
    running = house.arrive("a")
    house.arrive("c")
    for _ in range(5):
        house.arrive("b")
    house.at(1.0).finish(running)
    assert house.unloaded() == ["load c"]


def test_a_lone_model_serves_on():
    house = house_of(3, 0)
    assert house.at(1000.0).finish(1) == ["start 2 on a"]
