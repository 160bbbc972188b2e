"""Many requests in one file: OpenAI's files and batches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BatchWindow(StrEnum):
    """When the requests of batches may start."""

    ANY = "any"
    OFF_PEAK = "offpeak"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """OpenAI's files and batches (docs/batches.md): they need `storage.enabled`, and share `jobs.max_stored_mib` with the jobs."""

    window: BatchWindow = BatchWindow.ANY
    """When requests of batches may start: any, or offpeak (outside `scheduling.active_hours` only). hot"""
    max_file_mib: float = 100.0
    """MiB that one uploaded file may have. hot"""
    max_requests: int = 50_000
    """Requests that one batch may have. hot"""
    max_open: int = 50
    """Batches that may be open, of all callers together; one more is refused with 503. hot"""
    keep_files_days: float = 30.0
    """Days after which a file is deleted, unless its caller has said otherwise; and an ended batch with it. hot"""
