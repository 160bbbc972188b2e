"""The table of `rows.py` as values. `test_table.py` keeps it true: every test that is named exists; docs_build/ makes a page.

What holds for every row and is not repeated in it: nothing accepted is lost or ended twice, nobody is answered with a defect, nothing is
left over, and Hearth recovers without a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.faults.rows import TEXT

MATRIX: Final = "tests/faults/test_phases.py::test_nothing_is_lost_doubled_or_left_over_and_the_house_recovers"


@dataclass(slots=True)
class Row:
    """One fault; `proven_by` are pytest node ids, those of the phase matrix with their parameters."""

    key: str
    fault: str
    expected: str
    proven_by: list[str] = field(default_factory=list)
    left_out: str = ""


def _read(text: str) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        head, _, rest = line.strip().partition(": ")
        if line.startswith("# "):
            parts[line.removeprefix("# ")] = rows = list[Row]()
        elif line.startswith("F-"):
            fault, _, expected = rest.partition(" -> ")
            rows.append(Row(head, fault, expected))
        elif head == "in every phase":
            rows[-1].proven_by += (
                f"{MATRIX}[{fault}-{phase}]" for fault in rest.split(", ") for phase in ("at rest", "queue full", "mid-stream")
            )
        elif head == "left out":
            rows[-1].left_out = rest
        elif line:
            rows[-1].proven_by += (f"tests/{head}.py::test_{name}" for name in rest.split(", "))
    return parts


PARTS: Final = _read(TEXT)
"""Rows by the part that fails."""
