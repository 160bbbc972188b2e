"""The dashboard's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType

from hearth.api.request import Request
from hearth.errors import NotFound

_PAGE = "index.html"
_PREFIX = "/static/"
_TYPES: Mapping[str, bytes] = MappingProxyType(
    {
        ".html": b"text/html; charset=utf-8",
        ".js": b"text/javascript; charset=utf-8",
        ".css": b"text/css; charset=utf-8",
        ".svg": b"image/svg+xml",
    }
)
_JAVA = b"text/html, image/gif, image/jpeg, "
"""How the `Accept` of Java's URLConnection begins where its program has said nothing; no browser sends it."""
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


class DashboardPages:
    """Serves the files, each read once, when it is first asked for."""

    def __init__(self) -> None:
        self._folder = files("hearth.api").joinpath("static")
        self._names = frozenset(_served_names(self._folder))
        self._read: dict[str, tuple[bytes, bytes]] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The addresses of the files that a page may load."""
        return tuple(sorted(_PREFIX + name for name in self._names))

    async def page(self, request: Request, *_: object) -> None:
        """The page itself, which is the same at every address of it."""
        await self._send(request, _PAGE)

    async def file(self, request: Request, *_: object) -> None:
        """One of the files beside it. Raises NotFound."""
        name = request.path.removeprefix(_PREFIX)
        if name not in self._names:
            raise NotFound
        await self._send(request, name)

    async def _send(self, request: Request, name: str) -> None:
        if name not in self._read:
            body = self._folder.joinpath(name).read_bytes()
            self._read[name] = body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii")
        body, tag = self._read[name]
        own = ((b"x-request-id", request.request_id.encode("ascii")), (b"etag", tag), (b"vary", b"accept"), *_HEADERS)
        if tag in request.headers.values.get(b"if-none-match", b""):
            await request.answer.head(304, own)
            await request.answer.end()
            return
        await request.answer.whole(200, ((b"content-type", _TYPES[PurePosixPath(name).suffix]), *own), body)


def _served_names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    """What a page may load: licences and lists beside it are for readers of the package."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _served_names(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _TYPES and entry.name != _PAGE:
            yield prefix + entry.name


def wants_page(request: Request) -> bool:
    """A browser asks for a page to show; every other program asks for what the address has always answered."""
    accept = request.headers.values.get(b"accept", b"").lower()
    return request.method in ("GET", "HEAD") and b"text/html" in accept and not accept.startswith(_JAVA)
