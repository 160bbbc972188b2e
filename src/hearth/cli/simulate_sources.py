"""Where the requests of a simulation come from: a trace file, workloads that ship, or the log of a running gateway.

What is wrong with the options or the file is a usage error (exit 2). Called by `hearth.cli.simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import SplitResult, urlencode

import click

from hearth.cli.exits import CommandFailed
from hearth.cli.gateway_client import GatewayClient
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import ConfigError
from hearth.simulation.log_trace import workload_from_log
from hearth.simulation.traces import read_trace
from hearth.simulation.workloads import LONG, WORKLOADS, Workload

ALL = "all"
PAGE_ROWS = 1000
"""The most that the gateway lists at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A workload; `name` is None where there is only one and it has none."""

    name: str | None
    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the command line says of them."""

    trace_file: Path | None
    names: tuple[str, ...]
    from_log: bool
    since: str
    address: SplitResult
    key: str | None


def sources(wanted: SourceOptions, config: GatewayConfig) -> list[Source]:
    """The workloads to simulate, at least one.

    Raises:
        click.UsageError: not exactly one kind of source, or the trace is wrong.
        GatewayUnreachable, CommandFailed: the log cannot be had, or is empty.
    """
    if (wanted.trace_file is not None) + bool(wanted.names) + wanted.from_log != 1:
        raise click.UsageError("give one of --trace FILE, --workload NAME and --from-log")
    if wanted.trace_file is not None:
        return [Source(name=None, workload=_traced(wanted.trace_file))]
    if wanted.names:
        names = tuple(WORKLOADS) if ALL in wanted.names else tuple(dict.fromkeys(wanted.names))
        return [Source(name=name, workload={**WORKLOADS, **LONG}[name]()) for name in names]
    return [Source(name=None, workload=_logged(GatewayClient(address=wanted.address, key=wanted.key), wanted.since, config))]


def _traced(path: Path) -> Workload:
    try:
        return read_trace(path)
    except ConfigError as error:
        raise click.UsageError(f"the trace cannot be used:\n{error}") from error


def _logged(client: GatewayClient, since: str, config: GatewayConfig) -> Workload:
    items = list(rows(client, "/llm/log", "items", since))
    found = workload_from_log(items, rows(client, "/llm/swaps", "swaps", since), config)
    if not found.workload.jobs:
        raise CommandFailed(f"the log has no request since {since} that ran on a model; try --since with a longer time")
    if found.left_out:
        click.echo(f"{found.left_out} of {len(items)} logged requests are left out: no model ever worked on them", err=True)
    return found.workload


def rows(client: GatewayClient, page: str, field: str, since: str) -> Iterator[object]:
    """All rows since then, page by page, the latest first.

    A page begins where the last one ended, that instant included, so that of rows of one instant none is missed; what was listed before
    is left out.
    """
    until, listed = None, set[str]()
    while True:
        asked = {"since": since, "limit": PAGE_ROWS} | ({} if until is None else {"until": until})
        answer = client.fetch(f"{page}?{urlencode(asked)}").get(field)
        found = answer if isinstance(answer, list) else []
        fresh = [row for row in found if repr(row) not in listed]
        yield from fresh
        listed = {repr(row) for row in found}
        until = _instant(fresh[-1]) if len(found) == PAGE_ROWS and fresh else None
        if until is None:
            return


def _instant(row: object) -> str | None:
    """When a row ended, as the gateway reads it; rounded up, so that the row is within."""
    ended_wall_s = row.get("ended_wall_s") if isinstance(row, dict) else None
    if not isinstance(ended_wall_s, int | float):
        return None
    try:
        return (datetime.fromtimestamp(ended_wall_s, tz=UTC) + timedelta(microseconds=1)).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
