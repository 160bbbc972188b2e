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
from hearth.config.settings import BackendMode, GatewayConfig, Settings
from hearth.engines.ollama.engine import Ollama
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
        asked_mode, asked_url: instead of `backend.mode` and `ollama.url`.
    """
    mode = BackendMode(asked_mode or settings.backend.mode)
    url = asked_url or settings.engine.url
    is_expected = bool(asked_url or named_server(settings) or this_service_manager())
    reason = ""
    if mode is BackendMode.EMULATOR:
        reason = "it was asked for"
    elif mode is BackendMode.AUTO and not is_expected and not await listens(url):
        reason = f"nothing is configured, and nothing listens at {url}"
    if not reason:
        return BackendIdentity(mode=mode.value, url=url, emulator=False), _nothing_to_stop
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
    identity: BackendIdentity, settings: Settings, closing: AsyncExitStack
) -> dict[str, Ollama]:
    """The engines by name: one, at `ollama.url` or where the emulator listens."""
    engines = {MAIN: Ollama(identity.url, connect_timeout_s=settings.engine.connect_timeout_s)}
    for engine in engines.values():
        closing.push_async_callback(engine.aclose)
    return engines


def claim_backend(identity: BackendIdentity, closing: AsyncExitStack) -> tuple[str, ...]:
    """Claim the Ollama until `closing`; what the owner should know where another Hearth has claimed
    it, too.
    """
    if identity.emulator:
        return ()
    claim, shared = claim_server(identity.url)
    closing.callback(claim.close)
    return (shared,) if shared else ()


def vet_url(fresh: GatewayConfig, old: GatewayConfig) -> str | None:
    """Blocks; see `hearth_problem`."""
    return (
        None
        if fresh.settings.engine.url == old.settings.engine.url
        else hearth_problem(fresh.settings.engine.url)
    )


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
