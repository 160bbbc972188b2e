"""The table that puts policies side by side. Draws nothing itself: the caller prints it. Called by `hearth simulate`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from hearth.simulation.measures import Summary


def comparison(summaries: Mapping[str, Summary]) -> Table:
    """One row a policy, in the order given."""
    table = Table()
    table.add_column("policy")
    for heading in ("makespan s", "swaps", "swap s", "busy %", "mean wait s", "p95 wait s", "max wait s"):
        table.add_column(heading, justify="right")
    for policy, row in summaries.items():
        table.add_row(policy, *_cells(row))
    return table


def _cells(row: Summary) -> tuple[str, ...]:
    return (
        f"{row.makespan_s:.1f}",
        str(row.swaps),
        f"{row.swap_s:.1f}",
        f"{row.busy_pct:.1f}",
        f"{row.mean_wait_s:.2f}",
        f"{row.p95_wait_s:.2f}",
        f"{row.max_wait_s:.2f}",
    )
