"""`gpu.device: all`: several cards read as one, through the real binding and through files like
those of AMD's kernel driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from hearth.backends.all_cards import AllCards, cards_of, find_amd, find_nvidia, summed
from hearth.backends.gpu import GpuThread
from hearth.errors import GpuUnavailable
from hearth.types import GpuProcess, GpuReading
from tests.backends.stub_driver import MIB, StubDriver

LLAMA = "/usr/lib/ollama/llama-server"
GIB = 1024**3


@pytest.fixture
def second(driver: StubDriver) -> StubDriver:
    """A smaller card beside the one of `driver`, on which the same llama-server has its rest."""
    card = StubDriver()
    card.name = "NVIDIA GeForce RTX 3060"
    card.memory_mib = {"total": 12288, "reserved": 200, "used": 5000}
    card.processes = {100: (LLAMA, 4096 * MIB), 300: ("/usr/bin/game", 700 * MIB)}
    card.graphics = {}
    card.utilisation_pct = 13
    card.temperature_c = 74
    card.power_mw = 100_000
    driver.beside = [card]
    return card


@pytest.fixture
def cards() -> Iterator[AllCards]:
    found = AllCards(find_nvidia)
    yield found
    found.close()


def fault_of(cards: AllCards) -> tuple[str, str]:
    with pytest.raises(GpuUnavailable) as raised:
        cards.read()
    return raised.value.reason, raised.value.message


def test_the_memory_of_all_cards_is_one_and_each_program_counts_on_all(
    driver: StubDriver, second: StubDriver, cards: AllCards
):
    second.reasons = 0x40
    assert cards.read() == GpuReading(
        name="NVIDIA GeForce RTX 3090 + NVIDIA GeForce RTX 3060",
        total_mib=24576.0 + 12288.0,
        used_mib=9000.0 + 5000.0,
        reserved_mib=400.0 + 200.0,
        processes=(
            GpuProcess(pid=100, name=LLAMA, used_mib=8192.0 + 4096.0),
            GpuProcess(pid=200, name="/usr/lib/xorg/Xorg", used_mib=300.0),
            GpuProcess(pid=300, name="/usr/bin/game", used_mib=700.0),
        ),
        utilisation_pct=50.0,
        temperature_c=74.0,
        power_w=350.5,
        power_limit_w=700.0,
        throttle_reasons=("hardware_thermal",),
    )


def test_one_card_alone_reads_as_it_does_by_its_number(driver: StubDriver, cards: AllCards):
    (by_number, _) = cards_of("0")
    assert cards.read() == by_number.read()
    by_number.close()


def test_all_sessions_are_given_back(driver: StubDriver, second: StubDriver, cards: AllCards):
    cards.read()
    cards.read()
    assert driver.sessions > 0
    cards.close()
    cards.close()
    assert driver.sessions == 0


def test_one_lost_card_loses_the_reading_until_it_is_back_and_is_named(
    driver: StubDriver, second: StubDriver, cards: AllCards
):
    whole = cards.read()
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetHandleByIndex_v2"):
        second.faults[function] = pynvml.NVML_ERROR_GPU_IS_LOST
        if function == "nvmlDeviceGetHandleByIndex_v2":
            cards.close()
        reason, message = fault_of(cards)
        assert (reason, message.partition(": ")[0]) == ("gpu_lost", "GPU 1")
        assert driver.sessions == 0
        second.faults.clear()
        assert cards.read() == whole


def test_a_card_that_the_driver_lists_no_more_is_not_waited_for(
    driver: StubDriver, second: StubDriver, cards: AllCards
):
    cards.read()
    second.faults["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    fault_of(cards)
    driver.beside = []
    assert cards.read().name == "NVIDIA GeForce RTX 3090"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver_mismatch"),
    ],
)
def test_a_driver_that_does_not_start_says_why(
    driver: StubDriver, cards: AllCards, code: int, fault: str
):
    driver.faults["nvmlInitWithFlags"] = code
    reason, message = fault_of(cards)
    assert (reason, message[:5]) == (fault, "NVML:")
    assert driver.sessions == 0


def test_a_driver_without_a_single_card_says_so(driver: StubDriver, cards: AllCards):
    driver.faults["nvmlDeviceGetCount_v2"] = pynvml.NVML_ERROR_UNKNOWN
    assert fault_of(cards)[0] == "driver_error"
    driver.faults.clear()
    driver.count = 0
    assert fault_of(cards)[0] == "no_such_device"
    assert driver.sessions == 0


READING = GpuReading(
    name="a",
    uuid="1",
    total_mib=1000.0,
    used_mib=100.0,
    processes=(),
    utilisation_pct=40.0,
    temperature_c=50.0,
    power_w=20.0,
    power_limit_w=60.0,
    throttle_reasons=("thermal",),
)


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        ("total_mib", None),
        ("used_mib", None),
        ("power_w", None),
        ("power_limit_w", None),
        ("processes", None),
        # what the rest says still holds of the hottest and of the load
        ("utilisation_pct", 40.0),
        ("temperature_c", 50.0),
        ("throttle_reasons", ("thermal",)),
    ],
)
def test_a_sum_of_which_a_part_is_unknown_is_unknown(unknown: str, said: object):
    nothing: dict[str, Any] = {unknown: None}
    silent = replace(READING, **nothing)
    for both in ((READING, silent), (silent, READING)):
        assert getattr(summed(both), unknown) == said
    assert getattr(summed((silent, silent)), unknown) is None


def test_what_a_program_hides_on_one_card_is_unknown_on_all():
    listed = [
        replace(READING, processes=(GpuProcess(pid=7, name=name, used_mib=mib),))
        for name, mib in (("", None), ("game", 300.0))
    ]
    assert summed(listed).processes == (GpuProcess(pid=7, name="game", used_mib=None),)


def test_equal_cards_are_counted_in_the_name():
    names = ["RTX 3090", "RTX 3060", "RTX 3090"]
    readings = [replace(READING, name=name) for name in names]
    assert summed(readings).name == "2 x RTX 3090 + RTX 3060"
    assert summed([replace(READING, name="")] * 2).name == "2 GPUs"


UNIFIED = replace(
    READING, name="GB10", unified=True, total_mib=120_000.0, gpu_used_mib=5.0, gpu_limit_mib=9.0
)


def test_unified_memory_is_never_part_of_a_sum():
    assert summed((UNIFIED, READING)) == READING, "graphics of a processor beside a card"
    assert summed((UNIFIED, replace(UNIFIED, name="again"))) == UNIFIED, "the same main memory"
    assert summed((READING, UNIFIED, READING)).total_mib == 2000.0


def write_amd(root: Path, sizes_gib: dict[int, int]) -> None:
    for number, gib in sizes_gib.items():
        card = root / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "mem_info_vram_total").write_text(f"{gib * GIB}\n")
        (card / "mem_info_vram_used").write_text(f"{GIB}\n")
        (card / "product_name").write_text("Radeon RX 7800 XT\n")


def test_amd_cards_are_added_up_too(tmp_path: Path):
    write_amd(tmp_path, {0: 16, 2: 16, 10: 8})
    cards = AllCards(lambda: find_amd(tmp_path))
    reading = cards.read()
    assert (reading.name, reading.total_mib, reading.used_mib) == (
        "3 x Radeon RX 7800 XT",
        40 * 1024.0,
        3 * 1024.0,
    )
    (tmp_path / "card2" / "device" / "mem_info_vram_total").write_text("")
    assert fault_of(cards)[1].startswith("GPU 1: ")
    (tmp_path / "card2" / "device" / "mem_info_vram_total").unlink()
    assert cards.read().total_mib == 24 * 1024.0
    assert fault_of(AllCards(lambda: find_amd(tmp_path / "none")))[0] == "no_driver"


async def test_all_is_what_the_setting_says(driver: StubDriver, second: StubDriver):
    reader = GpuThread(cards_of("all"))
    reading = await reader.read()
    await reader.aclose()
    assert reading.total_mib == 24576.0 + 12288.0
