"""An NVIDIA card through the real binding: what is read, what a card need not support, and every way in which it can be gone."""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from hearth.backends.nvml import NvmlCard
from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import GpuProcess, GpuReading
from tests.gpu.stub_driver import MIB, UUID, StubDriver


def fault_of(card: NvmlCard) -> GpuFault:
    with pytest.raises(GpuUnavailable) as raised:
        card.read()
    assert raised.value.reason == raised.value.fault.value
    return raised.value.fault


def test_everything_that_a_card_says_is_read(driver: StubDriver):
    driver.reasons = 0xFFF
    assert NvmlCard("0").read() == GpuReading(
        name="NVIDIA GeForce RTX 3090",
        uuid=UUID,
        total_mib=24576.0,
        used_mib=9000.0,
        reserved_mib=400.0,
        processes=(
            GpuProcess(pid=100, name="/usr/lib/ollama/llama-server", used_mib=8192.0),
            GpuProcess(pid=200, name="/usr/lib/xorg/Xorg", used_mib=300.0),
        ),
        utilisation_pct=87.0,
        temperature_c=61.0,
        power_w=250.5,
        power_limit_w=350.0,
        throttle_reasons=("power_cap", "hardware_slowdown", "thermal", "hardware_thermal", "power_brake", "board_limit", "reliability"),
    )


def test_a_session_is_opened_once_and_given_back(driver: StubDriver):
    card = NvmlCard(UUID)
    card.read()
    card.read()
    assert (driver.sessions, driver.calls.count("nvmlInitWithFlags"), driver.calls.count("nvmlDeviceGetHandleByUUID")) == (1, 1, 1)
    card.close()
    card.close()
    assert driver.sessions == 0


OPTIONAL = (
    ("nvmlDeviceGetName", "name"),
    ("nvmlDeviceGetUUID", "uuid"),
    ("nvmlDeviceGetUtilizationRates", "utilisation_pct"),
    ("nvmlDeviceGetPowerUsage", "power_w"),
    ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
    ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ("nvmlDeviceGetCurrentClocksEventReasons", "throttle_reasons"),
)


@pytest.mark.parametrize("how", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN, "missing"])
def test_what_one_getter_refuses_costs_its_own_number_only(driver: StubDriver, how):
    whole = NvmlCard("0").read()
    for function, field in OPTIONAL:
        driver.faults, driver.missing = ({}, {function}) if how == "missing" else ({function: how}, set())
        pynvml._nvmlGetFunctionPointer_cache.clear()
        partial = NvmlCard("0").read()
        differing = {name for name in GpuReading.__dataclass_fields__ if getattr(whole, name) != getattr(partial, name)}
        assert (differing, getattr(partial, field) in {None, ""}) == ({field}, True)


def test_without_memory_the_rest_is_still_read(driver: StubDriver):
    driver.faults |= dict.fromkeys(("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), pynvml.NVML_ERROR_NOT_SUPPORTED)
    reading = NvmlCard("0").read()
    assert (reading.total_mib, reading.used_mib, reading.temperature_c) == (None, None, 61.0)


NUMBERS = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
)


def test_a_card_that_answers_every_question_with_an_error_says_nothing(driver: StubDriver):
    card = NvmlCard("0")
    card.read()
    driver.faults |= dict.fromkeys(NUMBERS, pynvml.NVML_ERROR_UNKNOWN)
    assert fault_of(card) is GpuFault.OTHER
    assert driver.sessions == 0
    driver.faults.clear()
    assert card.read().temperature_c == 61.0


def test_an_older_driver_counts_its_reserve_as_used_and_has_another_thermometer(driver: StubDriver):
    driver.missing |= {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"}
    reading = NvmlCard("0").read()
    assert (reading.total_mib, reading.used_mib, reading.reserved_mib, reading.temperature_c) == (24576.0, 9400.0, 0.0, 61.0)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"temperature_c": 2_147_483_647}, "temperature_c"),
        ({"temperature_c": 0}, "temperature_c"),
        ({"power_mw": 4_294_967_295}, "power_w"),
        ({"utilisation_pct": 4_294_967_295}, "utilisation_pct"),
    ],
)
def test_numbers_that_cannot_be_true_are_unknown(driver: StubDriver, changed, field):
    for name, value in changed.items():
        setattr(driver, name, value)
    assert getattr(NvmlCard("0").read(), field) is None


@pytest.mark.parametrize("memory", [{"total": 0, "reserved": 0, "used": 0}, {"total": 24576, "reserved": 0, "used": 99_999}])
def test_memory_that_cannot_be_true_is_unknown(driver: StubDriver, memory):
    driver.memory_mib = memory
    reading = NvmlCard("0").read()
    assert (reading.total_mib, reading.used_mib, reading.reserved_mib) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("compute", "graphics", "listed"),
    [
        ({7: ("", None)}, {}, GpuProcess(pid=7, name="", used_mib=None)),
        ({7: ("a", MIB)}, None, GpuProcess(pid=7, name="a", used_mib=1.0)),
        ({7: ("game", 100 * MIB)}, {7: ("game", 300 * MIB)}, GpuProcess(pid=7, name="game", used_mib=300.0)),
    ],
    ids=["what the driver hides is left out", "only programs that compute are listed", "one that computes and draws is one"],
)
def test_programs_are_listed_with_what_the_driver_says(driver: StubDriver, compute, graphics, listed):
    driver.processes, driver.graphics = compute, graphics or {}
    if graphics is None:
        driver.faults["nvmlDeviceGetGraphicsRunningProcesses_v3"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert NvmlCard("0").read().processes == (listed,)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, GpuFault.NO_DRIVER),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, GpuFault.MISMATCH),
        (pynvml.NVML_ERROR_NO_PERMISSION, GpuFault.OTHER),
    ],
)
def test_a_driver_that_does_not_start_says_why(driver: StubDriver, code, fault):
    driver.faults["nvmlInitWithFlags"] = code
    assert fault_of(NvmlCard("0")) is fault
    assert driver.sessions == 0


@pytest.mark.parametrize("device", ["1", "GPU-00000000-0000-0000-0000-000000000000"])
def test_a_card_that_is_not_there_leaves_no_session_open(driver: StubDriver, device):
    assert fault_of(NvmlCard(device)) is GpuFault.NO_DEVICE
    assert driver.sessions == 0


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuFault.LOST),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuFault.LOST),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, GpuFault.MISMATCH),
    ],
)
def test_a_card_that_is_lost_at_any_question_is_found_again_in_a_new_session(driver: StubDriver, code, fault):
    card = NvmlCard("0")
    whole = card.read()
    for function in (*(name for name, _ in OPTIONAL), "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"):
        driver.faults[function] = code
        assert fault_of(card) is fault
        assert driver.sessions == 0
        driver.faults.clear()
        assert card.read() == whole
        assert driver.sessions == 1


def test_a_driver_that_cannot_even_end_its_session_is_left(driver: StubDriver):
    card = NvmlCard("0")
    card.read()
    driver.faults |= {"nvmlDeviceGetName": pynvml.NVML_ERROR_GPU_IS_LOST, "nvmlShutdown": pynvml.NVML_ERROR_GPU_IS_LOST}
    assert fault_of(card) is GpuFault.LOST
