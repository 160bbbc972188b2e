"""Where a message about a job may go: to hosts that the owner named, and never to an address where a cloud or the machine keeps secrets.

The name is checked when the job is accepted, the address again at every attempt, on the very address that is connected to: a name that
changes its mind in between (DNS rebinding) gains nothing. Pure but for `Guarded`, which wraps a lookup.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from hearth.config.settings import WebhookSettings
from hearth.errors import BadRequest, Forbidden

MAX_URL_CHARS = 2000
_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
"""Instance metadata of AWS, Google, Azure, Alibaba and Oracle."""


def check_webhook(url: str, settings: WebhookSettings) -> str:
    """The URL as it was given, where a job may have it.

    Raises:
        BadRequest: it is no http or https URL, or carries credentials or a fragment; or the owner has set no secret.
        Forbidden: the owner allows no messages to its host.
    """
    host = host_of(url)
    if not host:
        raise BadRequest("webhook: write an http or https URL without user, password and fragment")
    if host not in allowed_hosts(settings):
        raise Forbidden("webhook: jobs.webhooks.allowed_hosts does not list its host")
    if not settings.secret:
        raise BadRequest("webhook: messages are signed, and the owner has not set jobs.webhooks.secret")
    return url


def allowed_hosts(settings: WebhookSettings) -> frozenset[str]:
    """The hosts that the owner allows messages to, as `host_of` gives them."""
    return frozenset(map(_bare, settings.allowed_hosts))


def host_of(url: str) -> str:
    """The host of a usable URL in lower case, empty for any other."""
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return ""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.port != 0 and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        return ""
    return _bare(parts.hostname or "") if usable else ""


def _bare(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def is_forbidden(address: str) -> bool:
    """Whether nothing is ever sent to an address: link-local, metadata, multicast, unspecified, reserved; also inside IPv6 forms of it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    inner = _embedded(found) if isinstance(found, ipaddress.IPv6Address) else None
    if inner is not None and is_forbidden(str(inner)):
        return True
    return found in _METADATA or found.is_link_local or found.is_multicast or found.is_unspecified or _is_reserved(found)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _is_reserved(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Python counts all of ::/8 as reserved, and with it the loopback address, NAT64 and mapped ones."""
    return isinstance(address, ipaddress.IPv4Address) and address.is_reserved
