"""The units in `systemd/` that free the GPU: what systemd says of them, and what they run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stub_gateway import StubGateway
from tests.support.patience import WITHIN_S
from tests.support.places import ROOT

UNITS = ROOT / "systemd"
FOR_A_SERVICE = UNITS / "hearth-yield@.service"
BEFORE_SLEEP = UNITS / "hearth-yield-sleep.service"
DROP_IN = "[Unit]\nWants=hearth-yield@%N.service\nAfter=hearth-yield@%N.service\n"


def command_of(unit: Path, setting: str) -> list[str]:
    """What the setting of a unit runs, with this Hearth, for an instance `training`."""
    (line,) = (
        line.removeprefix(f"{setting}=").removeprefix("-")
        for line in unit.read_text("utf-8").splitlines()
        if line.startswith(f"{setting}=")
    )
    hearth = shlex.join([sys.executable, "-c", "from hearth.cli import main; main()"])
    return shlex.split(line.replace("/opt/hearth/bin/hearth", hearth).replace("%I", "training"))


def environ(**more: str) -> dict[str, str]:
    kept = ("PATH", "PYTHONPATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | more


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_them_as_they_stand_with_the_drop_in_of_the_page(tmp_path: Path):
    assert DROP_IN in (ROOT / "docs" / "yielding.md").read_text("utf-8")
    hearth = tmp_path / "opt" / "hearth" / "bin" / "hearth"
    units = tmp_path / "etc" / "systemd" / "system"
    for program in (hearth, tmp_path / "bin" / "true"):
        program.parent.mkdir(parents=True)
        shutil.copy("/bin/true", program)
    units.mkdir(parents=True)
    shutil.copy(BEFORE_SLEEP, units)
    shutil.copy(FOR_A_SERVICE, units / "hearth-yield@training.service")
    (units / "training.service").write_text(f"{DROP_IN}[Service]\nExecStart=/bin/true\n")
    names = ("training", "hearth-yield@training", "hearth-yield-sleep")
    verified = subprocess.run(
        [
            *("systemd-analyze", "verify", "--man=no", "--recursive-errors=no"),
            f"--root={tmp_path}",
            *(f"{name}.service" for name in names),
        ],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.skipif(
    shutil.which("systemd-notify") is None, reason="systemd-notify is not installed"
)
def test_a_service_is_told_when_the_memory_is_free_and_ends_it_with_sigterm(tmp_path: Path):
    """Without a gateway here, which must not keep the service from starting."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(WITHIN_S)
    manager.bind(str(tmp_path / "notify"))
    process = subprocess.Popen(
        command_of(FOR_A_SERVICE, "ExecStart"),
        env=environ(NOTIFY_SOCKET=str(tmp_path / "notify"), HEARTH_URL="http://127.0.0.1:1"),
        stderr=subprocess.DEVNULL,
    )
    with manager, process:
        assert manager.recv(4096).splitlines()[0] == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 143
    assert "SuccessExitStatus=143\n" in FOR_A_SERVICE.read_text("utf-8")


def test_the_gpu_is_freed_before_sleep_and_given_back_after_it():
    stub = StubGateway()
    lease = {"id": "sleep", "source": "api", "granted": True, "mib": None, "until": 0}
    stub.put("/llm/gpu/leases", {"leases": [lease], **lease})
    stub.put("/llm/gpu/leases/sleep", {"ended": ["sleep"]})
    with stub.listening():
        for setting in ("ExecStart", "ExecStop"):
            subprocess.run(
                command_of(BEFORE_SLEEP, setting),
                env=environ(HEARTH_URL=stub.url),
                timeout=WITHIN_S,
                check=True,
                stdout=subprocess.DEVNULL,
            )
    assert [f"{each['method']} {each['path']}" for each in stub.seen] == [
        "POST /llm/gpu/leases",
        "GET /llm/gpu/leases",
        "DELETE /llm/gpu/leases/sleep",
    ]
    assert stub.bodies[0]["id"] == "sleep"
