"""The history of weeks: the log added up by hour, caller and model.

The writer adds rows up when it has nothing better to do (`roll_up`), so a request costs nothing for it; what is not added up yet is read
from the log itself. Waits are counted in ranges, which percentiles are interpolated in.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

HOUR_S = 3600.0
WAIT_BOUNDS_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0)
"""The last range has no upper end: a percentile in it is taken to be below 2 h."""
ROWS_PER_STEP = 500

_WAITS = tuple(f"w{number}" for number in range(len(WAIT_BOUNDS_S) - 1))
Row = dict[str, Any]
_SUMS = ("requests", "failed", "prompt_tokens", "output_tokens", "backend_s", *_WAITS)
_ADDED = {*_SUMS, "swaps", "swap_s"}
_RANGES = tuple(pairwise(WAIT_BOUNDS_S))
_IN_RANGE = ", ".join(f"SUM(queue_s >= {low}{f' AND queue_s < {high}' if high != WAIT_BOUNDS_S[-1] else ''})" for low, high in _RANGES)
_MARK = "COALESCE((SELECT invocation_id FROM usage_mark WHERE invocation_id <= (SELECT MAX(id) FROM invocation_log)), 0)"
"""Ids begin anew once all rows have been deleted."""
_OF_LOG = (
    "SELECT CAST(ended_wall_s / 3600 AS INTEGER) AS hour, caller, COALESCE(model, '') AS model, COUNT(*) AS requests, "  # noqa: S608 - our names
    "SUM(outcome IN ('failed', 'expired')) AS failed, SUM(COALESCE(prompt_tokens, 0)), SUM(COALESCE(output_tokens, 0)), "
    f"SUM(COALESCE(backend_s, 0.0)), {_IN_RANGE} FROM invocation_log WHERE id > {_MARK}"
)
_NEXT = f"SELECT COUNT(*), MAX(id) FROM (SELECT id FROM invocation_log WHERE id > {_MARK} ORDER BY id LIMIT {ROWS_PER_STEP})"  # noqa: S608
_ROLL_UP = (
    f"INSERT INTO usage_hours {_OF_LOG} AND id <= ? GROUP BY 1, 2, 3 ON CONFLICT (hour, caller, model) "
    f"DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
)
USED = (
    f"WITH used AS (SELECT * FROM usage_hours WHERE hour > :last - :hours UNION ALL {_OF_LOG} "  # noqa: S608 - our names
    "AND +ended_wall_s >= (:last - :hours + 1) * 3600 GROUP BY 1, 2, 3) "
    f"SELECT (:last - hour) / :width AS age, caller, model, {', '.join(f'SUM({name}) AS {name}' for name in _SUMS)} FROM used "
    "WHERE hour <= :last AND (:caller IS NULL OR caller = :caller) GROUP BY 1, 2, 3"
)
SWAPPED = (
    "SELECT (:last - CAST(ended_wall_s / 3600 AS INTEGER)) / :width AS age, to_model AS model, COUNT(*) AS swaps, SUM(swap_s) AS swap_s "
    "FROM swaps WHERE NOT failed AND ended_wall_s >= (:last - :hours + 1) * 3600 AND ended_wall_s < (:last + 1) * 3600 GROUP BY 1, 2"
)
_FORGET = "DELETE FROM usage_hours WHERE hour = (SELECT MIN(hour) FROM usage_hours) AND hour < ?"


def roll_up(connection: sqlite3.Connection) -> bool:
    """Add the next rows of the log up, in a transaction of the caller's; False where they are too few to be worth it."""
    count, last = connection.execute(_NEXT).fetchone()
    if count < ROWS_PER_STEP:
        return False
    connection.execute(_ROLL_UP, (last,))
    connection.execute("UPDATE usage_mark SET invocation_id = ?", (last,))
    return True


def forget_hour(connection: sqlite3.Connection, before_wall_s: float) -> bool:
    """Delete the oldest hour that ended before this instant; whether there was one."""
    return connection.execute(_FORGET, (int(before_wall_s / HOUR_S),)).rowcount > 0


@dataclass(frozen=True, slots=True)
class Used:
    """What some of the requests used, added up."""

    sums: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Used:
        """The sum of rows of both questions."""
        sums = Counter[str]()
        for row in rows:
            for name in row.keys() & _ADDED:
                sums[name] += row[name]
        return cls(sums)

    def wait_s(self, share: float) -> float | None:
        """The wait that this share of the requests did not exceed, interpolated in its range; None without requests."""
        left = share * sum(self.sums[name] for name in _WAITS)
        if not left:
            return None
        for name, (low, high) in zip(_WAITS, _RANGES, strict=True):
            if left <= self.sums[name]:
                return low + (high - low) * left / self.sums[name]
            left -= self.sums[name]
        return WAIT_BOUNDS_S[-1]

    def shown(self) -> dict[str, object]:
        """As JSON has it; the share of swaps is that of the time in which the GPU worked or loaded."""
        sums, (p50, p95) = self.sums, (self.wait_s(share) for share in (0.5, 0.95))
        worked_s = sums["backend_s"] + sums["swap_s"]
        return {
            **{name: int(sums[name]) for name in ("requests", "failed", "prompt_tokens", "output_tokens", "swaps")},
            **{name: round(float(sums[name]), 1) for name in ("backend_s", "swap_s")},
            "wait_p50_s": None if p50 is None else round(p50, 2),
            "wait_p95_s": None if p95 is None else round(p95, 2),
            "swap_share": round(sums["swap_s"] / worked_s, 3) if worked_s else None,
        }


def usage_shown(used: Sequence[Row], swapped: Sequence[Row], *, last_hour: int, hours: int, width_hours: int) -> dict[str, object]:
    """As JSON, of the rows of `USED` and `SWAPPED`: oldest bucket first, callers and models by their requests."""
    rows = [*used, *swapped]
    buckets, models, callers = _added(rows, "age"), _added(rows, "model"), _added(used, "caller")
    ages = range(hours // width_hours - 1, -1, -1)
    starts = {age: (last_hour + 1 - (age + 1) * width_hours) * HOUR_S for age in ages}
    return {
        "total": Used.of(rows).shown(),
        "buckets": [{"start_wall_s": starts[age], **(buckets.get(age) or Used()).shown()} for age in ages],
        "callers": [{"caller": name, **each.shown()} for name, each in callers.items()],
        "models": [{"model": name or None, **each.shown()} for name, each in models.items()],
    }


def _added(rows: Sequence[Row], key: str) -> dict[object, Used]:
    """What the rows of each value of a column used, most requests first."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    added = {value: Used.of(each) for value, each in found.items()}
    return dict(sorted(added.items(), key=lambda pair: -pair[1].sums["requests"]))
