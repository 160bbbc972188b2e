"""The table of faults is complete, and everything it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import product
from pathlib import Path

from tests.faults.table import MATRIX, PARTS, Row
from tests.faults.test_phases import FAULTS, PHASES
from tests.support.cases import for_each

ROOT = Path(__file__).parents[2]
ROWS = [row for rows in PARTS.values() for row in rows]


@cache
def collected_from(file: str) -> frozenset[str]:
    """Functions that pytest would collect from a file; empty where there is none."""
    path = ROOT / file
    if not (path.is_file() and path.name.startswith("test_")):
        return frozenset()
    source = path.read_text()
    found = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if "scheduling.worked" in source:  # a table, in which each title is one
        titles = re.findall(r"^([a-z][^\[\n]*?)(?: \[.*)?$", source, flags=re.MULTILINE)
        found |= {f"test_{title.replace(' ', '_')}" for title in titles}
    return frozenset(name for name in found if name.startswith("test_"))


def exists(node: str) -> bool:
    file, _, rest = node.partition("::")
    name, _, parameters = rest.partition("[")
    if not parameters:
        return name in collected_from(file)
    return f"{file}::{name}" == MATRIX and parameters.removesuffix("]") in {"-".join(pair) for pair in product(FAULTS, PHASES)}


def test_every_fault_has_one_row():
    assert [row.key for row in ROWS] == [f"F-{number:02}" for number in range(1, 114)]


@for_each("row", ROWS)
def test_a_row_says_something_and_everything_that_it_names_exists(row: Row):
    assert row.fault
    assert row.expected
    assert row.proven_by or row.left_out
    assert [node for node in row.proven_by if not exists(node)] == []
    assert len(set(row.proven_by)) == len(row.proven_by)


def test_every_fault_of_the_phase_matrix_stands_in_a_row():
    named = {node for row in ROWS for node in row.proven_by if node.startswith(MATRIX)}
    assert named == {f"{MATRIX}[{fault}-{phase}]" for fault in FAULTS for phase in PHASES}


def test_what_is_not_there_is_noticed():
    assert not exists("tests/faults/test_table.py::test_no_such")
    assert not exists("tests/faults/test_nowhere.py::test_every_fault_has_one_row")
    assert not exists(f"{MATRIX}[no such fault-at rest]")
