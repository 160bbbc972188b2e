"""The thread beside the event loop: nothing that a driver does, not even nothing, holds up the loop or the process. And AMD cards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hearth.backends.gpu import AmdCard, GpuThread, NvmlCard
from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import GpuReading
from tests.gpu.stub_driver import StubDriver
from tests.support.patience import WITHIN_S

SOON_S = 0.05
"""How long a driver that never answers is waited for."""
READING = GpuReading(name="a card", total_mib=24576.0)


class Card:
    """A card that does as it is told."""

    def __init__(self, read: Callable[[], GpuReading]) -> None:
        self._read = read
        self.threads: set[str] = set()
        self.closed = threading.Event()

    def read(self) -> GpuReading:
        self.threads.add(threading.current_thread().name)
        return self._read()

    def close(self) -> None:
        self.closed.set()


def saying(reading: GpuReading = READING) -> Card:
    return Card(lambda: reading)


def failing(fault: GpuFault) -> Card:
    def fail() -> GpuReading:
        raise GpuUnavailable(fault, f"{fault} it is")

    return Card(fail)


async def fault_of(reader: GpuThread) -> GpuFault:
    with pytest.raises(GpuUnavailable) as raised:
        await reader.read()
    return raised.value.fault


async def fault_at_once(reader: GpuThread) -> GpuFault:
    told = asyncio.ensure_future(fault_of(reader))
    await asyncio.sleep(0)
    assert told.done()
    return await told


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpu reader"]


@pytest.fixture
async def started() -> AsyncIterator[list[GpuThread]]:
    """Readers to give back at the end."""
    readers: list[GpuThread] = []
    yield readers
    for reader in readers:
        await reader.aclose()
    for thread in reading_threads():
        await asyncio.to_thread(thread.join, WITHIN_S)
    assert reading_threads() == []


async def test_a_card_is_read_in_one_thread_that_is_not_the_loops(started):
    card = saying()
    started.append(reader := GpuThread((card,)))
    assert [await reader.read() for _ in range(3)] == [READING] * 3
    assert card.threads == {"gpu reader"}


async def test_the_first_make_with_a_driver_is_the_card_and_one_in_trouble_is_not_taken_for_another(started):
    started += [reader := GpuThread((failing(GpuFault.NO_DRIVER), saying())), in_trouble := GpuThread((failing(GpuFault.LOST), saying()))]
    started.append(none := GpuThread((failing(GpuFault.NO_DRIVER), failing(GpuFault.NO_DRIVER))))
    assert await reader.read() == READING
    assert await fault_of(in_trouble) is GpuFault.LOST
    assert await fault_of(none) is GpuFault.NO_DRIVER


async def test_a_card_whose_driver_is_unloaded_is_lost_and_not_the_graphics_of_the_processor(started):
    answers: list[GpuReading | None] = [None, READING, None, READING]

    def read() -> GpuReading:
        answer = answers.pop(0)
        if answer is None:
            raise GpuUnavailable(GpuFault.NO_DRIVER)
        return answer

    small = GpuReading(name="graphics of a processor", total_mib=512.0)
    started.append(reader := GpuThread((Card(read), saying(small))))
    assert [await reader.read(), await reader.read()] == [small, READING]
    assert await fault_of(reader) is GpuFault.NO_DRIVER
    assert await reader.read() == READING


async def test_whatever_a_binding_raises_is_an_unavailable_card_and_no_text_of_it_gets_out(started):
    def fail() -> GpuReading:
        raise UnicodeError("secret")

    started.append(reader := GpuThread((Card(fail),)))
    with pytest.raises(GpuUnavailable, match="UnicodeError") as raised:
        await reader.read()
    assert raised.value.fault is GpuFault.OTHER
    assert "secret" not in str(raised.value)


async def test_a_driver_that_hangs_costs_one_thread_and_the_timeout(driver: StubDriver, started):
    started.append(reader := GpuThread((NvmlCard("0"),), timeout_s=SOON_S))
    driver.go_on.clear()
    assert await fault_of(reader) is GpuFault.TIMEOUT
    for _ in range(5):
        assert await fault_at_once(reader) is GpuFault.TIMEOUT
    assert len(reading_threads()) == 1
    driver.go_on.set()
    assert (await _when_it_answers(reader)).temperature_c == 61.0


async def _when_it_answers(reader: GpuThread) -> GpuReading:
    while True:
        try:
            return await reader.read()
        except GpuUnavailable:
            await asyncio.sleep(0)


async def test_closing_gives_the_driver_back_and_ends_the_thread():
    card = saying()
    reader = GpuThread((card,))
    await reader.read()
    (thread,) = reading_threads()
    await reader.aclose()
    await reader.aclose()
    await asyncio.to_thread(thread.join, WITHIN_S)
    assert not thread.is_alive()
    assert card.closed.is_set()
    assert await fault_at_once(reader) is GpuFault.TIMEOUT


# An AMD card through files like those of its kernel driver.


GIB = 1024**3


def card(root: Path, number: int, **files: str) -> None:
    device = root / f"card{number}" / "device"
    for name, text in files.items():
        path = device / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def whole_card(root: Path, number: int) -> None:
    card(
        root,
        number,
        mem_info_vram_total=str(16 * GIB),
        mem_info_vram_used=str(3 * GIB),
        gpu_busy_percent="42",
        product_name="Radeon RX 7800 XT",
        unique_id="abc",
        hwmon__hwmon3__temp1_input="57000",
        hwmon__hwmon3__power1_average="201000000",
        hwmon__hwmon3__power1_cap="263000000",
    )


def amd_fault(reader: AmdCard) -> GpuFault:
    with pytest.raises(GpuUnavailable) as raised:
        reader.read()
    return raised.value.fault


def test_everything_that_a_card_says_is_read(tmp_path: Path):
    whole_card(tmp_path, 1)
    assert AmdCard("0", tmp_path).read() == GpuReading(
        name="Radeon RX 7800 XT",
        uuid="abc",
        total_mib=16384.0,
        used_mib=3072.0,
        utilisation_pct=42.0,
        temperature_c=57.0,
        power_w=201.0,
        power_limit_w=263.0,
    )


def test_odd_numbers_of_a_card_are_made_the_best_of(tmp_path: Path):
    whole_card(tmp_path, 0)
    card(tmp_path, 0, mem_info_vram_used=str(17 * GIB), hwmon__hwmon3__power1_average="", hwmon__hwmon3__power1_input="199000000")
    reading = AmdCard("0", tmp_path).read()
    assert (reading.power_w, reading.used_mib) == (199.0, 16384.0)


def test_what_a_card_does_not_say_is_unknown(tmp_path: Path):
    card(tmp_path, 0, mem_info_vram_total=str(GIB), gpu_busy_percent="n/a")
    assert AmdCard("0", tmp_path).read() == GpuReading(name="AMD GPU", total_mib=1024.0)


def test_cards_of_other_makes_are_not_counted(tmp_path: Path):
    card(tmp_path, 0, vendor="0x10de")
    whole_card(tmp_path, 1)
    for named in ("0", "GPU-11111111-2222-3333-4444-555555555555"):
        assert AmdCard(named, tmp_path).read().total_mib == 16384.0
    assert amd_fault(AmdCard("1", tmp_path)) is GpuFault.NO_DEVICE


def test_a_machine_without_such_a_card_has_no_driver(tmp_path: Path):
    assert amd_fault(AmdCard("0", tmp_path / "nothing")) is GpuFault.NO_DRIVER


def test_a_card_that_does_not_know_its_size_is_lost(tmp_path: Path):
    card(tmp_path, 0, mem_info_vram_total="")
    assert amd_fault(AmdCard("0", tmp_path)) is GpuFault.LOST
