"""The `hearth` command.

Importing this package must stay cheap: a command's module is imported when it runs, and never to
print help.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module

import click

from hearth.errors import (
    ConfigError,
    EditFailed,
    EditRefused,
    HearthError,
    StorageBusy,
    StorageRefused,
)
from hearth.types import __version__

_COMMANDS = {
    "serve": ("hearth.cli.serve:serve", "Run the gateway in front of the model server."),
    "demo": ("hearth.cli.demo:demo", "Show a busy home, without a GPU or a model server."),
    "emulate": (
        "hearth.cli.emulate:emulate",
        "Run the emulator: a model server that needs no GPU.",
    ),
    "open": ("hearth.cli.opening:open_dashboard", "Open the dashboard in a browser."),
    "status": ("hearth.cli.status:status", "Show what runs, what waits, and the GPU."),
    "top": ("hearth.cli.status:top", "Watch the queue, the GPU and the callers live."),
    "models": ("hearth.cli.status:models", "List the models: loaded, requested, installed."),
    "chat": ("hearth.cli.prompt:chat", "Chat with MODEL."),
    "submit": ("hearth.cli.prompt:submit", "Send a prompt through the queue and print the answer."),
    "cancel": ("hearth.cli.admin:cancel", "Cancel requests that wait or run."),
    "jobs": ("hearth.cli.jobs:jobs", "List, show, cancel, wait for and submit durable jobs."),
    "log": ("hearth.cli.log:log", "List finished requests, the latest first."),
    "logs": ("hearth.cli.logs:logs", "Print the last lines of the gateway's log; for admins."),
    "mode": ("hearth.cli.mode:mode", "Show the mode in force, or switch to NAME."),
    "yield": ("hearth.cli.yielding:yield_gpu", "Give GPU memory to another program."),
    "config": ("hearth.cli.config:config", "Check, show, compare and import the configuration."),
    "key": ("hearth.cli.keys:key", "Make, list, rotate and revoke API keys."),
    "admin": ("hearth.cli.admin:admin", "Control a running gateway, test the alerts."),
    "doctor": (
        "hearth.cli.doctor:doctor",
        "Check everything that Hearth needs, and say what to do.",
    ),
    "bench": ("hearth.cli.bench:bench", "Measure the installed models for the configuration."),
    "backup": ("hearth.cli.config:backup", "Copy the store to FILE while the gateway runs."),
    "restore": ("hearth.cli.config:restore", "Put a copy of the store back."),
    "install-service": (
        "hearth.cli.install_service:install_service",
        "Run the gateway as a systemd service.",
    ),
    "simulate": (
        "hearth.cli.simulate:simulate",
        "Try scheduling policies on a recorded or generated day.",
    ),
    "version": ("hearth.cli.status:version", "Print the version."),
}

_EPILOG = """\b
Exit codes:
  0  ok
  1  failure
  2  usage or configuration error
  3  the gateway cannot be reached

NO_COLOR turns colours off.

The configuration is the first of --config, $HEARTH_CONFIG,
./config/llm_gateway.yaml, $XDG_CONFIG_HOME/hearth/llm_gateway.yaml, the built-in defaults.
"""


class ExitCode(IntEnum):
    """What a script may rely on (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Wrong arguments (click's own code), an unusable configuration, or a store that must not be
    written.
    """
    UNREACHABLE = 3
    """No gateway answers at the address."""


class CommandFailed(click.ClickException):
    """The command could not do its work."""

    exit_code = ExitCode.FAILED


class Unusable(click.ClickException):
    """Something that the options or the configuration name cannot be used."""

    exit_code = ExitCode.USAGE


class GatewayUnreachable(click.ClickException):
    """No gateway answers there."""

    exit_code = ExitCode.UNREACHABLE


_FULL = (errno.ENOSPC, errno.EDQUOT)


class LazyCommand(click.Command):
    """Stands in for a command until it runs.

    Args:
        target: `package.module:attribute` of the click command.
        short_help: its line in the list of commands; the first line of the command's own help.
        hidden: it is in no list.
    """

    def __init__(self, name: str, *, target: str, short_help: str, hidden: bool = False) -> None:
        super().__init__(name, short_help=short_help, hidden=hidden)
        self.target = target

    def load(self) -> click.Command:
        """The command itself. Raises TypeError when `target` names something else."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is not a click command")
        return command


class RootGroup(click.Group):
    """Lists its commands in the order given, loads the one that runs, and turns `hearth.errors`
    into exit codes.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does.

        The stand-in is found first, so that a misspelt name is corrected without importing
        anything.
        """
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command.

        Raises Unusable (exit 2) or CommandFailed (exit 1) for an error of ours.
        """
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            count = len(error.problems)
            listed = "".join(f"\n  {problem}" for problem in error.problems)
            raise Unusable(
                f"{count} problem{'' if count == 1 else 's'} in the configuration:{listed}"
            ) from error
        except HearthError as error:
            refused = isinstance(error, StorageRefused | EditRefused) and not isinstance(
                error, StorageBusy | EditFailed
            )
            raise (Unusable if refused else CommandFailed)(error.message) from error
        except OSError as error:
            if error.errno not in _FULL:
                raise
            where = error.filename or "the output"
            raise CommandFailed(f"{where} cannot be written: {error.strerror}") from error


def _of_completion(name: str, help_text: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """An option that may name a shell; the module that it needs is imported when it is given."""

    def given(context: click.Context, _parameter: click.Parameter, shell: str | None) -> None:
        if shell is not None and not context.resilient_parsing:
            import_module("hearth.cli.completion").OPTIONS[name](context.command, shell)
            context.exit()

    return click.option(
        name,
        metavar="[bash|zsh|fish]",
        is_flag=False,
        flag_value="",
        expose_value=False,
        is_eager=True,
        callback=given,
        help=help_text,
    )


@click.group(
    cls=RootGroup,
    commands=[
        LazyCommand(name, target=target, short_help=text)
        for name, (target, text) in _COMMANDS.items()
    ],
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="hearth", message="%(prog)s %(version)s")
@_of_completion("--install-completion", "Let your shell complete commands, options and names.")
@_of_completion("--show-completion", "Print what the shell reads for that.")
def main() -> None:
    """Hearth: a gateway for the one GPU in a home."""
