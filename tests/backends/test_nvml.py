"""An NVIDIA card through the real binding: what is read, what a card need not support, and every
way in which it can be gone.
"""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from hearth.backends.gpu import NvmlCard
from hearth.config.loading import parse_config
from hearth.errors import ConfigError, GpuUnavailable
from hearth.types import GpuProcess, GpuReading
from tests.backends.stub_driver import MIB, UUID, StubDriver


def fault_of(card: NvmlCard) -> str:
    with pytest.raises(GpuUnavailable) as raised:
        card.read()
    return raised.value.reason


def test_everything_that_a_card_says_is_read_in_one_session_that_is_given_back(driver: StubDriver):
    driver.reasons = 0xFFF
    card = NvmlCard(UUID)
    card.read()
    assert card.read() == GpuReading(
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
        throttle_reasons=(
            "power_cap",
            "hardware_slowdown",
            "thermal",
            "hardware_thermal",
            "power_brake",
            "board_limit",
            "reliability",
        ),
    )
    assert (
        driver.sessions,
        driver.calls.count("nvmlInitWithFlags"),
        driver.calls.count("nvmlDeviceGetHandleByUUID"),
    ) == (1, 1, 1)
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


@pytest.mark.parametrize(
    "how",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_UNKNOWN,
        "missing",
    ],
)
@pytest.mark.parametrize(("function", "field"), OPTIONAL)
def test_what_one_getter_refuses_costs_its_own_number_only(
    driver: StubDriver, how, function: str, field: str
):
    driver.faults = {}
    driver.missing = set()
    pynvml._nvmlGetFunctionPointer_cache.clear()
    whole = NvmlCard("0").read()
    driver.faults, driver.missing = (
        ({}, {function}) if how == "missing" else ({function: how}, set())
    )
    pynvml._nvmlGetFunctionPointer_cache.clear()
    partial = NvmlCard("0").read()
    differing = {
        name
        for name in GpuReading.__dataclass_fields__
        if getattr(whole, name) != getattr(partial, name)
    }
    assert (differing, getattr(partial, field) in {None, ""}) == ({field}, True)


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
    driver.faults |= dict.fromkeys(NUMBERS[:2], pynvml.NVML_ERROR_UNKNOWN)
    reading = card.read()
    assert (reading.total_mib, reading.used_mib, reading.temperature_c) == (None, None, 61.0), (
        "the rest is still read"
    )
    driver.faults |= dict.fromkeys(NUMBERS, pynvml.NVML_ERROR_UNKNOWN)
    assert fault_of(card) == "driver_error"
    assert driver.sessions == 0
    driver.faults.clear()
    assert card.read().temperature_c == 61.0


@pytest.mark.parametrize(
    ("changed", "unknown"),
    [
        ({"temperature_c": 2_147_483_647}, {"temperature_c"}),
        ({"temperature_c": 0}, {"temperature_c"}),
        ({"power_mw": 4_294_967_295}, {"power_w"}),
        ({"utilisation_pct": 4_294_967_295}, {"utilisation_pct"}),
        ({"memory_mib": {"total": 0, "reserved": 0, "used": 0}}, {"total_mib", "used_mib"}),
        (
            {"memory_mib": {"total": 24576, "reserved": 0, "used": 99_999}},
            {"total_mib", "used_mib"},
        ),
        # of an older driver
        ({"missing": {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"}}, set()),
    ],
)
def test_numbers_that_cannot_be_true_are_unknown(driver: StubDriver, changed, unknown):
    vars(driver).update(changed)
    reading = NvmlCard("0").read()
    of_unified_memory = {"gpu_used_mib", "gpu_limit_mib"}
    assert {
        name for name in GpuReading.__dataclass_fields__ if getattr(reading, name) is None
    } == unknown | of_unified_memory
    if not unknown:  # an older driver counts its reserve as used
        assert (
            reading.total_mib,
            reading.used_mib,
            reading.reserved_mib,
            reading.temperature_c,
        ) == (24576.0, 9400.0, 0.0, 61.0)


@pytest.mark.parametrize(
    ("compute", "graphics", "listed"),
    [
        ({7: ("", None)}, {}, GpuProcess(pid=7, name="", used_mib=None)),
        ({7: ("a", MIB)}, None, GpuProcess(pid=7, name="a", used_mib=1.0)),
        (
            {7: ("game", 100 * MIB)},
            {7: ("game", 300 * MIB)},
            GpuProcess(pid=7, name="game", used_mib=300.0),
        ),
        (
            {7: ("game", 300 * MIB)},
            {7: ("game", 100 * MIB)},
            GpuProcess(pid=7, name="game", used_mib=300.0),
        ),
    ],
)
def test_programs_are_listed_with_what_the_driver_says(
    driver: StubDriver, compute, graphics, listed
):
    driver.processes = compute
    driver.graphics = graphics or {}
    if graphics is None:
        driver.faults["nvmlDeviceGetGraphicsRunningProcesses_v3"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert NvmlCard("0").read().processes == (listed,)


@pytest.mark.parametrize(
    ("device", "code", "fault"),
    [
        ("0", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_driver"),
        ("0", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_driver"),
        ("0", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver_mismatch"),
        ("0", pynvml.NVML_ERROR_NO_PERMISSION, "driver_error"),
        ("1", 0, "no_such_device"),
        ("GPU-00000000-0000-0000-0000-000000000000", 0, "no_such_device"),
    ],
)
def test_a_driver_that_does_not_start_or_lacks_the_card_says_why(
    driver: StubDriver, device, code, fault
):
    driver.faults["nvmlInitWithFlags"] = code
    assert fault_of(NvmlCard(device)) == fault
    assert driver.sessions == 0


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, "gpu_lost"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "gpu_lost"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver_mismatch"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        *(name for name, _ in OPTIONAL),
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
    ],
)
def test_a_card_that_is_lost_at_any_question_is_found_again_in_a_new_session(
    driver: StubDriver, code, fault, function
):
    card = NvmlCard("0")
    whole = card.read()
    driver.faults[function] = code
    assert fault_of(card) == fault
    assert driver.sessions == 0
    driver.faults.clear()
    assert card.read() == whole
    assert driver.sessions == 1
    # cannot even end its session
    driver.faults |= {"nvmlDeviceGetName": code, "nvmlShutdown": code}
    assert fault_of(card) == fault


# How an owner names a card.


UUIDS = [f"{kind}-8f6d6a1c-2b7f-0c1e-9f51-1d2e3f405162" for kind in ("GPU", "MIG")]


@pytest.mark.parametrize(
    ("device", "is_one"),
    [
        *((each, True) for each in ("0", "7", "all", *UUIDS)),
        *((each, False) for each in ("-1", "", "first", "All", "GPU-", "0; rm")),
    ],
)
def test_a_card_is_named_by_number_or_uuid(device, is_one):
    written = f'gpu: {{device: "{device}"}}'
    if is_one:
        assert parse_config(written, source="f", environ={}).settings.gpu.device == device
    else:
        with pytest.raises(ConfigError, match=r"f:1: gpu\.device: "):
            parse_config(written, source="f", environ={})
