"""A machine whose GPU shares main memory, as a driver and Linux show it: files like theirs, read by
the real adapters. What is taken is that of a fake Ollama, of a system and of other programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pynvml  # type: ignore[import-untyped]

from hearth.backends.gpu import AmdCard, NvmlCard
from hearth.types import GpuReading
from tests.backends.stub_driver import MIB, StubDriver

GIB = 1024.0
SYSTEM_MIB = 8.0 * GIB
"""Of a GB10 with nothing loaded: github.com/Syllo/nvtop/issues/449, 2026-08-07."""
WITHOUT_MEMORY = dict.fromkeys(
    ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), pynvml.NVML_ERROR_NOT_SUPPORTED
)
"""What NVML answers on a GB10: github.com/XuehaiPan/nvitop/pull/208."""


def write_meminfo(folder: Path, total_kb: int, available_kb: int) -> Path:
    """`/proc/meminfo`, as far as it is read; the swap is never to be counted."""
    file = folder / "meminfo"
    file.write_text(
        f"MemTotal:       {total_kb} kB\n"
        f"MemFree:          {available_kb // 4} kB\n"
        f"MemAvailable:   {available_kb} kB\n"
        "SwapTotal:      16777212 kB\n"
        "SwapFree:       16777212 kB\n"
        "HugePages_Total:       0\n"
    )
    return file


def write_amd(root: Path, files: Mapping[str, int | str]) -> Path:
    """The files of the one AMD GPU of a machine."""
    for name, value in files.items():
        path = root / "card1" / "device" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


def apu_files(vram: float, gtt: float, gtt_used: float = 18_653_184) -> dict[str, int | str]:
    """Bytes that the firmware has set apart, that the GPU can map, and has mapped."""
    return {
        "mem_info_vram_total": round(vram),
        "mem_info_vram_used": round(vram / 8),
        "mem_info_gtt_total": round(gtt),
        "mem_info_gtt_used": round(gtt_used),
        "gpu_busy_percent": 3,
        # `vddnb` in what `sensors` prints: github.com/UshakovVasilii/gnome-shell-extension-freon
        # pull 249; only APUs have it: docs.kernel.org/6.4/gpu/amdgpu/thermal.html
        "hwmon/hwmon5/in0_label": "vddgfx",
        "hwmon/hwmon5/in1_label": "vddnb",
        "hwmon/hwmon5/temp1_input": 41_000,
    }


class Card(Protocol):
    """What the driver of a machine shows of its GPU."""

    total_kb: int

    def read(self, meminfo: Path, models_mib: list[float]) -> GpuReading: ...


class Gb10:
    """DGX Spark, driver 580. `lists`: in a container, NVML lists no programs."""

    total_kb = 127_600_748

    def __init__(self, driver: StubDriver, *, lists: bool = True) -> None:
        self._driver = driver
        self._lists = lists
        driver.name = "NVIDIA GB10"
        driver.faults |= WITHOUT_MEMORY
        driver.graphics = {}

    def read(self, meminfo: Path, models_mib: list[float]) -> GpuReading:
        desktop: dict[int, tuple[str, int | None]] = {7: ("/usr/bin/gnome-shell", 43 * MIB)}
        models: dict[int, tuple[str, int | None]] = {
            100 + number: ("/usr/lib/ollama/llama-server", round(mib) * MIB)
            for number, mib in enumerate(models_mib)
        }
        self._driver.processes = desktop | models if self._lists else {}
        return NvmlCard("0", meminfo).read()


class Apu:
    """Strix Halo with 128 GB, of which its GPU can map `gtt` bytes."""

    total_kb = 130_988_200

    def __init__(self, root: Path, gtt: float) -> None:
        self._root = root
        self._gtt = gtt

    def read(self, meminfo: Path, models_mib: list[float]) -> GpuReading:
        mapped = 18_653_184 + sum(models_mib) * MIB
        write_amd(self._root, apu_files(512 * MIB, self._gtt, mapped))
        return AmdCard("0", self._root, meminfo).read()


class SharedMachine:
    """A `GpuReader` over the memory of a fake Ollama. `foreign_mib`: of other programs."""

    def __init__(self, card: Card, folder: Path) -> None:
        self._card = card
        self._folder = folder
        self.foreign_mib = 0.0
        self.taken_mib: Callable[[], list[float]] = list
        self.total_mib = card.total_kb / 1024

    def room_mib(self) -> float:
        """What models can have now before anything goes into swap."""
        return self.total_mib - SYSTEM_MIB - self.foreign_mib

    async def read(self) -> GpuReading:
        await asyncio.sleep(0)
        models_mib = self.taken_mib()
        available_mib = max(0.0, self.room_mib() - sum(models_mib))
        meminfo = write_meminfo(self._folder, self._card.total_kb, round(available_mib * 1024))
        return self._card.read(meminfo, models_mib)
