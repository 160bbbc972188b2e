"""How a command ends: the four exit codes, and the click exceptions that carry them.

Texts go to stderr. Exceptions of click live here and nowhere else; code below `cli` raises `hearth.errors`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import click

from hearth.errors import ConfigError


class ExitCode(IntEnum):
    """What a script may rely on (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Wrong arguments (click's own code), an unusable configuration, or a store that must not be written."""
    UNREACHABLE = 3
    """No gateway answers at the address."""


class CommandFailed(click.ClickException):
    """The command could not do its work: exit 1."""

    exit_code = int(ExitCode.FAILED)


class GatewayUnreachable(click.ClickException):
    """No gateway answers there: exit 3."""

    exit_code = int(ExitCode.UNREACHABLE)


class Unusable(click.ClickException):
    """Something that the options or the configuration name cannot be used: exit 2."""

    exit_code = int(ExitCode.USAGE)


class ConfigRefused(click.ClickException):
    """The configuration is not usable: exit 2, every problem on a line of its own."""

    exit_code = int(ExitCode.USAGE)

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self._problems = error.problems

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the whole list to `file`, stderr by default."""
        count = len(self._problems)
        click.echo(f"Error: {count} problem{'' if count == 1 else 's'} in the configuration:", file=file, err=file is None)
        for problem in self._problems:
            click.echo(f"  {problem}", file=file, err=file is None)
