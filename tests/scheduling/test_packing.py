"""Rule 9: admission in rounds of prompt tokens, in order or the smallest first (roseinfer's prefill admission packing)."""

from __future__ import annotations

from hearth.config.settings import PackingMode, PackingSettings, SchedulerSettings, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.packing import chosen
from hearth.types import Lane, Priority
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

PACK, FIFO = PackingMode.PACK, PackingMode.FIFO


def rounds(
    mode: PackingMode = PACK,
    *,
    tokens: int | None = 400,
    lookahead: int = 64,
    every: int = 0,
    parallel: int = 4,
    home: str = "",
) -> SchedulerSettings:
    packing = PackingSettings(mode=mode, prefill_max_tokens=tokens, lookahead=lookahead, force_fifo_every=every)
    return house_settings(scheduling=SchedulingSettings(packing=packing), parallel=parallel, home=home)


def fill(house: Shell, *prompts: int, lane: Lane = Lane.EXTERNAL) -> None:
    """While the model server is down, so that all are there when the round begins."""
    house.tell(inputs.BackendDown())
    for tokens in prompts:
        house.arrive("a", prompt_tokens=tokens, lane=lane)
    house.tell(inputs.BackendUp())


def begun(settings: SchedulerSettings, *prompts: int) -> list[str]:
    house = Shell(settings, resident=("a",))
    fill(house, *prompts)
    return house.said


def test_a_prompt_larger_than_a_round_does_not_block_the_small_ones_behind_it():
    assert begun(rounds(tokens=4, parallel=8), 100, 2, 2) == ["start 2 on a", "start 3 on a"]


def test_where_every_prompt_is_larger_than_a_round_the_first_goes_alone():
    assert begun(rounds(tokens=4, parallel=8), 100, 100) == ["start 1 on a"]


def test_the_smallest_prompts_go_first_and_start_in_the_order_they_came():
    assert begun(rounds(), 300, 120, 200, 50) == ["start 2 on a", "start 3 on a", "start 4 on a"]


def test_in_order_a_round_ends_before_the_first_prompt_that_does_not_fit():
    assert begun(rounds(FIFO), 300, 120, 50) == ["start 1 on a"]


def test_in_order_a_prompt_larger_than_a_round_goes_alone():
    assert begun(rounds(FIFO), 500, 1, 1) == ["start 1 on a"]


def test_only_so_many_waiting_items_are_looked_at():
    assert begun(rounds(lookahead=2), 300, 350, 1, 1) == ["start 1 on a"]


def test_no_more_start_than_there_are_free_slots():
    assert begun(rounds(parallel=2), 10, 10, 10) == ["start 1 on a", "start 2 on a"]


def test_a_single_free_slot_goes_to_the_first_in_line():
    house = Shell(rounds(parallel=2), resident=("a",))
    house.arrive("a")
    fill(house, 300, 1)
    assert house.said == ["start 2 on a"]


def test_a_model_with_one_slot_serves_in_order_and_knows_no_rounds():
    house = Shell(rounds(parallel=1), resident=("a",))
    fill(house, 900, 1)
    assert house.said == ["start 1 on a"]
    assert house.finish(1) == ["start 2 on a"]


def test_the_next_round_begins_when_the_prompts_of_the_last_are_read():
    house = Shell(rounds(), resident=("a",))
    fill(house, 200, 200, 300, 100)
    assert house.said == ["start 1 on a", "start 4 on a"]
    assert house.at(0.05).first_byte(1, forwarded=True) == []
    assert house.at(0.06).first_byte(4, forwarded=True) == ["start 2 on a"]


def test_where_no_first_byte_comes_the_next_round_begins_when_reading_ought_to_be_done():
    """What does not stream answers with its last byte only."""
    house = Shell(rounds(), resident=("a",))
    fill(house, 300, 300)
    assert house.said == ["start 1 on a"]
    house.at(1.0)
    assert house.log[-1] == (0.3, "start 2 on a")


def test_an_attempt_that_ends_while_its_prompt_is_read_ends_its_part_of_the_round():
    house = Shell(rounds(), resident=("a",))
    fill(house, 300, 300)
    assert house.at(0.1).finish(1) == ["start 2 on a"]


def test_every_so_many_rounds_one_goes_in_order_so_that_a_long_prompt_is_not_passed_for_ever():
    house = Shell(rounds(tokens=100, every=3, parallel=8), resident=("a",))
    fill(house, 500, *(60 for _ in range(6)))
    for _ in range(3):
        house.at(house.now + 1.0)
    assert [said for _, said in house.log][:3] == [f"start {number} on a" for number in (2, 3, 1)]


def test_a_round_never_reaches_across_bands():
    house = Shell(rounds(), resident=("a",))
    house.tell(inputs.BackendDown())
    for tokens in (10, 10):
        house.arrive("a", prompt_tokens=tokens)
    house.internal("a")
    house.arrive("a", prompt_tokens=390, lane=Lane.INTERNAL)
    house.tell(inputs.BackendUp())
    assert house.said == ["start 3 on a", "start 4 on a"]
    assert house.at(0.39).said == ["start 1 on a", "start 2 on a"]


def test_work_of_a_more_urgent_band_does_not_wait_for_a_round_of_a_lower_one():
    house = Shell(rounds(), resident=("a",))
    fill(house, 390)
    urgent = house.arrive("a", lane=Lane.INTERNAL, priority=Priority.CRITICAL, prompt_tokens=390)
    assert house.said == [f"start {urgent} on a"]


def test_less_urgent_work_waits_for_the_round_of_a_more_urgent_band():
    house = Shell(rounds(), resident=("a",))
    house.arrive("a", lane=Lane.INTERNAL, prompt_tokens=390)
    later = house.arrive("a", prompt_tokens=10)
    assert house.said == []
    assert house.at(0.2).first_byte(1, forwarded=True) == [f"start {later} on a"]


def test_work_for_any_model_waits_for_the_round_too():
    house = Shell(rounds(home="a"), resident=("a",))
    fill(house, 390)
    house.arrive(None, prompt_tokens=10)
    assert house.said == []
    house.at(0.39)
    assert house.log[-1] == (0.39, "start 2 on a")


def test_items_that_would_overrun_an_announced_task_are_not_packed():
    house = Shell(rounds(parallel=3), resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=4.0))
    house.tell(inputs.BackendDown())
    house.arrive("a", max_tokens=40, prompt_tokens=200)
    house.arrive("a", max_tokens=400, prompt_tokens=10)
    house.arrive("a", max_tokens=40, prompt_tokens=20)
    house.tell(inputs.BackendUp())
    assert house.said == ["start 1 on a", "start 3 on a"]


def test_the_houses_own_items_are_packed_whatever_is_announced():
    house = Shell(rounds(), resident=("a",))
    house.tell(inputs.Scheduled(task_type="digest", due_at=4.0))
    fill(house, 10, 10, lane=Lane.INTERNAL)
    assert house.said == ["start 1 on a", "start 2 on a"]


def test_pack_without_a_size_of_its_own_takes_rounds_of_2048_tokens():
    assert begun(rounds(tokens=None), 2000, 100, 100) == ["start 2 on a", "start 3 on a"]


def test_without_a_size_admission_in_order_fills_every_slot_at_once():
    assert begun(rounds(FIFO, tokens=None), 9000, 9000, 9000) == ["start 1 on a", "start 2 on a", "start 3 on a"]


def test_what_waits_for_a_round_keeps_its_model_in_memory():
    house = Shell(rounds(), resident=("a",))
    fill(house, 390, 390)
    house.arrive("b")
    assert house.said == []
    assert house.at(0.39).log[-1] == (0.39, "start 2 on a")


@for_each(
    ("costs", "slots", "budget", "in_line", "packed"),
    [
        ([5, 5, 5], 8, 10, [0, 1], [0, 1]),
        ([9, 5, 5], 8, 10, [0], [1, 2]),
        ([11, 1, 1], 8, 10, [0], [1, 2]),
        ([11, 12], 8, 10, [0], [0]),
        ([1, 1, 1, 1], 2, 10, [0, 1], [0, 1]),
        ([4, 3, 2, 1], 8, 6, [0], [1, 2, 3]),
        ([0, 0, 20], 8, 10, [0, 1], [0, 1]),
        ([10], 8, 10, [0], [0]),
    ],
)
def test_the_two_ways_of_choosing(costs: list[float], slots: int, budget: float, in_line: list[int], packed: list[int]) -> None:
    assert chosen(costs, slots=slots, budget=budget, packs=False) == in_line
    assert chosen(costs, slots=slots, budget=budget, packs=True) == packed
