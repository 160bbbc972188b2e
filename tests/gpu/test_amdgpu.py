"""An AMD card through files like those of its kernel driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.backends.gpu import AmdCard
from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import GpuReading

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


def fault_of(reader: AmdCard) -> GpuFault:
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
    assert fault_of(AmdCard("1", tmp_path)) is GpuFault.NO_DEVICE


def test_a_machine_without_such_a_card_has_no_driver(tmp_path: Path):
    assert fault_of(AmdCard("0", tmp_path / "nothing")) is GpuFault.NO_DRIVER


def test_a_card_that_does_not_know_its_size_is_lost(tmp_path: Path):
    card(tmp_path, 0, mem_info_vram_total="")
    assert fault_of(AmdCard("0", tmp_path)) is GpuFault.LOST
