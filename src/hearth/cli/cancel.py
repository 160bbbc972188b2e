"""`hearth cancel`: have a running gateway give requests up, whatever state they are in. Called by `hearth.cli`."""

from __future__ import annotations

import json
from urllib.parse import SplitResult, quote

import click

from hearth.cli.console import printable
from hearth.cli.exits import CommandFailed, ExitCode
from hearth.cli.gateway_client import GatewayClient
from hearth.cli.gateway_options import gateway_options

_TIMEOUT_S = 10.0


@click.command
@gateway_options
@click.argument("requests", nargs=-1, required=True, metavar="REQUEST...")
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers, a line for each.")
@click.pass_context
def cancel(context: click.Context, address: SplitResult, key: str | None, requests: tuple[str, ...], *, as_json: bool) -> None:
    """Cancel requests that wait or run.

    REQUEST is a number as `hearth status` shows it, or a request id. Ends with 1 where one was not cancelled.
    """
    client = GatewayClient(address=address, key=key, timeout_s=_TIMEOUT_S)
    answers = [_cancelled(client, request) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        click.echo(json.dumps(answer) if as_json else _line(request, answer))
    if not all(answer.get("cancelled") is True for answer in answers):
        context.exit(ExitCode.FAILED)


def _cancelled(client: GatewayClient, request: str) -> dict[str, object]:
    """What the gateway says; with `error` where it knows no such request. The others are tried all the same."""
    try:
        request_id = _id_of(client, request)
        return client.order(f"/llm/requests/{quote(request_id, safe='')}/cancel", timeout_s=_TIMEOUT_S)
    except CommandFailed as refused:
        return {"request_id": request, "cancelled": False, "error": refused.message}


def _id_of(client: GatewayClient, request: str) -> str:
    number = request.removeprefix("#")
    if not number.isdecimal():
        return request
    return str(client.fetch(f"/llm/queue/item/{number}").get("request_id"))


def _line(request: str, answer: dict[str, object]) -> str:
    error = answer.get("error")
    if error is not None:
        return f"{printable(request)}: {printable(error)}"
    return f"{printable(request)}: {'cancelled' if answer.get('cancelled') is True else 'had ended before'}"
