"""`hearth models`: what a running gateway knows of each model. Changes nothing. Called by `hearth.cli`."""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import SplitResult

import click

from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options

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
    from hearth.cli.console import console_for  # noqa: PLC0415 (rich is not paid for by --json)
    from hearth.cli.models_view import models_view  # noqa: PLC0415

    console_for(sys.stdout, environ=os.environ).print(models_view(answer))
