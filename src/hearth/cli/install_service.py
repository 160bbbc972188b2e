"""`hearth install-service`: have systemd run the gateway, from the next boot on.

Writes a unit and, where there is none, a configuration; starts nothing. The units are those of
`systemd/`, which start as they stand where everything is at the documented paths; those of this
installation are put in the place of these.
"""

from __future__ import annotations

import math
import os
import re
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
YIELD_UNITS = ("hearth-yield@.service", "hearth-yield-sleep.service")
MIN_STOP_S = 30
STOP_MARGIN_S = 20.0
"""For what comes after the grace of running work: the last bytes, traces and rows."""
SYSTEMD_RUNS = Path("/run/systemd/system")
"""Exists exactly where systemd is the init of this boot (sd_booted(3))."""
_INSTALLED = Path(__file__).with_name("units")
_UNITS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "systemd"
"""In an installed package, or beside the sources."""
SYSTEM_HEARTH = "/opt/hearth/bin/hearth"
USER_HEARTH = "%h/.local/bin/hearth"
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
@click.option(
    "--yield-units",
    is_flag=True,
    help="Install the units that free the GPU for other services and before sleep instead, for the"
    " whole machine (requires root).",
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and write nothing.")
@click.option("--force", is_flag=True, help="Replace a unit that was edited.")
@click.option(
    "--unit-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the unit, for packages and images; systemd need not run.",
)
def install_service(
    *,
    system: bool,
    file: Path | None,
    yield_units: bool,
    only_print: bool,
    force: bool,
    unit_dir: Path | None,
) -> None:
    """Run the gateway as a systemd service."""
    if yield_units and file is not None:
        raise click.UsageError("--yield-units reads no configuration: omit --config")
    system = system or yield_units
    # Where systemd looks for units of the administrator or of a user (systemd.unit(5)), and the
    # configuration's directory.
    base = user_directory(os.environ)
    directory = Path("/etc/systemd/system") if system else base / "systemd" / "user"
    folder = Path("/etc/hearth") if system else base / "hearth"
    config = None if yield_units else (file or folder / CONFIG_NAME).absolute()
    executable = _executable()
    texts = _texts(executable, config, system=system)
    if only_print:
        click.echo("\n".join(texts.values()), nl=False)
        return
    if unit_dir is None and not SYSTEMD_RUNS.is_dir():
        raise CommandFailed(
            "systemd is not running. Start `hearth serve` with your service manager (docs/deploy.md"
            " has a container), or use --print or --unit-dir to get the unit"
        )
    if system and config is not None:
        check_visible(executable, config)
    units = {(unit_dir or directory).absolute() / name: text for name, text in texts.items()}
    try:
        _install(units, config, force=force)
    except OSError as error:
        advice = " (run it with sudo)" if isinstance(error, PermissionError) and system else ""
        raise CommandFailed(
            f"{error.filename} cannot be written: {error.strerror}{advice}"
        ) from error
    click.echo(
        _next_to_yield(executable) if config is None else _next_to_serve(config, system=system)
    )


def _texts(executable: Path, config: Path | None, *, system: bool) -> dict[str, str]:
    """The units by name: the gateway's, or without a configuration those that free the GPU."""
    if config is None:
        return {name: yield_unit_text(name, executable) for name in YIELD_UNITS}
    grace_s = _settings(config).server.shutdown_grace_s
    return {
        UNIT_NAME: unit_text(system=system, executable=executable, config=config, grace_s=grace_s)
    }


def _next_to_yield(executable: Path) -> str:
    private = _in_a_home(executable)
    note = f"\nnote: their own user must be able to read {private}" if private else ""
    return (
        "next:\n  sudo systemctl daemon-reload\n"
        "  sudo systemctl edit NAME    # for a service of yours, as docs/yielding.md says\n"
        "  sudo systemctl enable hearth-yield-sleep    # where Hearth does not see sleep itself"
        f"{note}"
    )


def _next_to_serve(config: Path, *, system: bool) -> str:
    """What the owner has to do now."""
    systemctl = "sudo systemctl"
    journal = "journalctl -u"
    linger = ""
    if not system:
        systemctl = "systemctl --user"
        journal = "journalctl --user -u"
        linger = "  loginctl enable-linger          # else it runs only while you are logged in\n"
    return (
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
    stop_s = max(MIN_STOP_S, math.ceil(grace_s + STOP_MARGIN_S))
    shipped, folder = ("", "/etc/hearth") if system else ("user", "%E/hearth")
    return _adapted(
        _UNITS / shipped / UNIT_NAME,
        {
            SYSTEM_HEARTH if system else USER_HEARTH: _argument(executable),
            f"{folder}/{CONFIG_NAME}": _argument(config),
            f"{folder}/environment": str(environment_of(config)).replace("%", "%%"),
            f"TimeoutStopSec={MIN_STOP_S}": f"TimeoutStopSec={stop_s}",
        },
    )


def yield_unit_text(name: str, executable: Path) -> str:
    """One of `YIELD_UNITS`."""
    return _adapted(_UNITS / name, {SYSTEM_HEARTH: _argument(executable)})


def _adapted(unit: Path, given: dict[str, str]) -> str:
    """A unit with what is given in the place of what it says, all at once."""
    documented = re.compile("|".join(map(re.escape, given)))
    return documented.sub(lambda found: given[found[0]], unit.read_text(encoding="utf-8"))


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
    if path := _in_a_home(executable, config):
        raise CommandFailed(
            f"a system service cannot read {path}, which is in a home directory. Install Hearth"
            " elsewhere (docs/deploy.md: /opt/hearth), or omit --system"
        )


def _in_a_home(*given: Path) -> Path | None:
    """The first of these, and of what this Hearth consists of, that is in a home directory."""
    for path in (*given, Path(sys.executable).resolve(), Path(__file__).resolve()):
        if any(path.is_relative_to(home) for home in _HIDDEN):
            return path
    return None


def _install(units: dict[Path, str], config: Path | None, *, force: bool) -> None:
    """Write what is missing; `units`: the text of each.

    Raises CommandFailed for a unit that is not ours, OSError where something may not be written.
    """
    present = {
        unit: unit.read_text(encoding="utf-8", errors="replace") if unit.exists() else None
        for unit in units
    }
    for unit, text in units.items():
        if present[unit] not in {None, text} and not force:
            raise CommandFailed(
                f"{unit} differs: it was edited, or written by another version. The same command"
                " with --print shows what it would be, --force replaces it. Nothing was written"
            )
    if config is not None and not config.exists():
        _write(config, config_for_a_service())
        _write(config.with_name(SCHEMA_NAME), schema_text())
    for unit, text in units.items():
        if present[unit] == text:
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
