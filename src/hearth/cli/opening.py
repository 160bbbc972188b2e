"""`hearth open`: the dashboard of a running gateway in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from urllib.parse import quote

import click

from hearth.cli.client import GatewayClient, gateway_options

PAGES = ("now", "requests", "history", "models", "keys", "playground", "settings", "wall")
"""As `static/pages.js` has them."""
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command("open")
@click.argument("page", metavar="[PAGE]", type=click.Choice(PAGES), default=PAGES[0])
@click.option(
    "--sign-in",
    "signs_in",
    is_flag=True,
    help="Sign in with the key; everybody on this machine can see it in `ps`.",
)
@click.option("--print", "prints", is_flag=True, help="Print the address, and open nothing.")
@gateway_options
def open_dashboard(client: GatewayClient, page: str, *, signs_in: bool, prints: bool) -> None:
    """Open the dashboard in a browser.

    PAGE is one of its pages: now, requests, history, models, keys, playground, settings, wall.
    """
    if signs_in and client.key is None:
        raise click.UsageError("--sign-in needs a key: put it into HEARTH_KEY, or use --key")
    client.check_alive()
    address = _address(client, page)
    with_key = f"{address}#key={quote(client.key or '', safe='')}" if signs_in else address
    if prints:
        click.echo(with_key)
        return
    if not (_has_screen(os.environ) and webbrowser.open(with_key)):
        click.echo("No browser can be started here. Open this address in one:", err=True)
    click.echo(address)


def _address(client: GatewayClient, page: str) -> str:
    """Without a name or a query that the gateway's own address may have."""
    path = client.address.path.rstrip("/")
    shown = "/" if page == PAGES[0] else f"/dashboard/{page}"
    return client.address._replace(path=path + shown, query="", fragment="").geturl()


def _has_screen(environ: Mapping[str, str]) -> bool:
    """Whether a browser would be seen: on Linux it needs a display, and one in the terminal cannot
    show the dashboard.
    """
    return not sys.platform.startswith("linux") or any(map(environ.get, _SCREENS))
