"""Which cards are read (`gpu.device`), and several of them as one: a server that splits its models
over all cards has the memory of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hearth.backends.gpu import SYSFS, AmdCard, GpuCard, NvmlCard, amd_devices, nvml_count
from hearth.config.choices import ALL_GPUS
from hearth.errors import GpuUnavailable
from hearth.types import GpuProcess, GpuReading


def cards_of(device: str) -> tuple[GpuCard, ...]:
    """What `gpu.device` names, for each make in the order of `GpuThread`."""
    if device == ALL_GPUS:
        return AllCards(find_nvidia), AllCards(find_amd)
    return NvmlCard(device), AmdCard(device)


def find_nvidia() -> list[GpuCard]:
    """Every card of the driver. Raises GpuUnavailable."""
    return [NvmlCard(str(number)) for number in range(nvml_count())]


def find_amd(root: Path = SYSFS) -> list[GpuCard]:
    """Every card of the driver. Raises GpuUnavailable."""
    return [AmdCard(str(number), root) for number, _ in enumerate(amd_devices(root))]


class AllCards:
    """All cards of one make as one. A part of them is no budget for a server that has lost one, so
    the fault of one is that of the reading, and names it; then they are looked for anew.
    """

    def __init__(self, find: Callable[[], Sequence[GpuCard]]) -> None:
        self._find = find
        self._cards: Sequence[GpuCard] = ()

    def read(self) -> GpuReading:
        self._cards = self._cards or self._find()
        readings = list[GpuReading]()
        for number, card in enumerate(self._cards):
            try:
                readings.append(card.read())
            except GpuUnavailable as error:
                self.close()
                error.message = f"GPU {number}: {error.message}"
                raise
        return summed(readings)

    def close(self) -> None:
        for card in self._cards:
            card.close()
        self._cards = ()


def summed(readings: Sequence[GpuReading]) -> GpuReading:
    """Several cards as one: the hottest of their temperatures, the mean of their loads, the sum of
    all else; None where a part of a sum is unknown.

    Unified memory is the same main memory for all that share it: it is no part of a sum, and reads
    as one where no card has memory of its own.
    """
    cards = [each for each in readings if not each.unified] or readings[:1]
    if len(cards) == 1:
        return cards[0]
    loads = [each.utilisation_pct for each in cards if each.utilisation_pct is not None]
    reasons = [each.throttle_reasons for each in cards if each.throttle_reasons is not None]
    return GpuReading(
        name=_named(cards),
        total_mib=_sum(each.total_mib for each in cards),
        used_mib=_sum(each.used_mib for each in cards),
        reserved_mib=sum(each.reserved_mib for each in cards),
        processes=_programs(cards),
        utilisation_pct=sum(loads) / len(loads) if loads else None,
        temperature_c=max(
            (each.temperature_c for each in cards if each.temperature_c is not None), default=None
        ),
        power_w=_sum(each.power_w for each in cards),
        power_limit_w=_sum(each.power_limit_w for each in cards),
        throttle_reasons=tuple(dict.fromkeys(word for each in reasons for word in each))
        if reasons
        else None,
    )


def _named(cards: Sequence[GpuReading]) -> str:
    """Such as `2 x NVIDIA GeForce RTX 3090`."""
    counts = Counter(each.name for each in cards)
    if "" in counts:
        return f"{len(cards)} GPUs"
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _programs(cards: Sequence[GpuReading]) -> tuple[GpuProcess, ...] | None:
    """Each once, with what it holds on all of them."""
    listed: dict[int, list[GpuProcess]] = {}
    for card in cards:
        if card.processes is None:
            return None
        for process in card.processes:
            listed.setdefault(process.pid, []).append(process)
    return tuple(
        GpuProcess(
            pid=pid,
            name=next((each.name for each in same if each.name), ""),
            used_mib=_sum(each.used_mib for each in same),
        )
        for pid, same in listed.items()
    )
