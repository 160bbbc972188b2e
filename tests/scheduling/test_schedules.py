"""The rules over thousands of random schedules, a millisecond each. A failure names the number: `Schedule(17).run()` runs it again."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scheduling.schedules import Schedule
from tests.support.examples import EXAMPLES

BLOCK = 4_000
BLOCKS = 2 if EXAMPLES == 1 else 6 * EXAMPLES


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_breaks_a_rule_and_they_contain_what_the_rules_are_about(block: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(block * BLOCK, block * BLOCK + BLOCK):
        schedule = Schedule(number)
        try:
            schedule.run()
        except Exception as broken:
            broken.add_note(f"schedule {number}")
            raise
        seen.update({"starts": schedule.starts, "loads": schedule.loads, "promotions": schedule.promotions})
    assert seen > Counter({"starts": 3 * BLOCK, "loads": 2 * BLOCK, "promotions": BLOCK // 12})
