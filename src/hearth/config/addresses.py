"""IP addresses as they are written."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine's own; False for what is no address."""
    return address in _LOOPBACK or (
        (parsed := parsed_address(address)) is not None and parsed.is_loopback
    )


def parsed_address(address: str) -> IPv4Address | IPv6Address | None:
    """An IPv4 address that is spelled as an IPv6 one is an IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None) or parsed
