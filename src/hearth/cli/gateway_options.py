"""`--url` and `--key`, for every command that asks a running gateway. Used by the commands of `hearth.cli`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import SplitResult

import click

from hearth.cli.gateway_client import read_address

C = TypeVar("C", bound=Callable[..., Any])

_DEFAULT_URL = "http://127.0.0.1:8411"


def gateway_options(command: C) -> C:
    """Add the options; the command gets `address` (a SplitResult) and `key` (a str or None)."""
    url = click.option(
        "--url",
        "address",
        callback=_address,
        default=_DEFAULT_URL,
        envvar="HEARTH_URL",
        show_default=True,
        show_envvar=True,
        help="Where the gateway listens.",
    )
    key = click.option(
        "--key", envvar="HEARTH_KEY", show_envvar=True, help="API key; better in the environment, where `ps` does not show it."
    )
    return url(key(command))


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> SplitResult:
    try:
        return read_address(value)
    except ValueError as error:
        raise click.BadParameter(f"{value} is not an address; write http://HOST:PORT") from error
