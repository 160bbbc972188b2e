"""Rows of the table `jobs` as values, and back. Used by `jobs` and `batch_lines`."""

from __future__ import annotations

import sqlite3
from typing import Any
from urllib.parse import urlsplit

from hearth.job_types import Delivery, JobRecord, JobState, NewJob, WaitingJob, Webhook
from hearth.types import Lane, Priority

WAITING_COLUMNS = "number, id AS job_id, caller, lane, priority, task_type, model, accepted_wall_s, not_before_wall_s, off_peak, attempts"
RECORD_COLUMNS = (
    "number, id AS job_id, caller, lane, priority, task_type, job_key, path, model, state, attempts, accepted_wall_s, not_before_wall_s, "
    "off_peak, ended_wall_s, reason, error, status, content_type, webhook"
)
DELIVERY_COLUMNS = (
    "id AS job_id, webhook_url AS url, webhook_host AS host, state, task_type, reason, accepted_wall_s, ended_wall_s, "
    "webhook_attempts AS attempts, webhook_due_wall_s AS due_wall_s"
)


def insert(connection: sqlite3.Connection, new: NewJob, now: float) -> WaitingJob:
    """Write a job that waits from now on."""
    columns = _columns_of(new, now)
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    question = f"INSERT INTO jobs ({names}) VALUES ({marks}) RETURNING {WAITING_COLUMNS}"  # noqa: S608 - our names
    return waiting_of(connection.execute(question, columns).fetchone(), suspect=False)


def _columns_of(new: NewJob, now: float) -> dict[str, object]:
    return {
        "id": new.job_id,
        "caller": new.caller,
        "lane": new.lane.value,
        "priority": int(new.priority),
        "task_type": new.task_type,
        "job_key": new.job_key,
        "path": new.path,
        "model": new.model,
        "state": JobState.QUEUED.value,
        "accepted_wall_s": now,
        "not_before_wall_s": new.not_before_wall_s,
        "off_peak": int(new.off_peak),
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "webhook": (Webhook.NONE if new.webhook_url is None else Webhook.WAITING).value,
        "webhook_url": new.webhook_url,
        "bytes": len(new.request),
        "request": new.request,
        **({} if new.webhook_url is None else {"webhook_host": urlsplit(new.webhook_url).hostname}),
    }


def record_of(row: sqlite3.Row) -> JobRecord:
    """A row with `RECORD_COLUMNS` and `result`."""
    values = dict(row)
    return JobRecord(
        **{
            **values,
            "lane": Lane(values["lane"]),
            "priority": Priority(values["priority"]),
            "state": JobState(values["state"]),
            "off_peak": bool(values["off_peak"]),
            "webhook": Webhook(values["webhook"]),
        }
    )


def waiting_of(row: sqlite3.Row | dict[str, Any], *, suspect: bool) -> WaitingJob:
    """A row with `WAITING_COLUMNS`."""
    values = dict(row)
    lane, priority, off_peak = Lane(values["lane"]), Priority(values["priority"]), bool(values["off_peak"])
    return WaitingJob(**{**values, "lane": lane, "priority": priority, "off_peak": off_peak, "suspect": suspect})


def delivery_of(row: sqlite3.Row) -> Delivery:
    """A row with `DELIVERY_COLUMNS`."""
    return Delivery(**{**dict(row), "state": JobState(row["state"])})
