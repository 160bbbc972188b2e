"""The log added up hour by hour, so that weeks of it are read in milliseconds. What is not added up
yet is read from the log itself.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, starmap
from typing import Any

from hearth.types import HOUR_S, JsonDict

WAIT_BOUNDS_S = (
    0.0,
    0.1,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    7200.0,
)
"""The last range has no upper end: a percentile in it is taken to be below 2 h."""
ROWS_PER_STEP = 500
CALLER_WINDOWS = {"24h": 24, "30d": 720}
"""Hours of what is added up for each caller."""
_LONGEST = max(CALLER_WINDOWS.values())

_RANGES = tuple(pairwise(WAIT_BOUNDS_S))
_WAITS = tuple(f"w{number}" for number in range(len(_RANGES)))
_COUNTS = ("requests", "failed", "prompt_tokens", "output_tokens")
_SUMS = (*_COUNTS, "backend_s", *_WAITS, "bounded", "bounds_kept")
_ADDED = (*_SUMS, "swaps", "swap_s")


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _waits_between(low: float, high: float) -> str:
    """Counts the requests whose wait was in a range."""
    below = "" if high == WAIT_BOUNDS_S[-1] else f" AND queue_s < {high}"
    return f"SUM(queue_s >= {low}{below})"


# ids begin anew once all rows have been deleted, and a mark beyond them counts for nothing
_MARK = """
    COALESCE(
      (
        SELECT invocation_id FROM usage_mark
        WHERE invocation_id <= (SELECT MAX(id) FROM invocation_log)
      ),
      0
    )
"""
# the columns of `usage_hours` in their order: `_ROLL_UP` inserts them by position
_OF_LOG = f"""
    SELECT
      CAST(ended_wall_s / 3600 AS INTEGER) AS hour,
      caller,
      COALESCE(model, '') AS model,
      COUNT(*) AS requests,
      SUM(outcome IN ('failed', 'expired')) AS failed,
      SUM(COALESCE(prompt_tokens, 0)),
      SUM(COALESCE(output_tokens, 0)),
      SUM(COALESCE(backend_s, 0.0)),
      {_listed(starmap(_waits_between, _RANGES))},
      COUNT(bound_kept),
      COALESCE(SUM(bound_kept), 0)
    FROM invocation_log
    WHERE id > {_MARK}
"""
_NEXT = f"""
    SELECT COUNT(*), MAX(id) FROM (
      SELECT id FROM invocation_log
      WHERE id > {_MARK}
      ORDER BY id
      LIMIT {ROWS_PER_STEP}
    )
"""
_ROLL_UP = f"""
    INSERT INTO usage_hours
    {_OF_LOG} AND id <= ?
    GROUP BY 1, 2, 3
    ON CONFLICT (hour, caller, model) DO UPDATE SET
      {_listed(f"{name} = {name} + excluded.{name}" for name in _SUMS)}
"""


def roll_up(connection: sqlite3.Connection) -> bool:
    """Add the next rows of the log up, in a transaction of the caller's; False where they are too
    few to be worth it.
    """
    count, last = connection.execute(_NEXT).fetchone()
    if count < ROWS_PER_STEP:
        return False
    connection.execute(_ROLL_UP, (last,))
    connection.execute("UPDATE usage_mark SET invocation_id = ?", (last,))
    return True


def _summed_from(hours: str) -> str:
    return f"""
        SELECT
          (:last - hour) / :width AS age, caller, model,
          {_listed(f"SUM({name}) AS {name}" for name in _SUMS)}
        FROM {hours}
        WHERE hour > :last - :hours
          AND hour <= :last
          AND (:caller IS NULL OR caller = :caller)
        GROUP BY 1, 2, 3
    """


# the plus keeps SQLite from the index by end: the mark leaves fewer rows
_USED = f"""
    WITH recent (hour, caller, model, {_listed(_SUMS)}) AS (
      {_OF_LOG} AND +ended_wall_s >= (:last - :hours + 1) * 3600
      GROUP BY 1, 2, 3
    )
    {_summed_from("usage_hours")}
    UNION ALL
    {_summed_from("recent")}
"""
_SWAPPED = """
    SELECT
      (:last - CAST(ended_wall_s / 3600 AS INTEGER)) / :width AS age,
      to_model AS model,
      COUNT(*) AS swaps,
      SUM(swap_s) AS swap_s
    FROM swaps
    WHERE NOT failed
      AND ended_wall_s >= (:last - :hours + 1) * 3600
      AND ended_wall_s < (:last + 1) * 3600
    GROUP BY 1, 2
"""


_OF_CALLER = {
    f"{name}_{window}": f"SUM({name} * (hour > :last - {hours}))"
    for window, hours in CALLER_WINDOWS.items()
    for name in _COUNTS
}
# the rows of the last hour say when it was: no index leads from a caller to its rows
_CALLERS = f"""
    WITH recent (hour, caller, model, {_listed(_SUMS)}) AS (
      {_OF_LOG} AND +ended_wall_s >= (:last - {_LONGEST} + 1) * 3600
      GROUP BY 1, 2, 3
    ),
    hours AS (
      SELECT hour, caller, {_listed(_COUNTS)} FROM usage_hours
      UNION ALL
      SELECT hour, caller, {_listed(_COUNTS)} FROM recent
    ),
    callers AS (
      SELECT
        caller,
        MAX(hour) AS hour,
        {_listed(f"{sums} AS '{name}'" for name, sums in _OF_CALLER.items())}
      FROM hours
      WHERE hour > :last - {_LONGEST}
        AND hour <= :last
        AND (:caller IS NULL OR caller = :caller)
      GROUP BY caller
    )
    SELECT *, COALESCE(
      (
        SELECT MAX(log.ended_wall_s) FROM invocation_log AS log
        WHERE log.ended_wall_s >= callers.hour * 3600
          AND log.ended_wall_s < (callers.hour + 1) * 3600
          AND log.caller = callers.caller
      ),
      callers.hour * 3600.0
    ) AS last_end_wall_s
    FROM callers
"""


def by_caller(asked: Mapping[str, Any], connection: sqlite3.Connection) -> dict[str, JsonDict]:
    """As JSON: what each caller, or one `caller`, used in each of `CALLER_WINDOWS` up to and with
    the `last` hour, and when its last item ended; of rows that are deleted already, the hour.
    """
    return {
        row["caller"]: {
            window: {name: row[f"{name}_{window}"] for name in _COUNTS} for window in CALLER_WINDOWS
        }
        | {"last_end_wall_s": row["last_end_wall_s"]}
        for row in connection.execute(_CALLERS, asked)
    }


def used(asked: Mapping[str, Any], connection: sqlite3.Connection) -> JsonDict:
    """As JSON: what the `caller`, or all for None, used in the `hours` up to and with the `last`
    one, in buckets of `width` hours; swaps are always those of all.

    Oldest bucket first, callers and models by their requests.
    """
    requests = list(map(dict, connection.execute(_USED, asked)))
    rows = requests + list(map(dict, connection.execute(_SWAPPED, asked)))
    buckets = _added(rows, "age")
    last = asked["last"]
    width = asked["width"]
    return {
        "total": _shown(_summed(rows)),
        "buckets": [
            {
                "start_wall_s": (last + 1 - (age + 1) * width) * HOUR_S,
                **_shown(buckets.get(age, Counter())),
            }
            for age in reversed(range(asked["hours"] // width))
        ],
        "callers": [
            {"caller": name, **_shown(sums)} for name, sums in _added(requests, "caller").items()
        ],
        "models": [
            {"model": name or None, **_shown(sums)} for name, sums in _added(rows, "model").items()
        ],
    }


def _summed(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter({name: sum([row.get(name, 0) for row in rows]) for name in _ADDED})


def _added(rows: Sequence[Mapping[str, Any]], key: str) -> dict[Any, Counter[str]]:
    """The sums of the rows of each value of a column, most requests first."""
    found: dict[object, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    added = {value: _summed(each) for value, each in found.items()}
    return dict(sorted(added.items(), key=lambda pair: -pair[1]["requests"]))


def _shown(sums: Counter[str]) -> JsonDict:
    """As JSON has it; the share of swaps is that of the time in which the GPU worked or loaded."""
    worked_s = sums["backend_s"] + sums["swap_s"]
    return {
        **{name: int(sums[name]) for name in (*_COUNTS, "swaps")},
        **{name: round(float(sums[name]), 1) for name in ("backend_s", "swap_s")},
        "wait_p50_s": _wait_s(sums, 0.5),
        "wait_p95_s": _wait_s(sums, 0.95),
        "bound_kept_share": (
            round(sums["bounds_kept"] / sums["bounded"], 3) if sums["bounded"] else None
        ),
        "swap_share": round(sums["swap_s"] / worked_s, 3) if worked_s else None,
    }


def _wait_s(sums: Counter[str], share: float) -> float | None:
    """The wait that this share of the requests did not exceed, interpolated in its range; None
    without requests.
    """
    left = share * sum(sums[name] for name in _WAITS)
    if not left:
        return None
    for name, (low, high) in zip(_WAITS, _RANGES, strict=True):
        if left <= sums[name]:
            return round(low + (high - low) * left / sums[name], 2)
        left -= sums[name]
    return WAIT_BOUNDS_S[-1]
