"""The card of the emulator: what a GPU with those models in its memory would say of itself."""

from __future__ import annotations

import math

from hearth.clock import Clock
from hearth.emulator.engine import EmulatedServer
from hearth.types import MIB, GpuProcess, GpuReading

_IDLE_W = 28.0
_BUSY_W = 365.0
_LIMIT_W = 420.0
_IDLE_C = 34.0
_BUSY_C = 71.0
_WARMING_S = 45.0
"""After so long, a card has made 63 % of its way to the temperature of its load."""
_DRIVER_MIB = 420.0
_BUSY_PCT = 97.0


class EmulatedCard:
    """A `GpuReader` that computes what it says from the load of `server`."""

    def __init__(self, server: EmulatedServer, *, vram_gib: float, clock: Clock) -> None:
        self._server = server
        self._total_mib = vram_gib * 1024
        self._clock = clock
        self._read_at = clock.monotonic()
        self._heat_c = _IDLE_C

    async def read(self) -> GpuReading:
        """As `GpuReader` has it; it is always there."""
        busy = bool(self._server.in_flight)
        models_mib = sum(runner.vram_bytes for runner in self._server.runners()) / MIB
        processes = (GpuProcess(pid=1, name="ollama", used_mib=models_mib),) if models_mib else ()
        return GpuReading(
            name="Emulated GPU",
            total_mib=self._total_mib,
            used_mib=models_mib + _DRIVER_MIB,
            reserved_mib=_DRIVER_MIB,
            processes=processes,
            utilisation_pct=_BUSY_PCT if busy else 0.0,
            temperature_c=round(self._warmed_c(_BUSY_C if busy else _IDLE_C)),
            power_w=_BUSY_W if busy else _IDLE_W,
            power_limit_w=_LIMIT_W,
            throttle_reasons=(),
        )

    def _warmed_c(self, towards_c: float) -> float:
        now = self._clock.monotonic()
        left = math.exp((self._read_at - now) / _WARMING_S)
        self._read_at = now
        self._heat_c = towards_c + (self._heat_c - towards_c) * left
        return self._heat_c
