"""The systemd unit of Hearth: where its files belong, and its text. Decides and renders; writes nothing, asks systemd nothing.

The texts are `systemd/*.service`, with names between `@` for what differs from house to house. Called by `install_service`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hearth.cli.config_file import user_directory

UNIT_NAME = "hearth.service"
MIN_STOP_S = 30
STOP_MARGIN_S = 20.0
"""For what comes after the grace of running work: the last bytes, traces and rows."""

_INSTALLED = Path(__file__).with_name("units")
_UNITS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "systemd"
"""In an installed package, or beside the sources."""
_HIDDEN = ("/home", "/root", "/run/user")
"""What `ProtectHome=yes` takes from the system's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """One installation.

    Attributes:
        system: for the machine, run by its systemd; else for a user, run by the user's own.
        grace_s: what running work gets at a stop (`server.shutdown_grace_s`).
    """

    system: bool
    executable: Path
    unit: Path
    config: Path
    environment_file: Path
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlaces:
    """The directories of a unit, its configuration and its environment file."""

    units: Path
    config: Path


def places_of(environ: Mapping[str, str], *, system: bool) -> ServicePlaces:
    """Where systemd looks for units of the administrator or of a user (systemd.unit(5)), and the configuration's directory."""
    if system:
        return ServicePlaces(units=Path("/etc/systemd/system"), config=Path("/etc/hearth"))
    base = user_directory(environ)
    return ServicePlaces(units=base / "systemd" / "user", config=base / "hearth")


def unit_text(plan: ServicePlan) -> str:
    """The whole unit."""
    text = _UNITS.joinpath("system.service" if plan.system else "user.service").read_text(encoding="utf-8")
    values = {
        "@EXECUTABLE@": _argument(plan.executable),
        "@CONFIG@": _argument(plan.config),
        "@ENVIRONMENT_FILE@": str(plan.environment_file).replace("%", "%%"),
        "@STOP_S@": str(max(MIN_STOP_S, math.ceil(plan.grace_s + STOP_MARGIN_S))),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def variables_in(environment_file: Path) -> dict[str, str]:
    """What the file says, in the simple form `NAME=value` (systemd.exec(5), "EnvironmentFile="); empty where it cannot be read."""
    try:
        lines = environment_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.strip().partition("=") for line in lines if not line.lstrip().startswith(("#", ";")))
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}


def hidden_from_the_system(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Those that a system service cannot see, since they are in somebody's home."""
    return tuple(path for path in paths if any(path.is_relative_to(home) for home in _HIDDEN))


def _argument(path: Path) -> str:
    """One argument of a command line in a unit (systemd.service(5), "Command lines")."""
    text = str(path).replace("%", "%%").replace("$", "$$")
    if text.isascii() and all(each.isalnum() or each in "/._-+@:%$" for each in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
