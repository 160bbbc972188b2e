"""Where answers come from: an Ollama, or an emulator of our own."""

from __future__ import annotations

from contextlib import AsyncExitStack

from hearth.backends.ollama_control import OllamaControl
from hearth.clock import Clock
from hearth.config.settings import BackendMode
from hearth.errors import BackendError
from hearth.events import EmulatorStarted
from hearth.observability.fanout import EventFanout
from hearth.service_model import default_profiles

CONTROL_TIMEOUT_S = 10.0


async def find_backend(mode: BackendMode, url: str, *, clock: Clock, events: EventFanout, closing: AsyncExitStack) -> tuple[str, bool]:
    """Where answers come from, and whether they are made up: then by an emulator that `closing` stops."""
    reason = await _why_emulate(mode, url)
    if reason is None:
        return url, False
    from hearth.emulator.server import Emulator  # noqa: PLC0415 - 50 ms of imports that a house with an Ollama never needs

    emulator = Emulator(default_profiles(), clock=clock)
    closing.push_async_callback(emulator.stop)
    url = await emulator.start("127.0.0.1", 0)
    events.emit(EmulatorStarted(at=clock.monotonic(), url=url, reason=reason))
    return url, True


async def _why_emulate(mode: BackendMode, url: str) -> str | None:
    """Why the emulator has to answer; None where an Ollama does or has to."""
    if mode is BackendMode.OLLAMA:
        return None
    if mode is BackendMode.EMULATOR:
        return "it was asked for"
    probe = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S)
    try:
        await probe.version()
    except BackendError:
        return f"no Ollama answers at {url}"
    else:
        return None
    finally:
        await probe.aclose()
