"""`hearth serve`: options, refusals, what it says at start, and real lives from start to signal."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from hearth.bootstrap import running_gateway
from hearth.bootstrap.probing import claim_server
from hearth.cli.serve import StartBanner
from hearth.cli.views import console_for
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, GatewayConfig, Settings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.engines.ollama.engine import CONTROL_TIMEOUT_S
from hearth.errors import ConfigError, StorageUnavailable
from hearth.events import (
    EmulatorStarted,
    GatewayStarted,
    GatewayStopped,
    ModeChanged,
    SmallModelAnswers,
)
from hearth.gateway import Gateway
from tests.support.patience import WITHIN_S, in_time
from tests.support.recorder import Recorder


@pytest.mark.parametrize(
    ("args", "environ", "code", "says"),
    [
        (("--emulator", "--ollama-url", "http://127.0.0.1:11434"), {}, 2, ["exclude each other"]),
        (("--ollama-url", "gpu-box:11434"), {}, 2, ["must be a URL"]),
        (
            ("--ollama-url", "http://gpu-box:11434/v1/"),
            {},
            2,
            ["without /v1", "http://gpu-box:11434"],
        ),
        (("--ollama-url", "ftp://gpu-box"), {}, 2, ["must be a URL"]),
        (("--ollama-url", "http://me:secret@gpu-box"), {}, 2, ["must be a URL"]),
        (
            ("--config", "bad.yaml"),
            {},
            2,
            ["2 problems", "bad.yaml:1: queue.max_external_depth", "bad.yaml:2: gpu.swap_timout_s"],
        ),
        ((), {"HEARTH_CONFIG": "nowhere.yaml"}, 2, ["nowhere.yaml: cannot be read"]),
        (("--emulator", "--host", "0.0.0.0"), {}, 2, ["without auth.keys"]),
        # it may be free later
        (("--emulator", "--port", "{taken}"), {}, 1, ["cannot listen on 127.0.0.1:{taken}"]),
    ],
)
def test_what_cannot_be_served_ends_in_words(hearth, tmp_path, args, environ, code, says):
    (tmp_path / "bad.yaml").write_text(
        "queue: {max_external_depth: many}\ngpu: {swap_timout_s: 5}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        result = hearth(
            "serve", "--port", "0", *(each.format(taken=taken) for each in args), **environ
        )
    assert result.exit_code == code
    assert all(each.format(taken=taken) in result.stderr for each in says)


@pytest.mark.parametrize("last", [signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU], ids=str)
def test_a_saved_file_and_a_signal_are_one_log_line_each_and_ctrl_c_is_0(
    last: signal.Signals, tmp_path: Path
):
    file = tmp_path / "hearth.yaml"
    file.write_text("queue: {max_external_depth: 5}\n")
    command = [
        sys.executable,
        "-c",
        "from hearth.cli import main; main()",
        "serve",
        "--emulator",
        "--port",
        "0",
        "--config",
        str(file),
    ]
    environ = {"HOME": str(tmp_path), "PATH": ""}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        assert gateway.stdout is not None
        assert gateway.stderr is not None
        events = (json.loads(line) for line in gateway.stdout)
        assert "emulator_started" in itertools.takewhile(
            lambda name: name != "gateway_started", (each["event"] for each in events)
        )
        said = (
            each
            for each in events
            if each["event"] in {"config_reloaded", "config_rejected", "gateway_stopped"}
        )
        file.write_text("queue: {max_external_depth: 6}\nserver: {port: 9000}\n")
        reloaded = next(said)
        assert (reloaded["event"], reloaded["generation"], reloaded["needs_restart"]) == (
            "config_reloaded",
            2,
            ["server.port"],
        )
        file.write_text("queue: {max_external_depth: six}\n")
        assert next(said)["problems"][0].startswith(f"{file}:1: queue.max_external_depth")
        for number in (
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGALRM,
            signal.SIGVTALRM,
            signal.SIGPROF,
            signal.SIGIO,
        ):
            gateway.send_signal(number)
        gateway.send_signal(signal.SIGHUP)
        assert next(said)["event"] == "config_rejected"
        gateway.send_signal(last)
        assert [each["event"] for each in said] == ["gateway_stopped"]
        assert (gateway.wait(timeout=WITHIN_S), gateway.stderr.read()) == (
            0,
            f"configuration: {file}\n",
        )


def test_the_banner_names_address_backend_policy_home_and_where_clients_point():
    out = io.StringIO()
    banner = StartBanner(
        console_for(out, environ={}), settings=Settings(), config_source="config/llm_gateway.yaml"
    )
    started = GatewayStarted(
        at=0.0,
        url="http://127.0.0.1:8411",
        version="0.1.0",
        backend="Ollama 0.33.0",
        authentication=False,
    )
    emulated = EmulatorStarted(at=0.0, url="http://127.0.0.1:1", reason="nothing answers")
    for event in (
        ModeChanged(at=0.0, active=True),
        emulated,
        SmallModelAnswers(at=0.0, model="smollm2:135m", reason="nothing listens"),
        started,
        replace(started, authentication=True),
    ):
        banner.emit(event)
    for words in (
        "ANSWERS ARE MADE UP",
        "nothing answers",
        "A SMALL MODEL ANSWERS: smollm2:135m",
        "nothing listens",
        "dashboard: http://127.0.0.1:8411/",
        "Ollama 0.33.0",
        "adaptive; home model none",
        "config/llm_gateway.yaml",
        "callers on this machine only",
        "required from every caller",
        "OLLAMA_HOST=http://127.0.0.1:8411",
        "OPENAI_BASE_URL=http://127.0.0.1:8411/v1",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8411",
    ):
        assert words in out.getvalue()


async def test_a_stop_during_the_start_does_not_wait_for_a_hanging_server():
    stop = asyncio.Event()
    events = Recorder()
    writers = list[asyncio.StreamWriter]()

    def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        stop.set()

    silent = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    house = running_gateway(
        GatewayConfig(),
        port=0,
        backend_mode=BackendMode.OLLAMA,
        backend_url=url,
        sinks=(events,),
        stop=stop,
    )
    async with silent, asyncio.timeout(CONTROL_TIMEOUT_S / 2), house:
        assert stop.is_set()
    for writer in writers:
        writer.close()
    assert events.of(GatewayStarted) == []
    assert len(events.of(GatewayStopped)) == 1


class SlowHistory:
    """A history that is read when the test says so."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def admissions_since(self, _wall_s: float) -> list[Any]:
        self.asked.set()
        await self.may_answer.wait()
        raise StorageUnavailable("disk_full")


async def test_the_port_opens_when_the_store_is_open_and_read():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    history = SlowHistory()

    def beside(gateway: Gateway) -> None:
        gateway.history = cast("Any", history)

    async def live() -> None:
        async with running_gateway(
            GatewayConfig(), port=port, backend_mode=BackendMode.EMULATOR, beside=beside
        ):
            pass

    living = asyncio.ensure_future(live())
    async with in_time():
        await history.asked.wait()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    history.may_answer.set()
    with suppress(StorageUnavailable):
        await living


async def test_a_hearth_in_front_of_itself_or_another_is_refused(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("storage: {enabled: false}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with running_gateway(
        load_gateway_config(file), port=0, backend_mode=BackendMode.EMULATOR
    ) as (gateway, other):
        for url, own_port in ((other, 0), (f"http://127.0.0.1:{port}", port)):
            with pytest.raises(ConfigError, match="Hearth answers at"):
                async with running_gateway(
                    GatewayConfig(), port=own_port, backend_mode=BackendMode.OLLAMA, backend_url=url
                ):
                    pass
        file.write_text(f"storage: {{enabled: false}}\nollama: {{url: '{other}'}}\n")
        assert not await gateway.reload_file()
        assert gateway.config.settings.ollama.url == "http://127.0.0.1:11434"


async def test_a_chosen_directory_that_others_can_read_is_named_and_left_alone(tmp_path, hearth):
    tmp_path.chmod(0o755)
    file = tmp_path / "config.yaml"
    file.write_text(f"storage: {{path: '{tmp_path}/hearth.db', reserve_mib: 0}}\n")
    async with running_gateway(
        load_gateway_config(file), port=0, backend_mode=BackendMode.EMULATOR, store=True
    ) as (gateway, _):
        (said,) = gateway.warnings()
    assert said == (
        f"storage.path: {tmp_path} is accessible to other users of this machine (mode "
        f"755): chmod 700 {tmp_path}"
    )
    assert (
        f"warning: {said}" in hearth("config", "check", str(file)).stderr,
        tmp_path.stat().st_mode & 0o777,
    ) == (True, 0o755)
    tmp_path.chmod(0o700)
    assert said not in hearth("config", "check", str(file)).stderr


def test_one_of_many_claims_an_ollama_and_nothing_is_left_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(claim_server, [f"http://{tmp_path}"] * 8))
    assert (
        sorted(f"(process {os.getpid()})" in shared for _, shared in claims) == [False] + [True] * 7
    )
    for claim, _ in claims:
        claim.close()
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_a_process_that_was_killed_is_free(tmp_path: Path):
    url = f"http://{tmp_path}"
    code = (
        "from hearth.bootstrap.probing import claim_server; c = "
        f"claim_server({url!r}); print('has it', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert f"(process {other.pid})" in claim_server(url)[1]
        other.kill()
    claim, shared = claim_server(url)
    assert shared == ""
    claim.close()


async def test_a_second_gateway_on_the_same_ollama_says_so_and_the_next_does_not():
    emulator = Emulator(default_profiles(), clock=SystemClock())
    url = await emulator.start()
    started = partial(
        running_gateway, GatewayConfig(), port=0, backend_mode=BackendMode.OLLAMA, backend_url=url
    )
    try:
        async with started() as (first, _), started() as (second, _):
            assert first.warnings() == []
            (said,) = second.warnings()
            assert "schedules the same Ollama" in said
        async with started() as (third, _):
            assert third.warnings() == []
    finally:
        await emulator.stop()
