"""Commands that tell a running gateway what to do.

`hearth admin`: making keys, asking a running gateway for a test message, and the owner's orders.

A key is printed once and stored nowhere; nothing here edits a file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import SplitResult, quote

import click

from hearth.cli.gateway_client import GatewayClient, gateway_options, number, parts, printable, texts
from hearth.cli.lazy import CommandFailed, ExitCode
from hearth.cli.looking import orders_in_words
from hearth.clock import new_api_key
from hearth.types import Lane

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


_ALERT_TEST = "/llm/admin/alert/test"
_ALERT_TEST_TIMEOUT_S = 40.0
"""More than the gateway gives its targets."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@click.group
def admin() -> None:
    """Make API keys, try the alerts, give orders to a running gateway."""


for order in ORDERS:
    admin.add_command(order)


@admin.group
def key() -> None:
    """API keys."""


def _checked_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise click.BadParameter("use 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter or digit")
    return value


@key.command("new")
@click.argument("name", callback=_checked_name)
@click.option(
    "--lane", type=click.Choice([lane.value for lane in Lane]), default=Lane.EXTERNAL.value, show_default=True, help="Queue it enters."
)
@click.option("--admin", "is_admin", is_flag=True, help="May also preempt, cancel others' requests, reload, and manage models.")
def new_key(name: str, lane: str, *, is_admin: bool) -> None:
    """Make a key for the caller NAME and print it once, with the lines for the configuration file."""
    secret = new_api_key()
    click.echo(f"The key of {name}; it is shown only now and stored nowhere:\n\n    {secret}\n")
    click.echo("Put these lines into config/llm_gateway.yaml; a saved edit is live at once:\n")
    click.echo(key_snippet(name, digest=hashlib.sha256(secret.encode()).hexdigest(), lane=Lane(lane), is_admin=is_admin))


def key_snippet(name: str, *, digest: str, lane: Lane, is_admin: bool) -> str:
    """The YAML that lets the key in; `digest` is the SHA-256 of the key in hex."""
    lines = ["auth:", "  keys:", f"    - name: {json.dumps(name)}", f'      sha256: "{digest}"', f"      lane: {lane.value}"]
    if is_admin:
        lines.append("      admin: true")
    return "\n".join(lines)


@admin.command("confirm-clock")
@gateway_options
def confirm_clock(address: SplitResult, key: str | None) -> None:
    """Say that the clock is right after it has jumped ahead: results, files and log entries that are old by it are deleted again."""
    GatewayClient(address=address, key=key).order("/llm/admin/confirm-clock")
    click.echo("the clock is confirmed; what is older than its retention is deleted from now on")


@admin.group
def alert() -> None:
    """Messages to the owner."""


@alert.command("test")
@gateway_options
@click.option("--json", "as_json", is_flag=True, help="Print what the gateway answers.")
@click.pass_context
def test_alerts(context: click.Context, address: SplitResult, key: str | None, *, as_json: bool) -> None:
    """Send a message to every place that `alerts` names, and say what each answered; 1 where one did not take it."""
    answer = GatewayClient(address=address, key=key).order(_ALERT_TEST, timeout_s=_ALERT_TEST_TIMEOUT_S)
    targets = parts(answer, "targets")
    click.echo(json.dumps(answer, indent=2) if as_json else "\n".join(_target_line(each) for each in targets))
    if not targets or not all(each.get("delivered") is True for each in targets):
        context.exit(ExitCode.FAILED)


def _target_line(target: Mapping[str, object]) -> str:
    """`discord (discord.com): delivered`, or why it was not."""
    answer = str(target.get("answer"))
    what = "delivered" if target.get("delivered") is True else f"not delivered: {answer}{_ADVICE.get(answer, '')}"
    return printable(f"{target.get('target')} ({target.get('host')}): {what}")


_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "http_401": " (the address is not complete, or no longer valid: copy it again)",
        "http_403": " (the address is not complete, or no longer valid: copy it again)",
        "http_404": " (there is nothing at the address: copy it again)",
        "http_429": " (too many messages: wait a little)",
        "dns": " (the name of the host is unknown: is the machine online?)",
        "connect": " (no connection: is the host reachable from this machine?)",
        "tls": " (the certificate of the host is not trusted)",
        "timeout": " (no answer in time)",
    }
)
