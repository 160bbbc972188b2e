"""How a command ends: exit codes, and the exceptions that lead to them."""

from __future__ import annotations

from enum import IntEnum

import click


class ExitCode(IntEnum):
    """What a script may rely on (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Wrong arguments (click's own code), an unusable configuration, or a store that must not be written."""
    UNREACHABLE = 3
    """No gateway answers at the address."""


class CommandFailed(click.ClickException):
    """The command could not do its work."""

    exit_code = int(ExitCode.FAILED)


class Unusable(click.ClickException):
    """Something that the options or the configuration name cannot be used."""

    exit_code = int(ExitCode.USAGE)


class GatewayUnreachable(click.ClickException):
    """No gateway answers there."""

    exit_code = int(ExitCode.UNREACHABLE)
