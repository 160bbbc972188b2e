"""The page that an owner leaves open on a second screen, and the files that it loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hearth.api.request import Request

STATIC = Path(__file__).parents[1] / "static"
_TYPES: Mapping[str, bytes] = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_JAVA = b"text/html, image/gif, image/jpeg, "
"""How the `Accept` of Java's URLConnection begins where its program has said nothing; no browser
sends it.
"""
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    b" data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


PATHS = ("/dashboard", "/dashboard/{page}")
"""Where the first page is once more, for those who type that, and the others; which there are,
`static/pages.js` says.
"""
FILES = {
    f"/static/{path.relative_to(STATIC).as_posix()}": path
    for path in sorted(STATIC.rglob("*"))
    if path.suffix in _TYPES and path.name != "index.html"
}
"""By address, what a page may load; licences and lists beside it are for readers of the package."""


async def send_page(request: Request, base_path: str) -> None:
    """The page itself, whose files lie below `base_path`; without one, they are named as seen from
    it.

    So it works behind a proxy that removes a path of which Hearth does not know.
    """
    depth = request.path.count("/") - 1
    root = base_path or "/".join([".."] * depth) or "."
    await _send(request, STATIC / "index.html", root)


async def send_file(request: Request, *_: object) -> None:
    """One of the files beside it."""
    await _send(request, FILES[request.path])


async def _send(request: Request, path: Path, root: str = "") -> None:
    body, tag = _content(path, root)
    own = (
        request.id_header,
        (b"etag", tag),
        (b"vary", b"accept"),
        *_HEADERS,
    )
    if tag in request.headers.values.get(b"if-none-match", b""):
        await request.answer.head(304, own)
        await request.answer.end()
    else:
        await request.answer.whole(200, ((b"content-type", _TYPES[path.suffix]), *own), body)


@cache
def _content(path: Path, root: str) -> tuple[bytes, bytes]:
    """A file with its references below `root`, and the tag of this version of it."""
    body = path.read_bytes().replace(b'"/static/', b'"%b/static/' % root.encode("ascii"))
    return body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii")


def wants_page(request: Request) -> bool:
    """A browser asks for a page to show; every other program asks for what the address has always
    answered.
    """
    accept = request.headers.values.get(b"accept", b"").lower()
    return (
        request.method in ("GET", "HEAD")
        and b"text/html" in accept
        and not accept.startswith(_JAVA)
    )
