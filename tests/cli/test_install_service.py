"""`hearth install-service`: what it writes, what it refuses, and what systemd itself thinks of the
unit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.cli import CommandFailed
from hearth.cli import install_service as module
from hearth.cli.install_service import check_visible, unit_text, variables_in
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, Settings
from tests.support.patience import WITHIN_S
from tests.support.places import ROOT

HEARTH = Path(sys.executable).with_name("hearth")
INSTALL = ("install-service", "--unit-dir", "units")
LEEWAY = 0.1
"""Versions of systemd do not weigh everything alike."""


def text_of(
    *,
    system: bool = True,
    executable: str = "/opt/hearth/bin/hearth",
    config: str = "/etc/hearth/c.yaml",
    grace_s: float = 9,
) -> str:
    return unit_text(
        system=system, executable=Path(executable), config=Path(config), grace_s=grace_s
    )


def keys(text: str) -> dict[str, str]:
    return dict(
        line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")
    )


@pytest.mark.parametrize("system", [False, True])
def test_the_unit_speaks_the_protocol_of_the_service_manager(system: bool):
    unit = keys(text_of(system=system))
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "WatchdogSec": "30",
        "ExecReload": "/bin/kill -HUP $MAINPID",
    }
    assert unit | expected == unit
    assert unit["ExecStart"] == "/opt/hearth/bin/hearth serve --config /etc/hearth/c.yaml"
    assert re.findall(r"/etc/hearth/llm_gateway|/\.local/|%E", text_of(system=system)) == []


@pytest.mark.parametrize(
    ("grace_s", "stop_s"), [(0.0, "30"), (10.0, "30"), (60.0, "80"), (90.5, "111")]
)
def test_systemd_waits_longer_than_running_work(grace_s, stop_s):
    assert keys(text_of(grace_s=grace_s))["TimeoutStopSec"] == stop_s


def test_paths_are_quoted():
    unit = keys(text_of(executable='/opt/a b/100%/"x"\\y/hearth', config="/etc/$x/5%/c.yaml"))
    assert (
        unit["ExecStart"]
        == '"/opt/a b/100%%/\\"x\\"\\\\y/hearth" serve --config /etc/$$x/5%%/c.yaml'
    )
    assert unit["EnvironmentFile"] == "-/etc/$x/5%%/environment"


@pytest.mark.parametrize(
    ("args", "environ", "config"),
    [
        ((), {}, "{home}/.config/hearth/llm_gateway.yaml"),
        ((), {"XDG_CONFIG_HOME": "/c"}, "/c/hearth/llm_gateway.yaml"),
        ((), {"XDG_CONFIG_HOME": "relative"}, "{home}/.config/hearth/llm_gateway.yaml"),
        (("--system",), {}, "/etc/hearth/llm_gateway.yaml"),
        (("--config", "mine.yaml"), {}, "{home}/mine.yaml"),
    ],
)
def test_print_shows_the_unit_and_writes_nothing(hearth, tmp_path, args, environ, config):
    printed = hearth("install-service", "--print", *args, **environ).stdout
    assert keys(printed)["ExecStart"].endswith(config.format(home=tmp_path))
    assert ("DynamicUser=yes" in printed, list(tmp_path.iterdir())) == ("--system" in args, [])


def test_it_writes_a_unit_and_a_configuration_and_says_what_is_next(hearth, tmp_path):
    result = hearth(*INSTALL)
    assert result.exit_code == 0, result.output
    config = tmp_path / ".config" / "hearth" / "llm_gateway.yaml"
    unit = tmp_path / "units" / "hearth.service"
    settings = load_gateway_config(config, {}).settings
    assert (settings.backend.mode, settings.gpu) == (BackendMode.OLLAMA, Settings().gpu)
    assert config.with_name("llm_gateway.schema.json").is_file()
    assert f"ExecStart={HEARTH} serve --config {config}" in unit.read_text()
    for words in (
        f"wrote {config}\n",
        "systemctl --user enable --now hearth",
        "enable-linger",
        f"{config.parent}/environment as NAME=value",
    ):
        assert words in result.stdout
    assert "note:" not in result.stdout
    before = unit.stat()
    assert "is up to date" in hearth(*INSTALL).stdout
    assert unit.stat().st_mtime_ns == before.st_mtime_ns


def test_a_unit_that_was_changed_is_replaced_by_force_only(hearth, tmp_path):
    unit = tmp_path / "units" / "hearth.service"
    unit.parent.mkdir()
    unit.write_bytes(b"m\xef ne\n")
    refused = hearth(*INSTALL)
    assert (refused.exit_code, "--force" in refused.stderr, unit.read_bytes()) == (
        1,
        True,
        b"m\xef ne\n",
    )
    assert not (tmp_path / ".config").exists()
    assert hearth(*INSTALL, "--force").exit_code == 0
    assert "ExecStart" in unit.read_text()


@pytest.mark.parametrize(
    ("config", "environment", "code", "says"),
    [
        ("server: {shutdown_grace_s: 300}\n", None, 0, "wrote"),
        ("colour: red\n", None, 2, "mine.yaml:1: colour"),
        ("auth: {keys: [{name: a, key: '${HOUSE_KEY}'}]}\n", None, 2, "HOUSE_KEY"),
        (
            "auth: {keys: [{name: a, key: '${HOUSE_KEY}'}]}\n",
            "# keys\nHOUSE_KEY='hearth_0123456789abcdef'\n",
            0,
            "wrote",
        ),
    ],
)
def test_an_existing_configuration_is_kept_and_an_unusable_one_refused(
    hearth, tmp_path, config, environment, code, says
):
    file = tmp_path / "mine.yaml"
    unit = tmp_path / "units" / "hearth.service"
    file.write_text(config)
    unit.unlink(missing_ok=True)
    if environment is not None:
        (tmp_path / "environment").write_text(environment)
        assert variables_in(tmp_path / "environment") == {"HOUSE_KEY": "hearth_0123456789abcdef"}
    result = hearth(*INSTALL, "--config", "mine.yaml")
    assert (result.exit_code, says in result.output, file.read_text(), unit.exists()) == (
        code,
        True,
        config,
        code == 0,
    )
    assert "grace" not in config or "TimeoutStopSec=320\n" in unit.read_text()


def test_an_unreadable_environment_is_empty_and_what_cannot_be_written_is_named(hearth, tmp_path):
    assert variables_in(tmp_path / "nowhere") == {}
    (tmp_path / "environment").write_bytes(b"HOUSE_KEY=\xff\n")
    assert variables_in(tmp_path / "environment") == {}
    result = hearth("install-service", "--unit-dir", "environment/units")
    assert (result.exit_code, "environment/units cannot be written" in result.stderr) == (1, True)


def test_without_systemd_or_with_a_home_directory_it_says_what_to_do(hearth, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SYSTEMD_RUNS", tmp_path / "nowhere")
    result = hearth("install-service")
    assert (result.exit_code, "systemd is not running" in result.stderr) == (1, True)
    monkeypatch.setattr(module, "SYSTEMD_RUNS", tmp_path)
    assert (
        f"wrote {tmp_path}/.config/systemd/user/hearth.service" in hearth("install-service").stdout
    )
    with pytest.raises(CommandFailed, match=r"/home/ann/\.venv/bin/hearth"):
        check_visible(Path("/home/ann/.venv/bin/hearth"), Path("/etc/hearth/c.yaml"))


def test_the_units_that_free_the_gpu_are_written_with_this_hearth(hearth, tmp_path):
    result = hearth(*INSTALL, "--yield-units")
    assert result.exit_code == 0, result.output
    units = sorted((tmp_path / "units").iterdir())
    assert [unit.name for unit in units] == ["hearth-yield-sleep.service", "hearth-yield@.service"]
    commands = [line for unit in units for line in unit.read_text().splitlines() if "Exec" in line]
    assert len(commands) == 3
    assert all(f"{HEARTH} yield" in command for command in commands)
    assert not (tmp_path / ".config").exists()
    assert "systemctl enable hearth-yield-sleep" in result.stdout
    printed = hearth("install-service", "--yield-units", "--print").stdout
    assert all(unit.read_text() in printed for unit in units)
    units[1].write_text("mine\n")
    units[0].unlink()
    assert hearth(*INSTALL, "--yield-units").exit_code == 1
    assert not units[0].exists()
    refused = hearth("install-service", "--yield-units", "--config", "mine.yaml")
    assert (refused.exit_code, "omit --config" in refused.stderr) == (2, True)


def analyze(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env=os.environ | environ,
    )


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_the_units_of_the_source_are_whole_where_hearth_is_at_the_documented_path(tmp_path: Path):
    """A user's is at `~/.local/bin/hearth`, where pipx and uv put it."""
    home = tmp_path / "home"
    programs = (
        tmp_path / "opt" / "hearth" / "bin" / "hearth",
        tmp_path / "bin" / "kill",
        home / ".local" / "bin" / "hearth",
    )
    for program in programs:
        program.parent.mkdir(parents=True)
        shutil.copy("/bin/true", program)
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    shutil.copy(ROOT / "systemd" / "hearth.service", units)
    verify = ("verify", "--man=no", "--recursive-errors=no")
    machine = analyze(*verify, f"--root={tmp_path}", "hearth.service")
    user = analyze(
        *verify,
        "--user",
        ROOT / "systemd" / "user" / "hearth.service",
        HOME=str(home),
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    for verified in (machine, user):
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_the_units_and_rates_them_as_the_page_says(tmp_path: Path):
    unit = tmp_path / "hearth.service"
    for system in (False, True):
        unit.write_text(text_of(system=system, executable="/bin/true"))
        verified = analyze("verify", "--man=no", "--recursive-errors=no", unit)
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    rated = analyze("security", "--offline=yes", "--no-pager", unit).stdout
    score = re.search(r"exposure level for hearth\.service: ([0-9.]+)", rated)
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    said = re.search(r"rates its exposure at \*\*([0-9.]+)\*\*", page)
    assert score is not None, rated
    assert said is not None
    assert float(score[1]) <= float(said[1]) + LEEWAY
