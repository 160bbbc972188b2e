"""A whole gateway, put together and not yet running: the store, adapters, and what runs beside it."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.alerts.alerter import GatewayAlerter
from hearth.backends.claude import ClaudeBackend
from hearth.backends.claude_prices import ClaudePrices
from hearth.backends.gpu import AmdCard, GpuThread
from hearth.backends.nvml import NvmlCard
from hearth.backends.ollama import OllamaBackend
from hearth.backends.ollama_control import OllamaControl
from hearth.bootstrap.models import CONTROL_TIMEOUT_S, OllamaClaim, find_backend, hearth_problem
from hearth.bootstrap.service_manager import ServiceManager, notify_socket, watchdog_s
from hearth.clock import Clock, SystemClock
from hearth.cloud.budget import Purse
from hearth.cloud.service import Cloud
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode
from hearth.config.watching import FileWatch
from hearth.errors import ConfigError
from hearth.execution.gpu_watch import GpuWatch
from hearth.gateway import BackendIdentity, Gateway
from hearth.jobs.batch_runner import Shelf
from hearth.jobs.batches import Batches
from hearth.jobs.runner import House
from hearth.jobs.service import Jobs
from hearth.jobs.tasks import TaskDoor
from hearth.jobs.webhooks import Telling, WebhookPoster, is_forbidden
from hearth.observability.latency import LatencyTracker, LatencyWatch
from hearth.observability.monitors import DiskSpaceMonitor, LoopLagMonitor
from hearth.observability.sinks import EventFanout
from hearth.observability.tracing import TraceBuilder
from hearth.ports import EventSink, GpuReader, ModelControl
from hearth.queue.embeddings import EmbeddingBatcher
from hearth.queue.forecaster import Recollection
from hearth.scheduling.inputs import TimerFired
from hearth.storage.opening import Connect, connect_writer, database_path, open_directory, tighten_own_directory
from hearth.storage.reader import StorageReporter
from hearth.storage.retention import DAY_S
from hearth.storage.store import Store
from hearth.types import Sequence

if TYPE_CHECKING:
    from hearth.observability.otlp import OtlpTraces


STORE_CLOSE_TIMEOUT_S = 5.0
"""For what still waits to be written at the end."""


async def open_store(
    config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack, connect: Connect = connect_writer
) -> Store:
    """Open the store that the settings name, let it hear of everything, and have `closing` close it.

    Args:
        connect: opens the writing connection.

    Raises:
        StorageRefused: the file is not one that may be written; the message says what to do.
        StorageUnavailable: the disk failed right after it was opened.
    """
    settings = config.settings.storage
    reporter = StorageReporter(clock=clock, events=events)
    path = database_path(settings.path, os.environ)
    tighten_own_directory(settings.path, path)
    store = await Store.open(path, settings, clock=clock, listener=reporter.hear, connect=connect, clock_jump_s=_clock_jump_s(config))
    closing.push_async_callback(_close_store, store, reporter)
    events.subscribe(store.swaps)
    return store


def _clock_jump_s(config: GatewayConfig) -> float:
    """The shortest time for which anything is kept, one day at least."""
    settings = config.settings
    return DAY_S * max(1.0, min(settings.storage.retention_days, settings.jobs.keep_results_days, settings.batches.keep_files_days))


async def _close_store(store: Store, reporter: StorageReporter) -> None:
    if not await store.close(STORE_CLOSE_TIMEOUT_S):
        reporter.lost()


def join_alerts(gateway: Gateway, alerter: GatewayAlerter, log_directory: Path | None) -> None:
    """Have the alerter run beside the gateway, with the loop, and the disk of a log, watched for it."""
    clock, events = gateway.clock, gateway.events
    gateway.alerter = alerter
    alerter.watch_gpu(gateway.worker.tracker.alarming)
    gateway.accompany("alerts", alerter.run)
    gateway.show("alerts", alerter.status)
    gateway.on_reload(lambda fresh: alerter.update(fresh.settings.alerts))
    note = gateway.records.metrics.note_loop_lag
    lag = LoopLagMonitor(clock=clock, events=events, settings=lambda: gateway.config.settings.alerts, note=note)
    gateway.accompany("loop lag", lag.run)
    if log_directory is not None:
        disk = DiskSpaceMonitor(log_directory, clock=clock, events=events, settings=lambda: gateway.config.settings.alerts)
        gateway.accompany("disk space", disk.run)


def join_service_manager(gateway: Gateway, environ: Mapping[str, str]) -> Callable[[], None]:
    """Have the service manager that started this process, if one did, hear how the gateway is. Returns what it is to call for a reload."""
    notify = notify_socket(environ)
    if notify is None:
        return gateway.request_reload
    manager = ServiceManager(
        notify,
        watchdog_s=watchdog_s(environ, os.getpid()),
        clock=gateway.clock,
        nudge=lambda: gateway.worker.post(TimerFired()),
        decided=gateway.worker.decisions,
        status=partial(_in_a_line, gateway),
    )
    gateway.events.subscribe(manager)
    gateway.accompany("service manager", manager.run)

    def reload() -> None:
        manager.reloading()
        gateway.request_reload()

    return reload


def _in_a_line(gateway: Gateway) -> str:
    state, (_, reason) = gateway.worker.scheduler.state, gateway.ready()
    paused = "external work is paused" if gateway.orders.paused else ""
    running = len(state.entries) - len(state.waiting)
    return "; ".join(part for part in (f"{running} running, {len(state.waiting)} waiting", reason, paused) if part)


def join_latency(gateway: Gateway) -> None:
    """Have every request's phases followed, for the status and the metrics."""
    tracker = LatencyTracker()
    gateway.records.subscribe(tracker)
    gateway.show("latency", lambda: tracker.shown(gateway.clock.monotonic()))
    alive = partial(_is_alive, gateway)
    watch = LatencyWatch(tracker, clock=gateway.clock, events=gateway.events, alive=alive, history=gateway.history)
    gateway.accompany("latency", watch.run)


def _is_alive(gateway: Gateway, sequence: Sequence) -> bool:
    """Whether a request waits or runs, wherever that is."""
    return gateway.worker.registry.live(sequence) is not None


def join_embeddings(gateway: Gateway) -> None:
    """Have embedding calls with a single input go together where `embeddings.accumulate` says so."""
    accumulator = EmbeddingBatcher(gateway.worker)
    gateway.embeddings = accumulator
    gateway.events.subscribe(accumulator)
    gateway.show("embeddings", accumulator.status)


def open_cloud(gateway: Gateway, claude: ClaudeBackend, log: Store) -> None:
    """Let Claude answer where the settings allow it: only with a store, since what is spent must be known at the next start."""
    purse = Purse(ledger=log.ledger, documents=log.estimates, clock=gateway.clock, events=gateway.events, config=lambda: gateway.config)
    gateway.events.subscribe(purse)
    cloud = Cloud(
        config=lambda: gateway.config,
        backend=claude,
        prices=ClaudePrices(),
        purse=purse,
        clock=gateway.clock,
        events=gateway.events,
        registry=gateway.worker.registry,
        doors=gateway.worker.doors,
        state=gateway.worker.scheduler.state,
        resolve=gateway.resolve,
        changed=lambda: gateway.worker.post(TimerFired()),
    )
    gateway.cloud = cloud
    gateway.worker.cloud = cloud.take_trusted
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
        paused=lambda: gateway.orders.paused,
    )
    jobs = Jobs(queue=log.jobs, records=log.jobs, house=house)
    gateway.jobs, gateway.tasks = jobs, TaskDoor(jobs, house)
    gateway.accompany("tasks", gateway.tasks.run)
    gateway.events.subscribe(jobs)
    gateway.accompany("jobs", jobs.run)
    gateway.accompany("forgotten jobs", jobs.forget)
    gateway.accompany("webhooks of jobs", telling.run)
    gateway.show("jobs", jobs.status)
    _open_batches(gateway, log, jobs, house)


def _open_batches(gateway: Gateway, log: Store, jobs: Jobs, house: House) -> None:
    """Take many requests in one file, each of them a job."""
    shelf = Shelf(files=log.files, progress=log.batches, lines=log.batch_lines)
    batches = Batches(uploads=log.files, accounts=log.files, records=log.batches, upkeep=log.batches, shelf=shelf, jobs=jobs, house=house)
    gateway.batches = batches
    gateway.events.subscribe(batches)
    gateway.accompany("batches", batches.run)
    gateway.accompany("forgotten files", batches.forget)
    gateway.show("batches", batches.status)


def open_telemetry(config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack) -> OtlpTraces | None:
    """The way to the collector that the settings name; None where they name none.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    settings = config.settings.telemetry
    if not settings.otlp_endpoint:
        return None
    try:
        from hearth.observability.otlp import OtlpTraces  # noqa: PLC0415 - an extra, and a fifth of a second
    except ModuleNotFoundError as error:
        install = 'run `.venv/bin/pip install -e ".[otel]"` in the folder of Hearth, or set it to ""'
        raise ConfigError([f"telemetry.otlp_endpoint: OpenTelemetry is not installed ({error.name}): {install}"]) from error
    traces = OtlpTraces(settings, clock=clock, events=events)
    closing.push_async_callback(traces.aclose)
    return traces


def join_telemetry(gateway: Gateway, traces: OtlpTraces | None) -> None:
    """Have the end of every item of the gateway told to a collector."""
    if traces is not None:
        gateway.traces = TraceBuilder(clock=gateway.clock, deliver=traces.deliver)
        gateway.events.subscribe(gateway.traces)
        gateway.show("telemetry", traces.status)


def card_of_this_machine(config: GatewayConfig, *, closing: AsyncExitStack) -> GpuReader | None:
    """What reads the card, where the settings allow it; the emulator computes on none."""
    gpu = config.settings.gpu
    if not gpu.nvml:
        return None
    reader = GpuThread((NvmlCard(gpu.device), AmdCard(gpu.device)))
    closing.push_async_callback(reader.aclose)
    return reader


def join_gpu_watch(gateway: Gateway, card: GpuReader, control: ModelControl) -> None:
    """Have the card looked at beside the gateway, and the scheduler told of its memory."""
    watch = GpuWatch(
        reader=card,
        resident=control.resident,
        clock=gateway.clock,
        settings=lambda: gateway.config.settings.gpu,
        state=gateway.worker.scheduler.state,
        tracker=gateway.worker.tracker,
        post=gateway.worker.post,
        events=gateway.events,
    )
    gateway.accompany("gpu watch", watch.run)
    gateway.on_reload(lambda _: watch.poke())


async def build_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
    store: bool = False,
    watch: bool = False,
) -> Gateway:
    """Assemble a gateway; nothing of it runs yet, except an emulator where one is needed and the store where one is asked for.

    Args:
        backend_mode, ollama_url: instead of `backend.mode` and `ollama.url`.
        store: keep a log on disk, where `storage.enabled` allows it; without it, no file is read or written.
        watch: put what is saved to the configuration's file in force.

    Raises:
        ConfigError: what the settings ask for is not installed.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    clock, events = clock or SystemClock(), EventFanout(sinks)
    mode = backend_mode or config.settings.backend.mode
    async with AsyncExitStack() as closing:
        alerter = _open_alerter(config, clock=clock, events=events, closing=closing)
        telemetry = open_telemetry(config, clock=clock, events=events, closing=closing)
        log = await open_store(config, clock=clock, events=events, closing=closing) if store and config.settings.storage.enabled else None
        url, emulated = await find_backend(mode, ollama_url or config.settings.ollama.url, clock=clock, events=events, closing=closing)
        learned = None if log is None else await Recollection.read(log.estimates, "scheduler.emulator" if emulated else "scheduler")
        control, claude, backend = _open_adapters(config, url, closing=closing)
        database = database_path(config.settings.storage.path, os.environ)
        told = () if log is None else open_directory(config.settings.storage.path, database)
        notes = told if emulated else (*_claimed(url, closing), *told)
        card = None if emulated else card_of_this_machine(config, closing=closing)
        gateway = Gateway(
            config=config,
            backend=backend,
            control=control,
            identity=BackendIdentity(mode=mode.value, url=url, emulator=emulated),
            clock=clock,
            events=events,
            history=None if log is None else log.invocations,
            on_stop=(closing.pop_all().aclose,),
            watching=FileWatch if watch else None,
            vet=_vet,
            notes=notes,
        )
        join_alerts(gateway, alerter, None if log is None else database.parent)
        join_latency(gateway)
        join_telemetry(gateway, telemetry)
        join_embeddings(gateway)
        _join_store(gateway, log, learned, claude)
        if card is not None:
            join_gpu_watch(gateway, card, control)
        return gateway


def _claimed(url: str, closing: AsyncExitStack) -> tuple[str, ...]:
    """What to tell the owner where another Hearth of this machine has this Ollama already."""
    claim = OllamaClaim(url)
    closing.callback(claim.release)
    return (claim.shared,) if claim.shared else ()


def _vet(fresh: GatewayConfig, old: GatewayConfig) -> str | None:
    """What speaks against a configuration that only asking can tell; blocks."""
    return hearth_problem(fresh.settings.ollama.url) if fresh.settings.ollama.url != old.settings.ollama.url else None


def _open_alerter(config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack) -> GatewayAlerter:
    alerter = GatewayAlerter(settings=config.settings.alerts, clock=clock, events=events)
    closing.push_async_callback(alerter.aclose)
    events.subscribe(alerter)
    return alerter


def _open_adapters(config: GatewayConfig, url: str, *, closing: AsyncExitStack) -> tuple[OllamaControl, ClaudeBackend, OllamaBackend]:
    control, claude = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S), ClaudeBackend()
    backend = OllamaBackend(url, connect_timeout_s=config.settings.ollama.connect_timeout_s)
    for adapter in (control, claude, backend):
        closing.push_async_callback(adapter.aclose)
    return control, claude, backend


def _join_store(gateway: Gateway, log: Store | None, learned: Recollection | None, claude: ClaudeBackend) -> None:
    """What needs a memory: money, jobs, and what was learned."""
    if log is None:
        return
    gateway.records.subscribe(log.invocations)
    gateway.accompany("admissions", log.invocations.run)
    open_cloud(gateway, claude, log)
    open_jobs(gateway, log)
    gateway.show("storage", log.shown)
    gateway.cannot_write = log.trouble
    gateway.confirm_clock = log.calendar.confirm
    gateway.accompany("calendar", partial(log.calendar.run, gateway.events))
    if learned is not None:
        learned.fill(gateway.worker.scheduler.state.estimates)
        gateway.accompany("recollection", learned.run)
