"""What Hearth is built to survive as a page: the table of tests/faults/table.py, which the tests
hold to what exists.
"""

from __future__ import annotations

from docs_build.markdown import code, table
from tests.faults.table import PARTS, Row

_INTRO = """# Faults

What Hearth is built to survive, and the folders of `tests/` that show it. For every row: nothing
that was accepted is lost or ended twice, nobody is answered with a defect, nothing is left over,
and Hearth recovers without a restart. Faults that can come at any time are tried at rest, with a
full queue and in the middle of a stream (`faults/test_phases.py`). """


def faults_page() -> str:
    """The page, a section for each part that fails."""
    return "\n".join([_INTRO, *(f"## {name}\n\n{_rows(rows)}\n" for name, rows in PARTS.items())])


def _rows(rows: list[Row]) -> str:
    return table(
        ("", "what happens", "what holds", "shown in"),
        [(row.key, row.fault, row.expected, _shown_in(row)) for row in rows],
    )


def _shown_in(row: Row) -> str:
    return "; ".join([*map(code, row.folders), *([row.left_out] if row.left_out else [])])
