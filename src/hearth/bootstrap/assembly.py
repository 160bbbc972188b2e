"""A whole gateway, put together and not yet running: the store, adapters, and what runs beside
it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.alerts.alerter import GatewayAlerter, watch_disk, watch_loop_lag
from hearth.backends.claude import ClaudeBackend, price_of
from hearth.backends.gpu import AmdCard, GpuThread, NvmlCard
from hearth.backends.poster import HttpPoster
from hearth.bootstrap.probing import claim_ollama, hearth_problem, listens
from hearth.bootstrap.standin import (
    LEARNED_OF_EMULATOR,
    LEARNED_OF_OLLAMA,
    StandIn,
    StderrNotice,
    named_server,
    this_service_manager,
)
from hearth.clock import Clock, SystemClock
from hearth.cloud.budget import CloudBudget
from hearth.cloud.service import Cloud
from hearth.config.reload import FileWatch
from hearth.config.settings import BackendMode, GatewayConfig, Settings
from hearth.engines.ollama.engine import Ollama
from hearth.errors import ConfigError
from hearth.events import EmulatorStarted
from hearth.execution.gpu_watch import GpuWatch
from hearth.gateway import BackendIdentity, Gateway
from hearth.jobs.batches import Batches
from hearth.jobs.service import Jobs, TaskDoor
from hearth.jobs.webhooks import WebhookSender, is_forbidden
from hearth.observability.fanout import EventFanout
from hearth.ports import EventSink
from hearth.queue.forecaster import Recollection
from hearth.storage.directory import directory_warnings
from hearth.storage.opening import Connect, connect_writer, database_path, tighten_own_directory
from hearth.storage.store import Store
from hearth.types import DAY_S

if TYPE_CHECKING:
    from hearth.observability.tracing import OtlpTraces

STORE_CLOSE_TIMEOUT_S = 5.0
"""For what still waits to be written at the end."""


def require_config(config: object) -> None:
    """Raises TypeError for what is no configuration: a path, say, or a mapping."""
    if not isinstance(config, GatewayConfig):
        raise TypeError(
            "config must be a GatewayConfig, as hearth.load_gateway_config(PATH) returns it, not"
            f" {type(config).__name__}"
        )


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
    """Assemble a gateway; nothing of it runs yet, except an emulator where one is needed and the
    store where one is asked for.

    Args:
        backend_mode, ollama_url: instead of `backend.mode` and `ollama.url`. sinks: take all
        events. Without any, stderr is told where the emulator answers. store: keep a log on disk,
        where `storage.enabled` allows it; without it, no file is read or written. watch: put what
        is saved to the configuration's file in force.

    Raises:
        ConfigError: what the settings ask for is not installed.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    require_config(config)
    settings, clock, events = (
        config.settings,
        clock or SystemClock(),
        EventFanout(sinks or (StderrNotice(),)),
    )
    async with AsyncExitStack() as closing:
        alerter = _open_alerter(settings, clock=clock, events=events, closing=closing)
        traces = open_telemetry(config, clock=clock, events=events, closing=closing)
        log = (
            await open_store(config, clock=clock, events=events, closing=closing)
            if store and settings.storage.enabled
            else None
        )
        identity, stop_emulator = await find_backend(
            settings, backend_mode, ollama_url, clock=clock, events=events, closing=closing
        )
        engines = open_engines(identity, settings, closing)
        engine = engines[MAIN]
        log_path = None if log is None else database_path(settings.storage.path, os.environ)
        gateway = Gateway(
            config=config,
            engine=engine,
            identity=identity,
            clock=clock,
            events=events,
            history=None if log is None else log.invocations,
            watching=FileWatch if watch else None,
            vet=_vet,
            notes=(
                *_claim(identity, closing),
                *([] if log_path is None else directory_warnings(settings.storage.path, log_path)),
            ),
        )
        _join_observers(gateway, alerter, traces, log_path)
        learned = (
            None
            if log is None
            else await _join_store(gateway, log, closing, emulated=identity.emulator)
        )
        standin = StandIn(gateway, engine=engine, learned=learned, stop_emulator=stop_emulator)
        _join_computing(gateway, closing, identity, standin)
        gateway.on_stop.append(closing.pop_all().aclose)
        return gateway


def _open_alerter(
    settings: Settings, *, clock: Clock, events: EventFanout, closing: AsyncExitStack
) -> GatewayAlerter:
    """First of all, so that it hears what goes wrong with the rest."""
    alerter = GatewayAlerter(
        settings=settings.alerts, clock=clock, events=events, poster=HttpPoster()
    )
    closing.push_async_callback(alerter.aclose)
    events.subscribe(alerter)
    return alerter


MAIN = "main"


def open_engines(
    identity: BackendIdentity, settings: Settings, closing: AsyncExitStack
) -> dict[str, Ollama]:
    """The engines by name: one, at `ollama.url` or where the emulator listens."""
    engines = {MAIN: Ollama(identity.url, connect_timeout_s=settings.ollama.connect_timeout_s)}
    for engine in engines.values():
        closing.push_async_callback(engine.aclose)
    return engines


def _claim(identity: BackendIdentity, closing: AsyncExitStack) -> tuple[str, ...]:
    """Claim the Ollama until `closing`; what the owner should know where another Hearth has claimed
    it, too.
    """
    if identity.emulator:
        return ()
    claim, shared = claim_ollama(identity.url)
    closing.callback(claim.close)
    return (shared,) if shared else ()


def _join_observers(
    gateway: Gateway, alerter: GatewayAlerter, traces: OtlpTraces | None, log_path: Path | None
) -> None:
    """What looks on and decides nothing, in the order in which the status shows it."""
    join_alerts(gateway, alerter, None if log_path is None else log_path.parent)
    join_latency(gateway)
    if traces is not None:
        gateway.records.requests.on_trace = traces.deliver
        gateway.show("telemetry", traces.status)
    gateway.show("embeddings", gateway.embeddings.status)


def _vet(fresh: GatewayConfig, old: GatewayConfig) -> str | None:
    """Blocks; see `hearth_problem`."""
    return (
        None
        if fresh.settings.ollama.url == old.settings.ollama.url
        else hearth_problem(fresh.settings.ollama.url)
    )


def _join_computing(
    gateway: Gateway, closing: AsyncExitStack, identity: BackendIdentity, standin: StandIn
) -> None:
    """Have `standin` look for the Ollama whose place the emulator takes, and have the GPU read
    where something computes on it.
    """
    if identity.instead_of:
        gateway.accompany("stand-in", standin.run)
    if gateway.config.settings.gpu.nvml and (identity.instead_of or not identity.emulator):
        _watch_gpu(gateway, closing, standin if identity.instead_of else None)


def _watch_gpu(gateway: Gateway, closing: AsyncExitStack, standin: StandIn | None) -> None:
    """Have the GPU read, where the emulator answers first from its end on."""
    settings = gateway.config.settings.gpu
    card = GpuThread((NvmlCard(settings.device), AmdCard(settings.device)))
    closing.push_async_callback(card.aclose)

    def begin() -> GpuWatch:
        watch = GpuWatch(gateway.worker.runtime, card, gateway.engine)
        gateway.on_reload(lambda _: watch.poke())
        return watch

    async def run_later(over: asyncio.Event) -> None:
        await over.wait()
        await begin().run()

    gateway.accompany(
        "gpu watch", begin().run if standin is None else partial(run_later, standin.over)
    )


# The model server.


async def find_backend(
    settings: Settings,
    asked_mode: BackendMode | None,
    asked_url: str | None,
    *,
    clock: Clock,
    events: EventFanout,
    closing: AsyncExitStack,
) -> tuple[BackendIdentity, Callable[[], Awaitable[None]]]:
    """Where answers come from; where they are made up, an emulator that `closing` stops, and what
    stops it before.

    Args:
        asked_mode, asked_url: instead of `backend.mode` and `ollama.url`.
    """
    mode, url = BackendMode(asked_mode or settings.backend.mode), asked_url or settings.ollama.url
    is_expected = bool(asked_url or named_server(settings) or this_service_manager())
    reason = ""
    if mode is BackendMode.EMULATOR:
        reason = "it was asked for"
    elif mode is BackendMode.AUTO and not is_expected and not await listens(url):
        reason = f"nothing is configured, and nothing listens at {url}"
    if not reason:
        return BackendIdentity(mode=mode.value, url=url, emulator=False), _nothing_to_stop
    from hearth.emulator import (  # noqa: PLC0415 - a fifth of the imports, never needed beside an Ollama
        Emulator,
        default_profiles,
    )

    emulator = Emulator(default_profiles(), clock=clock)
    closing.push_async_callback(emulator.stop)
    own_url = await emulator.start("127.0.0.1", 0)
    events.emit(EmulatorStarted(at=clock.monotonic(), url=own_url, reason=reason))
    instead_of = url if mode is BackendMode.AUTO else ""
    return (
        BackendIdentity(mode=mode.value, url=own_url, emulator=True, instead_of=instead_of),
        emulator.stop,
    )


async def _nothing_to_stop() -> None:
    """No emulator runs."""


# The store, and what needs a memory: money, jobs, and what was learned.


async def open_store(
    config: GatewayConfig,
    *,
    clock: Clock,
    events: EventFanout,
    closing: AsyncExitStack,
    connect: Connect = connect_writer,
) -> Store:
    """Open the store that the settings name, and have `closing` close it; `connect` opens the
    writing connection.

    Raises:
        StorageRefused: the file is not one that may be written; the message says what to do.
        StorageUnavailable: the disk failed right after it was opened.
    """
    settings = config.settings
    path = database_path(settings.storage.path, os.environ)
    tighten_own_directory(settings.storage.path, path)
    # The shortest time for which anything is kept, one day at least.
    shortest_days = min(
        settings.storage.retention_days,
        settings.jobs.keep_results_days,
        settings.batches.keep_files_days,
    )
    store = await Store.open(
        path,
        settings.storage,
        clock=clock,
        events=events,
        connect=connect,
        clock_jump_s=DAY_S * max(1.0, shortest_days),
    )
    closing.push_async_callback(store.close, STORE_CLOSE_TIMEOUT_S)
    return store


async def _join_store(
    gateway: Gateway, log: Store, closing: AsyncExitStack, *, emulated: bool
) -> Recollection:
    """What is kept of the estimates, among all that the store keeps."""
    name = LEARNED_OF_EMULATOR if emulated else LEARNED_OF_OLLAMA
    learned = Recollection(log.estimates, name, gateway.worker.scheduler.state.estimates)
    await learned.recall()
    gateway.events.subscribe(log.invocations)
    gateway.accompany("admissions", log.invocations.run)
    claude = ClaudeBackend()
    closing.push_async_callback(claude.aclose)
    open_cloud(gateway, claude, log)
    open_jobs(gateway, log, closing)
    gateway.show("storage", log.shown)
    gateway.cannot_write = log.trouble
    gateway.confirm_clock = log.calendar.confirm
    gateway.accompany("page check", log.page_check.run)
    gateway.accompany("calendar", partial(log.calendar.run, gateway.events))
    gateway.accompany("recollection", learned.run)
    return learned


def open_cloud(gateway: Gateway, claude: ClaudeBackend, log: Store) -> None:
    """Let Claude answer where the settings allow it: only with a store, since what is spent must be
    known at the next start.
    """
    budget = CloudBudget(
        ledger=log.ledger,
        documents=log.estimates,
        clock=gateway.clock,
        events=gateway.events,
        config=lambda: gateway.config,
    )
    gateway.events.subscribe(budget)
    cloud = Cloud(gateway.worker, backend=claude, price_of=price_of, budget=budget)
    gateway.cloud = cloud
    gateway.worker.cloud = cloud.take_trusted
    gateway.accompany("cloud", budget.run)
    gateway.show("cloud", cloud.status)
    gateway.on_reload(cloud.reloaded)


def open_jobs(gateway: Gateway, log: Store, closing: AsyncExitStack) -> None:
    """Take durable work, and tell of its ends; only with a store, since it must outlive the
    process.
    """
    poster = HttpPoster(is_forbidden)
    closing.push_async_callback(poster.aclose)
    sender = WebhookSender(
        store=log.jobs,
        poster=poster,
        settings=lambda: gateway.config.settings.jobs.webhooks,
        clock=gateway.clock,
        events=gateway.events,
    )
    jobs = Jobs(store=log.jobs, worker=gateway.worker)
    gateway.jobs, gateway.tasks = jobs, TaskDoor(jobs, gateway.worker)
    gateway.accompany("tasks", gateway.tasks.run)
    gateway.events.subscribe(jobs)
    gateway.events.subscribe(sender)
    gateway.accompany("jobs", jobs.runner.run)
    gateway.accompany("forgotten jobs", jobs.forget)
    gateway.accompany("webhooks of jobs", sender.run)
    gateway.show("jobs", jobs.status)
    batches = Batches(files=log.files, store=log.batches, jobs=jobs, worker=gateway.worker)
    gateway.batches = batches
    gateway.events.subscribe(batches)
    gateway.accompany("batches", batches.run)
    gateway.accompany("forgotten files", batches.forget)
    gateway.show("batches", batches.status)


def open_telemetry(
    config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack
) -> OtlpTraces | None:
    """The way to the collector that the settings name, None where they name none.

    Raises ConfigError where it is not installed.
    """
    settings = config.settings.telemetry
    if not settings.otlp_endpoint:
        return None
    try:
        from hearth.observability.tracing import (  # noqa: PLC0415 - an extra, and a fifth of a second
            OtlpTraces,
        )
    except ModuleNotFoundError as error:
        install = (
            'run `.venv/bin/pip install -e ".[otel]"` in the folder of Hearth, or set it to ""'
        )
        raise ConfigError(
            [f"telemetry.otlp_endpoint: OpenTelemetry is not installed ({error.name}): {install}"]
        ) from error
    traces = OtlpTraces(settings, clock=clock, events=events)
    closing.push_async_callback(traces.aclose)
    return traces


def join_alerts(gateway: Gateway, alerter: GatewayAlerter, log_directory: Path | None) -> None:
    """Have the alerter run beside the gateway, with the loop, and the disk of a log, watched for
    it.
    """
    clock, events = gateway.clock, gateway.events
    gateway.alerter = alerter
    alerter.watch_gpu(gateway.worker.tracker.alarming)
    gateway.accompany("alerts", alerter.run)
    gateway.show("alerts", alerter.status)
    gateway.on_reload(lambda fresh: alerter.update(fresh.settings.alerts))

    settings, note = lambda: gateway.config.settings.alerts, gateway.records.metrics.note_loop_lag
    gateway.accompany(
        "loop lag",
        partial(watch_loop_lag, clock=clock, events=events, settings=settings, note=note),
    )
    if log_directory is not None:
        gateway.accompany(
            "disk space",
            partial(watch_disk, log_directory, clock=clock, events=events, settings=settings),
        )


def join_latency(gateway: Gateway) -> None:
    tracker, registry = gateway.records.requests, gateway.worker.registry
    alive = lambda sequence: registry.live(sequence) is not None  # noqa: E731
    gateway.show("latency", lambda: tracker.shown(gateway.clock.monotonic()))
    gateway.accompany(
        "latency", partial(tracker.watch, clock=gateway.clock, events=gateway.events, alive=alive)
    )
