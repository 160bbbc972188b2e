"""`hearth admin drain`, `pause`, `resume`, `pin`, `unpin`, `load`, `unload`: the owner's orders to a running gateway. Used by `admin`."""

from __future__ import annotations

import json
from urllib.parse import SplitResult

import click

from hearth.cli.answers import printable
from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options
from hearth.cli.status_page import orders_in_words

_PLAIN = {
    "drain": "Refuse new requests, and finish what was taken; jobs are taken and kept.",
    "pause": "Let the requests of other programs wait; the house's own work goes on.",
    "resume": "End drain and pause.",
    "unpin": "Let the pinned model be swapped away again.",
}
_ABOUT_MODEL = {
    "pin": "Make MODEL the one to come back to, which no other program's request takes out of memory.",
    "load": "Bring MODEL into memory as soon as nothing more urgent prevents it.",
    "unload": "Take MODEL out of memory; 1 where something runs on it or waits for it.",
}


def _command(order: str, text: str, *, about_model: bool) -> click.Command:
    @click.command(order, help=text)
    @gateway_options
    @click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
    def give(address: SplitResult, key: str | None, *, as_json: bool, **body: str) -> None:
        answer = GatewayClient(address=address, key=key).order(f"/llm/admin/{order}", body)
        said = "\n".join(map(printable, orders_in_words(answer))) or "no orders in force"
        click.echo(json.dumps(answer, indent=2) if as_json else said)

    return click.argument("model")(give) if about_model else give


ORDERS = (
    *(_command(order, text, about_model=False) for order, text in _PLAIN.items()),
    *(_command(order, text, about_model=True) for order, text in _ABOUT_MODEL.items()),
)
"""The commands."""
