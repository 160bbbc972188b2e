"""Commands that only read: `hearth status`, `models`, `log`, `top` and `version`.

Drawing is in `views`, which costs the import of rich.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from urllib.parse import urlencode

import click

from hearth.cli import CommandFailed, GatewayUnreachable
from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    complete_models,
    count,
    draw,
    gateway_options,
    printable,
    texts,
)
from hearth.types import __version__

_STREAM = "/llm/queue/stream"
_FOLLOW_S = 1.0
_SILENCE_S = 45.0
"""Three missed heartbeats of the stream."""


@click.command
@gateway_options
@AS_ANSWERED
@click.option("--watch", is_flag=True, help="Redraw on every change until Ctrl-C.")
def status(client: GatewayClient, *, as_json: bool, watch: bool) -> None:
    """Show what runs, what waits, and the GPU."""
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        if not watch:
            draw("status", client.status(), as_json=as_json)
        elif as_json:
            for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
                click.echo(json.dumps(answer))
        else:
            _watch(client)


def _watch(client: GatewayClient) -> None:
    from hearth.cli.views import console_for, view  # noqa: PLC0415 (rich is not paid for by --json)

    console = console_for(sys.stdout)
    if not console.is_terminal:
        raise CommandFailed(
            "--watch draws on a terminal; use --json --watch for one line per change"
        )
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        console.clear()
        console.print(view("status", answer))


@click.group(invoke_without_command=True)
@gateway_options
@AS_ANSWERED
@click.pass_context
def models(context: click.Context, client: GatewayClient, *, as_json: bool) -> None:
    """List the models: loaded, requested, installed."""
    if context.invoked_subcommand is None:
        draw("models", client.fetch("/llm/models"), as_json=as_json)


@models.command("log")
@click.argument("name", shell_complete=complete_models)
@click.option("--follow", is_flag=True, help="Go on with each new line until Ctrl-C.")
@gateway_options
@AS_ANSWERED
def model_log(client: GatewayClient, name: str, *, as_json: bool, follow: bool) -> None:
    """Print the last lines that the server of model NAME has written.

    For the servers that Hearth starts itself.
    """
    following = 0
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        while True:
            asked = urlencode({"model": name, "after": following})
            answer = client.fetch(f"/llm/admin/models/log?{asked}")
            following = count(answer, "next")
            lines = (json.dumps(answer),) if as_json else texts(answer, "lines")
            for line in lines:
                click.echo(line if as_json else printable(line))
            if not follow:
                break
            time.sleep(_FOLLOW_S)


@click.command
@gateway_options
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.2),
    default=1.0,
    help="Seconds between two updates.",
)
def top(client: GatewayClient, every_s: float) -> None:
    """Watch the queue, the GPU and the callers live.

    Ctrl-C ends it.
    """
    if not sys.stdout.isatty():
        raise CommandFailed(
            "top draws on a terminal; use `hearth status`, or `hearth status --json --watch` for"
            " one line per change"
        )
    from hearth.cli.views import (  # noqa: PLC0415 (rich is not paid for by --json)
        console_for,
        watch,
    )

    with suppress(KeyboardInterrupt):
        watch(looks(client, lambda: time.sleep(every_s)), console_for(sys.stdout))


def looks(client: GatewayClient, pause: Callable[[], object]) -> Iterator[Json | str]:
    """The status again and again, or why there is none.

    The first look raises instead, as every command does.
    """
    yield client.status()
    while True:
        pause()
        try:
            yield client.status()
        except GatewayUnreachable as error:
            yield error.message.splitlines()[0]


@click.command
def version() -> None:
    """Print the version."""
    click.echo(
        f"hearth {__version__} (Python {platform.python_version()}, {platform.system()}"
        f" {platform.machine()})"
    )
