"""Commands that change what a running gateway does: `hearth cancel` and `hearth admin`."""

from __future__ import annotations

import json
from urllib.parse import quote

import click

from hearth.cli import CommandFailed, ExitCode, LazyCommand, RootGroup
from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    complete_callers,
    complete_models,
    count,
    flag,
    gateway_options,
    json_option,
    parts,
    printable,
    text,
    texts,
)
from hearth.types import JsonDict, plural

_CANCEL_ALL_TIMEOUT_S = 60.0
"""A caller may have very many jobs, and each end is written to the disk."""
_ALERT_TEST_TIMEOUT_S = 40.0
"""More than the gateway gives its targets."""
_COMMANDS = {
    "drain": "Refuse new requests and finish the accepted ones.\n\nJobs are accepted and kept.",
    "pause": "Pause external requests; internal requests continue.",
    "resume": "End drain and pause.",
    "unpin": "End the pin.",
    "pin": "Make MODEL the home model, and keep it loaded.\n\nNo external request may evict it.",
    "load": "Load MODEL as soon as nothing more urgent prevents it.",
    "unload": "Unload MODEL.\n\nEnds with 1 if a request runs on it or waits for it.",
}
_ABOUT_A_MODEL = ("pin", "load", "unload")


@click.command
@gateway_options
@click.argument("requests", nargs=-1, metavar="[REQUEST...]")
@click.option(
    "--caller",
    metavar="NAME",
    shell_complete=complete_callers,
    help="Cancel all requests, jobs and batches of this caller.",
)
@json_option("Print the gateway's answers, one per line.")
@click.pass_context
def cancel(
    context: click.Context,
    requests: tuple[str, ...],
    caller: str | None,
    *,
    as_json: bool,
    client: GatewayClient,
) -> None:
    """Cancel requests that wait or run.

    REQUEST is a number as `hearth status` shows it (one request), or a request id (all requests
    with that id). Ends with 1 if one was not cancelled.
    """
    if requests and caller is not None:
        raise click.UsageError("name requests or use --caller, not both")
    if not requests and caller is None:
        raise click.UsageError(
            "name what to cancel: numbers as `hearth status` shows them, request ids, or all of a"
            " caller with --caller NAME"
        )
    if caller is not None:
        answer = client.ask(
            "POST",
            f"/llm/requests/cancel?caller={quote(caller, safe='')}",
            timeout_s=_CANCEL_ALL_TIMEOUT_S,
        )
        click.echo(json.dumps(answer) if as_json else _all_cancelled(caller, answer))
        return
    answers = [_cancelled(client, request) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        what = text(answer, "error") or (
            "cancelled" if flag(answer, "cancelled") else "had ended before"
        )
        click.echo(json.dumps(answer) if as_json else f"{printable(request)}: {what}")
    if not all(flag(answer, "cancelled") for answer in answers):
        context.exit(ExitCode.FAILED)


def _cancelled(client: GatewayClient, request: str) -> JsonDict:
    """What the gateway answers; with `error` where it knows no such request.

    The others are tried all the same.
    """
    digits = request.removeprefix("#")
    is_number = digits.isascii() and digits.isdecimal()
    item = f"queue/item/{digits}" if is_number else f"requests/{quote(request, safe='')}"
    try:
        return client.ask("POST", f"/llm/{item}/cancel")
    except CommandFailed as refused:
        return {"request_id": request, "cancelled": False, "error": refused.message}


def _all_cancelled(caller: str, answer: Json) -> str:
    counts = {
        "request": len(texts(answer, "requests")),
        "job": count(answer, "jobs"),
        "batch": count(answer, "batches"),
    }
    words = [plural(found, what) for what, found in counts.items() if found]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
    return f"{printable(caller)}: {f'{listed} cancelled' if listed else 'nothing to cancel'}"


@click.group(cls=RootGroup)
def admin() -> None:
    """Control a running gateway, test the alerts."""


def commands_in_force(orders: Json) -> list[str]:
    """The admin commands in force, a sentence each."""
    pinned = text(orders, "pinned")
    lines = [
        "draining: new requests are refused" if flag(orders, "draining") else "",
        "paused: external requests wait" if orders.get("paused") else "",
        f"pinned: {pinned}" if pinned else "",
        *(f"to load: {model}" for model in texts(orders, "loads")),
        *(f"to unload: {model}" for model in texts(orders, "unloads")),
    ]
    return [line for line in lines if line]


def _command(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @gateway_options
    @AS_ANSWERED
    def send(*, as_json: bool, client: GatewayClient, **body: str) -> None:
        answer = client.ask("POST", f"/llm/admin/{name}", body)
        words = "\n".join(commands_in_force(answer)) or "no admin commands in force"
        click.echo(json.dumps(answer, indent=2) if as_json else words)

    if name not in _ABOUT_A_MODEL:
        return send
    return click.argument("model", shell_complete=complete_models)(send)


for command_name, command_help in _COMMANDS.items():
    admin.add_command(_command(command_name, command_help))


@admin.command
@gateway_options
@AS_ANSWERED
def preempt(client: GatewayClient, *, as_json: bool) -> None:
    """Interrupt the external requests that can continue later."""
    answer = client.ask("POST", "/llm/admin/preempt")
    found = count(answer, "preempted")
    words = "no running request can be interrupted"
    if found:
        words = f"{plural(found, 'request')} interrupted"
    click.echo(json.dumps(answer) if as_json else words)


@admin.command
@gateway_options
@AS_ANSWERED
def reload(client: GatewayClient, *, as_json: bool) -> None:
    """Read the configuration file again.

    Ends with 1 and every problem if it is unusable.
    """
    answer = client.ask("POST", "/llm/admin/reload")
    words = "reloaded"
    if pending := ", ".join(texts(answer, "restart_pending")):
        words += f"; waits for a restart: {pending}"
    click.echo(json.dumps(answer, indent=2) if as_json else words)


# `hearth key` under the name that it had first, which scripts know
admin.add_command(LazyCommand("key", target="hearth.cli.keys:key", short_help="", hidden=True))


@admin.command("confirm-clock")
@gateway_options
def confirm_clock(client: GatewayClient) -> None:
    """Confirm that the clock is right after a jump ahead.

    Old results, files and log entries are then deleted again.
    """
    client.ask("POST", "/llm/admin/confirm-clock")
    click.echo("the clock is confirmed; expired data is deleted again")


@admin.group
def alert() -> None:
    """Alert messages."""


@alert.command("test")
@gateway_options
@AS_ANSWERED
@click.pass_context
def test_alerts(context: click.Context, *, as_json: bool, client: GatewayClient) -> None:
    """Send a test message to every target in `alerts`.

    Prints their answers, and ends with 1 if one failed.
    """
    answer = client.ask("POST", "/llm/admin/alert/test", timeout_s=_ALERT_TEST_TIMEOUT_S)
    targets = parts(answer, "targets")
    click.echo(json.dumps(answer, indent=2) if as_json else "\n".join(map(_delivery, targets)))
    if not targets or not all(flag(each, "delivered") for each in targets):
        context.exit(ExitCode.FAILED)


def _delivery(target: Json) -> str:
    """`discord (discord.com): delivered`, or why it was not."""
    what = "delivered"
    if not flag(target, "delivered"):
        problem = text(target, "problem")
        what = f"not delivered: {text(target, 'answer')}{problem and f' ({problem})'}"
    return f"{text(target, 'target')} ({text(target, 'host')}): {what}"
