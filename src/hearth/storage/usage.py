"""The log added up by the hour, by six hours and by the day, so that months of it are read in
milliseconds. What is not added up yet is read from the log itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
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
PERIODS_HOURS = (1, 6, 24)
"""Lengths of the periods that the log is added up by, so that no window reads many of them."""
MOST_NAMES = 1_000
"""Callers, models or engines of a list; those with fewer requests are in the totals only."""
MOST_GROUPS = 10
"""Callers, models or engines that are told apart over time; the others are one."""
CALLER_WINDOWS = {"24h": 24, "30d": 720}
"""Hours of what is added up for each caller."""
_LONGEST = max(CALLER_WINDOWS.values())

WAIT_RANGES = tuple(pairwise(WAIT_BOUNDS_S))
WAITS = tuple(f"w{number}" for number in range(len(WAIT_RANGES)))
COUNTS = ("requests", "failed", "prompt_tokens", "output_tokens")
SUMS = (*COUNTS, "backend_s", "written_tokens", "written_s", *WAITS, "bounded", "bounds_kept")
NAMES = ("caller", "model", "engine")


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
# How long an answer was being written, of more than a token: as its model server says, else from
# its first byte on. An answer that came as a whole does not show it, nor one that was interrupted.
_WRITTEN_S = """
    CASE
      WHEN COALESCE(output_tokens, 0) <= 1 THEN NULL
      WHEN decode_s > 0.05 THEN decode_s
      WHEN attempts = 1 AND backend_s - first_byte_s > 0.05 THEN backend_s - first_byte_s
    END
"""
# the columns of `usage` behind its length in their order: `_ROLL_UP` inserts them by position
_OF_LOG = f"""
    SELECT
      CAST(ended_wall_s / (:hours * {HOUR_S}) AS INTEGER) AS period,
      caller,
      COALESCE(model, '') AS model,
      engine,
      COUNT(*) AS requests,
      SUM(outcome IN ('failed', 'expired')) AS failed,
      SUM(COALESCE(prompt_tokens, 0)),
      SUM(COALESCE(output_tokens, 0)),
      SUM(COALESCE(backend_s, 0.0)),
      SUM(CASE WHEN {_WRITTEN_S} IS NULL THEN 0 ELSE output_tokens END),
      SUM(COALESCE({_WRITTEN_S}, 0.0)),
      {_listed(starmap(_waits_between, WAIT_RANGES))},
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
    INSERT INTO usage
    SELECT :hours, * FROM (
      {_OF_LOG} AND id <= :last
      GROUP BY 1, 2, 3, 4
    )
    WHERE true
    ON CONFLICT (hours, period, caller, model, engine) DO UPDATE SET
      {_listed(f"{name} = {name} + excluded.{name}" for name in SUMS)}
"""


def roll_up(connection: sqlite3.Connection) -> bool:
    """Add the next rows of the log up, in a transaction of the caller's; False where they are too
    few to be worth it.
    """
    count, last = connection.execute(_NEXT).fetchone()
    if count < ROWS_PER_STEP:
        return False
    for hours in PERIODS_HOURS:
        connection.execute(_ROLL_UP, {"hours": hours, "last": last})
    connection.execute("UPDATE usage_mark SET invocation_id = ?", (last,))
    return True


_SUMMED = _listed(f"SUM({name}) AS {name}" for name in SUMS)
# the plus keeps SQLite from the index by end: the mark leaves fewer rows
_RECENT = f"""
    recent (period, {_listed((*NAMES, *SUMS))}) AS (
      {_OF_LOG} AND +ended_wall_s >= (:last - :periods + 1) * :hours * {HOUR_S}
      GROUP BY 1, 2, 3, 4
    )
"""
_IN_WINDOW = "period > :last - :periods AND period <= :last"
_OF_ENGINE = """
    (:model IS NULL OR model = :model)
    AND (:engine IS NULL OR engine = :engine)
"""
_OF_CALLER = """
    (:owner IS NULL OR caller = :owner)
    AND (:caller IS NULL OR caller = :caller)
"""


def _from_both(columns: str, which: str) -> str:
    """What was added up, and what was not yet."""
    return f"""
        SELECT {columns} FROM usage WHERE hours = :hours AND {_IN_WINDOW} AND {which}
        UNION ALL
        SELECT {columns} FROM recent WHERE {_IN_WINDOW} AND {which}
    """


def _by(name: str) -> str:
    """The sums of each value of a name, most requests first."""
    return f"""
        SELECT * FROM (
          SELECT '{name}', NULL, {name}, {_SUMMED} FROM used
          GROUP BY {name} ORDER BY requests DESC, {name} LIMIT {MOST_NAMES}
        )
    """


def _over_time_by(name: str) -> str:
    """The sums of each value of a name in each bucket; NULL for those of few requests together."""
    most_used = f"""
        SELECT {name} FROM used GROUP BY 1 ORDER BY SUM(requests) DESC, 1 LIMIT {MOST_GROUPS}
    """
    shown = f"CASE WHEN {name} IN ({most_used}) THEN {name} END"
    return f"SELECT 'group', age, {shown}, {_SUMMED} FROM used GROUP BY 2, 3"


_AGE = "(:last - period) / :width AS age"
_USED = f"""
    WITH {_RECENT},
    used AS (
      SELECT age, {_listed((*NAMES, _SUMMED))} FROM (
        {_from_both(_listed((_AGE, *NAMES, *SUMS)), f"{_OF_CALLER} AND {_OF_ENGINE}")}
      )
      GROUP BY 1, 2, 3, 4
    )
    SELECT 'time' AS by, age, NULL AS name, {_SUMMED} FROM used GROUP BY 2
    UNION ALL {" UNION ALL ".join(map(_by, NAMES))}
"""
_WORKED = f"""
    WITH {_RECENT}
    SELECT age, SUM(backend_s) FROM ({_from_both(f"{_AGE}, backend_s", _OF_ENGINE)}) GROUP BY 1
"""
_SWAPPED = f"""
    SELECT
      (:last - CAST(ended_wall_s / (:hours * {HOUR_S}) AS INTEGER)) / :width AS age,
      to_model AS model,
      COALESCE(engine, '') AS engine,
      COUNT(*) AS swaps,
      SUM(swap_s) AS swap_s
    FROM swaps
    WHERE NOT failed
      AND ended_wall_s >= (:last - :periods + 1) * :hours * {HOUR_S}
      AND ended_wall_s < (:last + 1) * :hours * {HOUR_S}
      AND (:model IS NULL OR to_model = :model)
      AND (:engine IS NULL OR engine = :engine)
    GROUP BY 1, 2, 3
"""
_DRAWN = """
    SELECT
      (:last - hour / :hours) / :width AS age,
      SUM(energy_wh) AS energy_wh,
      SUM(measured_s) AS measured_s
    FROM energy_hours
    WHERE hour / :hours > :last - :periods AND hour / :hours <= :last
    GROUP BY 1
"""
Rows = list[dict[str, Any]]


def requests_of(
    asked: Mapping[str, Any], group: str | None, connection: sqlite3.Connection
) -> Rows:
    """The sums by `age` (0 is the latest bucket) where `by` is `time`, and by name where it is
    that; by both where it is `group`.
    """
    grouped = "" if group is None else f" UNION ALL {_over_time_by(group)}"
    return list(map(dict, connection.execute(_USED + grouped, asked)))


def worked_s(asked: Mapping[str, Any], connection: sqlite3.Connection) -> dict[int, float]:
    """By age, how long requests of all callers ran."""
    return {row[0]: row[1] for row in connection.execute(_WORKED, asked)}


def swaps_of(asked: Mapping[str, Any], connection: sqlite3.Connection) -> Rows:
    """Swaps of all callers by age, model and engine."""
    return list(map(dict, connection.execute(_SWAPPED, asked)))


def energy_of(asked: Mapping[str, Any], connection: sqlite3.Connection) -> Rows:
    """What the GPU drew, by age, and in how many seconds that was measured."""
    return list(map(dict, connection.execute(_DRAWN, asked)))


_WITHIN_WINDOWS = {
    f"{name}_{window}": f"SUM({name} * (hour > :last - {hours}))"
    for window, hours in CALLER_WINDOWS.items()
    for name in COUNTS
}
# the rows of the last hour say when it was: no index leads from a caller to its rows
_CALLERS = f"""
    WITH {_RECENT},
    hours AS (
      SELECT period AS hour, caller, {_listed(COUNTS)} FROM usage
      WHERE hours = :hours AND {_IN_WINDOW}
      UNION ALL
      SELECT period, caller, {_listed(COUNTS)} FROM recent WHERE {_IN_WINDOW}
    ),
    callers AS (
      SELECT
        caller,
        MAX(hour) AS hour,
        {_listed(f"{sums} AS '{name}'" for name, sums in _WITHIN_WINDOWS.items())}
      FROM hours
      WHERE :caller IS NULL OR caller = :caller
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
    rows = connection.execute(_CALLERS, {"hours": 1, "periods": _LONGEST, **asked})
    return {
        row["caller"]: {
            window: {name: row[f"{name}_{window}"] for name in COUNTS} for window in CALLER_WINDOWS
        }
        | {"last_end_wall_s": row["last_end_wall_s"]}
        for row in rows
    }
