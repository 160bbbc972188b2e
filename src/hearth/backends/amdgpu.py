"""An AMD card through the files of its kernel driver under `/sys/class/drm`. Blocking, as waking a card is: `gpu_thread` calls it.

It lists no processes, so what others hold is known only through what the model server says of itself.
"""

from __future__ import annotations

from pathlib import Path

from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import MIB, GpuReading

SYSFS = Path("/sys/class/drm")


class AmdCard:
    """One card, by its number among the AMD cards of the machine; a name of another kind of card is the first one.

    Args:
        root: where the kernel lists graphics cards.
    """

    def __init__(self, device: str, root: Path = SYSFS) -> None:
        self._index = int(device) if device.isdigit() else 0
        self._root = root

    def read(self) -> GpuReading:
        """As `GpuCard` says."""
        found = (path.parent for path in self._root.glob("card[0-9]*/device/mem_info_vram_total"))
        cards = sorted(found, key=lambda device: (len(device.parent.name), device.parent.name))  # card2 before card10
        if not cards:
            raise GpuUnavailable(GpuFault.NO_DRIVER, "there is no amdgpu driver with a card")
        if self._index >= len(cards):
            raise GpuUnavailable(GpuFault.NO_DEVICE, f"there are {len(cards)} AMD cards, counted from 0")
        return _reading(cards[self._index])

    def close(self) -> None:
        """Nothing is kept open."""


def _reading(card: Path) -> GpuReading:
    total, used = _number(card / "mem_info_vram_total"), _number(card / "mem_info_vram_used")
    if not total:
        raise GpuUnavailable(GpuFault.LOST, "the amdgpu driver does not say how large the card is")
    sensors = next(iter(sorted(card.glob("hwmon/hwmon*"))), card)
    microwatts = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    return GpuReading(
        name=_text(card / "product_name") or "AMD GPU",
        uuid=_text(card / "unique_id"),
        total_mib=total / MIB,
        used_mib=None if used is None else min(used, total) / MIB,
        utilisation_pct=_number(card / "gpu_busy_percent"),
        temperature_c=_scaled(_number(sensors / "temp1_input"), 1e3),
        power_w=_scaled(microwatts, 1e6),
        power_limit_w=_scaled(_number(sensors / "power1_cap"), 1e6),
    )


def _scaled(value: float | None, per: float) -> float | None:
    return None if value is None else value / per


def _number(path: Path) -> float | None:
    """None where this card or kernel has no such file, or says nothing usable in it."""
    text = _text(path)
    return float(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
