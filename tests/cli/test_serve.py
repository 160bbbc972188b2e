"""`hearth serve`: options, refusals, and one real life from start to signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hearth.bootstrap import running_gateway
from hearth.bootstrap.assembly import CONTROL_TIMEOUT_S, OllamaClaim
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode
from hearth.emulator import Emulator
from hearth.emulator.service_model import default_profiles
from hearth.errors import ConfigError
from hearth.events import GatewayStarted, GatewayStopped
from tests.support.patience import WITHIN_S
from tests.worker.house import Recorder


def test_emulator_and_an_ollama_exclude_each_other(hearth):
    result = hearth("serve", "--emulator", "--ollama-url", "http://127.0.0.1:11434")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


@pytest.mark.parametrize("url", ["gpu-box:11434", "ftp://gpu-box", "http://me:secret@gpu-box"])
def test_an_address_of_ollama_that_is_none_ends_with_2_and_is_never_answered_for_by_the_emulator(hearth, url):
    result = hearth("serve", "--port", "0", "--ollama-url", url)
    assert result.exit_code == 2
    assert "must be a URL" in result.stderr


def test_a_bad_configuration_ends_with_2_and_every_problem(hearth, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("queue: {max_external_depth: many}\ngpu: {swap_timout_s: 5}\n")
    result = hearth("serve", "--config", str(file))
    assert result.exit_code == 2
    assert "2 problems" in result.stderr
    assert "bad.yaml:1: queue.max_external_depth" in result.stderr
    assert "bad.yaml:2: gpu.swap_timout_s" in result.stderr


def test_a_named_file_that_does_not_exist_ends_with_2(hearth):
    result = hearth("serve", HEARTH_CONFIG="nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml: cannot be read" in result.stderr


def test_the_open_network_without_keys_ends_with_2(hearth):
    result = hearth("serve", "--emulator", "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 2
    assert "without auth.keys" in result.stderr


def test_a_taken_port_ends_with_1_since_it_may_be_free_later_and_names_it(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = hearth("serve", "--emulator", "--port", str(port))
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_ctrl_c_ends_a_running_gateway_with_0(tmp_path: Path):
    command = [sys.executable, "-c", "from hearth.cli import main; main()", "serve", "--emulator", "--port", "0"]
    environ = {"HOME": str(tmp_path), "PATH": ""}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        events = []
        for line in gateway.stdout:
            events.append(json.loads(line)["event"])
            if events[-1] == "gateway_started":
                break
        gateway.send_signal(signal.SIGINT)
        rest, errors = gateway.communicate(timeout=WITHIN_S)
    assert gateway.returncode == 0, errors
    assert "emulator_started" in events
    assert "gateway_stopped" in rest
    assert errors == "configuration: built-in defaults (no configuration file found)\n"


async def test_a_stop_that_comes_during_the_start_does_not_wait_for_a_model_server_that_hangs():
    stop, events = asyncio.Event(), Recorder()
    writers = list[asyncio.StreamWriter]()

    def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        stop.set()

    silent = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    house = running_gateway(GatewayConfig(), port=0, backend_mode=BackendMode.OLLAMA, ollama_url=url, sinks=(events,), stop=stop)
    async with silent, asyncio.timeout(CONTROL_TIMEOUT_S / 2), house:
        assert stop.is_set()
    for writer in writers:
        writer.close()
    assert events.of(GatewayStarted) == []
    assert len(events.of(GatewayStopped)) == 1


async def test_a_hearth_in_front_of_itself_or_of_another_is_refused_at_start_and_at_reload(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("storage: {enabled: false}\n")
    async with running_gateway(load_gateway_config(file), port=0, backend_mode=BackendMode.EMULATOR) as (_, other):
        with pytest.raises(ConfigError, match="a Hearth answers at"):
            async with running_gateway(GatewayConfig(), port=0, backend_mode=BackendMode.OLLAMA, ollama_url=other):
                pass
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="a Hearth answers at"):
        async with running_gateway(GatewayConfig(), port=port, backend_mode=BackendMode.OLLAMA, ollama_url=f"http://127.0.0.1:{port}"):
            pass
    async with running_gateway(load_gateway_config(file), port=0, backend_mode=BackendMode.EMULATOR) as (gateway, url):
        file.write_text(f"storage: {{enabled: false}}\nollama: {{url: '{url}'}}\n")
        assert not await gateway.reload_file()
        assert gateway.config.settings.ollama.url == "http://127.0.0.1:11434"


def test_a_directory_of_the_owners_choice_that_others_can_read_is_told_and_left_alone(tmp_path: Path, hearth):
    async def warnings() -> list[str]:
        async with running_gateway(load_gateway_config(file), port=0, backend_mode=BackendMode.EMULATOR, store=True) as (gateway, _):
            return gateway.warnings()

    tmp_path.chmod(0o755)
    file = tmp_path / "config.yaml"
    file.write_text(f"storage: {{path: '{tmp_path}/hearth.db', reserve_mib: 0}}\n")
    (said,) = asyncio.run(warnings())
    assert said == f"storage.path: {tmp_path} is open to other users of this machine (mode 755): chmod 700 {tmp_path}"
    assert f"warning: {said}" in hearth("config", "check", str(file)).stderr
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o700)
    assert said not in hearth("config", "check", str(file)).stderr


def test_one_of_many_that_claim_an_ollama_at_once_has_it_and_nothing_is_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(OllamaClaim, [f"http://{tmp_path}"] * 8))
    assert sorted(f"(process {os.getpid()})" in claim.shared for claim in claims) == [False] + [True] * 7
    for claim in claims:
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_a_process_that_was_killed_is_free(tmp_path: Path):
    url = f"http://{tmp_path}"
    code = f"from hearth.bootstrap.assembly import OllamaClaim; c = OllamaClaim({url!r}); print('has it', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert f"(process {other.pid})" in OllamaClaim(url).shared
        other.kill()
    claim = OllamaClaim(url)
    assert claim.shared == ""
    claim.release()


async def test_a_second_gateway_on_the_same_ollama_says_so_at_once_and_the_next_one_does_not():
    async def notes(url: str) -> list[str]:
        async with running_gateway(GatewayConfig(), port=0, backend_mode=BackendMode.OLLAMA, ollama_url=url) as (gateway, _):
            return gateway.warnings()

    emulator = Emulator(default_profiles(), clock=SystemClock())
    url = await emulator.start("127.0.0.1", 0)
    try:
        async with running_gateway(GatewayConfig(), port=0, backend_mode=BackendMode.OLLAMA, ollama_url=url) as (first, _):
            assert first.warnings() == []
            (said,) = await notes(url)
            assert "schedules the same Ollama" in said
        assert await notes(url) == []
    finally:
        await emulator.stop()
