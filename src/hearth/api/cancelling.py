"""Cancelling requests and durable jobs together. Whose work somebody may cancel is settled before.

Programs that run a gateway in their own process call it too."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.gateway import Gateway
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, RequestId, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """What was cancelled now: requests by their ids, in no order, how many jobs, those of batches among them, and how many batches.

    Nothing, the next time.
    """

    requests: tuple[RequestId, ...]
    jobs: int
    batches: int

    @property
    def count(self) -> int:
        """Of all of them."""
        return len(self.requests) + self.jobs + self.batches


async def cancel_item(gateway: Gateway, sequence: Sequence) -> bool:
    """Cancel the one item with this number, in whatever state it is, and nothing else that carries its request id.

    Returns:
        True where it is cancelled now or was before, False where it had ended otherwise or never was.

    Raises:
        StorageUnavailable: it is cancelled, and the job that it ran for not yet; ask again.
    """
    jobs = gateway.jobs
    job_id = None if jobs is None else jobs.job_at(sequence)
    cancelled = gateway.worker.cancel(sequence)
    if cancelled and jobs is not None and job_id is not None:
        await jobs.cancel_by_id(job_id, caller=None)
    return cancelled


async def cancel_request(gateway: Gateway, request_id: RequestId, *, caller: str | None) -> bool | None:
    """Cancel all that goes by this id, in whatever state it is: items, and the job with this id. With a `caller`, only its own.

    Returns:
        True where any of it is cancelled now or was before, False where it had ended otherwise, None where there is no such request.

    Raises:
        StorageUnavailable: items are cancelled, the job not yet; ask again.
    """
    said = [gateway.worker.cancel_request(request_id, caller=caller)]
    if gateway.jobs is not None and request_id.startswith((JOB_PREFIX, BATCH_JOB_PREFIX)):
        said.append(await gateway.jobs.cancel_by_id(request_id, caller=caller))
    known = [cancelled for cancelled in said if cancelled is not None]
    return any(known) if known else None


async def cancel_caller(gateway: Gateway, caller: str) -> Cancellation:
    """Cancel all that a caller has waiting or running. Its requests are cancelled when this first waits, for the disk to end its jobs.

    Raises:
        StorageUnavailable: jobs are left; ask again.
    """
    jobs, requests = gateway.jobs, gateway.worker.cancel_caller(caller)
    # First, so that they bring no new jobs.
    batches = 0 if gateway.batches is None else await gateway.batches.cancel_caller(caller)
    return Cancellation(requests=tuple(requests), jobs=0 if jobs is None else await jobs.cancel_caller(caller), batches=batches)
