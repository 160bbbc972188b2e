"""`hearth top`: the queue, the GPU and the callers of a running gateway, drawn anew every second. Called by `hearth.cli`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import SplitResult

import click

from hearth.cli.exits import CommandFailed, GatewayUnreachable
from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options


@click.command
@gateway_options
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two looks.")
def top(address: SplitResult, key: str | None, every_s: float) -> None:
    """Watch the queue, the GPU and the callers, live.

    Ctrl-C ends it.
    """
    if not sys.stdout.isatty():
        raise CommandFailed("top draws on a terminal; use `hearth status`, or `hearth status --json --watch` for one line per change")
    from hearth.cli.console import console_for  # noqa: PLC0415 (rich is not paid for by a refusal)
    from hearth.cli.top_screen import watch  # noqa: PLC0415

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
