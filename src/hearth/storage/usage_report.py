"""What the log adds up to, as JSON: in total, over time, and by caller, model and engine."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hearth.storage.usage import (
    COUNTS,
    NAMES,
    PERIODS_HOURS,
    SUMS,
    WAIT_BOUNDS_S,
    WAIT_RANGES,
    WAITS,
    Rows,
    energy_of,
    requests_of,
    swaps_of,
    worked_s,
)
from hearth.types import HOUR_S, JsonDict, ProcessRun, UsageQuery

_ADDED = (*SUMS, "swaps", "swap_s")
_GROUPED = (
    *COUNTS,
    "wait_p50_s",
    "wait_p95_s",
    "tokens_per_s",
    "swaps",
    "swap_share",
)
"""What is told of a group over time."""
Sums = Counter[str]


def used(query: UsageQuery, runs: Sequence[ProcessRun], connection: sqlite3.Connection) -> JsonDict:
    """The answer of `InvocationHistory.used`; `runs` are those of all processes, this one's too."""
    unit = max(hours for hours in PERIODS_HOURS if query.width_hours % hours == 0)
    last = query.last_hour // unit
    asked: dict[str, object] = {
        "hours": unit,
        "last": last,
        "periods": query.hours // unit,
        "width": query.width_hours // unit,
        "owner": query.owner,
        "caller": query.caller,
        "model": query.model,
        "engine": query.engine,
    }
    rows = requests_of(asked, query.group, connection)
    swaps = swaps_of(asked, connection)
    of_all = None if query.owner is query.caller is None else worked_s(asked, connection)
    report = _Report(query, (last + 1) * unit, runs)
    return report.made(rows, swaps, energy_of(asked, connection), of_all)


class _Report:
    """Buckets of one question, from the oldest to the one that ends with hour `end_hour`."""

    def __init__(self, query: UsageQuery, end_hour: int, runs: Iterable[ProcessRun]) -> None:
        self._query = query
        self._width_s = query.width_hours * HOUR_S
        self._end_s = end_hour * HOUR_S
        self._ages = range(query.hours // query.width_hours - 1, -1, -1)
        self._ran_s = self._running(runs)

    def _running(self, runs: Iterable[ProcessRun]) -> defaultdict[int, float]:
        """By age, for how many seconds Hearth ran of which the rows are kept."""
        ran_s = defaultdict[int, float](float)
        kept_s = max(self._query.kept_since_wall_s, self._end_s - len(self._ages) * self._width_s)
        for run in runs:
            began_s = max(run.started_wall_s, kept_s)
            while began_s < run.seen_wall_s:
                age = int((self._end_s - began_s - 1e-6) // self._width_s)
                until_s = min(run.seen_wall_s, self._end_s - age * self._width_s)
                if age < 0 or until_s <= began_s:
                    break
                ran_s[age] += until_s - began_s
                began_s = until_s
        return ran_s

    def made(
        self, rows: Rows, swaps: Rows, energy: Rows, of_all: Mapping[int, float] | None
    ) -> JsonDict:
        """`of_all`: by age, how long requests of all callers ran, where `rows` are of some."""
        by_time = [row for row in rows if row["by"] == "time"]
        sums = _added([*by_time, *swaps], "age")
        if of_all is not None:
            for age in sums.keys() | of_all.keys():
                sums.setdefault(age, Counter()).update({"worked_s": of_all.get(age, 0.0)})
        energy_by_age = {row["age"]: row for row in energy}
        total = sum(sums.values(), Counter())
        return {
            "total": _shown(total) | _energy(energy),
            "buckets": [
                self._bucket(age, sums.get(age), energy_by_age.get(age)) for age in self._ages
            ],
            **{f"{name}s": _named(name, rows, swaps) for name in NAMES},
            **self._groups(rows, swaps),
        }

    def _bucket(self, age: int, sums: Sums | None, energy: Mapping[str, Any] | None) -> JsonDict:
        return {
            "start_wall_s": self._end_s - (age + 1) * self._width_s,
            "known_s": round(self._ran_s[age], 1),
            **self._values(age, sums),
            **_energy([] if energy is None else [energy]),
        }

    def _values(self, age: int, sums: Sums | None) -> JsonDict:
        """All null where nothing was known: nothing has ended, and Hearth did not run."""
        if sums is None and self._ran_s[age] == 0:
            return dict.fromkeys(_shown(Counter()))
        return _shown(sums or Counter())

    def _groups(self, rows: Rows, swaps: Rows) -> JsonDict:
        name = self._query.group
        if name is None:
            return {}
        of_group = [row for row in rows if row["by"] == "group"]
        found: dict[str | None, Rows] = {}
        for row in of_group:
            found.setdefault(row["name"], []).append(row)
        for row in [] if name == "caller" else swaps:
            found.setdefault(row[name] if row[name] in found else None, []).append(row)
        groups = [(value, _added(of_value, "age")) for value, of_value in found.items()]
        groups.sort(key=lambda group: (group[0] is None, -_requests(group[1])))
        return {"groups": [self._group(name, value, sums) for value, sums in groups]}

    def _group(self, name: str, value: str | None, by_age: Mapping[int, Sums]) -> JsonDict:
        shown = [self._values(age, by_age.get(age)) for age in self._ages]
        if name == "caller":
            shown = [each | {"swaps": None, "swap_share": None} for each in shown]
        series = {each: [bucket[each] for bucket in shown] for each in _GROUPED}
        return {name: value or None, "is_others": value is None, **series}


def _requests(by_age: Mapping[int, Sums]) -> int:
    return sum(sums["requests"] for sums in by_age.values())


def _added(rows: Iterable[Mapping[str, Any]], key: str) -> dict[Any, Sums]:
    """The sums of the rows of each value of a column."""
    added: dict[Any, Sums] = {}
    for row in rows:
        sums = added.get(row[key])
        own = {name: row[name] for name in _ADDED if name in row}
        if sums is None:
            added[row[key]] = Counter(own)
        else:
            sums.update(own)
    return added


def _named(name: str, rows: Rows, swaps: Rows) -> list[JsonDict]:
    """The sums of each caller, model or engine, most requests first."""
    added = _added([row for row in rows if row["by"] == name], "name")
    if name != "caller":
        for value, sums in _added(swaps, name).items():
            added.setdefault(value, Counter()).update(sums)
    unknown = {"swaps": None, "swap_share": None} if name == "caller" else {}
    return [{name: value or None, **_shown(sums), **unknown} for value, sums in added.items()]


def _shown(sums: Sums) -> JsonDict:
    """As JSON has it; the share of swaps is that of the time in which the GPU worked or loaded."""
    worked_s = sums.get("worked_s", sums["backend_s"]) + sums["swap_s"]
    waits = [sums[name] for name in WAITS]
    return {
        **{name: int(sums[name]) for name in (*COUNTS, "swaps")},
        **{name: round(float(sums[name]), 1) for name in ("backend_s", "swap_s")},
        "wait_p50_s": _wait_s(waits, 0.5),
        "wait_p95_s": _wait_s(waits, 0.95),
        "tokens_per_s": (
            round(sums["written_tokens"] / sums["written_s"], 2) if sums["written_s"] else None
        ),
        "bound_kept_share": (
            round(sums["bounds_kept"] / sums["bounded"], 3) if sums["bounded"] else None
        ),
        "swap_share": round(sums["swap_s"] / worked_s, 3) if worked_s else None,
    }


def _energy(rows: Rows | Sequence[Mapping[str, Any]]) -> JsonDict:
    """Null where nothing was measured."""
    measured_s = sum(row["measured_s"] for row in rows)
    return {
        "energy_wh": round(sum(row["energy_wh"] for row in rows), 2) if measured_s else None,
        "energy_measured_s": round(measured_s, 1),
    }


def _wait_s(waits: Sequence[int], share: float) -> float | None:
    """The wait that this share of the requests did not exceed, interpolated in its range; None
    without requests.
    """
    left = share * sum(waits)
    if not left:
        return None
    for waited, (low, high) in zip(waits, WAIT_RANGES, strict=True):
        if left <= waited:
            return round(low + (high - low) * left / waited, 2)
        left -= waited
    return WAIT_BOUNDS_S[-1]
