"""Traps that other gateways fell into, each as the test that would have caught it."""

from __future__ import annotations

import subprocess
import sys

from hearth.config.settings import PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from tests.support.shell import Shell, house_settings


def test_a_woken_model_serves_its_waiters_before_it_is_drained_again():
    """llmux: the new model was drained for the old one's requests before its own were served, round and round."""
    house = Shell(house_settings(policy=PolicyName.FIFO), resident=("a",))
    house.finish(house.arrive("a"))
    house.arrive("b")
    house.arrive("a")
    house.unloaded()
    assert house.loaded() == ["start 2 on b"]
    assert house.finish(2) == ["unload b"]


def test_two_models_in_turn_make_one_swap_per_item_at_most():
    house = Shell(house_settings(policy=PolicyName.FIFO), resident=("a",))
    for _ in range(6):
        house.arrive("a")
        house.arrive("b")
    house.quiesce()
    assert sum(said.startswith("load") for _, said in house.log) == 11


def test_a_steady_stream_for_the_loaded_model_does_not_starve_another():
    """llama-swap and Ollama: requests for the loaded model go past the queue."""
    house = Shell(house_settings(scheduling=SchedulingSettings(max_swap_wait_s=20.0)), resident=("a",))
    house.arrive("a")
    starving = house.arrive("b")
    while starving not in house.running:
        assert house.now < 210.0, "b starves: twenty times the 10 s of a swap are over"
        house.arrive("a")
        if house.unloading:
            house.swap(5.0)
        else:
            house.at(house.now + 1.0).finish(min(house.running))


def test_a_free_slot_of_the_loaded_model_is_not_a_way_past_the_queue_for_fifo():
    house = Shell(house_settings(policy=PolicyName.FIFO, parallel=2), resident=("a",))
    house.arrive("a")
    house.arrive("b")
    house.arrive("a")
    assert set(house.running) == {1}


def test_a_request_that_races_the_unload_of_its_model_is_served_after_a_reload():
    """llama-swap #946: the group stayed dead for ever while health was green."""
    house = Shell(house_settings(home="h"), resident=("c",))
    house.tell(inputs.TimerFired())
    house.at(30.0)
    assert house.unloading == ["c"]
    late = house.arrive("c")
    assert house.unloaded() == ["load c"]
    assert house.loaded() == [f"start {late} on c"]


def test_a_model_unloaded_behind_our_back_at_the_instant_of_an_arrival_is_loaded_again():
    house = Shell(resident=("c",))
    house.tell(inputs.Unloaded(model="c"))
    late = house.arrive("c")
    assert house.said == ["load c"]
    assert house.loaded() == [f"start {late} on c"]


def test_looking_at_the_queue_never_changes_its_order():
    """donna: every refresh of the dashboard popped and appended again."""
    looked_at, left_alone = Shell(resident=("a",)), Shell(resident=("a",))
    for house in (looked_at, left_alone):
        for model in ("a", "b", "a", None, "b", "a"):
            house.arrive(model)
    for _ in range(3):
        looked_at.state.waiting.first(10)
        sorted(looked_at.state.running, key=lambda entry: entry.dispatched_at)
        assert len(looked_at.state.residency.latest_first) == len(looked_at.state.residency.residents)
    looked_at.quiesce()
    left_alone.quiesce()
    assert looked_at.log == left_alone.log


def test_a_load_that_timed_out_is_a_failure_and_not_a_model_in_memory():
    """donna: the timeout was recorded as a successful swap."""
    house = Shell()
    house.arrive("b")
    assert house.load_failed(permanent=True) == ["fail 1 load_failed"]
    assert "b" not in house.state.residency.residents
    assert house.state.estimates.swap_s("", "b") == 10.0


def test_work_of_equal_rank_never_stops_each_other_in_turn():
    """vLLM #54530: two requests of one priority preempted each other for ever."""
    house = Shell(resident=("a",))
    for model in ("a", "b", "a", "b"):
        house.arrive(model)
        house.internal(model)
        house.internal(model)
    house.quiesce(bound=60)
    stopped = [said for _, said in house.log if said.startswith("preempt")]
    assert stopped == ["preempt 1"]


def test_equal_priorities_are_served_in_order_of_arrival_and_never_by_chance():
    """LiteLLM: a heap of (priority, random id)."""
    house = Shell(resident=("a",))
    order = [house.internal("a") for _ in range(20)]
    for sequence in order:
        assert set(house.running) == {sequence}
        house.finish(sequence)


def test_an_arrival_in_the_middle_of_a_home_restore_leaves_no_swap_that_nobody_ends():
    """donna: the restore was a task beside the worker; cancelled midway it left a stale current swap."""
    house = Shell(house_settings(home="h"), resident=("c",))
    house.tell(inputs.TimerFired())
    house.at(30.0).unloaded()
    late = house.arrive("c")
    house.cancel(late)
    house.loaded()
    assert house.state.residency.swap is None
    assert set(house.state.residency.residents) == {"h"}
    assert house.timer is None


def test_a_model_is_not_evicted_under_running_work_however_long_that_takes():
    """LocalAI: the loop gave up waiting and loaded beside it."""
    house = Shell(resident=("a",))
    house.arrive("a")
    house.arrive("b")
    house.at(100_000.0)
    assert not house.unloading


def test_what_decides_runs_without_the_package_that_settings_are_made_with():
    program = "import sys, hearth.scheduling.core, hearth.admission.limits; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
