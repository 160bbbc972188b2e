"""`hearth logs`: the last lines of the gateway's own log, and each new one."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlencode

import click

from hearth.cli import GatewayUnreachable
from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    NotNow,
    complete_callers,
    gateway_options,
    parts,
    text,
)
from hearth.types import JsonDict, without_none

_LOGS = "/llm/admin/logs"
_SILENCE_S = 45.0
"""Three missed heartbeats of the stream."""
_RETRY_S = 0.5
_LEVELS = ("debug", "info", "warning", "error")
_KEPT = 2000
_HEAD = ("id", "ts", "level", "event")


@click.command
@gateway_options
@click.option("-f", "--follow", is_flag=True, help="Go on with each new line until Ctrl-C.")
@click.option("--level", type=click.Choice(_LEVELS), help="Only lines of this level and above.")
@click.option(
    "--event", metavar="NAME", multiple=True, help="Only lines of this event; may be repeated."
)
@click.option(
    "--caller",
    metavar="NAME",
    shell_complete=complete_callers,
    help="Only lines about this caller.",
)
@click.option("--id", "request_id", metavar="ID", help="Only lines about the request with this id.")
@click.option(
    "--lines",
    type=click.IntRange(0, _KEPT),
    metavar="COUNT",
    default=200,
    help="So many of the last lines.",
)
@AS_ANSWERED
def logs(
    client: GatewayClient,
    *,
    as_json: bool,
    follow: bool,
    event: tuple[str, ...],
    lines: int,
    **wanted: str | None,
) -> None:
    """Print the last lines of the gateway's log; for admins."""
    asked = {**without_none(wanted), "event": event, "lines": lines}
    show = _as_json if as_json else _in_words()
    if not follow:
        answer = client.fetch(f"{_LOGS}?{urlencode(asked, doseq=True)}")
        for line in parts(answer, "lines"):
            click.echo(show(line))
        return
    with suppress(KeyboardInterrupt):
        for line in _followed(client, asked):
            click.echo(show(line))


def _followed(client: GatewayClient, asked: JsonDict) -> Iterator[Json]:
    """The last lines and each new one, over restarts of the gateway too, once it has answered."""
    answer = client.fetch(f"{_LOGS}?{urlencode(asked, doseq=True)}")
    yield from parts(answer, "lines")
    place = text(answer, "next")
    is_new = True
    while True:
        query = urlencode({**asked, "lines": _KEPT, "after": place}, doseq=True)
        with suppress(GatewayUnreachable, NotNow):
            for line in client.stream(f"{_LOGS}/stream?{query}", silence_s=_SILENCE_S):
                is_new = True
                place = text(line, "id")
                yield line
        if is_new:
            click.echo("the stream has ended; waiting for the gateway", err=True)
        is_new = False
        time.sleep(_RETRY_S)


def _as_json(line: Json) -> str:
    return json.dumps(line)


def _in_words() -> Callable[[Json], str]:
    # the import costs more than most commands take
    from hearth.observability.logs import LogLine, to_text  # noqa: PLC0415

    def show(line: Json) -> str:
        known = LogLine(
            wall_at=_instant(text(line, "ts")),
            level=logging.getLevelNamesMapping().get(text(line, "level").upper(), logging.INFO),
            event=text(line, "event"),
            fields={name: value for name, value in line.items() if name not in _HEAD},
        )
        return to_text(known, colour=sys.stdout.isatty())

    return show


def _instant(ts: str) -> float:
    try:
        return datetime.fromisoformat(ts).timestamp()
    except ValueError:
        return 0.0
