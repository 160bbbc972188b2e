"""A whole gateway, put together and not yet running."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from functools import partial

from hearth.alerts.alerter import GatewayAlerter
from hearth.backends.claude import ClaudeBackend
from hearth.backends.ollama import OllamaBackend
from hearth.backends.ollama_control import OllamaControl
from hearth.bootstrap.companions import (
    card_of_this_machine,
    join_alerts,
    join_embeddings,
    join_gpu_watch,
    join_latency,
    join_telemetry,
    open_cloud,
    open_jobs,
    open_telemetry,
)
from hearth.bootstrap.keeping import open_store
from hearth.bootstrap.models import CONTROL_TIMEOUT_S, OllamaClaim, find_backend, hearth_problem
from hearth.clock import Clock, SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode
from hearth.config.watching import FileWatch
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.sinks import EventFanout
from hearth.ports import EventSink
from hearth.queue.estimate_store import Recollection
from hearth.storage.opening import database_path, open_directory
from hearth.storage.store import Store


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
