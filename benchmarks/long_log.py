"""The store of a home after ninety days: a million requests, as the release before wrote it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from time import time

from hearth.storage.opening import connect_writer, create, shipped_migrations

ROWS = 1_000_000
DAYS = 90
SCHEMA = "0022_message_batches"
"""The last migration of the release before."""
CALLERS = 12
ROWS_OF_START = 10_000
RARE = "rare"
"""A caller with a request in a hundred thousand."""

_REQUESTS = """
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)
    INSERT INTO invocation_log (
      epoch, sequence, request_id, caller, lane, task_type, model, accepted_wall_s, ended_wall_s,
      queue_s, swap_s, first_byte_s, backend_s, total_s, prompt_tokens, output_tokens, attempts,
      interrupt_count, outcome, reason, status, conversation
    )
    SELECT
      1 + i / :of_start, i, format('req_%012x', i * 2654435761 % 281474976710656),
      CASE WHEN i % 100000 = 77 THEN :rare ELSE format('caller-%d', i * 7 % :callers) END,
      CASE WHEN i % 5 = 0 THEN 'internal' ELSE 'external' END,
      CASE WHEN i % 7 = 0 THEN 'summary' END,
      format('model-%d:8b', i * 7 % :callers % 3 + i / 50 % 2 * 3),
      at - 12.5, at, i % 61 * 0.5, i % 9 * 0.25, 0.4, 6.5 + i % 4, 12.5,
      200 + i % 4000, 100 + i % 400, 1, i % 50 = 0,
      CASE WHEN i % 997 = 0 THEN 'failed' WHEN i % 211 = 0 THEN 'cancelled' ELSE 'completed' END,
      CASE WHEN i % 997 = 0 THEN 'backend_gone' ELSE '' END,
      CASE WHEN i % 997 = 0 THEN 502 ELSE 200 END,
      format('%012x', i / 6)
    FROM (SELECT i, :now - (:rows - i) * :apart_s AS at FROM n)
"""
_SWAPS = """
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows / 50)
    INSERT INTO swaps
    SELECT NULL, 1, i, :now - (:rows / 50 - i) * 50 * :apart_s, '[]',
      format('model-%d:8b', i % 6), 6.5, 8000.0, 0, 0, ''
    FROM n
"""
_STARTS = """
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows / :of_start)
    INSERT INTO process (started_wall_s, version, seen_wall_s)
    SELECT began, '0.2.0', began + :of_start * :apart_s - 3600 FROM (
      SELECT :now - (:rows - i * :of_start) * :apart_s AS began FROM n
    )
"""
_ADDED_UP = """
    INSERT INTO usage_hours
    SELECT CAST(ended_wall_s / 3600 AS INTEGER), caller, model, COUNT(*), SUM(outcome = 'failed'),
      SUM(prompt_tokens), SUM(output_tokens), SUM(backend_s),
      0, SUM(queue_s < 1), 0, 0, SUM(queue_s BETWEEN 1 AND 5), 0, SUM(queue_s > 5),
      0, 0, 0, 0, 0, 0, 0, 0, 0
    FROM invocation_log GROUP BY 1, 2, 3
"""
_MARK = "UPDATE usage_mark SET invocation_id = :rows"
_ENGINES = """
    UPDATE usage SET engine = CASE substr(model, 7, 1) WHEN '0' THEN 'ollama' ELSE 'vllm' END;
    UPDATE invocation_log
    SET engine = CASE substr(model, 7, 1) WHEN '0' THEN 'ollama' ELSE 'vllm' END;
    UPDATE swaps SET engine = CASE substr(to_model, 7, 1) WHEN '0' THEN 'ollama' ELSE 'vllm' END;
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 90 * 24)
    INSERT INTO energy_hours SELECT unixepoch() / 3600 - i, 1, 80.0 + i % 200, 3600.0 FROM n
"""


def write(path: Path) -> None:
    """A store as the release before left it, that ends now."""
    steps = shipped_migrations()
    last = next(number for number, (name, _) in enumerate(steps, 1) if name == SCHEMA)
    create(path, connect_writer, steps[:last])
    values = {
        "now": time(),
        "rows": ROWS,
        "apart_s": DAYS * 86_400 / ROWS,
        "of_start": ROWS_OF_START,
        "callers": CALLERS,
        "rare": RARE,
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for statement in (_REQUESTS, _SWAPS, _STARTS, _ADDED_UP, _MARK):
            connection.execute(statement, values)


def tell_engines(path: Path) -> None:
    """Name the engines of what is in a store of this release, as if it had written it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(_ENGINES)
