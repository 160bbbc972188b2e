"""An NVIDIA card through NVML, its driver's own library; blocks.

Every getter is asked on its own, because which ones a card, a driver or a container supports differs; what is refused is None. Only
errors that say that the card or the driver is gone end the reading, and with it the session: the next one begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeVar

from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import MIB, GpuProcess, GpuReading

T = TypeVar("T")

HELD_DOWN = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Of NVML's clocks event reasons (nvml.h) those that hold a card down while it has work; idling and chosen clocks do not."""


class NvmlCard:
    """One card, by index or UUID."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._handle: object | None = None

    def read(self) -> GpuReading:
        """As `GpuCard` says."""
        import pynvml as nvml  # type: ignore[import-untyped]  # noqa: PLC0415 - 30 ms that a house without a card never needs

        try:
            if self._handle is None:
                self._handle = _opened(nvml, self._device)
            return _reading(nvml, self._handle)
        except nvml.NVMLError as error:
            self.close()
            raise GpuUnavailable(_fault_of(nvml, error), f"NVML: {error}") from error

    def close(self) -> None:
        """As `GpuCard` says."""
        if self._handle is not None:
            import pynvml as nvml  # noqa: PLC0415

            self._handle = None
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def _opened(nvml: ModuleType, device: str) -> object:
    nvml.nvmlInit()
    try:
        handle: object = nvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdigit() else nvml.nvmlDeviceGetHandleByUUID(device)
    except nvml.NVMLError:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        raise
    return handle


def _reading(nvml: ModuleType, handle: object) -> GpuReading:
    refusals: list[Exception] = []

    def ask(getter: Callable[..., T], *args: object) -> T | None:
        """None where this card, driver or container does not say."""
        try:
            return getter(handle, *args)
        except nvml.NVMLError as error:
            if _fault_of(nvml, error) in {GpuFault.LOST, GpuFault.MISMATCH, GpuFault.NO_DRIVER}:
                raise
            refusals.append(error)
            return None

    total_mib, used_mib, reserved_mib = _memory(nvml, ask)
    rates: Any = ask(nvml.nvmlDeviceGetUtilizationRates)
    temperature_c: Any = ask(nvml.nvmlDeviceGetTemperatureV, nvml.NVML_TEMPERATURE_GPU)
    if temperature_c is None:
        temperature_c = ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    reasons: Any = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons)
    reading = GpuReading(
        name=_text(ask(nvml.nvmlDeviceGetName)),
        uuid=_text(ask(nvml.nvmlDeviceGetUUID)),
        total_mib=total_mib,
        used_mib=used_mib,
        reserved_mib=reserved_mib,
        processes=_processes(nvml, ask),
        utilisation_pct=None if rates is None else _within(rates.gpu, 0, 100),
        temperature_c=_within(temperature_c, 1, 150),
        power_w=_within(ask(nvml.nvmlDeviceGetPowerUsage), 0, 5_000_000, per=1000.0),
        power_limit_w=_within(ask(nvml.nvmlDeviceGetEnforcedPowerLimit), 0, 5_000_000, per=1000.0),
        throttle_reasons=None if reasons is None else tuple(word for bit, word in HELD_DOWN.items() if reasons & bit),
    )
    # A card in trouble may go on to say its name, and answer every other question with "unknown error".
    if refusals and {reading.total_mib, reading.utilisation_pct, reading.temperature_c, reading.power_w} == {None}:
        raise refusals[-1]
    return reading


def _memory(nvml: ModuleType, ask: Callable[..., Any]) -> tuple[float | None, float | None, float]:
    """Total, used and reserved MiB; older drivers count what they reserve as used."""
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
    reserved = 0 if memory is None else memory.reserved
    memory = memory or ask(nvml.nvmlDeviceGetMemoryInfo)
    if memory is None or memory.total <= 0 or memory.used + reserved > memory.total:
        return None, None, 0.0
    return memory.total / MIB, memory.used / MIB, reserved / MIB


def _processes(nvml: ModuleType, ask: Callable[..., Any]) -> tuple[GpuProcess, ...] | None:
    """Compute and graphics programs; one that is both is listed once, with the larger number.

    By the versioned names: the others raise something that is no NVMLError where the driver is older.
    """
    compute = ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3)
    graphics = ask(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3)
    if compute is None:
        return None
    held: dict[int, float | None] = {}
    for process in (*compute, *(graphics or ())):
        said = None if process.usedGpuMemory is None else process.usedGpuMemory / MIB
        known = held.get(process.pid)
        held[process.pid] = said if known is None else max(known, said or 0.0)
    return tuple(GpuProcess(pid=pid, name=_name_of(nvml, pid), used_mib=used_mib) for pid, used_mib in held.items())


def _name_of(nvml: ModuleType, pid: int) -> str:
    """Empty where the driver does not tell, as of programs outside of our container."""
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except (nvml.NVMLError, UnicodeDecodeError):
        return ""


def _within(value: float | None, low: float, high: float, *, per: float = 1.0) -> float | None:
    """A number that can be true, in the wanted unit; drivers in trouble say things like 4294967295."""
    return None if value is None or not low <= value <= high else value / per


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fault_of(nvml: ModuleType, error: Any) -> GpuFault:  # noqa: ANN401 - pynvml has no types
    faults = {
        nvml.NVML_ERROR_UNINITIALIZED: GpuFault.LOST,
        nvml.NVML_ERROR_GPU_IS_LOST: GpuFault.LOST,
        nvml.NVML_ERROR_RESET_REQUIRED: GpuFault.LOST,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: GpuFault.MISMATCH,
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: GpuFault.NO_DRIVER,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: GpuFault.NO_DRIVER,
        nvml.NVML_ERROR_NOT_FOUND: GpuFault.NO_DEVICE,
        nvml.NVML_ERROR_INVALID_ARGUMENT: GpuFault.NO_DEVICE,
        nvml.NVML_ERROR_GPU_NOT_FOUND: GpuFault.NO_DEVICE,
    }
    return faults.get(error.value, GpuFault.OTHER)
