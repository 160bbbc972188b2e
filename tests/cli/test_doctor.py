"""`hearth doctor`: what it says of a home that is in order and of one that is not, and each check beside values that are wrong."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.cli.doctor import (
    address_of,
    check_clock,
    check_gpu,
    check_models,
    check_ollama_settings,
    check_status,
    ollama_environment,
)
from hearth.config.loading import parse_config
from hearth.config.settings import ServerSettings, Settings
from hearth.types import GpuReading
from tests.cli.conftest import emulated, serving
from tests.support.cases import for_each


def settings(text: str) -> Settings:
    return parse_config(text, source="f", environ={}).settings


@pytest.fixture
def ollama_url() -> Iterator[str]:
    with emulated() as url:
        yield url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def written(folder: Path, ollama_url: str, more: str = "", port: int | None = None) -> Path:
    path = folder / "mine.yaml"
    base = f"ollama: {{url: {ollama_url!r}}}\nstorage: {{path: {folder}/state/hearth.db}}\nserver: {{port: {port or free_port()}}}\n"
    path.write_text(base + more)
    return path


def test_a_home_in_order_ends_with_0_and_every_subject_is_named(hearth, tmp_path):
    port = free_port()
    config = written(tmp_path, "http://127.0.0.1:1", "gpu: {home_model: 'llama3.1:8b', nvml: false}\nbackend: {mode: ollama}\n", port)
    with serving(config, port=port) as (_, ollama_url):
        result = hearth("doctor", str(written(tmp_path, ollama_url, "gpu: {home_model: 'llama3.1:8b', nvml: false}\n", port)))
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.stdout
    subjects = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("ok")]
    assert [each for each in subjects if each != "Ollama"] == [
        "configuration",
        "models",
        "GPU",
        "keys",
        "disk",
        "clock",
        "port",
        "dashboard",
    ]
    assert "0.33.0 at http" in result.stdout
    assert "home model llama3.1:8b" in result.stdout


def test_what_is_wrong_is_named_with_what_to_do_and_ends_with_1(hearth, tmp_path, ollama_url):
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = written(tmp_path, "http://127.0.0.1:1", "gpu: {nvml: false}\n", other.getsockname()[1])
        taken = json.loads(hearth("doctor", str(config), "--json").stdout)
    config = written(tmp_path, ollama_url, "gpu: {home_model: 'none:1b', nvml: false}\nmodels: {'other:2b': {parallel: 2}}\nbudget: 7\n")
    broken = hearth("doctor", str(config))
    config = written(tmp_path, ollama_url, "gpu: {home_model: 'none:1b', nvml: false}\nalerts: {disk_free_warning_mib: 900000000}\n")
    missing = hearth("doctor", str(config))
    found = {each["subject"]: (each["level"], each["advice"]) for each in taken}
    assert found["Ollama"] == ("FAIL", "start it (`systemctl start ollama`), or correct ollama.url")
    assert found["port"] == ("FAIL", "stop it, or set server.port")
    assert (broken.exit_code, "FAIL configuration   " in broken.stdout) == (1, True)
    assert "budget: must be a mapping" in broken.stdout
    assert "     -> ollama pull none:1b\n" in missing.stdout
    assert "FAIL disk" in missing.stdout
    assert "is free: no gateway runs" in missing.stdout
    assert missing.stdout.splitlines()[-1].startswith("2 wrong, ")


def test_a_gateway_that_wants_a_key_or_answers_from_the_emulator_is_named(hearth, tmp_path, busy):
    port = int(busy.url.rpartition(":")[2])
    config = written(tmp_path, "http://127.0.0.1:1", "backend: {mode: emulator}\n", port)
    busy.put("/healthz", {"service": "hearth"})
    busy.put("/llm/queue/status", {"error": "no key"}, 401)
    result = hearth("doctor", str(config))
    assert "give an API key in HEARTH_KEY" in result.stdout
    assert "FAIL dashboard" in result.stdout
    assert "warn Ollama" in result.stdout


def lines(findings: Iterator[object]) -> list[str]:
    return [f"{each.level} {each.says}" for each in findings]  # type: ignore[attr-defined]


@for_each(
    ("environ", "config", "levels", "says"),
    [
        (None, "{}", ["ok"], "cannot be read"),
        ({}, "{}", ["ok"], "OLLAMA_NUM_PARALLEL 1, OLLAMA_MAX_LOADED_MODELS automatic"),
        ({"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_MAX_LOADED_MODELS": "3"}, "gpu: {parallel: 2}", ["ok"], "OLLAMA_MAX_LOADED_MODELS 3"),
        ({}, "gpu: {parallel: 2}", ["warn"], "OLLAMA_NUM_PARALLEL is 1, and Hearth sends 2"),
        ({}, "models: {'a:1b': {parallel: 3}}", ["warn"], "Hearth sends 3 requests"),
        ({"OLLAMA_NUM_PARALLEL": "4"}, "{}", ["warn"], "is 4, and Hearth sends 1 at once"),
        ({"OLLAMA_NUM_PARALLEL": "x"}, "{}", ["ok"], "OLLAMA_NUM_PARALLEL 1"),
        ({"OLLAMA_MAX_LOADED_MODELS": "1"}, "{}", ["warn"], "a small model never stays"),
        ({"OLLAMA_HOST": "0.0.0.0:11434"}, "{}", ["warn", "ok"], "can bypass Hearth"),
        ({"OLLAMA_HOST": "http://192.168.1.2"}, "{}", ["warn", "ok"], "can bypass Hearth"),
        ({"OLLAMA_HOST": "127.0.0.1:11434"}, "{}", ["ok"], "automatic"),
    ],
)
def test_the_settings_of_ollama_are_compared_with_ours(environ, config, levels, says):
    found = lines(check_ollama_settings(environ, settings(config)))
    assert [line.split()[0] for line in found] == levels
    assert says in found[0]


def test_the_environment_of_the_process_that_serves_is_read(tmp_path):
    for pid, name, command, environ in (
        ("1", "bash", b"bash\0serve\0", b"A=1\0"),
        ("20", "ollama", b"ollama\0run\0", b"A=2\0"),
        ("300", "ollama", b"/usr/bin/ollama\0serve\0", b"OLLAMA_NUM_PARALLEL=4\0EMPTY=\0X=a=b\0odd\0"),
    ):
        folder = tmp_path / pid
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(command)
        (folder / "environ").write_bytes(environ)
    assert ollama_environment(tmp_path) == {"OLLAMA_NUM_PARALLEL": "4", "EMPTY": "", "X": "a=b"}


@for_each(
    ("installed", "config", "expected"),
    [
        ([], "{}", ["FAIL none is installed"]),
        (["a:latest"], "gpu: {home_model: A}", ["ok 1 installed; home model A"]),
        (["a:1b"], "{}", ["ok 1 installed; home model none"]),
        (["a:1b"], "gpu: {home_model: 'b:1b'}", ["FAIL gpu.home_model: b:1b is not installed"]),
        (["a:1b"], "models: {'b:1b': {parallel: 1}}", ["warn models.b:1b: b:1b is not installed"]),
    ],
)
def test_models_that_the_configuration_names_must_be_installed(installed, config, expected):
    assert lines(check_models(installed, settings(config))) == expected


CARD = GpuReading(name="RTX 3090", total_mib=24 * 1024, used_mib=6 * 1024)


@for_each(
    ("reading", "config", "expected"),
    [
        (CARD, "{}", ["ok RTX 3090, 6.0 of 24.0 GiB used"]),
        (GpuReading(name="x"), "gpu: {vram_gb: 8}", ["ok x, memory unknown"]),
        (CARD, "gpu: {vram_gb: 32}", ["FAIL gpu.vram_gb is 32, and RTX 3090 has 24.0 GiB"]),
        (
            GpuReading(name="x", throttle_reasons=("hardware_thermal",)),
            "{}",
            ["warn x, memory unknown; throttled: hardware thermal"],
        ),
    ],
)
def test_the_gpu_is_compared_with_the_configuration(reading, config, expected):
    assert lines(check_gpu(reading, settings(config))) == expected


@for_each(
    ("synchronised", "wall_s", "level"),
    [("yes", time.time(), "ok"), ("", time.time(), "ok"), ("no", time.time(), "warn"), ("yes", 0.0, "FAIL")],
)
def test_a_clock_that_is_wrong_or_not_synchronised_is_named(synchronised, wall_s, level):
    assert [each.level for each in check_clock(synchronised, wall_s)] == [level]


@for_each(
    ("status", "expected"),
    [
        ({}, []),
        ({"backend": {"up": True}}, []),
        ({"backend": {"up": False}}, ["FAIL it cannot reach its model server"]),
        ({"backend": {"up": True, "emulator": True}}, ["FAIL the emulator answers: texts are made up"]),
        ({"storage": {"clock_in_doubt": True}}, ["warn it jumped ahead, so no old data is deleted"]),
        ({"config": {"problems": ["a:1: x"]}}, ["FAIL the configuration was refused, the old one is in force: a:1: x"]),
        ({"config": {"restart_pending": ["server.port"]}}, ["warn settings wait for a restart: server.port"]),
        ({"alerts": {"active": [{"type": "gpu_lost", "subject": ""}]}}, ["warn alert gpu_lost"]),
    ],
)
def test_what_a_running_gateway_reports_is_repeated(status, expected):
    assert lines(check_status(status)) == expected


@for_each(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:7"), ("0.0.0.0", "http://127.0.0.1:7"), ("::", "http://[::1]:7"), ("nas.lan", "http://nas.lan:7")],
)
def test_a_gateway_that_listens_everywhere_is_asked_on_this_machine(host, url):
    assert address_of(ServerSettings(host=host, port=7)) == url
