"""GPUs that share main memory: what their drivers say, as owners have reported it, and what is
made of it. Each row names its public source.
"""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from hearth.backends.gpu import AmdCard, NvmlCard
from hearth.errors import GpuUnavailable
from hearth.types import GpuProcess
from tests.backends.stub_driver import MIB, StubDriver
from tests.support.shared_memory import WITHOUT_MEMORY, apu_files, write_amd, write_meminfo

GIB_BYTES = 1024**3
GB10 = {"total_kb": 127_600_748, "available_kb": 118_566_368}
"""github.com/XuehaiPan/nvitop/pull/208, driver 580.173.02, with nothing loaded."""


def shared(total_kb: int, available_kb: int) -> tuple[float, float]:
    """The numbers of a reading that has them from there."""
    return total_kb / 1024, (total_kb - available_kb) / 1024


@pytest.mark.parametrize(
    ("listed", "used_gib", "held_mib"),
    [
        # the desktop alone: github.com/wookayin/gpustat/pull/179
        ({1: ("/usr/bin/gnome-shell", 43), 2: ("/usr/lib/xorg/Xorg", 18)}, 8.63, 61.0),
        # a GGUF of 34.37 GiB: github.com/Syllo/nvtop/issues/449, 2026-08-07
        ({3: ("/usr/lib/ollama/llama-server", 38_554)}, 46.57, 38_554.0),
        # a container lists none: github.com/MiaAI-Lab/sparkDash/pull/10
        ({}, 46.57, None),
        # and one that lists programs and not what they hold
        ({3: ("", None)}, 46.57, None),
    ],
)
def test_on_a_gb10_main_memory_is_that_of_the_gpu(
    driver: StubDriver, tmp_path, listed, used_gib, held_mib
):
    driver.name = "NVIDIA GB10"
    driver.faults |= WITHOUT_MEMORY
    driver.graphics = {}
    driver.processes = {
        pid: (name, mib if mib is None else mib * MIB) for pid, (name, mib) in listed.items()
    }
    total_kb = GB10["total_kb"]
    available_kb = total_kb - round(used_gib * 1024 * 1024)
    reading = NvmlCard("0", write_meminfo(tmp_path, total_kb, available_kb)).read()
    assert reading.unified
    assert (reading.total_mib, reading.used_mib) == shared(total_kb, available_kb)
    assert (reading.gpu_used_mib, reading.gpu_limit_mib) == (held_mib, None)
    assert (reading.name, reading.reserved_mib) == ("NVIDIA GB10", 0.0)
    assert reading.processes == tuple(
        GpuProcess(pid=pid, name=name, used_mib=mib) for pid, (name, mib) in listed.items()
    )
    # what else a GB10 says is read as ever (github.com/lablup/all-smi/issues/80)
    assert (reading.temperature_c, reading.utilisation_pct) == (61.0, 87.0)


def test_a_gb10_whose_driver_reports_main_memory_as_its_own_is_not_believed(
    driver: StubDriver, tmp_path
):
    """github.com/Syllo/nvtop/pull/463: some drivers report all of it, and what is free, as those
    of the GPU.
    """
    driver.name = "NVIDIA GB10"
    driver.memory_mib = {"total": 124_610, "reserved": 0, "used": 900}
    reading = NvmlCard("0", write_meminfo(tmp_path, **GB10)).read()
    assert (reading.unified, reading.used_mib) == (True, shared(**GB10)[1])


@pytest.mark.parametrize(
    "fault",
    [
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_NO_PERMISSION,  # a slice of a card
        None,
    ],
)
def test_a_card_with_memory_of_its_own_never_counts_as_one_without(
    driver: StubDriver, tmp_path, fault
):
    if fault is not None:
        driver.faults |= dict.fromkeys(WITHOUT_MEMORY, fault)
    reading = NvmlCard("0", write_meminfo(tmp_path, **GB10)).read()
    assert (reading.unified, reading.total_mib) == (False, None if fault else 24576.0)


def test_a_gb10_in_trouble_has_no_reading(driver: StubDriver, tmp_path):
    driver.name = "NVIDIA GB10"
    driver.faults |= WITHOUT_MEMORY | dict.fromkeys(
        (
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetTemperatureV",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetPowerUsage",
        ),
        pynvml.NVML_ERROR_UNKNOWN,
    )
    with pytest.raises(GpuUnavailable):
        NvmlCard("0", write_meminfo(tmp_path, **GB10)).read()


@pytest.mark.parametrize(
    "text",
    [
        None,  # no Linux
        "MemTotal: 127600748 kB\n",
        "MemTotal: 1 kB\nMemAvailable: 2 kB\n",
        "MemTotal:\nMemAvailable: many kB\n",
    ],
)
def test_where_the_system_does_not_say_the_memory_is_unknown(driver: StubDriver, tmp_path, text):
    driver.faults |= WITHOUT_MEMORY
    file = tmp_path / "meminfo"
    if text is not None:
        file.write_text(text)
    reading = NvmlCard("0", file).read()
    assert (reading.unified, reading.total_mib, reading.used_mib) == (False, None, None)


# AMD: a part that the firmware has set apart (`vram`), and what the GPU can map of the rest (GTT).

STRIX_HALO = {"total_kb": 130_988_200, "available_kb": 120_000_000}


@pytest.mark.parametrize(
    ("vram", "gtt"),
    [
        # 512 MiB and 108 GB: github.com/ollama/ollama/issues/12062
        pytest.param(512 * MIB, 108 * GIB_BYTES, id="512 MiB"),
        # ttm.pages_limit=25165824: github.com/noamsto/nix-amd-ai/issues/42
        pytest.param(4_294_967_296, 103_079_215_104, id="pages_limit"),
        # github.com/llamastash/llamastash/pull/83
        pytest.param(4_294_967_296, 130_452_963_328, id="4 GiB"),
        # github.com/ROCm/legacy-rocm-build/issues/6004
        pytest.param(8_589_934_592, 133_143_986_176, id="8 GiB"),
        # 0.50 and 128.00 GiB, of 124.92: github.com/unslothai/unsloth/pull/7960
        pytest.param(512 * MIB, 128 * GIB_BYTES, id="more than there is"),
    ],
)
def test_on_an_apu_main_memory_is_that_of_the_gpu_up_to_what_it_can_map(tmp_path, vram, gtt):
    card = AmdCard(
        "0", write_amd(tmp_path, apu_files(vram, gtt)), write_meminfo(tmp_path, **STRIX_HALO)
    )
    reading = card.read()
    assert reading.unified
    assert (reading.total_mib, reading.used_mib) == shared(**STRIX_HALO)
    assert (reading.gpu_used_mib, reading.gpu_limit_mib) == (18_653_184 / MIB, gtt / MIB)
    assert (reading.temperature_c, reading.processes) == (41.0, None)


@pytest.mark.parametrize(
    "files",
    [
        # 48 GB set apart, 43 GB to map: github.com/ROCm/legacy-rocm-build/issues/6050
        pytest.param(apu_files(48 * GIB_BYTES, 43 * GIB_BYTES), id="more set apart than left"),
        # a card in a computer with 64 GB, of which it can map half
        pytest.param(
            apu_files(24 * GIB_BYTES, 32 * GIB_BYTES) | {"hwmon/hwmon5/in1_label": ""}, id="a card"
        ),
    ],
)
def test_amd_memory_that_is_the_gpus_own_is_read_as_ever(tmp_path, files):
    reading = AmdCard("0", write_amd(tmp_path, files), write_meminfo(tmp_path, **STRIX_HALO)).read()
    own_mib = files["mem_info_vram_total"] / MIB
    assert (reading.unified, reading.total_mib, reading.used_mib) == (False, own_mib, own_mib / 8)
