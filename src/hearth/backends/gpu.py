"""The card of this machine, read in a thread of its own, because drivers can take seconds and can hang for ever; and AMD's driver.

One thread, started with the first reading: while a call hangs, every further reading says so at once instead of hanging beside it. The
thread never keeps the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import MIB, GpuReading

READ_TIMEOUT_S = 10.0
"""Waking a card whose driver keeps no state (persistence mode off) takes seconds."""
SYSFS = Path("/sys/class/drm")


class GpuCard(Protocol):
    """One make of card; blocks, and is used by one thread only."""

    def read(self) -> GpuReading:
        """The numbers of this moment. Raises GpuUnavailable; the next call begins anew."""

    def close(self) -> None:
        """Give the driver back. Must not raise."""


class GpuThread:
    """The `GpuReader` of a real machine: the first of the cards, tried in this order at every reading, whose driver is there.

    Once one has answered, no later one is tried: where the driver of a large card is unloaded for a moment, the processor's graphics stay.
    """

    def __init__(self, cards: Sequence[GpuCard], *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._cards = self._asked = tuple(cards)
        self._timeout_s = timeout_s
        self._jobs: SimpleQueue[Future[GpuReading] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: Future[GpuReading] | None = None
        self._closed = False

    async def read(self) -> GpuReading:
        """As the port says; takes at most `timeout_s`."""
        if self._closed or (self._pending is not None and not self._pending.done()):
            raise GpuUnavailable(GpuFault.TIMEOUT, "the driver has not answered the last query yet")
        self._pending = Future()
        self._jobs.put(self._pending)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu reader", daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(self._pending)
        except TimeoutError as error:
            raise GpuUnavailable(GpuFault.TIMEOUT, f"the driver did not answer within {self._timeout_s:g} s") from error

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
            except Exception as error:  # noqa: BLE001 - a driver's binding may raise anything; its text may be anything too
                pending.set_exception(GpuUnavailable(GpuFault.OTHER, f"reading the GPU failed with {type(error).__name__}"))
        for card in self._cards:
            card.close()

    def _read(self) -> GpuReading:
        missing: GpuUnavailable | None = None
        for place, card in enumerate(self._asked):
            try:
                reading = card.read()
            except GpuUnavailable as error:
                if error.fault is not GpuFault.NO_DRIVER:
                    raise
                missing = missing or error
            else:
                self._asked = self._asked[: place + 1]
                return reading
        raise missing or GpuUnavailable(GpuFault.NO_DRIVER)


class AmdCard:
    """An AMD card through the files of its kernel driver, by its number among them (by any name the first); it lists no processes."""

    def __init__(self, device: str, root: Path = SYSFS) -> None:
        self._index = int(device) if device.isdigit() else 0
        self._root = root

    def read(self) -> GpuReading:
        """As `GpuCard` says."""
        found = (path.parent for path in self._root.glob("card[0-9]*/device/mem_info_vram_total"))
        cards = sorted(found, key=lambda device: (len(device.parent.name), device.parent.name))  # card2 before card10
        if not cards:
            raise GpuUnavailable(GpuFault.NO_DRIVER, "the amdgpu driver has no GPU")
        if self._index >= len(cards):
            raise GpuUnavailable(GpuFault.NO_DEVICE, f"there are {len(cards)} AMD GPUs, counted from 0")
        return _amd_reading(cards[self._index])

    def close(self) -> None:
        """Nothing is kept open."""


def _amd_reading(card: Path) -> GpuReading:
    total_mib, used_mib = _number(card / "mem_info_vram_total", MIB), _number(card / "mem_info_vram_used", MIB)
    if not total_mib:
        raise GpuUnavailable(GpuFault.LOST, "the amdgpu driver does not report the memory size")
    sensors = next(iter(sorted(card.glob("hwmon/hwmon*"))), card)
    return GpuReading(
        name=_text(card / "product_name") or "AMD GPU",
        uuid=_text(card / "unique_id"),
        total_mib=total_mib,
        used_mib=None if used_mib is None else min(used_mib, total_mib),
        utilisation_pct=_number(card / "gpu_busy_percent"),
        temperature_c=_number(sensors / "temp1_input", 1e3),
        power_w=_number(sensors / "power1_average", 1e6) or _number(sensors / "power1_input", 1e6),
        power_limit_w=_number(sensors / "power1_cap", 1e6),
    )


def _number(path: Path, per: float = 1.0) -> float | None:
    """None where this card or kernel has no such file, or says nothing usable in it."""
    text = _text(path)
    return float(text) / per if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
