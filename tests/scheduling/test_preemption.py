"""Who yields to the house's own work, and who does not."""

from __future__ import annotations

import pytest

from hearth.config.settings import QueueSettings, SchedulingSettings, StartedStreams, UnreplayableStreams
from hearth.scheduling import inputs
from hearth.scheduling.waiting import Place
from hearth.types import Band, Priority, Sequence, Usage
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

AT_ONCE = SchedulingSettings(preempt_restart_bound_s=0.0)


def busy(*, parallel: int = 1, scheduling: SchedulingSettings | None = None) -> Shell:
    """One external item runs on a."""
    house = Shell(house_settings(parallel=parallel, scheduling=scheduling), resident=("a",))
    house.arrive("a")
    return house


def stream(scheduling: SchedulingSettings | None = None, *, resumable: bool = False, parallel: int = 1) -> Shell:
    """One external stream runs on a, and its caller has seen bytes."""
    house = Shell(house_settings(scheduling=scheduling, parallel=parallel), resident=("a",))
    first = house.arrive("a", resumable=resumable)
    house.first_byte(first, forwarded=True)
    return house


def test_internal_work_stops_a_running_external_item():
    house = busy()
    urgent = house.internal("a")
    assert house.said == ["preempt 1"]
    assert house.stop(1) == [f"start {urgent} on a"]


def test_a_stream_that_cannot_be_resumed_is_not_stopped_at_once():
    house = stream()
    house.internal("a")
    assert house.said == ["hold 1"]


def test_a_stream_that_can_be_resumed_is_stopped_though_its_caller_has_seen_bytes():
    house = stream(resumable=True)
    urgent = house.internal("a")
    assert house.said == ["preempt 1"]
    assert house.stop(1) == [f"start {urgent} on a"]
    assert house.finish(urgent) == ["start 1 on a"]


def test_a_resumed_stream_can_be_stopped_again_before_and_after_it_has_caught_up():
    house = stream(resumable=True)
    for seen in (False, True):
        urgent = house.internal("a")
        house.stop(1)
        house.finish(urgent)
        if seen:
            house.first_byte(1, forwarded=True)
    house.internal("a")
    assert house.said == ["preempt 1"]


def test_a_resumed_stream_that_has_sent_nothing_yet_may_be_sent_again():
    house = stream(resumable=True)
    urgent = house.internal("a")
    house.stop(1)
    house.finish(urgent)
    assert house.fail(1, inputs.Fault.BACKEND_GONE) == ["start 1 on a"]


def test_a_stream_that_has_outgrown_what_is_kept_is_not_stopped_any_more():
    house = stream(resumable=True)
    house.tell(inputs.Unresumable(sequence=Sequence(1), attempt=1))
    house.internal("a")
    assert house.said == ["hold 1"]


def test_outgrowing_while_the_order_to_stop_is_on_its_way_lets_the_stream_go_on():
    house = stream(resumable=True)
    urgent = house.internal("a")
    house.tell(inputs.Unresumable(sequence=Sequence(1), attempt=1))
    assert house.state.entries[Sequence(1)].place is Place.RUNNING
    assert house.finish(1) == [f"start {urgent} on a"]


def test_with_finish_a_started_stream_ends_first():
    for unreplayable in UnreplayableStreams:
        rules = SchedulingSettings(started_streams=StartedStreams.FINISH, unreplayable_streams=unreplayable)
        house = stream(rules, resumable=True)
        house.internal("a")
        assert house.said == ["hold 1"]


def test_a_stream_that_more_urgent_work_waits_for_is_told_of_once():
    house = stream()
    house.internal("a")
    assert house.said == ["hold 1"]
    house.internal("b")
    assert house.said == []


def test_only_bytes_that_its_caller_saw_and_that_cannot_be_replayed_let_it_go_on_when_the_order_to_stop_is_on_its_way():
    for resumable, forwarded, said in ((False, True, ["hold 1"]), (False, False, []), (True, True, [])):
        house = Shell(resident=("a",))
        first = house.arrive("a", resumable=resumable)
        house.internal("a")
        assert house.first_byte(first, forwarded=forwarded) == said
        assert house.state.entries[first].place is (Place.RUNNING if said else Place.STOPPING)


def test_nothing_that_comes_late_revives_what_was_cut_or_cancelled():
    cut, cancelled = stream(SchedulingSettings(unreplayable_streams=UnreplayableStreams.ERROR)), stream()
    cut.internal("a")
    cancelled.cancel(1)
    for house in (cut, cancelled):
        assert house.tell(inputs.Unresumable(sequence=Sequence(1), attempt=1)) == []
        assert house.state.entries[Sequence(1)].place is Place.STOPPING


@pytest.mark.parametrize("elsewhere", ["a", "b"])
def test_internal_work_waits_for_a_stream_no_longer_than_the_bound(elsewhere):
    house = stream(SchedulingSettings(preempt_finish_bound_s=40.0))
    house.at(100.0)
    urgent = house.internal(elsewhere)
    house.at(139.9)
    assert not house.stopping
    house.at(140.0)
    assert house.stopping == {1}
    assert house.stop(1)[0] == "fail 1 interrupted"
    assert urgent in house.running or house.unloading == ["a"]


def test_with_error_a_stream_that_cannot_be_resumed_is_cut_at_once():
    house = stream(SchedulingSettings(unreplayable_streams=UnreplayableStreams.ERROR))
    urgent = house.internal("a")
    assert house.said == ["cut 1"]
    assert house.stop(1) == ["fail 1 interrupted", f"start {urgent} on a"]


def test_a_cut_stream_that_ends_by_itself_first_has_ended_well():
    house = stream(SchedulingSettings(unreplayable_streams=UnreplayableStreams.ERROR))
    urgent = house.internal("a")
    assert house.finish(1) == [f"start {urgent} on a"]


def test_a_stream_is_never_cut_for_external_work():
    house = stream(SchedulingSettings(unreplayable_streams=UnreplayableStreams.ERROR))
    house.arrive("b")
    assert house.said == []


def test_a_protected_stream_is_neither_stopped_nor_cut():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=0)), resident=("a",))
    first = house.arrive("a")
    house.first_byte(first, forwarded=True)
    house.internal("a")
    house.at(10_000.0)
    assert not house.stopping


def test_an_item_whose_first_byte_was_held_back_is_stopped():
    house = busy()
    house.first_byte(1, forwarded=False)
    house.internal("a")
    assert house.said == ["preempt 1"]


def test_outside_active_hours_internal_work_waits_for_the_running_item_and_goes_next():
    house = busy()
    house.tell(inputs.ModeChanged(active=False))
    house.arrive("a")
    urgent = house.internal("a")
    assert house.said == []
    assert house.finish(1) == [f"start {urgent} on a"]


def test_outside_active_hours_internal_work_for_another_model_waits_for_it_too():
    house = busy()
    house.tell(inputs.ModeChanged(active=False))
    house.internal("b")
    assert house.said == []
    assert house.finish(1) == ["unload a"]


def test_the_beginning_of_active_hours_stops_what_keeps_internal_work_waiting():
    house = busy()
    house.tell(inputs.ModeChanged(active=False))
    house.internal("a")
    assert house.tell(inputs.ModeChanged(active=True)) == ["preempt 1"]


def test_internal_work_never_stops_internal_work():
    house = Shell(resident=("a",))
    house.internal("a", Priority.BACKGROUND)
    house.internal("a", Priority.CRITICAL)
    assert house.said == []


def test_two_urgent_arrivals_during_one_run_stop_it_once():
    house = busy()
    house.internal("a")
    house.internal("a")
    assert house.said == []
    assert [said for _, said in house.log if said.startswith("preempt")] == ["preempt 1"]


def test_only_as_many_items_are_stopped_as_are_needed_the_latest_started_first():
    house = Shell(house_settings(parallel=3), resident=("a",))
    for instant in (0.0, 1.0, 2.0):
        house.at(instant).arrive("a")
    house.internal("a")
    assert house.said == ["preempt 3"]
    house.internal("a")
    assert house.said == ["preempt 2"]


def test_a_free_slot_is_used_before_anybody_is_stopped():
    house = busy(parallel=2)
    house.internal("a")
    assert house.said == ["start 2 on a"]


def test_internal_work_for_another_model_stops_everything_that_keeps_it_out():
    house = busy(parallel=2, scheduling=AT_ONCE)
    house.arrive("a")
    house.internal("b")
    assert sorted(house.said) == ["preempt 1", "preempt 2"]
    house.stop(1)
    assert house.stop(2) == ["unload a"]


def test_nothing_is_stopped_for_another_model_where_one_item_has_to_finish_anyway():
    house = stream(AT_ONCE, parallel=2)
    house.arrive("a")
    house.internal("b")
    assert house.said == ["hold 1"]


def test_a_model_that_must_make_room_takes_no_more_external_work():
    house = stream(parallel=2)
    house.internal("b")
    house.arrive("a")
    assert house.said == []


def test_an_interrupted_item_goes_before_new_external_work():
    house = busy()
    house.arrive("a")
    urgent = house.internal("a")
    house.stop(1)
    assert house.state.entries[Sequence(1)].band is Band.INTERRUPTED
    assert house.finish(urgent) == ["start 1 on a"]


def test_of_several_interrupted_items_the_latest_interrupted_goes_first():
    house = Shell(house_settings(parallel=2), resident=("a",))
    house.arrive("a")
    house.arrive("a")
    first, second = house.internal("a"), house.internal("a")
    house.stop(2)
    house.stop(1)
    assert house.finish(first) == ["start 1 on a"]
    assert house.finish(second) == ["start 2 on a"]


def test_an_item_interrupted_often_enough_is_protected_and_finishes():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=2)), resident=("a",))
    victim = house.arrive("a")
    for _ in range(2):
        urgent = house.internal("a")
        house.stop(victim)
        house.finish(urgent)
    house.internal("a")
    assert house.said == []
    assert house.finish(victim) == ["start 4 on a"]


def lose_load(house: Shell) -> None:
    """The house's own work comes for a while b is being loaded, and b has to go before it has served anybody."""
    house.unloaded()
    urgent = house.internal("a")
    assert house.loaded() == ["unload b"]
    house.unloaded()
    assert house.loaded() == [f"start {urgent} on a"]
    assert house.finish(urgent) == ["unload a"]


def test_an_item_whose_model_was_loaded_in_vain_often_enough_is_started_and_finishes():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=2)), resident=("a",))
    waiter = house.arrive("b")
    lose_load(house)
    lose_load(house)
    house.unloaded()
    house.internal("a")
    assert house.loaded() == [f"start {waiter} on b"]
    house.internal("a")
    assert house.said == [], "nor is it stopped"
    assert house.finish(waiter) == ["unload b"]


def test_a_load_that_served_only_work_for_any_model_was_in_vain_for_those_who_named_it():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=1)), resident=("a",))
    waiter = house.arrive("b")
    house.unloaded()
    anywhere = house.internal(None)
    urgent = house.internal("a")
    assert house.loaded() == [f"start {anywhere} on b"]
    assert house.finish(anywhere) == ["unload b"]
    house.swap()
    house.finish(urgent)
    house.unloaded()
    house.internal("a")
    assert house.loaded() == [f"start {waiter} on b"]


def test_loads_in_vain_and_interruptions_are_counted_together():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=2)), resident=("a",))
    waiter = house.arrive("b")
    lose_load(house)
    house.unloaded()
    assert house.loaded() == [f"start {waiter} on b"]
    urgent = house.internal("a")
    assert house.said == [f"preempt {waiter}"]
    house.stop(waiter)
    house.swap()
    house.finish(urgent)
    house.unloaded()
    house.internal("a")
    assert house.loaded() == [f"start {waiter} on b"]


def test_a_pause_does_not_let_anybody_insist_on_what_was_loaded():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=0)), resident=("a",))
    house.arrive("b")
    house.unloaded()
    house.internal("a")
    house.tell(inputs.ExternalPaused(paused=True))
    assert house.loaded() == ["unload b"]


def test_nobody_insists_on_what_was_loaded_who_would_still_run_when_an_announced_task_is_due():
    house = Shell(house_settings(queue=QueueSettings(max_interrupt_count=0)), resident=("a",))
    house.arrive("b", max_tokens=40)
    house.unloaded()
    house.internal("a")
    house.tell(inputs.Scheduled(task_type="brief", due_at=0.5))
    assert house.loaded() == ["unload b"]


def test_an_item_that_is_nearly_done_is_not_stopped():
    house = Shell(house_settings(scheduling=SchedulingSettings(preempt_min_remaining_s=1.0)), resident=("a",))
    house.arrive("a", max_tokens=40)
    house.internal("a")
    assert house.said == []


def test_what_is_left_of_an_item_is_reckoned_from_when_it_was_sent():
    house = Shell(house_settings(scheduling=AT_ONCE), resident=("a",))
    house.arrive("a", max_tokens=40)
    house.at(5.0).started(1)
    house.at(5.5).internal("a")
    assert house.said == []
    house.at(6.0)
    assert house.log[-1] == (6.0, "preempt 1")


def test_an_item_that_should_have_ended_long_ago_loses_that_protection_at_its_expected_end():
    house = Shell(house_settings(scheduling=AT_ONCE), resident=("a",))
    house.arrive("a", max_tokens=40)
    house.internal("a")
    house.at(0.99)
    assert house.log[-1] == (0.0, "start 1 on a")
    house.at(1.0)
    assert house.log[-1] == (1.0, "preempt 1")


def test_a_timer_that_runs_a_hair_early_is_armed_again_and_nothing_is_lost():
    house = Shell(house_settings(scheduling=AT_ONCE), resident=("a",))
    house.arrive("a", max_tokens=40)
    house.internal("a")
    assert house.fire(early_s=1e-9) == []
    assert house.timer == 1.0
    assert house.fire() == ["preempt 1"]


def test_a_completion_that_races_its_preemption_wins_if_it_is_what_happened():
    house = busy()
    urgent = house.internal("a")
    assert house.said == ["preempt 1"]
    assert house.finish(1) == [f"start {urgent} on a"]
    assert 1 not in house.state.entries


def test_a_stop_after_the_completion_is_ignored():
    house = busy()
    urgent = house.internal("a")
    house.finish(1)
    assert house.tell(inputs.Stopped(sequence=Sequence(1), attempt=1)) == []
    assert set(house.running) == {urgent}


def test_the_answer_of_a_stopped_attempt_that_comes_late_is_ignored():
    house = busy()
    urgent = house.internal("a")
    house.stop(1)
    house.finish(urgent)
    assert house.tell(inputs.Finished(sequence=Sequence(1), attempt=1, usage=Usage())) == []
    assert house.running == {1: 2}
    assert Sequence(1) in house.state.entries


def test_a_preempted_item_whose_caller_leaves_before_it_has_stopped_is_not_put_back():
    house = busy()
    house.internal("a")
    house.cancel(1)
    assert house.said == []
    house.stop(1)
    assert 1 not in house.state.entries


def test_internal_work_that_is_cancelled_before_the_stop_leaves_the_slot_to_the_interrupted_item():
    house = busy()
    house.cancel(house.internal("a"))
    assert house.stop(1) == ["start 1 on a"]


def test_the_owner_can_make_external_work_yield_outside_active_hours_too():
    house = busy()
    house.tell(inputs.ModeChanged(active=False))
    assert house.tell(inputs.PreemptRequested()) == ["preempt 1"]
    assert house.tell(inputs.PreemptRequested()) == []


def test_the_owner_cannot_break_a_stream_that_a_caller_is_reading():
    house = stream()
    assert house.tell(inputs.PreemptRequested()) == []


def test_urgent_work_of_two_models_with_one_slot_each_stops_what_each_of_them_needs():
    house = Shell(house_settings(vram_gb=0), resident=("a", "b"))
    house.arrive("a")
    house.arrive("b")
    house.internal("a")
    house.internal("b")
    assert house.stopping == {1, 2}
    assert house.stop(1) == ["start 3 on a"]
    assert house.stop(2) == ["start 4 on b"]


def test_urgent_work_of_one_model_and_urgent_work_of_any_model_stop_two_items():
    house = Shell(house_settings(parallel=2), resident=("a",))
    house.arrive("a")
    house.arrive("a")
    house.internal("a")
    house.internal(None)
    assert house.stopping == {1, 2}


def restarting(priority: Priority, *, after_s: float, model: str = "a", bound_s: float = 2.0) -> Shell:
    """A whole answer that is expected to take 5 s runs on a, and internal work comes after `after_s`."""
    house = Shell(
        house_settings(scheduling=SchedulingSettings(preempt_restart_bound_s=bound_s, preempt_min_remaining_s=0.0)), resident=("a",)
    )
    house.arrive("a")
    house.at(after_s).internal(model, priority)
    return house


@for_each(("priority", "pays_s", "not_s"), [(Priority.CRITICAL, 3.7, 3.8), (Priority.NORMAL, 2.4, 2.6), (Priority.BACKGROUND, 1.2, 1.3)])
def test_an_answer_that_would_start_over_is_stopped_at_once_only_if_more_is_won_than_lost(priority, pays_s, not_s):
    assert restarting(priority, after_s=pays_s).said == ["preempt 1"]
    assert restarting(priority, after_s=not_s).said == []


@for_each("after_s", [2.6, 4.9, 40.0])
@for_each("priority", list(Priority))
@for_each("model", ["a", "b"])
def test_internal_work_waits_for_an_answer_that_would_start_over_no_longer_than_the_bound(priority, after_s, model):
    house = restarting(priority, after_s=after_s, model=model)
    house.at(after_s + 1.99)
    waited = not house.stopping
    house.at(after_s + 2.0)
    assert house.stopping == {1}
    assert waited or priority is Priority.CRITICAL


def test_with_a_bound_of_zero_an_answer_is_stopped_whatever_it_loses():
    assert restarting(Priority.BACKGROUND, after_s=40.0, bound_s=0.0).said == ["preempt 1"]


def test_the_way_back_counts_as_lost_unless_somebody_else_brings_the_model_back():
    for others, said in ((0, []), (1, ["preempt 1"])):
        house = Shell(house_settings(scheduling=SchedulingSettings(preempt_restart_bound_s=2.0)), resident=("a",))
        for _ in range(1 + others):
            house.arrive("a")
        house.internal("b")
        assert house.said == said


def test_a_stream_that_can_be_continued_is_stopped_at_once_however_much_it_has_said():
    house = stream(resumable=True)
    house.at(100.0).internal("a")
    assert house.said == ["preempt 1"]
