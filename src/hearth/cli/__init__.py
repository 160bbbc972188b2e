"""The `hearth` command.

Importing this package must stay cheap: click and the list below, nothing else (a command's module is imported when it runs).
"""

from __future__ import annotations

import click

from hearth.cli.lazy import LazyCommand, RootGroup
from hearth.types import __version__

_COMMANDS = (
    LazyCommand("serve", target="hearth.cli.serve:serve", short_help="Run the gateway in front of Ollama."),
    LazyCommand("demo", target="hearth.cli.demo:demo", short_help="Show a busy home in a minute, without GPU or Ollama."),
    LazyCommand("emulate", target="hearth.cli.serve:emulate", short_help="Run an Ollama that needs no GPU."),
    LazyCommand("status", target="hearth.cli.looking:status", short_help="Show what runs, who waits, and the GPU."),
    LazyCommand("top", target="hearth.cli.looking:top", short_help="Watch the queue, the GPU and the callers, live."),
    LazyCommand("models", target="hearth.cli.looking:models", short_help="List the models: in memory, waited for, on the disk."),
    LazyCommand("submit", target="hearth.cli.submit:submit", short_help="Send a prompt through the queue and print the answer."),
    LazyCommand("cancel", target="hearth.cli.admin:cancel", short_help="Cancel requests that wait or run."),
    LazyCommand("log", target="hearth.cli.looking:log", short_help="List finished requests, the latest first."),
    LazyCommand("config", target="hearth.cli.config:config", short_help="Check, show and compare the configuration."),
    LazyCommand("admin", target="hearth.cli.admin:admin", short_help="Make API keys, try the alerts, give orders to a running gateway."),
    LazyCommand("install-service", target="hearth.cli.install_service:install_service", short_help="Have systemd run the gateway."),
    LazyCommand("simulate", target="hearth.cli.simulate:simulate", short_help="Try scheduling policies on a recorded or made-up day."),
    LazyCommand("version", target="hearth.cli.version:version", short_help="Print the version."),
)

_EPILOG = """\b
Exit codes:
  0  ok
  1  failure
  2  usage or configuration error
  3  the gateway cannot be reached

NO_COLOR turns colours off. The configuration is the first of --config, $HEARTH_CONFIG,
./config/llm_gateway.yaml, $XDG_CONFIG_HOME/hearth/llm_gateway.yaml, the built-in defaults.
"""


@click.group(
    cls=RootGroup,
    commands=_COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="hearth", message="%(prog)s %(version)s")
def main() -> None:
    """Hearth: a gateway for the one GPU in a home."""
