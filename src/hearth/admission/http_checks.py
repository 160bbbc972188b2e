"""What any request must look like before anybody asks who sent it: Host, framing, origin and media type.

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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType

from hearth.errors import BadRequest, Forbidden, HostNotAllowed, UnsupportedMedia, UpgradeRefused
from hearth.types import Headers, value

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
