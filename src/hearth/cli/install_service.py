"""`hearth install-service`: have systemd run the gateway, from the next boot on.

Writes a unit and, where there is none, a configuration; starts nothing.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

from hearth.cli import CommandFailed
from hearth.cli.config import config_for_a_service, user_directory
from hearth.cli.options import PATH
from hearth.config.loading import load_gateway_config
from hearth.config.rendering import CONFIG_NAME, SCHEMA_NAME, schema_text
from hearth.config.settings import Settings

UNIT_NAME = "hearth.service"
MIN_STOP_S = 30
STOP_MARGIN_S = 20.0
"""For what comes after the grace of running work: the last bytes, traces and rows."""
SYSTEMD_RUNS = Path("/run/systemd/system")
"""Exists exactly where systemd is the init of this boot (sd_booted(3))."""
_INSTALLED = Path(__file__).with_name("units")
_UNITS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "systemd"
"""In an installed package, or beside the sources."""
_HIDDEN = ("/home", "/root", "/run/user")
"""What `ProtectHome=yes` takes from the system's unit."""


@click.command("install-service")
@click.option(
    "--system",
    is_flag=True,
    help="Install for the whole machine (requires root) instead of for the current user.",
)
@click.option(
    "--config",
    "file",
    type=PATH,
    help="Configuration file, in /etc/hearth or ~/.config/hearth by default. Created if missing.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and write nothing.")
@click.option("--force", is_flag=True, help="Replace a unit that was edited.")
@click.option(
    "--unit-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the unit, for packages and images; systemd need not run.",
)
def install_service(
    *, system: bool, file: Path | None, only_print: bool, force: bool, unit_dir: Path | None
) -> None:
    """Run the gateway as a systemd service."""
    # Where systemd looks for units of the administrator or of a user (systemd.unit(5)), and the
    # configuration's directory.
    base = user_directory(os.environ)
    units = Path("/etc/systemd/system") if system else base / "systemd" / "user"
    config = (file or (Path("/etc/hearth") if system else base / "hearth") / CONFIG_NAME).absolute()
    executable = _executable()
    unit = (unit_dir or units).absolute() / UNIT_NAME
    text = unit_text(
        system=system,
        executable=executable,
        config=config,
        grace_s=_settings(config).server.shutdown_grace_s,
    )
    if only_print:
        click.echo(text, nl=False)
        return
    if unit_dir is None and not SYSTEMD_RUNS.is_dir():
        raise CommandFailed(
            "systemd is not running. Start `hearth serve` with your service manager (docs/deploy.md"
            " has a container), or use --print or --unit-dir to get the unit"
        )
    if system:
        check_visible(executable, config)
    try:
        _install(unit, text, config, force=force)
    except OSError as error:
        advice = " (run it with sudo)" if isinstance(error, PermissionError) and system else ""
        raise CommandFailed(
            f"{error.filename} cannot be written: {error.strerror}{advice}"
        ) from error
    systemctl = "sudo systemctl"
    journal = "journalctl -u"
    linger = ""
    if not system:
        systemctl = "systemctl --user"
        journal = "journalctl --user -u"
        linger = "  loginctl enable-linger          # else it runs only while you are logged in\n"
    click.echo(
        f"next:\n  {systemctl} daemon-reload\n  {systemctl} enable --now hearth\n{linger} "
        f" {journal} hearth -f\nkeys that the configuration names as ${{NAME}} go into"
        f" {environment_of(config)} as NAME=value (mode 0600)"
    )


def environment_of(config: Path) -> Path:
    """Where the values of `${NAME}` stand for a service."""
    return config.with_name("environment")


def _settings(config: Path) -> Settings:
    """What the service will run with; its environment file gives the values of `${NAME}`.

    Raises ConfigError.
    """
    if not config.exists():
        return Settings()
    return load_gateway_config(
        config, {**os.environ, **variables_in(environment_of(config))}
    ).settings


def variables_in(environment_file: Path) -> dict[str, str]:
    """What the file sets, in the simple form `NAME=value` (systemd.exec(5), "EnvironmentFile=");
    empty where it cannot be read.
    """
    try:
        lines = environment_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (
        line.strip().partition("=") for line in lines if not line.lstrip().startswith(("#", ";"))
    )
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}


def _executable() -> Path:
    """The `hearth` of this very installation, whatever PATH names."""
    found = Path(sys.executable).with_name("hearth")
    if not found.is_file():
        raise CommandFailed(
            f"there is no {found}: install Hearth into the environment of {sys.executable}, for"
            " example with pip"
        )
    return found


def unit_text(*, system: bool, executable: Path, config: Path, grace_s: float) -> str:
    """The whole unit, for the machine's systemd or for a user's; `grace_s`: what running work gets
    at a stop.
    """
    values = {
        "@EXECUTABLE@": _argument(executable),
        "@CONFIG@": _argument(config),
        "@ENVIRONMENT_FILE@": str(environment_of(config)).replace("%", "%%"),
        "@STOP_S@": str(max(MIN_STOP_S, math.ceil(grace_s + STOP_MARGIN_S))),
    }
    text = _UNITS.joinpath("system.service" if system else "user.service").read_text(
        encoding="utf-8"
    )
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _argument(path: Path) -> str:
    """One argument of a command line in a unit (systemd.service(5), "Command lines")."""
    text = str(path).replace("%", "%%").replace("$", "$$")
    if text.isascii() and all(each.isalnum() or each in "/._-+@:%$" for each in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def check_visible(executable: Path, config: Path) -> None:
    """Raises CommandFailed for what a system service could not read: its sandbox hides everybody's
    home.
    """
    for path in (executable, Path(sys.executable).resolve(), Path(__file__).resolve(), config):
        if any(path.is_relative_to(home) for home in _HIDDEN):
            raise CommandFailed(
                f"a system service cannot read {path}, which is in a home directory. Install Hearth"
                " elsewhere (docs/deploy.md: /opt/hearth), or omit --system"
            )


def _install(unit: Path, text: str, config: Path, *, force: bool) -> None:
    """Write what is missing.

    Raises CommandFailed for a unit that is not ours, OSError where something may not be written.
    """
    present = unit.read_text(encoding="utf-8", errors="replace") if unit.exists() else None
    if present not in {None, text} and not force:
        raise CommandFailed(
            f"{unit} differs: it was edited, or written by another version. The same command with"
            " --print shows what it would be, --force replaces it. Nothing was written"
        )
    if not config.exists():
        _write(config, config_for_a_service())
        _write(config.with_name(SCHEMA_NAME), schema_text())
    if present == text:
        click.echo(f"{unit} is up to date")
    else:
        _write(unit, text)


def _write(path: Path, text: str) -> None:
    """All or nothing, readable for everybody: a unit and a configuration hold no key, only digests
    and names of variables.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o644)
    fresh.replace(path)
    click.echo(f"wrote {path}")
