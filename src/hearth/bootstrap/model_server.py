"""What answers: the model server of the settings, or an emulator; and the card that it computes
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from hearth.backends.all_cards import cards_of
from hearth.backends.gpu import GpuThread
from hearth.bootstrap.probing import claim_server, hearth_problem, listens
from hearth.bootstrap.standin import StandIn, named_server, this_service_manager
from hearth.clock import Clock
from hearth.config.choices import MIB_PER_GB
from hearth.config.engines import (
    ELASTIC_KINDS,
    ENGINE_TITLES,
    KINDS_WITH_RULES,
    SLEEP_LEVELS_OF,
    STAYING_KINDS,
    EngineSettings,
    RunSettings,
    port_range,
)
from hearth.config.settings import ENGINE, BackendMode, GatewayConfig, ModelSettings, Settings
from hearth.engines.llama_router.engine import LlamaRouter
from hearth.engines.llama_server.conversations import Conversations
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.llama_swap.engine import LlamaSwap
from hearth.engines.lmstudio.engine import LmStudio
from hearth.engines.ollama.engine import CONTROL_TIMEOUT_S, Ollama
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.openai_server.sleeping import SleepingServer
from hearth.engines.port import Engine
from hearth.engines.processes.engine import Processes, models_of
from hearth.engines.sglang.engine import Sglang
from hearth.engines.small_model.engine import (
    SMALL_MODEL_KIND,
    SMALL_MODEL_ROW,
    SmallModelServer,
)
from hearth.engines.small_model.files import NAME as SMALL_MODEL
from hearth.engines.small_model.files import SmallModel, find_small_model
from hearth.engines.table import EngineTable, Row
from hearth.engines.vllm.engine import Vllm
from hearth.errors import ConfigError
from hearth.events import EmulatorStarted, SmallModelAnswers
from hearth.execution.gpu_watch import GpuWatch
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.ports import EventSink
from hearth.scheduling.inputs import GpuSampled
from hearth.types import frozen

E = TypeVar("E", bound=Engine)

WAKING_S = 600.0
"""An elastic engine may take so long to start a machine, before the first byte of an answer."""


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
        asked_mode, asked_url: instead of `backend.mode` and the URL of the settings; the latter
        is that of an Ollama.
    """
    mode = BackendMode(asked_mode or settings.backend.mode)
    row = settings.engine_row
    url = asked_url or row.url
    reason = await unanswered(settings, mode, asked_url)
    small = find_small_model() if reason and mode is BackendMode.AUTO else SmallModel()
    if not reason or small.run is not None:
        kind = ENGINE if asked_url else row.kind
        if small.run is not None:
            events.emit(SmallModelAnswers(at=clock.monotonic(), model=SMALL_MODEL, reason=reason))
        return (
            BackendIdentity(
                mode=mode.value, url=url, emulator=False, kind=kind, small_model=small.run
            ),
            _nothing_to_stop,
        )
    if small.why_not:
        reason = f"{reason}, and {small.why_not}"
    # a fifth of all imports, not needed where a model server answers
    from hearth.emulator import (  # noqa: PLC0415
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


async def unanswered(settings: Settings, mode: BackendMode, asked_url: str | None) -> str:
    """Why no model server answers, and none is waited for; empty where one does, or is."""
    if mode is BackendMode.EMULATOR:
        return "it was asked for"
    url = asked_url or settings.engine_row.url
    is_expected = bool(asked_url or named_server(settings) or this_service_manager())
    if mode is not BackendMode.AUTO or is_expected or await listens(url):
        return ""
    return f"nothing is configured, and nothing listens at {url}"


async def _nothing_to_stop() -> None:
    """No emulator runs."""


def open_engines(
    identity: BackendIdentity,
    settings: Settings,
    clock: Clock,
    events: EventSink,
    closing: AsyncExitStack,
    conversations: Conversations | None = None,
) -> EngineTable:
    """The engines of the settings; or the one that takes their place: an Ollama that was asked for
    by its URL, or the emulator.
    """
    rows = settings.engine_rows
    first = next(iter(rows.values()))
    if (identity.kind, identity.url) == (first.kind, first.url):
        beside: tuple[Row, ...] = ()
        if identity.small_model is not None:
            beside = (_small_model(identity.small_model, settings, clock, events),)
        table = table_of(settings, clock, events=events, conversations=conversations, beside=beside)
    else:  # no key goes to another address than its own
        only = Ollama(identity.url, connect_timeout_s=settings.engine.connect_timeout_s)
        table = EngineTable.of_one(only, identity.url, ENGINE)
    closing.push_async_callback(table.aclose)
    for row in table.rows.values():
        if isinstance(row.engine, Processes):
            row.engine.end_leftovers()
    return table


def table_of(
    settings: Settings,
    clock: Clock,
    *,
    timeout_s: float | None = None,
    events: EventSink | None = None,
    beside: tuple[Row, ...] = (),
    conversations: Conversations | None = None,
) -> EngineTable:
    """All engines of the settings, and those that nobody has configured.

    Args:
        beside: those; that of the settings is then the default, which nobody has configured either.
        timeout_s: of connections and questions, in place of what is configured. events: take what
        happens to the servers of `processes`. conversations: where these save theirs.
    """
    rows = [
        _row(
            name,
            given,
            engine_for(
                name,
                settings,
                clock,
                timeout_s=timeout_s,
                events=events or EventFanout(()),
                conversations=conversations,
            ),
            is_named=not beside,
        )
        for name, given in settings.engine_rows.items()
    ]
    models = settings.models
    return EngineTable(
        [*rows, *beside],
        assigned={name: model.engine for name, model in models.items() if model.engine},
        upstream={
            name: model.upstream_name for name, model in models.items() if model.upstream_name
        },
    )


def _row(name: str, given: EngineSettings, engine: Engine, *, is_named: bool) -> Row:
    is_elastic = given.elastic and given.kind in ELASTIC_KINDS
    waking_s = WAKING_S if is_elastic else None
    return Row(
        name=name,
        engine=engine,
        url=given.url,
        kind=given.kind,
        parallel=given.parallel,
        is_elastic=is_elastic,
        has_own_rules=given.kind in KINDS_WITH_RULES,
        spill_s=given.spill_when_wait_over_s if is_elastic else None,
        first_byte_timeout_s=given.first_byte_timeout_s or waking_s,
        is_named=is_named,
    )


def _small_model(run: RunSettings, settings: Settings, clock: Clock, events: EventSink) -> Row:
    engine = SmallModelServer(
        {SMALL_MODEL: ModelSettings(run=run)},
        port_range(EngineSettings(kind="processes").ports),
        setting="",
        clock=clock,
        events=events,
        connect_timeout_s=settings.engine.connect_timeout_s,
        control_timeout_s=CONTROL_TIMEOUT_S,
    )
    return Row(name=SMALL_MODEL_ROW, engine=engine, kind=SMALL_MODEL_KIND)


def engine_for(
    name: str,
    settings: Settings,
    clock: Clock,
    *,
    timeout_s: float | None = None,
    events: EventSink,
    conversations: Conversations | None = None,
) -> Engine:
    """The engine of a row; see `table_of`. Raises ConfigError."""
    row = settings.engine_rows[name]
    options = EngineOptions(
        name=name,
        row=row,
        settings=settings,
        clock=clock,
        events=events,
        conversations=conversations,
        connect_timeout_s=timeout_s or settings.engine.connect_timeout_s,
        control_timeout_s=timeout_s or CONTROL_TIMEOUT_S,
    )
    make = _ENGINES.get(row.kind)
    if make is None:
        raise ConfigError((f"engines.{name}.kind: {row.kind} is not served yet",))
    return make(options)


@frozen
class EngineOptions:
    """What an adapter is made from: its row, and all settings."""

    name: str
    row: EngineSettings
    settings: Settings
    clock: Clock
    events: EventSink
    conversations: Conversations | None
    connect_timeout_s: float
    control_timeout_s: float


def _ollama(options: EngineOptions) -> Engine:
    return Ollama(
        options.row.url,
        connect_timeout_s=options.connect_timeout_s,
        control_timeout_s=options.control_timeout_s,
        api_key=options.row.api_key,
        setting=options.settings.url_setting(options.name),
    )


def _server(kind: Callable[..., E], options: EngineOptions) -> E:
    return kind(
        options.row.url,
        clock=options.clock,
        connect_timeout_s=options.connect_timeout_s,
        control_timeout_s=options.control_timeout_s,
        api_key=options.row.api_key,
        setting=options.settings.url_setting(options.name),
    )


def _llama_server(options: EngineOptions) -> Engine:
    """Where Hearth loads nothing, what sleeps is woken by its next request alone."""
    rows = options.settings.engine_rows.values()
    loads = any(row.kind not in STAYING_KINDS or row.sleep for row in rows)
    return _server(partial(LlamaServer, keeps_room=not loads), options)


def _sleeping(kind: Callable[..., SleepingServer], options: EngineOptions) -> Engine:
    named = options.row.sleep
    engine = _perhaps_elastic(kind, options)
    levels = SLEEP_LEVELS_OF[options.row.kind]
    engine.allow_sleep(tuple(level for level in levels if level in named))
    return engine


def _processes(options: EngineOptions) -> Engine:
    return Processes(
        models_of(options.settings, options.name),
        port_range(options.row.ports),
        setting=f"engines.{options.name}.ports",
        clock=options.clock,
        events=options.events,
        conversations=options.conversations,
        connect_timeout_s=options.connect_timeout_s,
        control_timeout_s=options.control_timeout_s,
    )


def _perhaps_elastic(kind: Callable[..., E], options: EngineOptions) -> E:
    return _server(partial(kind, elastic=options.row.elastic), options)


_ENGINES: Mapping[str, Callable[[EngineOptions], Engine]] = MappingProxyType(
    {
        "ollama": _ollama,
        "llama_server": _llama_server,
        "llama_router": partial(_server, LlamaRouter),
        "llama_swap": partial(_server, LlamaSwap),
        "openai": partial(_perhaps_elastic, OpenAiServer),
        "processes": _processes,
        "vllm": partial(_sleeping, Vllm),
        "sglang": partial(_sleeping, Sglang),
        "lmstudio": partial(_server, LmStudio),
    }
)


def turn_of(engines: EngineTable) -> Callable[[str], None]:
    """What has it use another address: an emulator stands in for an Ollama alone."""
    engine = engines.first.engine
    return engine.turn_to if isinstance(engine, Ollama) else lambda _: None


def claim_backends(
    identity: BackendIdentity, engines: EngineTable, closing: AsyncExitStack
) -> tuple[str, ...]:
    """Claim the model servers until `closing`; what the owner should know where another Hearth has
    claimed one, too.
    """
    if identity.emulator:
        return ()
    notes = []
    for row in engines.rows.values():
        if row.url and not row.is_elastic:
            claim, shared = claim_server(row.url, row.engine.title)
            closing.callback(claim.close)
            notes += [shared] if shared else []
    return tuple(notes)


def vet_url(fresh: GatewayConfig, old: GatewayConfig) -> str | None:
    """Blocks; see `hearth_problem`."""
    known = {row.url for row in old.settings.engine_rows.values()}
    for name, row in fresh.settings.engine_rows.items():
        if row.url and row.url not in known:
            setting = fresh.settings.url_setting(name)
            problem = hearth_problem(row.url, setting, ENGINE_TITLES[row.kind])
            if problem is not None:
                return problem
    return None


def join_computing(
    gateway: Gateway, closing: AsyncExitStack, identity: BackendIdentity, standin: StandIn
) -> None:
    """Have `standin` look for the Ollama whose place the emulator takes, and have the GPU read
    where something computes on it. An emulator's own memory counts as what a GPU reports.
    """
    if identity.emulator:
        from hearth.emulator import DEFAULT_VRAM_GIB  # noqa: PLC0415

        gateway.worker.post(GpuSampled(capacity_mib=DEFAULT_VRAM_GIB * MIB_PER_GB))
    if identity.instead_of:
        gateway.accompany("stand-in", standin.run)
    if gateway.settings.gpu.nvml and (identity.instead_of or not identity.emulator):
        _watch_gpu(gateway, closing, standin if identity.instead_of else None)


def _watch_gpu(gateway: Gateway, closing: AsyncExitStack, standin: StandIn | None) -> None:
    """Have the GPU read, where the emulator answers first from its end on."""
    settings = gateway.settings.gpu
    card = GpuThread(cards_of(settings.device))
    closing.push_async_callback(card.aclose)

    def begin() -> GpuWatch:
        watch = GpuWatch(gateway.worker.runtime, card, gateway.engines)
        gateway.on_reload(lambda _: watch.poke())
        return watch

    async def run_later(over: asyncio.Event) -> None:
        await over.wait()
        await begin().run()

    gateway.accompany(
        "gpu watch", begin().run if standin is None else partial(run_later, standin.over)
    )
