"""The live worker under a workload of the simulator, in virtual time over a fake Ollama that serves
as the workload says.

Used by `test_differential` only.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hearth.bootstrap.assembly import build_parts, build_worker
from hearth.config.choices import MIB_PER_GB
from hearth.config.settings import GatewayConfig, SchedulerSettings, Settings, Window
from hearth.engines.ollama.traits import canonical_model
from hearth.engines.table import EngineTable, Row
from hearth.scheduling.actions import Action, WakeAt
from hearth.scheduling.inputs import LeaseEnded, LeaseTaken, Loaded
from hearth.simulation.engine import listed
from hearth.simulation.workloads import CardLease, Workload, WorkloadJob
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.house import ALL_DAY, heard, new_item
from tests.support.recorder import Recorder
from tests.support.staying_engine import StayingOllama
from tests.support.virtual_time import LoopClock, sleep_until

# not within the first hours of virtual time, which begins at midnight
NEVER = (Window(start_minute=20 * 60, end_minute=20 * 60 + 1),)
AFTERWARDS_S = 240.0  # long enough for the home model to come back


NO_LIMIT_MIB = 1e6


class LiveHouse:
    """One run of the worker; made for one workload and thrown away."""

    def __init__(self, workload: Workload, settings: SchedulerSettings) -> None:
        self.decisions: list[tuple[float, Action]] = []
        self._workload = workload
        self._grace_s = settings.gpu.yielding.grace_s
        models = {
            name: FakeModel(
                name=canonical_model(name),
                load_s=workload.swap_s((), name),
                unload_s=workload.unload_s[name] / 2,
                vram_mib=(model.vram_gb or 1.0) * MIB_PER_GB,
                parallel=model.parallel or 1,
            )
            for name, model in workload.models.items()
        }
        staying = [models.pop(name) for name in (*workload.staying, *workload.elastic)]
        scheduling = settings.scheduling.replace(
            active_hours=NEVER if workload.modes else ALL_DAY, time_zone="UTC"
        )
        whole = Settings(
            scheduling=scheduling, queue=settings.queue, gpu=settings.gpu, models=settings.models
        )
        self._ollama = FakeOllama(
            *models.values(),
            capacity_mib=None if workload.vram_gb is None else workload.vram_gb * MIB_PER_GB,
        )
        self._beside = StayingOllama(*staying, capacity_mib=NO_LIMIT_MIB)
        engines = EngineTable.of_one(self._ollama)
        if staying:
            engines = EngineTable(
                [Row(name="main", engine=self._ollama), Row(name="beside", engine=self._beside)]
            )
        self._engines = engines
        parts = build_parts(
            GatewayConfig(settings=whole), engines, clock=LoopClock(), events=Recorder()
        )
        self._worker = build_worker(parts, engines, on_decision=self._note)

    def _note(self, now: float, actions: list[Action]) -> None:
        self.decisions += [(now, action) for action in actions if not isinstance(action, WakeAt)]

    async def run(self) -> None:
        """Everything happens, and what the house did wrong to the model server is raised."""
        for row in self._engines.rows:
            await self._engines.refresh(row)
        deciding = asyncio.create_task(self._worker.run())
        if self._workload.is_mixed:
            self._worker.post(listed(self._workload))
        workload = self._workload
        for model in (*workload.resident, *workload.elastic):
            stays = model in {*workload.staying, *workload.elastic}
            (self._beside if stays else self._ollama).appear(canonical_model(model))
            self._worker.post(Loaded(model=model))
        for number, lease in enumerate(workload.leases):
            self._plan(f"lease-{number}", lease)
        ends: dict[int, asyncio.Future[None]] = {
            job.id: asyncio.get_running_loop().create_future() for job in self._workload.jobs
        }
        await asyncio.gather(*(self._live(job, ends) for job in self._workload.jobs))
        await asyncio.sleep(AFTERWARDS_S)
        await self._worker.stop(0.0)
        deciding.cancel()
        with suppress(asyncio.CancelledError):
            await deciding
        self._ollama.check()
        self._beside.check()
        assert not self._beside.control

    def _plan(self, lease_id: str, lease: CardLease) -> None:
        """Another program has memory of the card from then on, for a while."""
        loop = asyncio.get_running_loop()
        ends_at = lease.at + lease.for_s
        taken = LeaseTaken(
            id=lease_id,
            mib=None if lease.gb is None else lease.gb * MIB_PER_GB,
            grace_s=self._grace_s,
            until=ends_at if lease.is_timed else None,
        )
        loop.call_at(lease.at, self._worker.post, taken)
        loop.call_at(ends_at, self._worker.post, LeaseEnded(id=lease_id))

    async def _live(self, job: WorkloadJob, ends: dict[int, asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        if job.after is not None:
            for other in (job.after, *job.also_after):
                await ends[other]
        await sleep_until(job.at if job.after is None else max(loop.time() + job.think_s, job.at))
        submission = new_item(
            job.model,
            lane=job.lane,
            priority=job.priority,
            stream=job.streaming,
            caller=job.caller,
            background="trace" if job.background else "",
            choices=job.choices,
            conversation=job.conversation,
            request_id=str(job.id),
            max_tokens=job.max_tokens,
            prompt_tokens=job.prompt_tokens,
            service_s=job.service_s,
            first_byte_s=job.first_byte_s,
        )
        submission.item.model = job.model  # as all engines together list it
        ticket = self._worker.submit(submission)
        leaving = None
        if job.cancel_after_s is not None:
            leaving = loop.call_at(
                loop.time() + job.cancel_after_s, self._worker.cancel, ticket.sequence
            )
        await heard(ticket)
        if leaving is not None:
            leaving.cancel()
        ends[job.id].set_result(None)
