"""Commands that look: `hearth status`, `models`, `log` and `top`."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from urllib.parse import SplitResult, urlencode

import click

from hearth.cli.gateway_client import GatewayClient, gateway_options
from hearth.cli.lazy import CommandFailed, GatewayUnreachable
from hearth.types import Outcome

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
    from hearth.cli.views import console_for, status_view  # noqa: PLC0415 (rich is not paid for by --json)

    console = console_for(sys.stdout, environ=os.environ)
    if not watch:
        console.print(status_view(client.status()))
        return
    if not console.is_terminal:
        raise CommandFailed("--watch draws on a terminal; use --json --watch for one line per change")
    for answer in client.stream(_STREAM, silence_s=_SILENCE_S):
        console.clear()
        console.print(status_view(answer))


_PAGE = "/llm/models"


@click.command
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
def models(address: SplitResult, key: str | None, *, as_json: bool) -> None:
    """List the models: in memory, waited for, on the disk."""
    answer = GatewayClient(address=address, key=key).fetch(_PAGE)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.views import console_for, models_view  # noqa: PLC0415 (rich is not paid for by --json)

    console_for(sys.stdout, environ=os.environ).print(models_view(answer))


_PAGE_OF_LOG = "/llm/log"


@click.command
@gateway_options
@click.option("--caller", help="Only requests of this caller.")
@click.option("--model", help="Only requests that asked for this model.")
@click.option("--outcome", type=click.Choice([outcome.value for outcome in Outcome]), help="Only requests that ended so.")
@click.option("--since", metavar="WHEN", help="Only what ended since then: 90s, 15m, 1h or 2d ago, or ISO 8601 with an offset.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many, the latest.")
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
def log(address: SplitResult, key: str | None, *, as_json: bool, **wanted: str | int | None) -> None:
    """List finished requests, the latest first."""
    asked = urlencode({name: value for name, value in wanted.items() if value is not None})
    answer = GatewayClient(address=address, key=key).fetch(f"{_PAGE_OF_LOG}?{asked}")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.views import console_for, log_view  # noqa: PLC0415 (rich is not paid for by --json)

    console_for(sys.stdout, environ=os.environ).print(log_view(answer))


@click.command
@gateway_options
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two looks.")
def top(address: SplitResult, key: str | None, every_s: float) -> None:
    """Watch the queue, the GPU and the callers, live.

    Ctrl-C ends it.
    """
    if not sys.stdout.isatty():
        raise CommandFailed("top draws on a terminal; use `hearth status`, or `hearth status --json --watch` for one line per change")
    from hearth.cli.views import console_for, watch  # noqa: PLC0415 (rich is not paid for by --json)

    console = console_for(sys.stdout, environ=os.environ)
    with suppress(KeyboardInterrupt):
        watch(looking(GatewayClient(address=address, key=key)), console, go_on=lambda: not threading.Event().wait(every_s))


def looking(client: GatewayClient) -> Callable[[], dict[str, object] | str]:
    """What looks once: the status, or why there is none. The first look raises instead, as every command does."""
    seen = False

    def look() -> dict[str, object] | str:
        nonlocal seen
        try:
            answer = client.status()
        except GatewayUnreachable as error:
            if not seen:
                raise
            return error.message.splitlines()[0]
        seen = True
        return answer

    return look
