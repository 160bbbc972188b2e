"""Which configuration file a command uses. Reads only names and the environment it is given; called by the commands of `hearth.cli`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_IN_PROJECT = Path("config") / "llm_gateway.yaml"
_IN_HOME = Path("hearth") / "llm_gateway.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundConfig:
    """The file to load, None for the built-in defaults; `why` says in words how it was chosen."""

    path: Path | None
    why: str


def find_config(explicit: Path | None, *, environ: Mapping[str, str], directory: Path) -> FoundConfig:
    """The first of: `explicit`, `$HEARTH_CONFIG`, `config/llm_gateway.yaml` under `directory`, the user's configuration directory.

    A file that was named is taken even if it does not exist, so that loading it says so; the other two count only if they exist.
    """
    if explicit is not None:
        return FoundConfig(path=explicit, why=str(explicit))
    if named := environ.get("HEARTH_CONFIG"):
        return FoundConfig(path=Path(named), why=f"{named} (from HEARTH_CONFIG)")
    for candidate in (directory / _IN_PROJECT, user_directory(environ) / _IN_HOME):
        if candidate.is_file():
            return FoundConfig(path=candidate, why=str(candidate))
    return FoundConfig(path=None, why="built-in defaults (no configuration file found)")


def user_directory(environ: Mapping[str, str]) -> Path:
    """Where the user's programs keep their configuration: `$XDG_CONFIG_HOME`, else `~/.config`.

    XDG Base Directory Specification: relative values are ignored.
    """
    named = Path(environ.get("XDG_CONFIG_HOME", ""))
    return named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".config"
