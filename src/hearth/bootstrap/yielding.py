"""What gives the card to other programs by itself: each watch takes leases of the gateway's, and
runs beside it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from hearth.gateway import Gateway


def join_yielding(gateway: Gateway, closing: AsyncExitStack) -> None:
    """Have all of them run beside the gateway, `closing` what they opened at its end."""
