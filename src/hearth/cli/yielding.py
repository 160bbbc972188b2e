"""`hearth yield`: memory of the GPU for another program."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import quote

import click

from hearth.cli import CommandFailed, ExitCode
from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    flag,
    gateway_options,
    number,
    parts,
    printable,
    text,
)
from hearth.clock import SystemClock
from hearth.types import DAY_S, HOUR_S, JsonDict, without_none

_LEASES = "/llm/gpu/leases"
_STATUS = "/llm/gpu/status"
_MIB_PER_GIB = 1024.0
_REASON_CHARS = 200
_SECONDS = {"h": HOUR_S, "m": 60.0, "min": 60.0, "s": 1.0}
_MIB = {"gb": _MIB_PER_GIB, "gib": _MIB_PER_GIB, "mb": 1.0, "mib": 1.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([a-z]+)")


class Wanted(NamedTuple):
    """How much memory, None for all, and for how long, None where nobody said it."""

    mib: float | None
    for_s: float | None


def wanted(words: Sequence[str]) -> Wanted:
    """What `8gb`, `2h`, `1h30m` and the like ask for, in any order. Raises UsageError."""
    sizes: list[float] = []
    times: list[float] = []
    for word in words:
        found = _PART.findall(word.lower())
        units = [unit for _, unit in found]
        if not found or "".join(map("".join, found)) != word.lower():
            raise click.UsageError(_not_understood(word))
        if len(units) == 1 and units[0] in _MIB:
            sizes.append(float(found[0][0]) * _MIB[units[0]])
        elif len(set(units)) == len(units) and set(units) <= set(_SECONDS):
            times.append(sum(float(count) * _SECONDS[unit] for count, unit in found))
        else:
            raise click.UsageError(_not_understood(word))
    if len(sizes) > 1 or len(times) > 1:
        raise click.UsageError("name one amount of memory and one time at most")
    if 0.0 in (*sizes, *times):
        raise click.UsageError("an amount of memory or a time must be more than 0")
    if times and times[0] > DAY_S:
        raise click.UsageError("a lease ends after 24h at the latest")
    return Wanted(next(iter(sizes), None), next(iter(times), None))


def _not_understood(word: str) -> str:
    return (
        f"{printable(word)} is neither an amount of memory, such as 8gb or 500mb, nor a time, such"
        " as 2h, 90m or 30s; a command to run goes after --"
    )


class YieldCommand(click.Command):
    """What stands after `--` is the command, and nobody else's options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, without the command."""
        own, dashes, command = args, [], []
        if "--" in args:
            at = args.index("--")
            own, dashes, command = args[:at], args[at : at + 1], args[at + 1 :]
        if dashes and not (command and command[0]):
            raise click.UsageError("name a command after --", ctx)
        ctx.meta[__name__] = command
        return super().parse_args(ctx, own)


def _complete_names(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The leases that there are, for the shell."""
    url = context.params.get("url")
    if url is None:
        return []
    try:
        leases = _listed(GatewayClient(url, context.params.get("key")))
    except click.ClickException:
        return []
    return [name for each in leases if (name := text(each, "id")).startswith(incomplete)]


@click.command("yield", cls=YieldCommand, options_metavar="[OPTIONS]")
@gateway_options
@click.argument("words", nargs=-1, metavar="[MEMORY] [TIME] [-- COMMAND...]")
@click.option("--end", is_flag=True, help="Let models have the memory again.")
@click.option(
    "--name",
    metavar="NAME",
    shell_complete=_complete_names,
    help="Name of the lease: the same name again changes it, and --end ends only that one.",
)
@click.option("--reason", metavar="TEXT", help="What for, as others see it.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 600),
    default=10.0,
    metavar="SECONDS",
    help="How long to wait until the memory is free; a COMMAND is started after that anyway.",
)
@AS_ANSWERED
@click.pass_context
def yield_gpu(
    context: click.Context,
    words: tuple[str, ...],
    name: str | None,
    reason: str | None,
    wait_s: float,
    *,
    end: bool,
    as_json: bool,
    client: GatewayClient,
) -> None:
    """Give GPU memory to another program.

    For a time, or while a command runs:

    \b
    hearth yield                 show who has the GPU
    hearth yield 2h              free all of its memory for two hours
    hearth yield 8gb             free 8 GiB until --end, 24 hours at most
    hearth yield 8gb 90m         free 8 GiB for 90 minutes
    hearth yield --end           let models have it again
    hearth yield 8gb -- COMMAND  free 8 GiB for as long as COMMAND runs

    The models that are in the way are unloaded, and answers they were writing go on afterwards.
    COMMAND is started in any case, and its exit code is passed on; it needs no time, and neither
    --end nor --json.
    """
    command: list[str] = context.meta[__name__]
    asked = wanted(words)
    if command and (end or as_json or asked.for_s is not None):
        raise click.UsageError("a command takes no time, no --end and no --json")
    if end and words:
        raise click.UsageError("--end takes neither an amount of memory nor a time")
    if command:
        _hold(context, client, asked.mib, command, name=name, reason=reason, wait_s=wait_s)
    elif end:
        _end(client, name, as_json=as_json)
    elif words:
        _take(context, client, asked, name=name, reason=reason, wait_s=wait_s, as_json=as_json)
    else:
        _show(client, as_json=as_json)


def _hold(
    context: click.Context,
    client: GatewayClient,
    mib: float | None,
    command: list[str],
    *,
    name: str | None,
    reason: str | None,
    wait_s: float,
) -> None:
    from hearth.cli.holding import Holder, run  # noqa: PLC0415 (what other systems do not have)

    lease = without_none(
        {
            "id": name or f"run-{secrets.token_hex(6)}",
            "mib": mib,
            "reason": (printable(reason or "") or PurePath(printable(command[0])).name)[
                :_REASON_CHARS
            ],
        }
    )
    Holder(client, lease).take(wait_s)
    context.exit(run(command))


def _take(
    context: click.Context,
    client: GatewayClient,
    asked: Wanted,
    *,
    name: str | None,
    reason: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    body = {
        "id": name,
        "mib": asked.mib,
        "for_s": DAY_S if asked.for_s is None else asked.for_s,
        "wait_s": wait_s,
        "reason": reason,
    }
    lease = client.ask("POST", _LEASES, without_none(body), timeout_s=wait_s + 10.0)
    granted = flag(lease, "granted")
    if as_json:
        click.echo(json.dumps(lease, indent=2))
    else:
        what = f"{_amount(lease)} of the GPU"
        until = f"until {_moment(lease, 'until')} (lease {text(lease, 'id')})"
        click.echo(f"{what} {'is free' if granted else 'is being freed, and stays free'} {until}")
    if wait_s and not granted:
        click.echo(f"it is not free yet after {wait_s:g} s; see `hearth yield`", err=True)
        context.exit(ExitCode.FAILED)


def _end(client: GatewayClient, name: str | None, *, as_json: bool) -> None:
    """The named lease, else all with a time; those of programs that run end with these."""
    leases = {text(each, "id"): each for each in _listed(client)}
    if name is not None and name not in leases:
        raise CommandFailed(f"there is no lease {printable(name)}")
    timed = [each for each, lease in leases.items() if text(lease, "source") == "api"]
    ended = timed if name is None else [name]
    for each in ended:
        client.ask("DELETE", f"{_LEASES}/{quote(each, safe='')}")
    if as_json:
        click.echo(json.dumps({"ended": ended}))
        return
    lines = [f"lease {each} is over" for each in ended]
    if name is None:
        lines += [
            f"lease {each} goes on until {_end_of(lease)}"
            for each, lease in leases.items()
            if each not in ended
        ]
    click.echo("\n".join(lines) or "no program has a lease")


def _show(client: GatewayClient, *, as_json: bool) -> None:
    state = client.fetch(_STATUS)
    try:
        leases = _listed(client)
    except CommandFailed:  # a key without that right sees only that somebody has it
        leases = []
    if as_json:
        click.echo(json.dumps({**state, "leases": leases}, indent=2))
        return
    _draw(state, leases)


def _draw(state: Json, leases: list[JsonDict]) -> None:
    from rich.text import Text  # noqa: PLC0415 (it costs time)

    from hearth.cli.tables import Fitting, Phrases, TableColumn, table_of  # noqa: PLC0415
    from hearth.cli.views import console_for  # noqa: PLC0415

    columns = (
        TableColumn("lease", "id"),
        TableColumn("memory", lambda lease: _amount(lease) + _pending(lease)),
        TableColumn("until", _end_of),
        TableColumn("for", lambda lease: text(lease, "reason") or text(lease, "caller")),
    )
    console = console_for(sys.stdout)
    console.print(Phrases(Text(_in_words(state))))
    if leases:
        console.print(Fitting(table_of(columns, leases), expendable=(), in_lines=True))


def _pending(lease: Json) -> str:
    return "" if flag(lease, "granted") else ", not free yet"


def _listed(client: GatewayClient) -> list[JsonDict]:
    return [dict(each) for each in parts(client.fetch(_LEASES), "leases")]


def _in_words(state: Json) -> str:
    if text(state, "state") == "free":
        return "no other program has the GPU"
    until = f"until {_moment(state, 'until')}" if number(state, "until") else "until it ends"
    doing = "has" if text(state, "state") == "yielded" else "is being given"
    return (
        f"{text(state, 'to')} {doing} {_amount(state)} of the GPU since {_moment(state, 'since')},"
        f" {until}"
    )


def _end_of(lease: Json) -> str:
    return _moment(lease, "until") if number(lease, "until") else "its program ends"


def _amount(of: Json) -> str:
    mib = number(of, "mib")
    return "all memory" if mib is None else f"{mib / _MIB_PER_GIB:.1f} GiB"


def _moment(of: Json, name: str) -> str:
    """The instant under a name: the time of day, with the day where that is another one."""
    moment = datetime.fromtimestamp(number(of, name) or 0.0, tz=UTC).astimezone()
    today = datetime.fromtimestamp(SystemClock().wall(), tz=UTC).astimezone().date()
    return f"{moment:%H:%M}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"
