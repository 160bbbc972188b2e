"""`hearth log`: the requests that have ended, as a table, or all of them as a file.

Drawing is in `views`, which costs the import of rich.
"""

from __future__ import annotations

import sys
from urllib.parse import urlencode

import click

from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    complete_callers,
    complete_models,
    draw,
    gateway_options,
)
from hearth.cli.options import LIMIT
from hearth.types import Lane, Outcome, without_none

_EXPORT_S = 60.0
"""Of silence, at most."""
_ENDED = "90s, 15m, 1h or 2d ago, or ISO 8601 with an offset."


@click.command
@gateway_options
@click.option(
    "--caller",
    metavar="NAME",
    shell_complete=complete_callers,
    help="Only requests of this caller.",
)
@click.option("--user", metavar="NAME", help="Only requests of this one of its caller's users.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="Only requests that asked for this model.",
)
@click.option("--engine", metavar="NAME", help="Only requests that this engine worked on.")
@click.option(
    "--outcome",
    type=click.Choice([outcome.value for outcome in Outcome]),
    help="Only requests with this outcome.",
)
@click.option(
    "--lane", type=click.Choice([lane.value for lane in Lane]), help="Only requests of this lane."
)
@click.option("--task-type", metavar="TYPE", help="Only requests of this task type.")
@click.option("--id", "request_id", metavar="ID", help="Only the request with this id.")
@click.option("--since", metavar="WHEN", help=f"Only requests that ended since then: {_ENDED}")
@click.option("--until", metavar="WHEN", help="Only requests that ended until then, as --since.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "jsonl"]),
    help="Print all that match in this format, whatever their number.",
)
@LIMIT
@AS_ANSWERED
def log(
    client: GatewayClient,
    *,
    as_json: bool,
    file_format: str | None,
    limit: int,
    **wanted: str | None,
) -> None:
    """List finished requests, the latest first."""
    asked: dict[str, str | int] = {**without_none(wanted)}
    if file_format is None:
        address = f"/llm/log?{urlencode({**asked, 'limit': limit})}"
        draw("log", client.fetch(address), as_json=as_json)
        return
    for line in client.lines(
        f"/llm/log/export?{urlencode({**asked, 'format': file_format})}", silence_s=_EXPORT_S
    ):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
