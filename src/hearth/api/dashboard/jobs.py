"""Durable jobs as the dashboard shows them: how many, the first that wait, what is on its way, what failed last.

A caller sees its own, an admin all, as in `GET /llm/jobs`; requests and results never.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth.api.dashboard.view import bare
from hearth.errors import StorageUnavailable
from hearth.gateway import Gateway
from hearth.job_types import JobFilter, JobRecord, JobState, WaitingJob
from hearth.jobs.service import Jobs

ROWS_SHOWN = 6
FAILURES_SHOWN = 3
ERROR_CHARS = 200


class JobsPart:
    """Builds what is shown to one owner, and keeps it until something has happened to jobs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._kept: dict[str | None, tuple[int, object]] = {}

    async def shown_to(self, owner: str | None, revision: int) -> object:
        """What concerns one caller, or everything for None; None where there are no jobs.

        Args:
            revision: what was built for an earlier one is out of date.
        """
        jobs = self._gateway.jobs
        if jobs is None:
            return None
        known = self._kept.get(owner)
        if known is not None and known[0] == revision:
            return known[1]
        try:
            failed = await jobs.records.list_jobs(JobFilter(caller=owner, state=JobState.FAILED, limit=FAILURES_SHOWN))
        except StorageUnavailable:
            return bare(self._picture(jobs, owner, ()))
        shown = bare(self._picture(jobs, owner, failed))
        self._kept[owner] = (revision, shown)
        return shown

    def _picture(self, jobs: Jobs, owner: str | None, failed: Iterable[JobRecord]) -> dict[str, object]:
        line = [(ahead, job) for ahead, job in enumerate(jobs.in_line()) if owner in (None, job.caller)]
        running = [job for job in jobs.under_way() if owner in (None, job.caller)]
        return {
            "counts": {"queued": len(line), "running": len(running), **jobs.ended(owner)},
            "oldest": min((job.accepted_wall_s for _, job in line), default=None),
            "waiting": {job.job_id: self._waiting(jobs, job, ahead) for ahead, job in line[:ROWS_SHOWN]},
            "running": {job.job_id: _named(job) | {"sequence": jobs.item_of(job.job_id)} for job in running[:ROWS_SHOWN]},
            "failed": {record.job_id: _failed(record) for record in failed},
            "off_peak": self._off_peak(),
        }

    def _waiting(self, jobs: Jobs, job: WaitingJob, ahead: int) -> dict[str, object]:
        start_s, wall_s = jobs.start_s(job, ahead), self._gateway.clock.wall()
        return _named(job) | {
            "ahead": ahead,
            "start": None if start_s is None else round(wall_s + start_s),
            "not_before": job.not_before_wall_s,
            "off_peak": job.off_peak or None,
            "attempts": job.attempts or None,
        }

    def _off_peak(self) -> dict[str, object]:
        """Whether off-peak jobs may start now, and when that changes."""
        config, wall_s = self._gateway.config, self._gateway.clock.wall()
        return {"now": not config.is_active_hours(wall_s), "changes": config.next_mode_change(wall_s)}


def _named(job: WaitingJob | JobRecord) -> dict[str, object]:
    return {"caller": job.caller, "task_type": job.task_type, "model": job.model, "accepted": round(job.accepted_wall_s, 2)}


def _failed(record: JobRecord) -> dict[str, object]:
    return _named(record) | {
        "reason": record.reason,
        "status": record.status,
        "error": record.error[:ERROR_CHARS] or None,
        "attempts": record.attempts,
        "ended": record.ended_wall_s,
    }
