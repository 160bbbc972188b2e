"""The thread beside the event loop: nothing that a driver does, not even nothing, holds up the loop or the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from hearth.backends.gpu import GpuThread
from hearth.backends.nvml import NvmlCard
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
