"""Anything, in any order: no invariant breaks, and when the faults stop everything comes to rest."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.scheduling.machine import House
from tests.support.examples import EXAMPLES

CI = settings(max_examples=500 * EXAMPLES, stateful_step_count=50, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(300 * EXAMPLES)
def test_no_order_of_facts_breaks_the_scheduler_or_leaves_anything_behind() -> None:
    run_state_machine_as_test(House, settings=CI)
