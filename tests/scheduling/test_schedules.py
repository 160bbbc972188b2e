"""Rules 1, 2, 4, 5, 8, 9 and 11 over twenty-five thousand random schedules (about 0.9 ms each). A failure names the schedule's number:
`first_broken(range(number, number + 1))` runs it again."""

from __future__ import annotations

from tests.scheduling.schedules import Schedule, all_settings, first_broken
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

BLOCK = 5_000
BLOCKS = 5 * EXAMPLES


@for_each("block", range(BLOCKS))
def test_no_schedule_breaks_a_rule(block: int) -> None:
    broken = first_broken(range(block * BLOCK, block * BLOCK + BLOCK))
    assert broken is None, f"schedule {broken[0]}: {broken[1]}"


def test_the_schedules_contain_what_the_rules_are_about() -> None:
    pool, seen = all_settings(), [0, 0, 0]
    for number in range(1000):
        schedule = Schedule(number, pool[number % len(pool)])
        schedule.run()
        seen = [seen[0] + schedule.starts, seen[1] + schedule.loads, seen[2] + schedule.promotions]
    assert seen[0] > 3000
    assert seen[1] > 2000
    assert seen[2] > 80
