"""What answers: the model server of the settings, or an emulator; and the card that it computes
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from hearth.backends.gpu import AmdCard, GpuThread, NvmlCard
from hearth.bootstrap.probing import claim_server, hearth_problem, listens
from hearth.bootstrap.standin import StandIn, named_server, this_service_manager
from hearth.clock import Clock
from hearth.config.engines import ENGINE_TITLES
from hearth.config.settings import ENGINE, BackendMode, GatewayConfig, Settings
from hearth.engines.llama_server.engine import LlamaServer
from hearth.engines.ollama.engine import CONTROL_TIMEOUT_S, Ollama
from hearth.errors import ConfigError
from hearth.events import EmulatorStarted
from hearth.execution.gpu_watch import GpuWatch
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout


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
    is_expected = bool(asked_url or named_server(settings) or this_service_manager())
    reason = ""
    if mode is BackendMode.EMULATOR:
        reason = "it was asked for"
    elif mode is BackendMode.AUTO and not is_expected and not await listens(url):
        reason = f"nothing is configured, and nothing listens at {url}"
    if not reason:
        kind = ENGINE if asked_url else row.kind
        return (
            BackendIdentity(mode=mode.value, url=url, emulator=False, kind=kind),
            _nothing_to_stop,
        )
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


async def _nothing_to_stop() -> None:
    """No emulator runs."""


MAIN = "main"


def open_engines(
    identity: BackendIdentity, settings: Settings, clock: Clock, closing: AsyncExitStack
) -> dict[str, Ollama | LlamaServer]:
    """The engines by name: one, at the URL of the settings or where the emulator listens."""
    row = settings.engine_row
    if len(settings.engine_rows) > 1 or row.kind not in {"ollama", "llama_server"}:
        raise ConfigError(("engines: only one, an ollama or a llama_server, is served yet",))
    engine: Ollama | LlamaServer
    if (identity.kind, identity.url) == (row.kind, row.url):
        engine = engine_for(settings, clock)
    else:  # no key goes to another address than its own
        engine = Ollama(identity.url, connect_timeout_s=settings.engine.connect_timeout_s)
    closing.push_async_callback(engine.aclose)
    return {MAIN: engine}


def engine_for(
    settings: Settings, clock: Clock, *, timeout_s: float | None = None
) -> Ollama | LlamaServer:
    """The engine of the settings.

    Args:
        timeout_s: of connections and questions, in place of what is configured.
    """
    row = settings.engine_row
    connect_timeout_s = timeout_s or settings.engine.connect_timeout_s
    control_timeout_s = timeout_s or CONTROL_TIMEOUT_S
    if row.kind == "ollama":
        return Ollama(
            row.url,
            connect_timeout_s=connect_timeout_s,
            control_timeout_s=control_timeout_s,
            api_key=row.api_key,
        )
    return LlamaServer(
        row.url,
        clock=clock,
        connect_timeout_s=connect_timeout_s,
        control_timeout_s=control_timeout_s,
        api_key=row.api_key,
        setting=settings.engine_url_setting,
    )


def turn_of(engine: Ollama | LlamaServer) -> Callable[[str], None]:
    """What has it use another address: an emulator stands in for an Ollama alone."""
    return engine.turn_to if isinstance(engine, Ollama) else lambda _: None


def claim_backend(
    identity: BackendIdentity, title: str, closing: AsyncExitStack
) -> tuple[str, ...]:
    """Claim the model server until `closing`; what the owner should know where another Hearth has
    claimed it, too.
    """
    if identity.emulator:
        return ()
    claim, shared = claim_server(identity.url, title)
    closing.callback(claim.close)
    return (shared,) if shared else ()


def vet_url(fresh: GatewayConfig, old: GatewayConfig) -> str | None:
    """Blocks; see `hearth_problem`."""
    url = fresh.settings.engine_row.url
    if url == old.settings.engine_row.url:
        return None
    title = ENGINE_TITLES[fresh.settings.engine_row.kind]
    return hearth_problem(url, fresh.settings.engine_url_setting, title)


def join_computing(
    gateway: Gateway, closing: AsyncExitStack, identity: BackendIdentity, standin: StandIn
) -> None:
    """Have `standin` look for the Ollama whose place the emulator takes, and have the GPU read
    where something computes on it.
    """
    if identity.instead_of:
        gateway.accompany("stand-in", standin.run)
    if gateway.settings.gpu.nvml and (identity.instead_of or not identity.emulator):
        _watch_gpu(gateway, closing, standin if identity.instead_of else None)


def _watch_gpu(gateway: Gateway, closing: AsyncExitStack, standin: StandIn | None) -> None:
    """Have the GPU read, where the emulator answers first from its end on."""
    settings = gateway.settings.gpu
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
