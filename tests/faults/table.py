"""The table of `rows.py` as values. `test_table.py` keeps it true, docs_build/ makes a page of it.

What holds for every row and is not repeated in it: nothing accepted is lost or ended twice, nobody is answered with a defect, nothing is
left over, and Hearth recovers without a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.faults.rows import TEXT


@dataclass(slots=True)
class Row:
    """One fault; `phases` are those of the phase matrix, `modules` the test modules as `faults/test_phases`."""

    key: str
    fault: str
    expected: str
    phases: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
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
            rows[-1].phases = rest.split(", ")
            rows[-1].modules.append("faults/test_phases")
        elif head == "shown in":
            rows[-1].modules += rest.split(", ")
        elif head == "left out":
            rows[-1].left_out = rest
    return parts


PARTS: Final = _read(TEXT)
"""Rows by the part that fails."""
