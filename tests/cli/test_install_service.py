"""`hearth install-service`: what it writes, what it refuses, and what systemd itself thinks of the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.cli import CommandFailed
from hearth.cli import install_service as module
from hearth.cli.install_service import ServicePlan, _check_visible, unit_text, variables_in
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, Settings
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

HEARTH = Path(sys.executable).with_name("hearth")
LEEWAY = 0.1
"""Versions of systemd do not weigh everything alike."""


def plan(*, system: bool = True, **changed: object) -> ServicePlan:
    known: dict[str, object] = {
        "executable": Path("/opt/hearth/bin/hearth"),
        "unit": Path("/etc/systemd/system/hearth.service"),
        "config": Path("/etc/hearth/llm_gateway.yaml"),
        "grace_s": 10.0,
    }
    return ServicePlan(system=system, **{**known, **changed})  # type: ignore[arg-type]


def keys(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("system", [False, True])
def test_the_unit_speaks_the_protocol_of_the_service_manager(system: bool):
    text = unit_text(plan(system=system))
    unit = keys(text)
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert unit["WatchdogSec"] == ["30"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert unit["ExecStart"] == ["/opt/hearth/bin/hearth serve --config /etc/hearth/llm_gateway.yaml"]
    assert re.findall(r"@[A-Z_]+@", text) == []


@for_each(("grace_s", "stop_s"), [(0.0, "30"), (10.0, "30"), (60.0, "80"), (90.5, "111")])
def test_systemd_waits_longer_than_running_work_does(grace_s: float, stop_s: str):
    assert keys(unit_text(plan(grace_s=grace_s)))["TimeoutStopSec"] == [stop_s]


def test_paths_are_quoted_as_systemd_reads_them():
    odd = plan(executable=Path('/opt/a b/100%/"x"/hearth'), config=Path("/etc/$x/5%/c.yaml"))
    unit = keys(unit_text(odd))
    assert unit["ExecStart"] == ['"/opt/a b/100%%/\\"x\\"/hearth" serve --config /etc/$$x/5%%/c.yaml']
    assert unit["EnvironmentFile"] == ["-/etc/$x/5%%/environment"]


@for_each(
    ("args", "environ", "config"),
    [
        ((), {}, "{home}/.config/hearth/llm_gateway.yaml"),
        ((), {"XDG_CONFIG_HOME": "/c"}, "/c/hearth/llm_gateway.yaml"),
        ((), {"XDG_CONFIG_HOME": "relative"}, "{home}/.config/hearth/llm_gateway.yaml"),
        (("--system",), {}, "/etc/hearth/llm_gateway.yaml"),
        (("--config", "mine.yaml"), {}, "{home}/mine.yaml"),
    ],
)
def test_a_users_files_are_under_its_configuration_directory(hearth, tmp_path, args, environ, config):
    printed = hearth("install-service", "--print", *args, **environ).stdout
    assert keys(printed)["ExecStart"][0].endswith(config.format(home=tmp_path))


def test_it_writes_a_unit_and_a_configuration_that_waits_for_ollama_and_says_what_is_next(hearth, tmp_path):
    result = hearth("install-service", "--unit-dir", "units")
    assert result.exit_code == 0, result.output
    config = tmp_path / ".config" / "hearth" / "llm_gateway.yaml"
    settings = load_gateway_config(config, {}).settings
    assert settings.backend.mode is BackendMode.OLLAMA
    assert settings.gpu == Settings().gpu
    assert config.with_name("llm_gateway.schema.json").is_file()
    assert f"ExecStart={HEARTH} serve --config {config}" in (tmp_path / "units" / "hearth.service").read_text()
    assert f"wrote {config}\n" in result.stdout
    assert "systemctl --user enable --now hearth" in result.stdout
    assert "enable-linger" in result.stdout
    assert "note:" not in result.stdout
    before = (tmp_path / "units" / "hearth.service").stat()
    assert "is up to date" in hearth("install-service", "--unit-dir", "units").stdout
    assert (tmp_path / "units" / "hearth.service").stat().st_mtime_ns == before.st_mtime_ns


def test_a_unit_that_was_changed_is_replaced_by_force_only(hearth, tmp_path):
    unit = tmp_path / "units" / "hearth.service"
    unit.parent.mkdir()
    unit.write_bytes(b"m\xef ne\n")
    refused = hearth("install-service", "--unit-dir", "units")
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert unit.read_bytes() == b"m\xef ne\n"
    assert not (tmp_path / ".config").exists()
    assert hearth("install-service", "--unit-dir", "units", "--force").exit_code == 0
    assert "ExecStart" in unit.read_text()


def test_a_configuration_that_is_there_is_kept_and_its_grace_counts(hearth, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("server: {shutdown_grace_s: 300}\n")
    result = hearth("install-service", "--unit-dir", "units", "--config", "mine.yaml")
    assert result.exit_code == 0, result.output
    assert config.read_text() == "server: {shutdown_grace_s: 300}\n"
    assert "TimeoutStopSec=320\n" in (tmp_path / "units" / "hearth.service").read_text()
    assert "note: with `backend: auto`" in result.stdout


def test_a_configuration_that_is_not_usable_is_refused_before_anything_is_written(hearth, tmp_path):
    (tmp_path / "mine.yaml").write_text("colour: red\n")
    result = hearth("install-service", "--unit-dir", "units", "--config", "mine.yaml")
    assert result.exit_code == 2
    assert "mine.yaml:1: colour" in result.stderr
    assert not (tmp_path / "units").exists()
    result = hearth("install-service", "--unit-dir", "mine.yaml/units")
    assert result.exit_code == 1
    assert "mine.yaml/units cannot be written" in result.stderr


def test_names_in_the_configuration_are_looked_up_in_the_environment_file(hearth, tmp_path):
    (tmp_path / "mine.yaml").write_text("auth: {keys: [{name: a, key: '${HOUSE_KEY}'}]}\n")
    assert hearth("install-service", "--unit-dir", "units", "--config", "mine.yaml").exit_code == 2
    (tmp_path / "environment").write_text("# keys\nHOUSE_KEY='hearth_0123456789abcdef'\n")
    assert hearth("install-service", "--unit-dir", "units", "--config", "mine.yaml").exit_code == 0
    assert variables_in(tmp_path / "environment") == {"HOUSE_KEY": "hearth_0123456789abcdef"}
    assert variables_in(tmp_path / "nowhere") == {}
    (tmp_path / "environment").write_bytes(b"HOUSE_KEY=\xff\n")
    assert variables_in(tmp_path / "environment") == {}


def test_print_shows_the_unit_and_writes_nothing(hearth, tmp_path):
    result = hearth("install-service", "--system", "--print")
    assert result.exit_code == 0
    assert "DynamicUser=yes" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_systemd_it_says_what_to_do_instead(hearth, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SYSTEMD_RUNS", tmp_path / "nowhere")
    result = hearth("install-service")
    assert result.exit_code == 1
    assert "systemd is not running" in result.stderr
    monkeypatch.setattr(module, "SYSTEMD_RUNS", tmp_path)
    assert f"wrote {tmp_path}/.config/systemd/user/hearth.service" in hearth("install-service").stdout


def test_what_is_in_somebodys_home_cannot_be_a_system_service():
    with pytest.raises(CommandFailed, match=r"/home/ann/\.venv/bin/hearth"):
        _check_visible(plan(executable=Path("/home/ann/.venv/bin/hearth")))


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=WITHIN_S, check=False)


@needs_systemd
@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path, system: bool):
    unit = tmp_path / "hearth.service"
    unit.write_text(unit_text(plan(system=system, executable=Path("/bin/true"))))
    verified = analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@needs_systemd
def test_the_system_service_is_as_little_exposed_as_the_page_says(tmp_path: Path):
    unit = tmp_path / "hearth.service"
    unit.write_text(unit_text(plan()))
    told = analyze("security", "--offline=yes", "--no-pager", unit).stdout
    score = re.search(r"exposure level for hearth\.service: ([0-9.]+)", told)
    assert score is not None, told
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    said = re.search(r"rates its exposure at \*\*([0-9.]+)\*\*", page)
    assert said is not None
    assert float(score[1]) <= float(said[1]) + LEEWAY
