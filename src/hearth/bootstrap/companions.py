"""What runs beside the gateway: alerts, the cloud, the card."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from hearth.alerter import GatewayAlerter
from hearth.backends.amdgpu import AmdCard
from hearth.backends.claude import ClaudeBackend
from hearth.backends.claude_prices import ClaudePrices
from hearth.backends.gpu_thread import GpuThread
from hearth.backends.nvml import NvmlCard
from hearth.cloud.desk import Cloud
from hearth.cloud.purse import Purse
from hearth.config.gateway_config import GatewayConfig
from hearth.gateway import Gateway
from hearth.gpu_watch import GpuWatch
from hearth.jobs.addresses import is_forbidden
from hearth.jobs.desk import Jobs
from hearth.jobs.feeder import House
from hearth.jobs.tasks import TaskDoor
from hearth.jobs.telling import Telling, WebhookPoster
from hearth.observability.disk_space import DiskSpaceMonitor
from hearth.observability.loop_lag import LoopLagMonitor
from hearth.ports import GpuReader, ModelControl
from hearth.scheduling.inputs import TimerFired
from hearth.storage.store import Store


def join_alerts(gateway: Gateway, alerter: GatewayAlerter, log_directory: Path | None) -> None:
    """Have the alerter run beside the gateway, with the loop, and the disk of a log, watched for it."""
    clock, events = gateway.clock, gateway.events
    gateway.alerter = alerter
    alerter.watch_gpu(gateway.worker.tracker.check_alerts)
    gateway.accompany("alerts", alerter.run)
    gateway.show("alerts", alerter.status)
    gateway.on_reload(lambda fresh: alerter.update(fresh.settings.alerts))
    lag = LoopLagMonitor(clock=clock, events=events, settings=lambda: gateway.config.settings.alerts, note=gateway.tallies.note_loop_lag)
    gateway.accompany("loop lag", lag.run)
    if log_directory is not None:
        disk = DiskSpaceMonitor(log_directory, clock=clock, events=events, settings=lambda: gateway.config.settings.alerts)
        gateway.accompany("disk space", disk.run)


def open_cloud(gateway: Gateway, claude: ClaudeBackend, log: Store) -> None:
    """Let Claude answer where the settings allow it: only with a store, since what is spent must be known at the next start."""
    purse = Purse(ledger=log.ledger, clock=gateway.clock, events=gateway.events, config=lambda: gateway.config)
    cloud = Cloud(
        config=lambda: gateway.config,
        backend=claude,
        prices=ClaudePrices(),
        purse=purse,
        clock=gateway.clock,
        events=gateway.events,
        sequences=gateway.worker.sequences,
        state=gateway.worker.scheduler.state,
        resolve=gateway.resolve,
        changed=lambda: gateway.worker.post(TimerFired()),
    )
    gateway.cloud = cloud
    gateway.accompany("cloud", cloud.run)
    gateway.show("cloud", cloud.status)
    gateway.on_reload(cloud.reloaded)


class _LateWebhookPoster:
    """A `WebhookPoster` that is made when the first message is sent: importing the HTTP client takes a tenth of a start."""

    def __init__(self) -> None:
        self._poster: WebhookPoster | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> str:
        if self._poster is None:
            loaded = await asyncio.to_thread(importlib.import_module, "hearth.backends.webhook_poster")
            self._poster = self._poster or loaded.HttpWebhookPoster(is_forbidden)
        return await self._poster.post(url, body, headers, timeout_s)


def open_jobs(gateway: Gateway, log: Store) -> None:
    """Take durable work, and tell of its ends; only with a store, since it must outlive the process."""
    telling = Telling(
        deliveries=log.jobs,
        poster=_LateWebhookPoster(),
        settings=lambda: gateway.config.settings.jobs.webhooks,
        clock=gateway.clock,
        events=gateway.events,
    )
    house = House(
        worker=gateway.worker,
        resolve=gateway.resolve,
        ready=lambda: gateway.ready()[0],
        config=lambda: gateway.config,
        clock=gateway.clock,
        events=gateway.events,
        ended=telling.wake,
    )
    jobs = Jobs(queue=log.jobs, records=log.jobs, house=house)
    gateway.jobs, gateway.tasks = jobs, TaskDoor(jobs, house)
    gateway.accompany("tasks", gateway.tasks.run)
    gateway.events.subscribe(jobs)
    gateway.accompany("jobs", jobs.run)
    gateway.accompany("forgotten jobs", jobs.forget)
    gateway.accompany("webhooks of jobs", telling.run)
    gateway.show("jobs", jobs.status)


def card_of_this_machine(config: GatewayConfig, *, closing: AsyncExitStack) -> GpuReader | None:
    """What reads the card, where the settings allow it; the emulator computes on none."""
    gpu = config.settings.gpu
    if not gpu.nvml:
        return None
    reader = GpuThread((NvmlCard(gpu.device), AmdCard(gpu.device)))
    closing.push_async_callback(reader.aclose)
    return reader


def gpu_watch(gateway: Gateway, card: GpuReader, control: ModelControl) -> GpuWatch:
    return GpuWatch(
        reader=card,
        resident=control.resident,
        clock=gateway.clock,
        settings=lambda: gateway.config.settings.gpu,
        state=gateway.worker.scheduler.state,
        tracker=gateway.worker.tracker,
        post=gateway.worker.post,
        events=gateway.events,
    )
