"""What is refused before a request is read: foreign pages and hosts, wrong keys, too many connections.

Whom an address stands for, where it is counted, and how many wrong keys came from there.

An IPv4 address is a machine. A machine has as many IPv6 addresses as it likes in its network, so a /64 counts as one. Everything on this
machine is one peer, and so are all callers behind a proxy here.

From each peer some wrong keys in any minute are answered, further ones are only refused. This makes trying keys slow and visible; what
makes it hopeless is their length. A right key never comes here: several programs share an address, and whoever tries keys must not be able
to lock the others out. Pure and bounded: instants are arguments, and beyond `MAX_PEERS` who was quiet for longest is forgotten.

What any request must look like before anybody asks who sent it: Host, framing, origin and media type.

The rules stop DNS rebinding (Host), request smuggling (framing), and pages in the owner's browser that post to a local service
(origin, media).

Host: exactly one, and its name one of `localhost`, `127.0.0.1`, `[::1]`, `*.localhost`, what it listens on unless that is a wildcard
address, or listed in `server.allowed_hosts`; any port. Missing or repeated: 400, another name: 421.

Framing: Content-Length together with Transfer-Encoding is 400 (RFC 9112 section 6.1 lets a server refuse it), and so is a transfer coding
that is not plain `chunked`.

Origin: on every method but GET and HEAD an Origin must equal the request's own Host, with http or https; `null` never does. 403. Pages of
`server.allowed_origins` may use the model APIs all the same (`OriginList`), and nothing else.
`Sec-Fetch-Site: cross-site` or `same-site` (another port of this machine is the same site) is 403 on every method, except for a GET that is
a top-level navigation: following a link is harmless, where it asks nobody but Hearth (`check_cross_site_link`).

Media, on methods that carry a body: `application/json` always. A missing type, `text/plain`, or `application/x-www-form-urlencoded` (what
`curl -d` sends), only where neither Origin nor Sec-Fetch-Site shows a browser, since a page can send those without asking; Node's `fetch`
sends Sec-Fetch-Mode alone. Everything else and every Content-Encoding but `identity` is 415; OpenAI's and
Anthropic's routes take `zstd`, as Ollama does.

How many connections each peer may hold, so that no machine in the house takes all of them.

One other machine may have a quarter. This machine, with whatever proxy runs on it, and all other machines together may each have seven
eighths: an eighth is always left for the other side. A refused connection is kept for the time of an answer, so many at once; beyond
that it is closed without one. Pure: instants are arguments.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from types import MappingProxyType
from typing import Self

from hearth.errors import BadRequest, Forbidden, HostNotAllowed, UnsupportedMedia, UpgradeRefused
from hearth.types import Headers, value

THIS_MACHINE = "this machine"
_LOOPBACK = frozenset({"127.0.0.1", "::1"})
WINDOW_S = 60.0
PER_WINDOW = 10
"""More than a program with an old key sends while somebody looks for the mistake; next to nothing for a search."""
MAX_PEERS = 1000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A wrong key too many.

    Attributes:
        wait_s: until the next wrong key is answered again.
        wrong: wrong keys of the peer since that was said last; 0 where it is not to be said now.
    """

    wait_s: float
    wrong: int


@dataclass(slots=True)
class _Record:
    """One peer. `answered_at`: when its last wrong keys got an answer; `unsaid`: wrong keys that nobody was told of."""

    answered_at: deque[float] = field(default_factory=lambda: deque(maxlen=PER_WINDOW))
    said_at: float = float("-inf")
    unsaid: int = 0


class WrongKeys:
    """The recent wrong keys of every peer."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def note(self, peer: str, now: float) -> Slowed | None:
        """One more wrong key, at the monotonic instant `now` in seconds; None where it gets its answer."""
        record = self._record(peer)
        answered_at = record.answered_at
        record.unsaid = 1 if not answered_at or answered_at[-1] <= now - WINDOW_S else record.unsaid + 1
        if len(answered_at) < PER_WINDOW or answered_at[0] <= now - WINDOW_S:
            answered_at.append(now)
            return None
        wrong = 0
        if record.said_at <= now - WINDOW_S:
            wrong, record.unsaid, record.said_at = record.unsaid, 0, now
        return Slowed(wait_s=answered_at[0] + WINDOW_S - now, wrong=wrong)

    def __len__(self) -> int:
        """How many peers are remembered."""
        return len(self._records)

    def _record(self, peer: str) -> _Record:
        """The record of a peer, made the youngest."""
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > MAX_PEERS:
            del self._records[next(iter(self._records))]
        return record


_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WILDCARDS = frozenset({"", "*", "0.0.0.0", "::", "[::]"})
_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OTHER_SITES = frozenset({b"cross-site", b"same-site"})
_JSON = "application/json"
_OCTETS = "application/octet-stream"
_FORM = "application/x-www-form-urlencoded"
_TEXT = "text/plain"
_MULTIPART = "multipart/form-data"
_READ = frozenset(
    {
        b"host",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"transfer-encoding",
        b"x-request-id",
        b"x-task-type",
        b"x-priority",
        b"accept",
        b"if-none-match",
        b"idempotency-key",
        b"user-agent",
        b"anthropic-version",
        b"anthropic-beta",
        b"traceparent",
        b"tracestate",
        b"upgrade",
    }
)
LOWER: Mapping[bytes, bytes] = MappingProxyType({spelled: name for name in _READ for spelled in (name, name.title())})
"""Those names as they come, in lower case: one object for all requests."""
_NONE = frozenset[bytes]()
"""One for all: an empty frozenset has 216 bytes."""


@value
class RequestHeaders:
    """First values by lower-case name, and the names that came more than once; fields that Hearth does not read are not here."""

    values: dict[bytes, bytes] = field(repr=False)
    repeated: frozenset[bytes]

    @classmethod
    def of(cls, fields: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
        """Read header fields whose names are in lower case."""
        values: dict[bytes, bytes] = {}
        repeated = []
        for name, content in fields:
            if name not in _READ:
                continue
            if name in values:
                repeated.append(name)
            else:
                values[name] = content
        return cls(values=values, repeated=frozenset(repeated) if repeated else _NONE)

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, None where it is absent."""
        return self.values.get(name)

    def text(self, name: bytes) -> str:
        """The first value as text without surrounding blanks, empty where it is absent."""
        return self.values.get(name, b"").decode("latin-1").strip()


class HostList:
    """The names under which callers may address this gateway: the one that it listens on, and those that its owner allows."""

    def __init__(self, host: str, allowed: Iterable[str]) -> None:
        names = (host, *allowed)
        self.passed: bytes | None = None
        """The Host that was admitted last: nearly always the next one too."""
        self._names = _LOOPBACK_NAMES | {_canonical(name) for name in names if name not in _WILDCARDS}

    def admits(self, name: str) -> bool:
        """True for an allowed name, given in lower case and without its port."""
        return name in self._names or (name.endswith(".localhost") and _HOST_CHARACTERS.issuperset(name))


def _canonical(name: str) -> str:
    return f"[{name}]".lower() if ":" in name and not name.startswith("[") else name.lower()


def check_host(headers: RequestHeaders, hosts: HostList) -> None:
    """Raises BadRequest without exactly one well-formed Host, HostNotAllowed for one that is not ours."""
    sent = headers.get(b"host")
    if sent is not None and sent == hosts.passed and b"host" not in headers.repeated:
        return
    host = headers.text(b"host").lower()
    if not host or b"host" in headers.repeated:
        raise BadRequest("send exactly one Host header")
    name = _host_name(host)
    if not hosts.admits(name):
        raise HostNotAllowed(f'the host "{name[:100]}" is not allowed; the owner can add it to server.allowed_hosts')
    hosts.passed = sent


def _host_name(host: str) -> str:
    """The name in `name`, `name:port`, `[v6]` or `[v6]:port`."""
    if host.startswith("["):
        name, bracket, rest = host.partition("]")
        name += bracket
    else:
        name, colon, digits = host.partition(":")
        rest = colon + digits
    if rest and not (rest.startswith(":") and rest[1:].isascii() and rest[1:].isdecimal()):
        raise BadRequest("the Host header is malformed")
    return name


def check_framing(headers: RequestHeaders) -> None:
    """Raises BadRequest where the length of the body is said in two ways."""
    lengths = b"content-length" in headers.values
    if b"content-length" in headers.repeated or (lengths and b"transfer-encoding" in headers.values):
        raise BadRequest("send either Content-Length or Transfer-Encoding, once")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (coding.strip().lower() != b"chunked" or b"transfer-encoding" in headers.repeated):
        raise BadRequest("the only Transfer-Encoding here is chunked")


class OriginList:
    """The origins whose pages may use the model APIs: patterns with `*` for a host, the first part of one, or a port."""

    def __init__(self, allowed: Iterable[str]) -> None:
        patterns = (re.escape(each).replace(r":\*", r":[0-9]{1,5}").replace(r"\*", "[^/@:]+") for each in allowed)
        self._allowed = re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")

    def admits(self, headers: RequestHeaders) -> bool:
        """True where a page of an allowed origin asks."""
        return b"origin" not in headers.repeated and self._allowed.fullmatch(headers.text(b"origin").lower()) is not None


def cors_headers(headers: RequestHeaders) -> Headers:
    """What lets the page that asks read the answer, a preflight's included (Fetch standard, section 3.2.3)."""
    return (
        (b"access-control-allow-origin", headers.values[b"origin"]),
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-allow-headers", b"Authorization, *"),  # the wildcard does not cover Authorization
        (b"access-control-allow-private-network", b"true"),
        (b"access-control-expose-headers", b"*"),
        (b"access-control-max-age", b"7200"),
        (b"vary", b"Origin"),
    )


def check_upgrade(headers: RequestHeaders) -> None:
    """Raises UpgradeRefused where a WebSocket is asked for; 426 makes Codex go on with POST at once, where 405 costs it retries."""
    if headers.text(b"upgrade").lower() == "websocket":
        raise UpgradeRefused


def check_origin(method: str, headers: RequestHeaders) -> None:
    """Raises Forbidden for what a page of another site sent."""
    safe = method in _SAFE_METHODS
    if headers.get(b"sec-fetch-site") in _OTHER_SITES and not (safe and _is_link(headers)):
        raise Forbidden("requests from pages of other sites are not allowed")
    origin = headers.get(b"origin")
    if safe or origin is None:
        return
    scheme, _, authority = headers.text(b"origin").lower().partition("://")
    own = scheme in ("http", "https") and authority == headers.text(b"host").lower()
    if not own or b"origin" in headers.repeated:
        raise Forbidden("requests from pages of another origin are not allowed")


def check_cross_site_link(headers: RequestHeaders) -> None:
    """Raises Forbidden where a page of another site leads here; for addresses that ask somebody else."""
    if headers.get(b"sec-fetch-site") in _OTHER_SITES:
        raise Forbidden("pages of other sites may link to Hearth's own pages only")


def _is_link(headers: RequestHeaders) -> bool:
    """Whether somebody follows a link in a tab of a browser; what a page shows within itself is none."""
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.values.get(b"sec-fetch-dest", b"document") == b"document"


def check_media(method: str, headers: RequestHeaders, *, binary: bool = False, form: bool = False, zstd: bool = False) -> None:
    """Raises UnsupportedMedia for a body that is not plain JSON, or JSON in zstd where that is admitted.

    `application/octet-stream`, which a browser sends to another origin only after asking, passes where `binary` admits it and where there
    is no body: aiohttp names it for an empty POST. `multipart/form-data` passes where `form` admits it, from programs only.
    """
    if method in _SAFE_METHODS:
        return
    if headers.get(b"content-type") == b"application/json" and b"content-encoding" not in headers.values:
        return
    coding = headers.text(b"content-encoding").lower()
    if coding not in (("", "identity", "zstd") if zstd else ("", "identity")) or b"content-encoding" in headers.repeated:
        raise UnsupportedMedia(f"This Content-Encoding is not taken here. Send the body {'in zstd, or ' if zstd else ''}without one.")
    media = headers.text(b"content-type").partition(";")[0].strip().lower()
    accepted = media == _JSON or (media == _OCTETS and (binary or headers.text(b"content-length") == "0"))
    from_programs = ("", _FORM, _TEXT, _MULTIPART) if form else ("", _FORM, _TEXT)
    if not accepted and not (media in from_programs and not _from_browser(headers)):
        raise UnsupportedMedia


def _from_browser(headers: RequestHeaders) -> bool:
    """Every browser sends one of them with whatever may change something (Fetch standard, sections 3.2 and Fetch Metadata 2.4)."""
    return b"origin" in headers.values or b"sec-fetch-site" in headers.values


SAID_EVERY_S = 60.0
MAX_REJECTING = 64
"""Refused connections that may wait for their answer at once."""


class Bound(StrEnum):
    """Who may have no more."""

    ONE_MACHINE = "one_machine"
    THIS_MACHINE = "this_machine"
    ALL_OTHERS = "all_others"
    ALL = "all"


class Place(Enum):
    """Where a connection is."""

    ADMITTED = auto()
    REJECTING = auto()
    """It gets an answer, which refuses it."""
    CLOSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections: of all, of this machine, of all other machines together, of one of them."""

    all: int
    this_machine: int
    all_others: int
    one_machine: int

    @classmethod
    def sharing(cls, connections: int) -> Self:
        """The shares of so many."""
        side = connections - connections // 8
        return cls(all=connections, this_machine=side, all_others=side, one_machine=max(1, connections // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A connection that found no room. `unsaid`: refused ones of its peer since that was said last; 0 where it is not to be said now."""

    bound: Bound
    unsaid: int


@dataclass(slots=True)
class _PeerConnections:
    """One peer that was refused."""

    said_at: float = float("-inf")
    unsaid: int = 0


@dataclass(slots=True)
class OpenConnections:
    """The open connections by peer, and how many were refused since the start."""

    limits: ConnectionLimits
    open: int = 0
    refused: int = 0
    _being_refused: int = 0
    _by_peer: dict[str, int] = field(default_factory=dict)
    _records: dict[str, _PeerConnections] = field(default_factory=dict)

    def enter(self, peer: str, now: float) -> tuple[Place, Refusal | None]:
        """A connection came, at the monotonic instant `now` in seconds: where it is, and why where that is not inside."""
        bound = self._bound(peer)
        if bound is None:
            self.open += 1
            self._by_peer[peer] = self.of(peer) + 1
            return Place.ADMITTED, None
        self.refused += 1
        refusal = Refusal(bound=bound, unsaid=self._unsaid(peer, now))
        if self._being_refused >= MAX_REJECTING:
            return Place.CLOSED, refusal
        self._being_refused += 1
        return Place.REJECTING, refusal

    def leave(self, peer: str, place: Place) -> None:
        """A connection has ended; once for each that came."""
        if place is Place.ADMITTED:
            self.open -= 1
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]
        elif place is Place.REJECTING:
            self._being_refused -= 1

    def of(self, peer: str) -> int:
        """The connections that a peer has."""
        return self._by_peer.get(peer, 0)

    def _bound(self, peer: str) -> Bound | None:
        """What keeps one more connection of a peer out."""
        local = self.of(THIS_MACHINE)
        if self.open >= self.limits.all:
            return Bound.ALL
        if peer == THIS_MACHINE:
            return Bound.THIS_MACHINE if local >= self.limits.this_machine else None
        if self.of(peer) >= self.limits.one_machine:
            return Bound.ONE_MACHINE
        return Bound.ALL_OTHERS if self.open - local >= self.limits.all_others else None

    def _unsaid(self, peer: str, now: float) -> int:
        record = self._records.pop(peer, None) or _PeerConnections()
        self._records[peer] = record
        if len(self._records) > MAX_PEERS:
            del self._records[next(iter(self._records))]
        record.unsaid += 1
        if now < record.said_at + SAID_EVERY_S:
            return 0
        unsaid, record.unsaid, record.said_at = record.unsaid, 0, now
        return unsaid
