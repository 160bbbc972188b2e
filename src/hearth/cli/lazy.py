"""A click group that imports a command's module only when that command runs, so that `hearth status` never pays for a web framework.

Must never import a command module to print help.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import IO, Any

import click

from hearth.errors import ConfigError, HearthError, StorageBusy, StorageRefused


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


class LazyCommand(click.Command):
    """Stands in for a command until it runs.

    Args:
        target: `package.module:attribute` of the click command.
        short_help: its line in the list of commands; the first line of the command's own help.
    """

    def __init__(self, name: str, *, target: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.target = target

    def load(self) -> click.Command:
        """The command itself. Raises TypeError when `target` names something else."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is not a click command")
        return command


class RootGroup(click.Group):
    """Lists its commands in the order given, loads the one that runs, and turns `hearth.errors` into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does. The stand-in is found first, so that a misspelt name is corrected without importing anything."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises ConfigRefused or Unusable (exit 2) or CommandFailed (exit 1) for an error of ours."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise ConfigRefused(error) from error
        except StorageBusy as error:
            raise CommandFailed(error.message) from error
        except StorageRefused as error:
            raise Unusable(error.message) from error
        except HearthError as error:
            raise CommandFailed(error.message) from error
