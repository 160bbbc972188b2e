"""Every fault that Hearth is built for, what must hold when it happens, and the tests that show it.

The rows are in `tests/faults/rows/`, one module per part of the house. `test_table.py` keeps them true: every test that is named exists,
and no row is empty; docs_build/ makes a page of them. What holds for every row and is not repeated in it: nothing accepted is lost or ended
twice, nobody is answered with a defect, nothing is left over, and the house recovers without a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MATRIX: Final = "tests/faults/test_phases.py::test_nothing_is_lost_doubled_or_left_over_and_the_house_recovers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    Attributes:
        key: short and stable, for commits and tests.
        proven_by: pytest node ids; those of the phase matrix with their parameters.
        left_out: why no test can show it, where none does.
    """

    key: str
    fault: str
    expected: str
    proven_by: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The faults of one part of the house."""

    name: str
    rows: tuple[Row, ...]


def shown(file: str, *names: str) -> tuple[str, ...]:
    """Node ids of `test_NAME` in a file under tests/."""
    return tuple(f"tests/{file}.py::test_{name}" for name in names)


def in_every_phase(*faults: str) -> tuple[str, ...]:
    """Node ids of the phase matrix: at rest, with a full queue, in the middle of a stream."""
    return tuple(f"{MATRIX}[{fault}-{phase}]" for fault in faults for phase in ("at rest", "queue full", "mid-stream"))


def row(key: str, fault: str, expected: str, *proofs: tuple[str, ...], left_out: str = "") -> Row:
    """A row whose proofs are what `shown` and `in_every_phase` give."""
    return Row(key=key, fault=fault, expected=expected, proven_by=tuple(node for proof in proofs for node in proof), left_out=left_out)
