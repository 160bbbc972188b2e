"""`hearth admin drain`, `pause`, `resume`, `pin`, `unpin`, `load`, `unload`: the owner's orders to a running gateway. Used by `admin`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import SplitResult

import click

from hearth.cli.console import printable
from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options
from hearth.cli.status_page import orders_in_words

_TIMEOUT_S = 10.0
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


def _plain(order: str, text: str) -> click.Command:
    @click.command(order, help=text)
    @gateway_options
    @click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
    def give(address: SplitResult, key: str | None, *, as_json: bool) -> None:
        _give(GatewayClient(address=address, key=key), order, {}, as_json=as_json)

    return give


def _about_model(order: str, text: str) -> click.Command:
    @click.command(order, help=text)
    @gateway_options
    @click.argument("model")
    @click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
    def give(address: SplitResult, key: str | None, model: str, *, as_json: bool) -> None:
        _give(GatewayClient(address=address, key=key), order, {"model": model}, as_json=as_json)

    return give


def _give(client: GatewayClient, order: str, body: Mapping[str, object], *, as_json: bool) -> None:
    """Raises CommandFailed where the gateway refuses, with its words."""
    answer = client.order(f"/llm/admin/{order}", body, timeout_s=_TIMEOUT_S)
    click.echo(json.dumps(answer, indent=2) if as_json else in_words(answer))


def in_words(orders: Mapping[str, object]) -> str:
    """The orders in force, a line for each."""
    return "\n".join(map(printable, orders_in_words(orders))) or "no orders in force"


ORDERS = (*(_plain(order, text) for order, text in _PLAIN.items()), *(_about_model(order, text) for order, text in _ABOUT_MODEL.items()))
"""The commands."""
