"""NVIDIA's library as far as Hearth calls it, in Python: what the real binding (`pynvml`) loads in
place of `libnvidia-ml.so.1`.

The binding keeps the library it has loaded in a variable and looks its functions up by name, so
everything above the C calls is the real thing: structures, versions, error classes, the two calls
for a list.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]

MIB = 1024 * 1024
SUCCESS = 0
UUID = "GPU-11111111-2222-3333-4444-555555555555"


class StubDriver:
    """A card, and those `beside` it. A function in `faults` answers with that error code; one in
    `missing` does not exist, as in an older driver.

    Attributes:
        beside: the cards after this one, each with its own numbers and faults.
        count: how many there are without those.
        processes: pid to (name, bytes held; None where the driver does not say).
        go_on: while it is not set, every call to read memory waits; `asked` is set with the first.
        calls: the functions that were called, in order.
    """

    def __init__(self) -> None:
        self.beside: list[StubDriver] = []
        self.count = 1
        self.faults: dict[str, int] = {}
        self.name = "NVIDIA GeForce RTX 3090"
        self.missing: set[str] = set()
        self.memory_mib = {"total": 24576, "reserved": 400, "used": 9000}
        self.processes: dict[int, tuple[str, int | None]] = {
            100: ("/usr/lib/ollama/llama-server", 8192 * MIB)
        }
        self.graphics: dict[int, tuple[str, int | None]] = {200: ("/usr/lib/xorg/Xorg", 300 * MIB)}
        self.utilisation_pct = 87
        self.temperature_c = 61
        self.power_mw = 250_500
        self.reasons = 0
        self.sessions = 0
        self.calls: list[str] = []
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Callable[..., int]:
        answer = _ANSWERS.get(name)
        if answer is None or name in self.missing:
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            card = self._asked_of(args)
            fault = card.faults.get(name, SUCCESS)
            return fault or answer(card, *args)

        return call

    def _asked_of(self, args: tuple[Any, ...]) -> StubDriver:
        """The card of the handle that comes first in a call, itself in one without."""
        if not args or not isinstance(args[0], pynvml.c_nvmlDevice_t):
            return self
        number = ctypes.cast(args[0], ctypes.c_void_p).value or 0
        return [self, *self.beside][number]


def _sessions(change: int) -> Callable[..., int]:
    def answer(driver: StubDriver, *_: Any) -> int:
        driver.sessions += change
        return SUCCESS

    return answer


def _by_index(driver: StubDriver, index: Any, handle: Any) -> int:
    cards = [driver, *driver.beside]
    if index.value >= len(cards):
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    number = ctypes.c_size_t(index.value)  # its number is its handle
    ctypes.memmove(ctypes.byref(handle._obj), ctypes.byref(number), ctypes.sizeof(number))
    card: StubDriver = cards[index.value]
    return card.faults.get("nvmlDeviceGetHandleByIndex_v2", SUCCESS)


def _by_uuid(driver: StubDriver, uuid: Any, handle: Any) -> int:
    return SUCCESS if uuid.value == UUID.encode() else int(pynvml.NVML_ERROR_NOT_FOUND)


def _memory(driver: StubDriver, handle: Any, out: Any) -> int:
    driver.asked.set()
    driver.go_on.wait()
    memory = out._obj
    said = driver.memory_mib
    memory.total = said["total"] * MIB
    if hasattr(memory, "reserved"):
        memory.reserved = said["reserved"] * MIB
        memory.used = said["used"] * MIB
    else:
        memory.used = (said["used"] + said["reserved"]) * MIB
    return SUCCESS


def _sets(attribute: str, value: Callable[[StubDriver], int]) -> Callable[..., int]:
    """What fills in the last argument."""

    def answer(driver: StubDriver, *args: Any) -> int:
        setattr(args[-1]._obj, attribute, value(driver))
        return SUCCESS

    return answer


def _list(processes: dict[int, tuple[str, int | None]], count: Any, out: Any) -> int:
    room, count._obj.value = count._obj.value, len(processes)
    if room < len(processes):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for entry, (pid, (_, held)) in zip(out or (), processes.items(), strict=False):
        entry.pid = pid
        entry.usedGpuMemory = (
            pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value if held is None else held
        )
    return SUCCESS


def _process_name(driver: StubDriver, pid: Any, out: Any, room: Any) -> int:
    cards = [driver, *driver.beside]
    listed = [programs for card in cards for programs in (card.processes, card.graphics)]
    name = next(programs[pid.value][0] for programs in listed if pid.value in programs)
    out.value = name.encode()
    return SUCCESS if name else int(pynvml.NVML_ERROR_NOT_FOUND)


def _says(text: Callable[[StubDriver], str]) -> Callable[..., int]:
    def answer(driver: StubDriver, handle: Any, out: Any, room: Any) -> int:
        out.value = text(driver).encode()
        return SUCCESS

    return answer


_ANSWERS: dict[str, Callable[..., int]] = {
    "nvmlInitWithFlags": _sessions(1),
    "nvmlShutdown": _sessions(-1),
    "nvmlDeviceGetCount_v2": _sets("value", lambda driver: driver.count + len(driver.beside)),
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetName": _says(lambda driver: driver.name),
    "nvmlDeviceGetUUID": _says(lambda _: UUID),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetUtilizationRates": _sets("gpu", lambda driver: driver.utilisation_pct),
    "nvmlDeviceGetTemperatureV": _sets("temperature", lambda driver: driver.temperature_c),
    "nvmlDeviceGetTemperature": _sets("value", lambda driver: driver.temperature_c),
    "nvmlDeviceGetPowerUsage": _sets("value", lambda driver: driver.power_mw),
    "nvmlDeviceGetEnforcedPowerLimit": _sets("value", lambda _: 350_000),
    "nvmlDeviceGetCurrentClocksEventReasons": _sets("value", lambda driver: driver.reasons),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda driver, handle, count, out: _list(
        driver.processes, count, out
    ),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda driver, handle, count, out: _list(
        driver.graphics, count, out
    ),
    "nvmlSystemGetProcessName": _process_name,
}


@contextmanager
def loaded(library: object | None) -> Iterator[None]:
    """The binding takes this for the library; None: it has loaded none yet."""
    before = pynvml.nvmlLib
    cached = dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cached)
