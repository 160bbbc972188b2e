"""Searching the log: a page of requests, the latest first, in a time that hardly depends on how
many there are or how rare what is looked for is.

`kind` is what a request is searched by. There are far fewer kinds than requests, so those that
match are found first; each has its requests in order in an index, and the lists are merged.
"""

from __future__ import annotations

import heapq
import json
import re
import sqlite3
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import Any

from hearth.types import LogPlace, LogSearch

KIND = ("caller", "user", "model", "engine", "outcome", "lane", "task_type")
"""In the order of the column."""
MERGED_KINDS = 200
"""So many lists are merged; of more, those that may have a part of the page are found first."""

_VALUE = re.compile(r"'(?:[^']|'')*'|NULL")
_ALL_KINDS = """
    WITH RECURSIVE kinds (kind) AS (
      SELECT MIN(kind) FROM invocation_log WHERE kind >= :first AND kind < :end
      UNION ALL
      SELECT (
        SELECT MIN(kind) FROM invocation_log WHERE kind > kinds.kind AND kind < :end
      ) FROM kinds WHERE kinds.kind IS NOT NULL
    )
    SELECT kind FROM kinds WHERE kind IS NOT NULL
"""
_BETWEEN = """
    ended_wall_s >= :since AND ended_wall_s <= :until AND (ended_wall_s, id) < (:before_s, :before)
"""
_LATEST_FIRST = "ORDER BY ended_wall_s DESC, id DESC"
_OF_KIND = f"""
    SELECT ended_wall_s, id FROM invocation_log INDEXED BY invocation_log_by_kind
    WHERE kind = :kind AND {_BETWEEN} {_LATEST_FIRST}
"""
_LATEST_KINDS = f"""
    SELECT value, (
      SELECT MAX(ended_wall_s) FROM invocation_log INDEXED BY invocation_log_by_kind
      WHERE kind = value AND {_BETWEEN}
    ) AS latest
    FROM json_each(:kinds) WHERE latest IS NOT NULL ORDER BY latest DESC LIMIT :most
"""
_OF_ALL = f"""
    SELECT ended_wall_s, id FROM invocation_log INDEXED BY invocation_log_by_end
    WHERE {_BETWEEN} {_LATEST_FIRST} LIMIT -1 OFFSET :skip
"""
_OF_REQUEST = f"""
    SELECT ended_wall_s, id, kind FROM invocation_log INDEXED BY invocation_log_by_request
    WHERE request_id = :request_id AND {_BETWEEN} {_LATEST_FIRST}
"""
_LAST_ID = 2**63 - 1
_LAST_CHARACTER = "\U0010ffff"


def places(
    wanted: LogSearch,
    before: LogPlace | None,
    limit: int,
    skip: int,
    connection: sqlite3.Connection,
) -> list[LogPlace]:
    """Where the requests are that match, the latest first, `limit` at most after the first
    `skip`.
    """
    at_s, at = before or (inf, _LAST_ID)
    until = inf if wanted.until_wall_s is None else wanted.until_wall_s
    asked = {
        "since": wanted.since_wall_s,
        "until": min(until, at_s),
        "before_s": at_s,
        "before": at,
        "skip": skip,
    }
    chosen = {
        number: _quoted(value)
        for number, name in enumerate(KIND)
        if (value := getattr(wanted, name)) is not None
    }

    def matches(kind: str) -> bool:
        values = _VALUE.findall(kind)
        return all(values[number] == value for number, value in chosen.items())

    if wanted.request_id is not None:
        rows = connection.execute(_OF_REQUEST, asked | {"request_id": wanted.request_id})
        found: Iterator[Any] = ((row[0], row[1]) for row in rows if matches(row[2]))
    elif chosen:
        kinds = [kind for kind in _kinds(wanted.caller, connection) if matches(kind)]
        found = _merged(kinds, asked, limit + skip, connection)
    else:
        found = iter(connection.execute(_OF_ALL, asked))
        skip = 0
    return [(row[0], row[1]) for row in islice(found, skip, skip + limit)]


def _kinds(caller: str | None, connection: sqlite3.Connection) -> Iterator[str]:
    """All that there are, those of a caller where it is named."""
    first = "'" if caller is None else f"{_quoted(caller)},"
    span = {"first": first, "end": first + _LAST_CHARACTER}
    return (row[0] for row in connection.execute(_ALL_KINDS, span))


def _quoted(value: str) -> str:
    """As SQLite's `quote`."""
    return "'{}'".format(value.replace("'", "''"))


def _merged(
    kinds: list[str], asked: dict[str, Any], most: int, connection: sqlite3.Connection
) -> Iterator[Any]:
    if len(kinds) > MERGED_KINDS:
        latest = asked | {"kinds": json.dumps(kinds), "most": most}
        kinds = [row[0] for row in connection.execute(_LATEST_KINDS, latest)]
    lists = [connection.execute(_OF_KIND, asked | {"kind": kind}) for kind in kinds]
    return heapq.merge(*lists, key=lambda row: (row[0], row[1]), reverse=True)
