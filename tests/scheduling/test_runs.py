"""What shows only in longer runs: bounds on swaps and waits, what a decision costs, and that memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from hearth.config.settings import PackingMode, PackingSettings, PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling import inputs
from hearth.types import Lane, Priority
from tests.scheduling.worked import settings_of
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings


def shell(settings: str = "", *resident: str) -> Shell:
    return Shell(settings_of(settings), resident=resident)


def said(house: Shell, what: str) -> int:
    return sum(each.startswith(what) for _, each in house.log)


def test_overload_does_not_collapse_into_swapping():
    """Two models, more work than fits: swaps stay bounded by the residency that each must earn."""
    house = shell("policy=affinity max_swap_wait_s=5 residency_factor=3", "a")
    for model in "ab" * 150:
        house.arrive(model)
    while house.state.entries:
        if house.unloading:
            house.swap(10.0)
        house.at(house.now + 1.0).finish(min(house.running))
    assert said(house, "load") <= 300 / 30 + 2


@for_each(("settings", "left_at"), [("residency_factor=1", 20.0), ("residency_factor=5", 50.0)])
def test_no_slice_ends_before_the_model_has_earned_its_place(settings: str, left_at: float):
    house = shell(f"policy=time_slice time_slice.min_slice_factor=2.0 {settings}", "a")
    for model in "a" * 20 + "b" * 20:
        house.arrive(model)
    while house.running:
        house.at(house.now + 5.0).finish(min(house.running))
    assert house.now == left_at


@for_each(
    ("settings", "models", "loads"),
    [
        ("vram_gb=24 a:20 b:10 letter=2.5 study=22", "abc" * 10, range(31)),  # each load serves somebody before it is undone
        ("policy=fifo", "ab" * 6, [12]),
    ],
)
def test_models_that_take_turns_are_loaded_no_more_often_than_they_serve(settings: str, models: str, loads: Sequence[int]):
    house = shell(settings)
    for model in models:
        house.arrive(model)
    house.quiesce(bound=200)
    assert said(house, "start") == len(models)
    assert said(house, "load") in loads


def test_a_steady_stream_for_the_loaded_model_does_not_starve_another():
    """llama-swap and Ollama: requests for the loaded model go past the queue."""
    house = shell("policy=adaptive max_swap_wait_s=20", "a")
    house.arrive("a")
    starving = house.arrive("b")
    while starving not in house.running:
        assert house.now < 210.0, "b starves: twenty times the 10 s of a swap are over"
        house.arrive("a")
        if house.unloading:
            house.swap(5.0)
        else:
            house.at(house.now + 1.0).finish(min(house.running))


def test_work_of_equal_rank_never_stops_each_other_in_turn():
    """vLLM #54530: two requests of one priority preempted each other for ever."""
    house = shell("", "a")
    for model in "abab":
        house.arrive(model)
        house.internal(model)
        house.internal(model)
    house.quiesce(bound=60)
    assert [each for _, each in house.log if each.startswith("preempt")] == ["preempt 1"]


def test_looking_at_the_queue_never_changes_its_order():
    """donna: every refresh of the dashboard popped and appended again."""
    looked_at, left_alone = shell("", "a"), shell("", "a")
    for house in (looked_at, left_alone):
        for model in ("a", "b", "a", None, "b", "a"):
            house.arrive(model)
    for _ in range(3):
        assert len(looked_at.state.waiting.first(10)) == 5
        assert [len(looked_at.state.running), len(looked_at.state.residency.latest_first)] == [1, 1]
    looked_at.quiesce()
    left_alone.quiesce()
    assert looked_at.log == left_alone.log


def test_aging_is_by_the_clock_and_not_by_how_often_anybody_looks():
    often, seldom = (shell("aging.promote_after_s=100 aging.ceiling=critical", "a") for _ in range(2))
    for house in (often, seldom):
        house.internal("a", Priority.CRITICAL)
        house.internal("a", Priority.BACKGROUND)
    for second in range(250):
        often.at(float(second)).tell(inputs.TimerFired())
    seldom.lose_timer()
    seldom.at(249.0).tell(inputs.TimerFired())
    assert [each for _, each in often.log] == [each for _, each in seldom.log]
    assert often.state.promotions == 2


@for_each("order", [inputs.ExternalPaused(paused=True), inputs.ModelPinned(model="a")])
def test_no_guess_swaps_away_what_the_owner_holds(order: inputs.Input):
    """a is in memory, and the caller is likely to ask for b next."""
    house = shell("policy=adaptive", "b")
    for model in "ba" * 5:
        house.at(house.now + 2.0)
        sequence = house.arrive(model, caller="agent")
        if house.unloading:
            house.swap(1.0)
        house.finish(sequence)
    house.tell(order)
    house.at(house.now + 1.0)
    assert not house.unloading


@for_each("after_s", [2.6, 4.9, 40.0])
@for_each("priority", list(Priority))
@for_each("model", ["a", "b"])
def test_internal_work_waits_for_an_answer_that_would_start_over_no_longer_than_the_bound(priority, after_s, model):
    house = shell("policy=adaptive preempt_restart_bound_s=2 preempt_min_remaining_s=0", "a")
    house.arrive("a")
    house.at(after_s).internal(model, priority)
    house.at(after_s + 1.99)
    waited = not house.stopping
    house.at(after_s + 2.0)
    assert house.stopping == {1}
    assert waited or priority is Priority.CRITICAL


def test_announcements_that_are_past_or_told_again_are_forgotten():
    house = shell("", "a")
    for moment in range(100):
        house.at(moment * 0.5)
        house.tell(inputs.Scheduled(task_type="digest", due_at=1000.0 + moment % 2 * 1e-6))
    assert len(house.state.announced) == 1
    for day in range(100):
        house.at(1000.0 + day * 100.0)
        house.tell(inputs.Scheduled(task_type=f"task {day}", due_at=house.now + 50.0))
    assert len(house.state.announced) <= 2


def evicted(newcomer_gb: float, sizes_gb: dict[str, float]) -> list[str]:
    told = " ".join(f"{name}:{size}" for name, size in sizes_gb.items())
    house = shell(f"vram_gb=24 {told} big:{newcomer_gb}", *sizes_gb)
    house.arrive("big")
    return house.unloading


def test_among_many_models_no_more_are_evicted_than_needed():
    assert len(evicted(20.0, {f"m{number}": 2.0 for number in range(12)})) == 10
    assert evicted(12.0, {f"m{number}": 1.0 for number in range(12)} | {"m12": 12.0}) == ["m12"]
    many = {f"m{number:02}": 0.5 for number in range(20)} | {f"n{number}": 2.0 for number in range(7)}
    assert set(evicted(12.0, many)) <= {name for name in many if name.startswith("n")}, "too many sets to look at: the largest go"


def calls_of(settings: SchedulerSettings, depth: int, lane: Lane = Lane.EXTERNAL) -> int:
    """Function calls, built-in ones included, of twenty arrivals and ends with `depth` items waiting."""
    house = Shell(settings, resident=("a",), judged=False)
    for number in range(depth):
        house.arrive("abc"[number % 3], lane=lane, priority=Priority.BACKGROUND, prompt_tokens=number % 90)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        for _ in range(20):
            house.arrive("a")
            if house.unloading:
                house.swap()
            house.finish(min(house.running))
            if house.unloading:
                house.swap()
    finally:
        sys.setprofile(None)
    return calls


PACKED = SchedulingSettings(packing=PackingSettings(mode=PackingMode.PACK, lookahead=16))


@for_each(
    ("settings", "lane"),
    [
        *((house_settings(policy=policy), Lane.EXTERNAL) for policy in PolicyName),
        (house_settings(scheduling=PACKED, parallel=3), Lane.EXTERNAL),
        (house_settings(), Lane.INTERNAL),
    ],
)
def test_a_decision_costs_the_same_with_a_hundred_times_as_many_waiting(settings: SchedulerSettings, lane: Lane) -> None:
    assert calls_of(settings, 6_000, lane) <= 1.5 * calls_of(settings, 60, lane)


def test_what_decides_runs_without_the_package_that_settings_are_made_with():
    program = "import sys, hearth.scheduling.core, hearth.admission.limits; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
