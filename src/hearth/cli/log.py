"""`hearth log`: list what a running gateway has finished, asked over HTTP. Reads no file and changes nothing. Called by `hearth.cli`."""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import SplitResult, urlencode

import click

from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options
from hearth.types import Outcome

_PAGE = "/llm/log"


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
    answer = GatewayClient(address=address, key=key).fetch(f"{_PAGE}?{asked}")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from hearth.cli.console import console_for  # noqa: PLC0415 (rich is not paid for by --json)
    from hearth.cli.log_view import log_view  # noqa: PLC0415

    console_for(sys.stdout, environ=os.environ).print(log_view(answer))
