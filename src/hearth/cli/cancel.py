"""`hearth cancel`: have a running gateway give requests up, whatever state they are in."""

from __future__ import annotations

import json
from urllib.parse import SplitResult, quote

import click

from hearth.cli.gateway_client import GatewayClient, gateway_options, number, printable, texts
from hearth.cli.lazy import CommandFailed, ExitCode

_ALL_TIMEOUT_S = 60.0
"""A caller may have very many jobs, and each end is written to the disk."""


@click.command
@gateway_options
@click.argument("requests", nargs=-1, metavar="[REQUEST...]")
@click.option("--caller", metavar="NAME", help="All that this caller has: requests, jobs and batches, waiting or running.")
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers, a line for each.")
@click.pass_context
def cancel(
    context: click.Context, address: SplitResult, key: str | None, requests: tuple[str, ...], caller: str | None, *, as_json: bool
) -> None:
    """Cancel requests that wait or run.

    REQUEST is a number as `hearth status` shows it, which is that one request, or a request id, which is all that carry it. Ends with 1
    where one was not cancelled.
    """
    if bool(requests) == (caller is not None):
        raise click.UsageError("name requests, or --caller, and not both")
    client = GatewayClient(address=address, key=key)
    if caller is not None:
        answer = client.order(f"/llm/requests/cancel?caller={quote(caller, safe='')}", timeout_s=_ALL_TIMEOUT_S)
        click.echo(json.dumps(answer) if as_json else _summary(caller, answer))
        return
    answers = [_cancelled(client, request) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        click.echo(json.dumps(answer) if as_json else _line(request, answer))
    if not all(answer.get("cancelled") is True for answer in answers):
        context.exit(ExitCode.FAILED)


def _cancelled(client: GatewayClient, request: str) -> dict[str, object]:
    """What the gateway says; with `error` where it knows no such request. The others are tried all the same."""
    try:
        return client.order(_path_of(request))
    except CommandFailed as refused:
        return {"request_id": request, "cancelled": False, "error": refused.message}


def _path_of(request: str) -> str:
    digits = request.removeprefix("#")
    if digits.isascii() and digits.isdecimal():
        return f"/llm/queue/item/{digits}/cancel"
    return f"/llm/requests/{quote(request, safe='')}/cancel"


def _line(request: str, answer: dict[str, object]) -> str:
    error = answer.get("error")
    if error is not None:
        return f"{printable(request)}: {printable(error)}"
    return f"{printable(request)}: {'cancelled' if answer.get('cancelled') is True else 'had ended before'}"


def _summary(caller: str, answer: dict[str, object]) -> str:
    requests, jobs, batches = len(texts(answer, "requests")), int(number(answer, "jobs") or 0), int(number(answer, "batches") or 0)
    counts = ((requests, "request", "requests"), (jobs, "job", "jobs"), (batches, "batch", "batches"))
    words = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    listed = " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
    return f"{printable(caller)}: {f'{listed} cancelled' if listed else 'nothing to cancel'}"
