"""Whom an address stands for, where it is counted: one machine, as far as an address can tell.

An IPv4 address is a machine. A machine has as many IPv6 addresses as it likes in the network that it is in, so a /64 counts as one.
Everything on this machine is one peer, and so are all callers behind a proxy here. Pure. Called by the rest of `admission` and `api`.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

THIS_MACHINE = "this machine"
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine's own; False for what is no address."""
    if address in _LOOPBACK:
        return True
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


def peer_of(address: str | None) -> str:
    """Whom to count for an address: `this machine` (also without an address: a Unix socket), `192.168.1.9`, or `fd00:1:2:3::/64`."""
    if address is None or is_loopback(address):
        return THIS_MACHINE
    parsed = _parsed(address)
    return str(IPv6Network((int(parsed), 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed or "unknown")


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    """An IPv4 address that is spelled as an IPv6 one is an IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
