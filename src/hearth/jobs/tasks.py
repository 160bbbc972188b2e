"""The way in for programs that embed Hearth, after Peregrine's LLM queue optimizer: tasks, of which
some become jobs, and the others run at once on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from hearth.clock import new_id
from hearth.config.settings import JobSettings
from hearth.errors import BadRequest, QueueFull, ShuttingDown
from hearth.job_types import Job
from hearth.jobs.queue import body_of, endpoint_of, envelope_of
from hearth.jobs.service import Jobs
from hearth.queue.worker import LLMQueueWorker
from hearth.types import JOB_PREFIX, JsonMapping, Lane, Priority


class Submitted(NamedTuple):
    """A task that was taken; not `is_new` where it is the same as one that has not ended. Unpacks
    as `task_id, is_new`.
    """

    task_id: str
    is_new: bool


class Tasks:
    """Sorts tasks by their type. Must be used on the gateway's event loop."""

    def __init__(self, jobs: Jobs, worker: LLMQueueWorker) -> None:
        self._jobs = jobs
        self._worker = worker
        self._runtime = worker.runtime
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[str, tuple[str, str | None]] = {}
        self._closed = False

    async def submit_task(
        self,
        task_type: str,
        job_key: str | None = None,
        *,
        request: JsonMapping | None = None,
        endpoint: str | None = None,
        run: Callable[[], object] | None = None,
        priority: Priority | None = None,
    ) -> Submitted:
        """Take a task; a second one of the same type and key is the first, until that has ended.

        Args:
            request, endpoint: of a type of `jobs.task_types`: the body of an inference route, and
            which; it is on the disk on return. run: of any other type: what to do, on a thread; it
            does not outlive the process.

        Raises BadRequest, ModelNotFound, NotCapable, QueueFull, ShuttingDown, StorageUnavailable.
        """
        settings = self._runtime.settings
        if task_type not in settings.jobs.task_types:
            if run is None:
                raise BadRequest(
                    f"task type {task_type} is not in jobs.task_types, so it needs `run`: the"
                    " function to call in a thread"
                )
            return self._at_once(task_type, job_key, run)
        if request is None:
            raise BadRequest(
                f"task type {task_type} is in jobs.task_types, so it needs `request`: the body of"
                " an inference route"
            )
        listed = settings.priority_map.get(task_type, settings.jobs.priority)
        new = replace(
            await self._job(request, endpoint),
            priority=listed if priority is None else priority,
            task_type=task_type,
            job_key=job_key,
        )
        accepted = await self._jobs.accept(new)
        return Submitted(task_id=accepted.job_id, is_new=accepted.job_id == new.job_id)

    async def _job(self, request: JsonMapping, endpoint: str | None) -> Job:
        """One that its model can do, of the house's own."""
        path = endpoint_of(request, endpoint)
        body = body_of(path, request)
        envelope = envelope_of(path, body)
        model = await self._worker.aliases.resolve(envelope.model, envelope.needs)
        return Job(
            job_id=new_id(JOB_PREFIX),
            caller=Lane.INTERNAL.value,
            lane=Lane.INTERNAL,
            priority=self._settings.priority,
            path=path,
            model=model,
            request=body,
        )

    def _at_once(self, task_type: str, job_key: str | None, run: Callable[[], object]) -> Submitted:
        if self._closed:
            raise ShuttingDown
        for known, identity in self._running.items():
            if job_key is not None and identity == (task_type, job_key):
                return Submitted(task_id=known, is_new=False)
        if len(self._running) >= self._settings.max_queued:
            raise QueueFull(
                f"{len(self._running)} tasks wait or run, and jobs.max_queued allows no more"
            )
        task_id = new_id(JOB_PREFIX)
        loop = asyncio.get_running_loop()
        self._running[task_id] = (task_type, job_key)

        def ended_on_thread(done: Future[object]) -> None:
            error = None if done.cancelled() else done.exception()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ended, task_id, task_type, error)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                max_workers=self._settings.pool_workers, thread_name_prefix="hearth-task"
            )
        self._pool.submit(run).add_done_callback(ended_on_thread)
        return Submitted(task_id=task_id, is_new=True)

    def _ended(self, task_id: str, task_type: str, error: BaseException | None) -> None:
        self._running.pop(task_id, None)
        if error is not None:
            self._runtime.report_fault(f"task {task_type}", error)

    async def run(self) -> None:
        """Until cancelled, tasks may start; one that runs then ends by itself."""
        try:
            await asyncio.Event().wait()
        finally:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _settings(self) -> JobSettings:
        return self._runtime.settings.jobs
