"""The thread beside the event loop: nothing that a driver does, not even nothing, holds up the loop
or the process. And AMD cards.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

import pytest

from hearth.backends.gpu import AmdCard, GpuThread, NvmlCard
from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import GpuReading
from tests.backends.stub_driver import StubDriver
from tests.support.patience import WITHIN_S

SOON_S = 0.05
"""How long a driver that never answers is waited for."""
READING = GpuReading(name="a card", total_mib=24576.0)
SMALL = GpuReading(name="graphics of a processor", total_mib=512.0)


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


def by_turns(answers: list[GpuReading | GpuFault]) -> GpuReading:
    answer = answers.pop(0)
    if isinstance(answer, str):
        raise GpuUnavailable(answer)
    return answer


async def fault_of(reader: GpuThread) -> str:
    with pytest.raises(GpuUnavailable) as raised:
        await reader.read()
    return raised.value.reason


async def fault_at_once(reader: GpuThread) -> str:
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


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        # of each card by turns; once the first has answered, the second, small one is not taken for
        # it
        (["no_driver"], [SMALL], [SMALL]),
        (["gpu_lost"], [SMALL], ["gpu_lost"]),
        (["no_driver"], ["no_driver"], ["no_driver"]),
        (
            ["no_driver", READING, "no_driver", READING],
            [SMALL],
            [SMALL, READING, "no_driver", READING],
        ),
    ],
)
async def test_the_first_make_with_a_driver_is_the_card_also_in_trouble(
    first, second, found, started
):
    started.append(
        reader := GpuThread((Card(partial(by_turns, [*first])), Card(partial(by_turns, [*second]))))
    )
    assert [
        await (reader.read() if isinstance(each, GpuReading) else fault_of(reader))
        for each in found
    ] == found


async def test_whatever_a_binding_raises_is_an_unavailable_card_without_its_text(started):
    def fail() -> GpuReading:
        raise UnicodeError("secret")

    started.append(reader := GpuThread((Card(fail),)))
    with pytest.raises(GpuUnavailable, match="UnicodeError") as raised:
        await reader.read()
    assert raised.value.reason == "driver_error"
    assert "secret" not in str(raised.value)


async def test_a_driver_that_hangs_costs_one_thread_and_the_timeout(driver: StubDriver, started):
    started.append(reader := GpuThread((NvmlCard("0"),), timeout_s=SOON_S))
    driver.go_on.clear()
    assert await fault_of(reader) == "timeout"
    for _ in range(5):
        assert await fault_at_once(reader) == "timeout"
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
    assert await fault_at_once(reader) == "timeout"


# An AMD card through files like those of its kernel driver.


GIB = 1024**3


WHOLE = {
    "mem_info_vram_total": str(16 * GIB),
    "mem_info_vram_used": str(3 * GIB),
    "gpu_busy_percent": "42",
    "product_name": "Radeon RX 7800 XT",
    "unique_id": "abc",
    "hwmon/hwmon3/temp1_input": "57000",
    "hwmon/hwmon3/power1_average": "201000000",
    "hwmon/hwmon3/power1_cap": "263000000",
}
RADEON = GpuReading(
    name="Radeon RX 7800 XT",
    uuid="abc",
    total_mib=16384.0,
    used_mib=3072.0,
    utilisation_pct=42.0,
    temperature_c=57.0,
    power_w=201.0,
    power_limit_w=263.0,
)
ODD = {
    "mem_info_vram_used": str(17 * GIB),
    "hwmon/hwmon3/power1_average": "",
    "hwmon/hwmon3/power1_input": "199000000",
}


@pytest.mark.parametrize(
    ("cards", "device", "said"),
    [
        ({1: WHOLE}, "0", RADEON),
        # the best is made of odd numbers
        ({0: WHOLE | ODD}, "0", replace(RADEON, power_w=199.0, used_mib=16384.0)),
        (
            {0: {"mem_info_vram_total": str(GIB), "gpu_busy_percent": "n/a"}},
            "0",
            GpuReading(name="AMD GPU", total_mib=1024.0),
        ),
        ({0: {"vendor": "0x10de"}, 1: WHOLE}, "0", RADEON),  # cards of other makes are not counted
        ({0: {"vendor": "0x10de"}, 1: WHOLE}, "GPU-11111111-2222-3333-4444-555555555555", RADEON),
        ({0: {"vendor": "0x10de"}, 1: WHOLE}, "1", "no_such_device"),
        ({2: WHOLE, 10: WHOLE | {"unique_id": "ten"}}, "1", replace(RADEON, uuid="ten")),
        ({}, "0", "no_driver"),
        ({0: {"mem_info_vram_total": ""}}, "0", "gpu_lost"),
    ],
)
def test_all_that_an_amd_card_says_is_read_and_the_rest_is_unknown(
    cards, device, said, tmp_path_factory
):
    root = tmp_path_factory.mktemp("drm")
    for number, files in cards.items():
        for name, text in files.items():
            path = root / f"card{number}" / "device" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    card = AmdCard(device, root)
    if isinstance(said, GpuReading):
        assert card.read() == said
        return
    with pytest.raises(GpuUnavailable) as raised:
        card.read()
    assert raised.value.reason == said
