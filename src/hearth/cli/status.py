"""`hearth status`: ask a running gateway over HTTP and show the answer. Changes nothing. Called by `hearth.cli`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext, suppress
from urllib.parse import SplitResult

import click

from hearth.cli.exits import CommandFailed
from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options

_STREAM = "/llm/queue/stream"
_SILENCE_S = 45.0
"""Three missed heartbeats of `/llm/queue/stream`."""


@click.command
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
@click.option("--watch", is_flag=True, help="Redraw on every change until Ctrl-C.")
def status(address: SplitResult, key: str | None, *, as_json: bool, watch: bool) -> None:
    """Show what runs, who waits, and the GPU."""
    client = GatewayClient(address=address, key=key)
    show = _print_json if as_json else _draw
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        show(client, watch=watch)


def _print_json(client: GatewayClient, *, watch: bool) -> None:
    if not watch:
        click.echo(json.dumps(client.status(), indent=2))
        return
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        click.echo(json.dumps(answer))


def _draw(client: GatewayClient, *, watch: bool) -> None:
    from hearth.cli.console import console_for  # noqa: PLC0415 (rich is not paid for by --json)
    from hearth.cli.status_view import status_view  # noqa: PLC0415

    console = console_for(sys.stdout, environ=os.environ)
    if not watch:
        console.print(status_view(client.status()))
        return
    if not console.is_terminal:
        raise CommandFailed("--watch draws on a terminal; use --json --watch for one line per change")
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        console.clear()
        console.print(status_view(answer))
