"""A whole gateway, put together and not yet running."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypedDict, Unpack

from hearth.admission.limits import RateLimiter
from hearth.bootstrap.conversations import open_conversations
from hearth.bootstrap.durable import Durable, open_cloud, open_durable, open_store
from hearth.bootstrap.model_server import (
    claim_backends,
    find_backend,
    join_computing,
    open_engines,
    turn_of,
    vet_url,
)
from hearth.bootstrap.observers import join_observers, open_alerter, open_telemetry
from hearth.bootstrap.standin import StandIn, StderrNotice
from hearth.bootstrap.yielding import join_yielding
from hearth.clock import Clock, ClockSteps, SystemClock
from hearth.config.reload import ConfigInForce, FileWatch, MakeWatch, Reloader, Vet
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.engines.table import EngineTable
from hearth.execution.aliases import Aliases
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.card_health import CardHealth, RunCommand
from hearth.execution.executor import Executor
from hearth.execution.gpu_leases import GpuLeases
from hearth.execution.gpu_tracker import GpuTracker
from hearth.execution.owner_command import run_command
from hearth.execution.runtime import Runtime
from hearth.execution.swapper import Swapper
from hearth.execution.tasks import ChangeCounter
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.observability.records import EventRecords
from hearth.ports import EventSink
from hearth.queue.admission import QueueAdmission
from hearth.queue.effects import Effects
from hearth.queue.embeddings import EmbeddingBatcher
from hearth.queue.forecaster import Forecaster
from hearth.queue.learned import LearnedEstimates
from hearth.queue.mailbox import Mailbox
from hearth.queue.modes import Modes
from hearth.queue.operator import OperatorCommands
from hearth.queue.parts import QueueParts
from hearth.queue.places import KeptPlaces
from hearth.queue.registry import Registry
from hearth.queue.schedule import Schedule
from hearth.queue.worker import LLMQueueWorker, OnDecision, TakeForCloud
from hearth.scheduling.core import Scheduler
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.views import StatusView
from hearth.storage.directory import directory_warnings
from hearth.storage.opening import database_path
from hearth.storage.store import Store


def require_config(config: object) -> None:
    """Raises TypeError for what is no configuration: a path, say, or a mapping."""
    if not isinstance(config, GatewayConfig):
        raise TypeError(
            "config must be a GatewayConfig, as hearth.load_gateway_config(PATH) returns it, not"
            f" {type(config).__name__}"
        )


class BuildOptions(TypedDict, total=False):
    """How a gateway is put together, beside its configuration.

    Attributes:
        clock: the system's where none is given. backend_mode, backend_url: instead of what the
        settings say. sinks: take all events. Without any, stderr says where the emulator
        answers. store: keep a log on disk, where `storage.enabled` allows it; without it, no file
        is read or written. watch: put what is saved to the configuration's file in force.
    """

    clock: Clock | None
    backend_mode: BackendMode | None
    backend_url: str | None
    sinks: tuple[EventSink, ...]
    store: bool
    watch: bool


async def build_gateway(config: GatewayConfig, **options: Unpack[BuildOptions]) -> Gateway:
    """Assemble a gateway; nothing of it runs yet, except an emulator where one is needed and the
    store where one is asked for.

    Raises:
        ConfigError: what the settings ask for is not installed.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    require_config(config)
    clock = options.get("clock") or SystemClock()
    events = EventFanout(options.get("sinks") or (StderrNotice(),))
    async with AsyncExitStack() as unless_built:
        closing = await unless_built.enter_async_context(AsyncExitStack())
        gateway = await _build(config, clock, events, closing, options)
        unless_built.pop_all()  # from now on the gateway closes what is open
        return gateway


async def _build(
    config: GatewayConfig,
    clock: Clock,
    events: EventFanout,
    closing: AsyncExitStack,
    options: BuildOptions,
) -> Gateway:
    settings = config.settings
    # first of all, so that it hears what goes wrong with the rest
    alerter = open_alerter(settings, clock=clock, events=events, closing=closing)
    traces = open_telemetry(config, clock=clock, events=events, closing=closing)
    path = database_path(settings.storage.path, os.environ)
    store = None
    if options.get("store") and settings.storage.enabled:
        store = await open_store(config, clock=clock, events=events, closing=closing)
    mode = options.get("backend_mode")
    url = options.get("backend_url")
    identity, stop_emulator = await find_backend(
        settings, mode, url, clock=clock, events=events, closing=closing
    )
    conversations = open_conversations(settings, None if store is None else path, clock, events)
    engines = open_engines(identity, settings, clock, events, closing, conversations)
    parts = build_parts(config, engines, clock=clock, events=events, emulated=identity.emulator)
    notes = claim_backends(identity, engines, closing)
    worker, durable = await _open_queue(parts, engines, store, closing)
    if store is not None:
        notes += directory_warnings(settings.storage.path, path)
    make = partial(Gateway, alerter=alerter, notes=notes, on_stop=closing.aclose)
    gateway = assemble(
        config,
        worker,
        engines=engines,
        identity=identity,
        events=events,
        watching=FileWatch if options.get("watch") else None,
        vet=vet_url,
        make=make if durable is None else durable.added_to(make),
    )
    if conversations is not None:
        gateway.show("conversations", conversations.shown)
    join_observers(gateway, alerter, traces, None if store is None else path.parent)
    if durable is not None:
        durable.join(gateway)
    _join_engines(gateway, closing, stop_emulator, None if durable is None else durable.learned)
    join_yielding(gateway, closing)
    return gateway


def _join_engines(
    gateway: Gateway,
    closing: AsyncExitStack,
    stop_emulator: Callable[[], Awaitable[None]],
    learned: LearnedEstimates | None,
) -> None:
    """Have what computes watched, and the emulator make room for what comes in its place."""
    standin = StandIn(
        gateway,
        turn_to=turn_of(gateway.engines),
        learned=learned,
        stop_emulator=stop_emulator,
        closing=closing,
    )
    join_computing(gateway, closing, gateway.identity, standin)


async def _open_queue(
    parts: QueueParts, engines: EngineTable, store: Store | None, closing: AsyncExitStack
) -> tuple[LLMQueueWorker, Durable | None]:
    """The queue, and what works on the store beside it."""
    if store is None:
        return build_worker(parts, engines), None
    cloud = open_cloud(store, parts, closing)
    worker = build_worker(parts, engines, cloud=cloud.take_trusted)
    return worker, await open_durable(store, worker, cloud, closing)


def build_parts(
    config: GatewayConfig,
    engines: EngineTable,
    *,
    clock: Clock,
    events: EventSink,
    emulated: bool = False,
    command: RunCommand = run_command,
) -> QueueParts:
    """What a queue over these engines is made of, and Claude beside it works with; `command` runs
    the owner's.
    """
    config = config.with_names(engines.canonical)
    mailbox = Mailbox()
    scheduler = Scheduler(
        config.scheduler_settings,
        cuts_loads=engines.loads_can_be_cut,
        swaps=engines.loads_on_request,
        notes_waits=True,
    )
    forecasts = ForecastView(scheduler)
    runtime = Runtime(
        config=config,
        clock=clock,
        events=events,
        view=StatusView(scheduler),
        forecasts=forecasts,
        tracker=GpuTracker(config.scheduler_settings.gpu.home_model, config.settings.gpu.alerts),
        post=mailbox.post,
        engine_of=lambda model: engines.row_of(model).name,
        emulated=emulated,
    )
    forecaster = Forecaster(forecasts)
    watch = BackendWatch(runtime, engines)
    return QueueParts(
        runtime=runtime,
        mailbox=mailbox,
        scheduler=scheduler,
        registry=Registry(runtime),
        watch=watch,
        health=CardHealth(runtime, engines, watch, command),
        aliases=Aliases(lambda: runtime.settings, runtime.view, watch, engines),
        forecaster=forecaster,
        admission=QueueAdmission(runtime, mailbox, forecaster),
    )


def build_worker(
    parts: QueueParts,
    engines: EngineTable,
    *,
    cloud: TakeForCloud | None = None,
    on_decision: OnDecision | None = None,
) -> LLMQueueWorker:
    """The queue; see `LLMQueueWorker`."""
    runtime = parts.runtime
    watch = parts.watch
    executor = Executor(runtime, engines, watch, parts.health)
    swapper = Swapper(runtime, engines, watch)
    effects = Effects(runtime, parts.registry, executor, swapper, watch)
    return LLMQueueWorker(
        parts,
        effects=effects,
        places=KeptPlaces(),
        changes=ChangeCounter(),
        clock_steps=ClockSteps(runtime.clock),
        cloud=cloud,
        on_decision=on_decision,
    )


def assemble(
    config: GatewayConfig,
    worker: LLMQueueWorker,
    *,
    engines: EngineTable,
    identity: BackendIdentity,
    events: EventFanout,
    watching: MakeWatch | None = None,
    vet: Vet | None = None,
    make: Callable[..., Gateway] = Gateway,
) -> Gateway:
    """The gateway around a queue.

    Args:
        watching: makes the watch of the configuration's file; None to read it again on orders only.
        vet: what speaks against a new configuration beside the present one, where only asking can
        tell; called in a thread. make: adds what only some gateways have.
    """
    clock = worker.runtime.clock
    watch = worker.watch
    in_force = ConfigInForce(config, clock=clock, events=events)
    limiter = RateLimiter(config.settings.rate_limits)
    records = EventRecords()
    embeddings = EmbeddingBatcher(worker)
    schedule = Schedule(worker)
    records.subscribe_to(events)
    events.subscribe(embeddings)
    reloader = Reloader(in_force=in_force, clock=clock, watching=watching, vet=vet)
    gateway = make(
        worker=worker,
        engines=engines,
        identity=identity,
        events=events,
        in_force=in_force,
        reloader=reloader,
        modes=Modes(in_force, clock=clock, events=events),
        rate_limiter=limiter,
        records=records,
        embeddings=embeddings,
        leases=GpuLeases(worker.runtime),
        orders=OperatorCommands(
            worker=worker,
            resolve=watch.resolve,
            models_of=worker.aliases.models_of,
            clock=clock,
            events=events,
        ),
    )
    _join_queue(gateway, schedule)
    return gateway


def _join_queue(gateway: Gateway, schedule: Schedule) -> None:
    """Have the queue hear of new settings, and run beside the gateway."""
    worker = gateway.worker
    limiter = gateway.rate_limiter
    # limits and queue know the new settings before anything looks again
    gateway.on_reload(lambda fresh: limiter.update_limits(fresh.settings.rate_limits))
    gateway.on_reload(worker.reload_config)
    gateway.on_reload(lambda _: worker.watch.poke())
    gateway.on_reload(lambda _: schedule.poke())
    gateway.accompany("queue", worker.run)
    if gateway.kept_orders is not None:  # after the queue: what it gives is then decided at once
        gateway.accompany("kept orders", gateway.kept_orders.run)
    gateway.accompany("backend watch", worker.watch.run)
    gateway.accompany("card health", worker.health.run)
    gateway.accompany("GPU leases", gateway.leases.run)
    gateway.accompany("timetable", schedule.run)
    gateway.accompany("modes", gateway.modes.run)
    gateway.accompany("configuration", gateway.reloader.run)
