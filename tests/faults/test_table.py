"""The table of faults is complete, and everything it names exists."""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import PARTS, Row
from tests.faults.test_phases import FAULTS
from tests.support.cases import for_each

TESTS = Path(__file__).parents[1]
ROWS = [row for rows in PARTS.values() for row in rows]


def test_every_fault_has_one_row():
    assert [row.key for row in ROWS] == [f"F-{number:02}" for number in range(1, 114)]


@for_each("row", ROWS)
def test_a_row_says_something_and_every_module_that_it_names_has_tests(row: Row):
    assert row.fault
    assert row.expected
    assert row.modules or row.left_out
    assert [module for module in row.modules if "def test_" not in (TESTS / f"{module}.py").read_text()] == []
    assert len(set(row.modules)) == len(row.modules)


def test_every_fault_of_the_phase_matrix_stands_in_a_row():
    assert {fault for row in ROWS for fault in row.phases} == set(FAULTS)
