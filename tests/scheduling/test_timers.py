"""The one timer: expiry, announced tasks, and that an early or late firing loses nothing."""

from __future__ import annotations

from hearth.scheduling import inputs
from hearth.scheduling.actions import WakeAt
from tests.support.shell import Shell, house_settings


def test_an_item_that_has_waited_too_long_expires_at_its_instant():
    house = Shell(resident=("a",))
    house.arrive("a")
    late = house.arrive("a", max_wait_s=7.0)
    house.at(6.9)
    assert not house.ended
    house.at(7.0)
    assert house.log[-1] == (7.0, f"expire {late}")


def test_an_item_that_stands_behind_others_expires_at_its_instant_too():
    house = Shell(resident=("a",))
    house.arrive("a")
    house.arrive("a")
    late = house.arrive("a", max_wait_s=7.0)
    house.at(7.0)
    assert house.log[-1] == (7.0, f"expire {late}")


def test_an_item_that_runs_does_not_expire():
    house = Shell(resident=("a",))
    house.arrive("a", max_wait_s=7.0)
    house.at(100.0)
    assert not house.ended


def test_nothing_that_has_expired_is_started_in_the_same_decision():
    house = Shell(resident=("a",))
    house.arrive("a")
    late = house.arrive("a", max_wait_s=7.0)
    house.now = 7.0
    assert house.finish(1) == [f"expire {late}"]


def test_an_item_that_was_started_in_time_does_not_expire_when_it_has_to_wait_again():
    house = Shell(resident=("a",))
    victim = house.arrive("a", max_wait_s=7.0)
    urgent = house.internal("a")
    house.stop(victim)
    assert house.at(8.0).finish(urgent) == [f"start {victim} on a"]


def test_items_expire_while_the_backend_is_down_and_while_draining():
    house = Shell(house_settings(wait_when_down_s=100.0), resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive("a", max_wait_s=5.0)
    house.drain()
    house.at(5.0)
    assert house.ended == {1: "expire 1"}


def test_no_timer_is_kept_for_an_item_that_has_left():
    house = Shell(resident=("a",))
    first = house.arrive("a", max_wait_s=50.0)
    waiting = house.arrive("a", max_wait_s=60.0)
    house.cancel(waiting)
    house.finish(first)
    assert house.timer is None


def test_a_timer_that_is_fired_twice_or_for_no_reason_does_no_harm():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    house.arrive("a", max_wait_s=7.0)
    house.lose_timer()
    assert house.tell(inputs.TimerFired()) == []
    assert house.timer == 7.0
    assert house.finish(running) == ["start 2 on a"]


def test_the_timer_is_told_only_where_it_changes():
    house = Shell(resident=("a",))
    house.arrive("a")
    house.arrive("a", max_wait_s=7.0)
    actions = house.brain.handle(inputs.GpuSampled(capacity_mib=None), 1.0)
    assert not [action for action in actions if isinstance(action, WakeAt)]


def test_an_external_item_that_would_overrun_an_announced_task_does_not_start():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.at(8.0).arrive("a")
    assert house.said == []


def test_an_external_item_that_ends_in_time_starts_before_an_announced_task():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.at(9.0).arrive("a", max_tokens=40)
    assert house.said == ["start 1 on a"]


def test_the_time_of_a_swap_counts_for_an_item_that_needs_one():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.at(3.0).arrive("b", max_tokens=40)
    assert house.said == []


def test_an_item_held_back_for_an_announced_task_starts_when_its_time_has_come_and_gone():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.at(8.0).arrive("a")
    house.at(10.0)
    assert house.log[-1] == (10.0, "start 1 on a")


def test_an_announcement_holds_nothing_back_before_its_window():
    """A prompt that takes 200 s to read would overrun the task in any case; the window is two minutes."""
    for instant, said in ((879.9, ["start 1 on a"]), (880.0, [])):
        house = Shell(resident=("a",))
        house.tell(inputs.Scheduled(task_type="digest", due_at=1000.0))
        house.at(instant).arrive("a", prompt_tokens=200_000)
        assert house.said == said


def test_an_announcement_never_holds_internal_work_back():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.at(8.0).internal("a")
    assert house.said == ["start 1 on a"]


def test_of_two_announcements_of_one_task_each_holds_back_what_would_overrun_it():
    house = Shell(resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=10.0))
    house.tell(inputs.Scheduled(task_type="digest", due_at=500.0))
    house.at(8.0).arrive("a")
    house.at(10.0)
    assert house.log[-1] == (10.0, "start 1 on a")


def test_a_task_that_is_announced_again_and_again_is_one():
    house = Shell(resident=("a",))
    for moment in range(100):
        house.at(moment * 0.5)
        house.tell(inputs.Scheduled(task_type="digest", due_at=1000.0 + moment % 2 * 1e-6))
    assert len(house.state.announced) == 1


def test_announcements_that_are_past_are_forgotten():
    house = Shell(resident=("a",))
    for day in range(100):
        house.at(day * 100.0)
        house.tell(inputs.Scheduled(task_type=f"task {day}", due_at=house.now + 50.0))
    assert len(house.state.announced) <= 2
