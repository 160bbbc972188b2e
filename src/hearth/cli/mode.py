"""`hearth mode`: which mode is in force, and switching it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    complete_modes,
    gateway_options,
    number,
    printable,
    text,
    texts,
)

_PATH = "/llm/mode"
_HOW_TO_ADD = "add some as `modes:` to the configuration (docs/modes.md)"


@click.command
@click.argument("name", required=False, shell_complete=complete_modes)
@click.option("--off", is_flag=True, help="End the mode in force.")
@gateway_options
@AS_ANSWERED
def mode(client: GatewayClient, name: str | None, *, off: bool, as_json: bool) -> None:
    """Show the mode in force, or switch to NAME.

    Modes are sets of settings under `modes:` in the configuration.
    """
    if name is not None and off:
        raise click.UsageError("name a mode or use --off, not both")
    if name is None and not off:
        answer = client.fetch(_PATH)
    else:
        answer = client.ask("PUT", _PATH, {"mode": None if off else name})
    click.echo(json.dumps(answer, indent=2) if as_json else "\n".join(_lines(answer)))


def _lines(answer: Json) -> list[str]:
    names = texts(answer, "names")
    if not names:
        return [f"there are no modes; {_HOW_TO_ADD}"]
    in_force = text(answer, "mode")
    others = ", ".join(printable(each) for each in names if each != in_force)
    return [mode_line(answer), *([f"others: {others}"] if others else [])]


def mode_line(modes: Json) -> str:
    """Which mode is in force, since when, by whom, and until when."""
    name = text(modes, "mode")
    since, until = (_clock(number(modes, field)) for field in ("since", "until"))
    began = since and f", since {since} by {printable(text(modes, 'by'))}"
    ends = until and f", next time of a mode {until}"
    return f"{printable(name) if name else 'no mode'}{began}{ends}"


def _clock(wall_s: float | None) -> str:
    """In the zone of whoever reads it; empty for what is no instant."""
    try:
        at = None if wall_s is None else datetime.fromtimestamp(wall_s, tz=UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        at = None
    return "" if at is None else f"{at:%a %H:%M}"
