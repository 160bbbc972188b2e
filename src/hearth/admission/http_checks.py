"""Checks before anybody asks who sent a request, against DNS rebinding (Host), smuggling (framing),
and foreign pages (origin, media).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from ipaddress import IPv4Address, IPv6Address

from hearth.config.settings import ServerSettings
from hearth.errors import BadRequest, Forbidden, HostNotAllowed, UnsupportedMedia, UpgradeRefused
from hearth.types import Headers, value

_OWN_NAMES = frozenset(
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "host.docker.internal",
        "host.containers.internal",
    ]
)
"""Loopback, and what a container calls the machine that it runs on; nobody can register them."""
_EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Listened on, but no address of anything."""
_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")
_HOST = re.compile(r"(\[[^\]]*\]?|(?!\[)[^:]*)(:[0-9]+)?")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OTHER_SITES = frozenset({b"cross-site", b"same-site"})
_FROM_PROGRAMS = ("", "application/x-www-form-urlencoded", "text/plain")
"""What `curl -d` and the like send. A page can send it too, without asking."""
_READ = frozenset(
    b"host authorization x-api-key api-key origin sec-fetch-site sec-fetch-mode sec-fetch-dest"
    b" content-type content-encoding content-length transfer-encoding x-request-id x-task-type"
    b" x-priority accept if-none-match idempotency-key user-agent anthropic-version anthropic-beta"
    b" traceparent tracestate upgrade x-openwebui-chat-id".split()
)
_NONE = frozenset[bytes]()
"""One for all requests: an empty frozenset has 216 bytes."""


@value
class RequestHeaders:
    """First values by lower-case name, and the names that came more than once; fields that Hearth
    does not read are not here.
    """

    values: dict[bytes, bytes] = field(repr=False)
    repeated: frozenset[bytes]

    @classmethod
    def of(
        cls, fields: Iterable[tuple[bytes, bytes]], also: frozenset[bytes] = _NONE
    ) -> RequestHeaders:
        """Read header fields whose names are in lower case; `also`: those of the owner's keys."""
        values: dict[bytes, bytes] = {}
        repeated = set()
        for name, content in fields:
            if name in values:
                repeated.add(name)
            elif name in _READ or name in also:
                values[name] = content
        return cls(values=values, repeated=frozenset(repeated) if repeated else _NONE)

    def text(self, name: bytes) -> str:
        """The first value as text without surrounding blanks, empty where it is absent."""
        found = self.values.get(name)
        return "" if found is None else found.decode("latin-1").strip()


class HostRules:
    """The names of this gateway, one of them the `host` that it listens on, and the origins whose
    pages may use its model APIs.
    """

    def __init__(self, host: str, server: ServerSettings, *, has_keys: bool = False) -> None:
        names = {_as_in_host(name) for name in server.allowed_hosts if name}
        if host not in _EVERYWHERE:
            names.add(_as_in_host(host))
        self._names = _OWN_NAMES | names
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))
        self._has_keys = has_keys
        patterns = (
            re.escape(each).replace(r":\*", r":[0-9]{1,5}").replace(r"\*", "[^/@:]+")
            for each in server.allowed_origins
        )
        self._origins = re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")

    def check_host(self, headers: RequestHeaders) -> None:
        """Raises BadRequest for a malformed Host, HostNotAllowed for one not ours; any port will
        do.

        Without one comes only HTTP/1.0, which load balancers speak, but no browser.
        """
        if b"host" not in headers.values:
            return
        host = headers.text(b"host").lower()
        if not host or b"host" in headers.repeated:
            raise BadRequest("send exactly one Host header")
        found = _HOST.fullmatch(host)
        if found is None:
            raise BadRequest("the Host header is malformed")
        if not self._knows(found[1].removesuffix(".")):
            remedy = "the owner can add it to server.allowed_hosts"
            raise HostNotAllowed(f'the host "{found[1][:100]}" is not allowed; {remedy}')

    def _knows(self, name: str) -> bool:
        if name in self._names or "*" in self._names:
            return True
        if name.endswith(self._suffixes) and not name.startswith("."):
            return _HOST_CHARACTERS.issuperset(name)
        # No DNS server can make an address lead elsewhere. Without keys only this machine may call,
        # and the names above are enough for it.
        return self._has_keys and _is_address(name)

    def admits_origin(self, headers: RequestHeaders) -> bool:
        """Whether a page asks whose origin is one of `server.allowed_origins`."""
        if b"origin" not in headers.values or b"origin" in headers.repeated:
            return False
        return self._origins.fullmatch(headers.text(b"origin").lower()) is not None


def _as_in_host(name: str) -> str:
    name = name.lower().removesuffix(".")
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _is_address(name: str) -> bool:
    try:
        if name.startswith("["):
            IPv6Address(name[1:-1])
        else:
            IPv4Address(name)
    except ValueError:
        return False
    return True


def check_framing(headers: RequestHeaders) -> None:
    """Raises BadRequest where the length of the body is said in two ways, which RFC 9112 section
    6.1 lets a server refuse.
    """
    lengths = b"content-length" in headers.values
    if b"content-length" in headers.repeated or (
        lengths and b"transfer-encoding" in headers.values
    ):
        raise BadRequest("send either Content-Length or Transfer-Encoding, once")
    coding = headers.values.get(b"transfer-encoding")
    if coding is not None and (
        coding.strip().lower() != b"chunked" or b"transfer-encoding" in headers.repeated
    ):
        raise BadRequest("the only supported Transfer-Encoding is chunked")


_LIVE_SOUND = ("/v1/realtime", "/v1/audio/")
_NO_LIVE_SOUND = (
    "WebSockets are not supported: a live conversation would keep its model in memory for as long"
    " as it lasts, and all other requests waiting. Send recordings of a few seconds as HTTP POST to"
    " /v1/audio/transcriptions, and text to /v1/audio/speech."
)


def check_upgrade(path: str, headers: RequestHeaders) -> None:
    """Raises UpgradeRefused where a WebSocket is asked for; 426 makes Codex go on with POST at
    once, where 405 costs it retries.
    """
    if b"upgrade" in headers.values and headers.text(b"upgrade").lower() == "websocket":
        raise UpgradeRefused(_NO_LIVE_SOUND if path.startswith(_LIVE_SOUND) else None)


def check_origin(method: str, headers: RequestHeaders, *, forwards: bool = False) -> None:
    """Raises Forbidden for what a page of another origin sent (so is another port) but a link, if
    that `forwards` to no model server.
    """
    safe = method in _SAFE_METHODS
    if headers.values.get(b"sec-fetch-site") in _OTHER_SITES:
        document = headers.values.get(b"sec-fetch-dest", b"document") == b"document"
        if not (safe and document and headers.values.get(b"sec-fetch-mode") == b"navigate"):
            raise Forbidden("requests from pages of other sites are not allowed")
        if forwards:
            raise Forbidden("pages of other sites may only link to Hearth's own pages")
    if safe or b"origin" not in headers.values:
        return
    scheme, _, authority = headers.text(b"origin").lower().partition("://")
    own = scheme in ("http", "https") and authority == headers.text(b"host").lower()
    if not own or not authority or b"origin" in headers.repeated:
        raise Forbidden("requests from pages of another origin are not allowed")


def cors_headers(headers: RequestHeaders) -> Headers:
    """What lets the page that asks read the answer, a preflight's included (Fetch standard, section
    3.2.3).
    """
    return (
        (b"access-control-allow-origin", headers.values[b"origin"]),
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        # the wildcard does not cover Authorization
        (b"access-control-allow-headers", b"Authorization, *"),
        (b"access-control-allow-private-network", b"true"),
        (b"access-control-expose-headers", b"*"),
        (b"access-control-max-age", b"7200"),
        (b"vary", b"Origin"),
    )


def check_media(
    method: str,
    headers: RequestHeaders,
    *,
    binary: bool = False,
    form: bool = False,
    zstd: bool = False,
) -> None:
    """Raises UnsupportedMedia for a body that is not JSON, in zstd or of another type where these
    are admitted.
    """
    if method in _SAFE_METHODS:
        return
    coding = headers.text(b"content-encoding").lower()
    if (
        coding not in ("", "identity", "zstd" if zstd else "")
        or b"content-encoding" in headers.repeated
    ):
        raise UnsupportedMedia(
            "This Content-Encoding is not supported. Send the body"
            f" {'in zstd, or ' if zstd else ''}without one."
        )
    media = headers.text(b"content-type").partition(";")[0].strip().lower()
    if media == "application/json" or (
        media == "application/octet-stream" and (binary or headers.text(b"content-length") == "0")
    ):
        return
    # Every browser sends one of them with whatever may change something (Fetch Metadata 2.4);
    # programs call JSON a form by mistake.
    from_browser = b"origin" in headers.values or b"sec-fetch-site" in headers.values
    if from_browser or not (media in _FROM_PROGRAMS or (form and media == "multipart/form-data")):
        raise UnsupportedMedia
