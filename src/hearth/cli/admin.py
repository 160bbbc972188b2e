"""`hearth admin`: what the owner needs before the gateway can be asked.

A key is printed once and stored nowhere; nothing here edits a file. Called by `hearth.cli`.
"""

from __future__ import annotations

import hashlib
import json
import re

import click

from hearth.clock import new_api_key
from hearth.types import Lane

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@click.group
def admin() -> None:
    """Make API keys."""


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
