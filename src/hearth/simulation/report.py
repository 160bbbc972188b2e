"""The table that puts policies side by side. Draws nothing itself: the caller prints it. Called by `hearth simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from hearth.simulation.measures import Findings, LaneWaits
from hearth.types import Lane


def comparison(found: Iterable[Findings], *, title: str | None = None) -> Table:
    """One row a policy, in the order given; a column of waits for each lane that had any work."""
    rows = list(found)
    lanes = [lane for lane in Lane if any(lane in row.lanes for row in rows)]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_edge=False)
    table.add_column("policy", header_style="dim", no_wrap=True)
    for heading in _headings(lanes):
        table.add_column(heading, justify="right", header_style="dim")
    for row in rows:
        table.add_row(row.policy, *_cells(row, lanes))
    return table


def _headings(lanes: Sequence[Lane]) -> list[str]:
    waits = [f"{lane.value} wait s\nmean / p95 / max" for lane in lanes]
    return ["makespan\ns", "swaps", "swapping\n%", "busy\n%", *waits, "interrupted", "estimate off by\nmedian s (%)"]


def _cells(row: Findings, lanes: Sequence[Lane]) -> list[str]:
    return [
        f"{row.summary.makespan_s:,.1f}",
        f"{row.summary.swaps:,}",
        f"{row.swap_pct:.1f}",
        f"{row.summary.busy_pct:.1f}",
        *(_waits(row.lanes.get(lane)) for lane in lanes),
        f"{sum(lane.interrupts for lane in row.lanes.values()):,}",
        _estimate(row),
    ]


def _waits(waits: LaneWaits | None) -> str:
    return "-" if waits is None else " / ".join(_seconds(value) for value in (waits.mean_wait_s, waits.p95_wait_s, waits.max_wait_s))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _estimate(row: Findings) -> str:
    error = row.estimates
    if error is None or error.median_error_s is None:
        return "-"
    share = "" if error.median_error_pct is None else f" ({error.median_error_pct:.0f})"
    return _seconds(error.median_error_s) + share
