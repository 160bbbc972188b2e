"""The card of this machine, read in a thread of its own, because drivers can take seconds and can
hang for ever; and its two makes.

One thread, started with the first reading: while a call hangs, every further reading says so at
once instead of hanging beside it. The thread never keeps the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Protocol, TypeVar

from hearth.errors import GpuFault, GpuUnavailable
from hearth.main_memory import MEMINFO, read_main_memory
from hearth.types import MIB, GpuProcess, GpuReading

READ_TIMEOUT_S = 10.0
"""Waking a card whose driver keeps no state (persistence mode off) takes seconds."""
SYSFS = Path("/sys/class/drm")
T = TypeVar("T")


class GpuCard(Protocol):
    """One make of card; blocks, and is used by one thread only."""

    def read(self) -> GpuReading:
        """The numbers of this moment. Raises GpuUnavailable; the next call begins anew."""

    def close(self) -> None:
        """Give the driver back. Must not raise."""


class GpuThread:
    """The `GpuReader` of a real machine: the first of the cards, tried in this order at every
    reading, whose driver is there.

    Once one has answered, no later one is tried: where the driver of a large card is unloaded for a
    moment, the processor's graphics stay.
    """

    def __init__(self, cards: Sequence[GpuCard], *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._cards = tuple(cards)
        self._asked = self._cards
        self._timeout_s = timeout_s
        self._jobs: SimpleQueue[Future[GpuReading] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: Future[GpuReading] | None = None
        self._closed = False

    async def read(self) -> GpuReading:
        """As the port says; takes at most `timeout_s`."""
        if self._closed or (self._pending is not None and not self._pending.done()):
            raise GpuUnavailable("timeout", "the driver has not answered the last query yet")
        self._pending = Future()
        self._jobs.put(self._pending)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu reader", daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(self._pending)
        except TimeoutError as error:
            raise GpuUnavailable(
                "timeout", f"the driver did not answer within {self._timeout_s:g} s"
            ) from error

    async def aclose(self) -> None:
        """Give the drivers back as soon as the thread comes to it, without waiting for that."""
        self._closed = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (pending := self._jobs.get()) is not None:
            if not pending.set_running_or_notify_cancel():
                continue
            try:
                pending.set_result(self._read())
            except GpuUnavailable as error:
                pending.set_exception(error)
            except Exception as error:  # noqa: BLE001
                # a driver's binding may raise anything, and its text may be anything too
                pending.set_exception(
                    GpuUnavailable(
                        "driver_error", f"reading the GPU failed with {type(error).__name__}"
                    )
                )
        for card in self._cards:
            card.close()

    def _read(self) -> GpuReading:
        missing: GpuUnavailable | None = None
        for place, card in enumerate(self._asked):
            try:
                reading = card.read()
            except GpuUnavailable as error:
                if error.reason != "no_driver":
                    raise
                missing = missing or error
            else:
                self._asked = self._asked[: place + 1]
                return reading
        raise missing or GpuUnavailable("no_driver")


# A GPU without memory of its own, as of DGX Spark (GB10) or an APU such as Strix Halo.


def _unified(
    reading: GpuReading, meminfo: Path, *, used_mib: float | None, limit_mib: float | None = None
) -> GpuReading:
    """The same with main memory for the card's; as it is where the system does not say.

    Args:
        used_mib, limit_mib: what its programs hold of main memory, and may have at most.
    """
    memory = read_main_memory(meminfo)
    if memory is None:
        return reading
    return replace(
        reading,
        unified=True,
        total_mib=memory.total_mib,
        used_mib=memory.total_mib - memory.available_mib,
        reserved_mib=0.0,
        gpu_used_mib=used_mib,
        gpu_limit_mib=limit_mib,
    )


# NVIDIA's driver. Every getter is asked on its own, because which ones a card, a driver or a
# container supports differs; what is refused is None. Only errors that say that the card or the
# driver is gone end the reading, and with it the session: the next one begins anew.

_HELD_DOWN = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Of NVML's clocks event reasons (nvml.h) those that hold a card down while it has work; idling and
chosen clocks do not.
"""


_WITHOUT_MEMORY = ("GB10",)
"""In the names of NVIDIA's GPUs that share main memory; some drivers report that as their own."""


class NvmlCard:
    """An NVIDIA card through NVML, its driver's own library, by index or UUID."""

    def __init__(self, device: str, meminfo: Path = MEMINFO) -> None:
        self._device = device
        self._meminfo = meminfo
        self._handle: object | None = None

    def read(self) -> GpuReading:
        # importing it takes 30 ms, which a home without a GPU never needs
        import pynvml as nvml  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            if self._handle is None:
                self._handle = _opened(nvml, self._device)
            return _reading(nvml, self._handle, self._meminfo)
        except nvml.NVMLError as error:
            self.close()
            raise GpuUnavailable(_fault_of(nvml, error), f"NVML: {error}") from error

    def close(self) -> None:
        if self._handle is not None:
            import pynvml as nvml  # noqa: PLC0415

            self._handle = None
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def nvml_count() -> int:
    """How many cards NVIDIA's driver has, at least one. Raises GpuUnavailable."""
    import pynvml as nvml  # noqa: PLC0415

    try:
        nvml.nvmlInit()
        try:
            count = int(nvml.nvmlDeviceGetCount())
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise GpuUnavailable(_fault_of(nvml, error), f"NVML: {error}") from error
    if not count:
        raise GpuUnavailable("no_such_device", "NVML: the driver has no GPU")
    return count


def _opened(nvml: ModuleType, device: str) -> object:
    nvml.nvmlInit()
    try:
        handle: object = (
            nvml.nvmlDeviceGetHandleByIndex(int(device))
            if device.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(device)
        )
    except nvml.NVMLError:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        raise
    return handle


def _reading(nvml: ModuleType, handle: object, meminfo: Path) -> GpuReading:
    refusals: list[Exception] = []

    def ask(getter: Callable[..., T], *args: object) -> T | None:
        """None where this card, driver or container does not say."""
        try:
            return getter(handle, *args)
        except nvml.NVMLError as error:
            if _fault_of(nvml, error) in {"gpu_lost", "driver_mismatch", "no_driver"}:
                raise
            refusals.append(error)
            return None

    total_mib, used_mib, reserved_mib = _memory(nvml, ask)
    # no other error: a card in trouble, or a slice of one, does have memory
    has_none = total_mib is None and any(_is_unsupported(nvml, each) for each in refusals)
    rates: Any = ask(nvml.nvmlDeviceGetUtilizationRates)
    temperature_c: Any = ask(nvml.nvmlDeviceGetTemperatureV, nvml.NVML_TEMPERATURE_GPU)
    if temperature_c is None:
        temperature_c = ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    reasons: Any = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons)
    reading = GpuReading(
        name=ask(nvml.nvmlDeviceGetName) or "",
        uuid=ask(nvml.nvmlDeviceGetUUID) or "",
        total_mib=total_mib,
        used_mib=used_mib,
        reserved_mib=reserved_mib,
        processes=_processes(nvml, ask),
        utilisation_pct=None if rates is None else _within(rates.gpu, 0, 100),
        temperature_c=_within(temperature_c, 1, 150),
        power_w=_within(ask(nvml.nvmlDeviceGetPowerUsage), 0, 5_000_000, per=1000.0),
        power_limit_w=_within(ask(nvml.nvmlDeviceGetEnforcedPowerLimit), 0, 5_000_000, per=1000.0),
        throttle_reasons=None
        if reasons is None
        else tuple(word for bit, word in _HELD_DOWN.items() if reasons & bit),
    )
    # A card in trouble may go on to say its name, and answer every other question with "unknown
    # error".
    if refusals and {
        reading.total_mib,
        reading.utilisation_pct,
        reading.temperature_c,
        reading.power_w,
    } == {None}:
        raise refusals[-1]
    if has_none or any(name in reading.name for name in _WITHOUT_MEMORY):
        return _unified(reading, meminfo, used_mib=_held_mib(reading))
    return reading


def _is_unsupported(nvml: ModuleType, error: Any) -> bool:  # noqa: ANN401 - pynvml has no types
    return bool(error.value == nvml.NVML_ERROR_NOT_SUPPORTED)


def _held_mib(reading: GpuReading) -> float | None:
    """What all programs hold; None where the driver does not say, and where it lists none, as in a
    container.
    """
    held = [process.used_mib for process in reading.processes or ()]
    known = [mib for mib in held if mib is not None]
    return sum(known) if known and len(known) == len(held) else None


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

    By the versioned names: the others raise something that is no NVMLError where the driver is
    older.
    """
    compute = ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3)
    graphics = ask(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3)
    if compute is None:
        return None
    held: dict[int, float | None] = {}
    for process in (*compute, *(graphics or ())):
        used_mib = None if process.usedGpuMemory is None else process.usedGpuMemory / MIB
        known = held.get(process.pid)
        held[process.pid] = used_mib if known is None else max(known, used_mib or 0.0)
    return tuple(
        GpuProcess(pid=pid, name=_name_of(nvml, pid), used_mib=used_mib)
        for pid, used_mib in held.items()
    )


def _name_of(nvml: ModuleType, pid: int) -> str:
    """Empty where the driver does not tell, as of programs outside of our container."""
    try:
        return str(nvml.nvmlSystemGetProcessName(pid))
    except (nvml.NVMLError, UnicodeDecodeError):
        return ""


def _within(value: float | None, low: float, high: float, *, per: float = 1.0) -> float | None:
    """A number that can be true, in the wanted unit; drivers in trouble say things like
    4294967295.
    """
    return None if value is None or not low <= value <= high else value / per


def _fault_of(nvml: ModuleType, error: Any) -> GpuFault:  # noqa: ANN401 - pynvml has no types
    faults: dict[int, GpuFault] = {
        nvml.NVML_ERROR_UNINITIALIZED: "gpu_lost",
        nvml.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
        nvml.NVML_ERROR_RESET_REQUIRED: "gpu_lost",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
        nvml.NVML_ERROR_NOT_FOUND: "no_such_device",
        nvml.NVML_ERROR_INVALID_ARGUMENT: "no_such_device",
        nvml.NVML_ERROR_GPU_NOT_FOUND: "no_such_device",
    }
    return faults.get(error.value, "driver_error")


# AMD's driver.


class AmdCard:
    """An AMD card through the files of its kernel driver, by its number among them (by any name the
    first); it lists no processes.
    """

    def __init__(self, device: str, root: Path = SYSFS, meminfo: Path = MEMINFO) -> None:
        self._index = int(device) if device.isdigit() else 0
        self._root = root
        self._meminfo = meminfo

    def read(self) -> GpuReading:
        cards = amd_devices(self._root)
        if self._index >= len(cards):
            raise GpuUnavailable(
                "no_such_device", f"there are {len(cards)} AMD GPUs, counted from 0"
            )
        return _amd_reading(cards[self._index], self._meminfo)

    def close(self) -> None:
        """Nothing is kept open."""


def amd_devices(root: Path = SYSFS) -> list[Path]:
    """The folders of AMD's cards in their order. Raises GpuUnavailable where there are none."""
    found = (path.parent for path in root.glob("card[0-9]*/device/mem_info_vram_total"))
    # card2 before card10
    cards = sorted(found, key=lambda device: (len(device.parent.name), device.parent.name))
    if not cards:
        raise GpuUnavailable("no_driver", "the amdgpu driver has no GPU")
    return cards


def _amd_reading(card: Path, meminfo: Path) -> GpuReading:
    total_mib = _number(card / "mem_info_vram_total", MIB)
    used_mib = _number(card / "mem_info_vram_used", MIB)
    if not total_mib:
        raise GpuUnavailable("gpu_lost", "the amdgpu driver does not report the memory size")
    sensors = next(iter(sorted(card.glob("hwmon/hwmon*"))), card)
    reading = GpuReading(
        name=_text(card / "product_name") or "AMD GPU",
        uuid=_text(card / "unique_id"),
        total_mib=total_mib,
        used_mib=None if used_mib is None else min(used_mib, total_mib),
        utilisation_pct=_number(card / "gpu_busy_percent"),
        temperature_c=_number(sensors / "temp1_input", 1e3),
        power_w=_number(sensors / "power1_average", 1e6) or _number(sensors / "power1_input", 1e6),
        power_limit_w=_number(sensors / "power1_cap", 1e6),
    )
    # An APU's own memory is a part of main memory that the firmware has set apart. Where it can map
    # more of the rest (GTT), its driver takes that for programs that compute (Linux 6.10).
    limit_mib = _number(card / "mem_info_gtt_total", MIB) or 0.0
    if _is_apu(sensors) and limit_mib > total_mib:
        mapped_mib = _number(card / "mem_info_gtt_used", MIB)
        return _unified(reading, meminfo, used_mib=mapped_mib, limit_mib=limit_mib)
    return reading


def _is_apu(sensors: Path) -> bool:
    """Only APUs have the voltage of a northbridge (docs.kernel.org/gpu/amdgpu/thermal.html)."""
    return _text(sensors / "in1_label") == "vddnb"


def _number(path: Path, per: float = 1.0) -> float | None:
    """None where this card or kernel has no such file, or says nothing usable in it."""
    text = _text(path)
    return float(text) / per if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
