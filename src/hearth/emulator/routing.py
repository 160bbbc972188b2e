"""Which handler answers a path, and what Ollama says to a path, method, Host or Origin that it does not serve.

Pure. Texts and redirects as gin writes them; Host and Origin rules from ollama/ollama `server/routes.go` and `envconfig`. Called by the
emulator's HTTP server.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hearth.emulator.exchange import Handler, HeaderPairs
from hearth.types import Dialect

_ALLOWED_HEADERS = (
    "Authorization,Content-Type,User-Agent,Accept,X-Requested-With,Openai-Beta,X-Stainless-Arch,X-Stainless-Async,"
    "X-Stainless-Custom-Poll-Interval,X-Stainless-Helper-Method,X-Stainless-Lang,X-Stainless-Os,X-Stainless-Package-Version,"
    "X-Stainless-Poll-Helper,X-Stainless-Retry-Count,X-Stainless-Runtime,X-Stainless-Runtime-Version,X-Stainless-Timeout"
)
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0)(:\d+)?\Z")
_APP_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A handler was found; `tail` is the variable part of the path."""

    handler: Handler
    dialect: Dialect
    tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No handler: this is the whole answer."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: HeaderPairs = ()


@dataclass(slots=True, kw_only=True)
class RouteTable:
    """Paths to methods to handlers. A path that ends in `/*` takes one more, variable, part."""

    paths: dict[str, dict[str, tuple[Handler, Dialect]]] = field(default_factory=dict)

    def add(self, methods: str, path: str, handler: Handler, dialect: Dialect = Dialect.OLLAMA) -> None:
        for method in methods.split():
            self.paths.setdefault(path, {})[method] = (handler, dialect)

    def match(self, method: str, path: str) -> Matched | Refused:
        methods, tail = self._methods(path)
        if methods is None:
            return self._elsewhere(method, path)
        found = methods.get(method)
        if found is None:
            return Refused(
                status=405, body=b"405 method not allowed", content_type="text/plain", headers=(("Allow", ", ".join(sorted(methods))),)
            )
        return Matched(handler=found[0], dialect=found[1], tail=tail)

    def _methods(self, path: str) -> tuple[dict[str, tuple[Handler, Dialect]] | None, str]:
        exact = self.paths.get(path)
        if exact is not None:
            return exact, ""
        head, _, tail = path.rpartition("/")
        return (self.paths.get(f"{head}/*") if tail else None), tail

    def _elsewhere(self, method: str, path: str) -> Refused:
        shorter = path.rstrip("/")
        if path != shorter and self._methods(shorter)[0] is not None:
            return _redirect(method, shorter)
        return Refused(status=404, body=b"404 page not found", content_type="text/plain")


def _redirect(method: str, target: str) -> Refused:
    location = (("Location", target),)
    if method != "GET":
        return Refused(status=307, headers=location)
    body = f'<a href="{target}">Moved Permanently</a>.\n\n'.encode()
    return Refused(status=301, body=body, content_type="text/html; charset=utf-8", headers=location)


def host_allowed(host: str) -> bool:
    """What a server bound to loopback accepts as Host: local names and private addresses."""
    name = (urlsplit(f"//{host}").hostname or "").lower()
    if name in {"", "localhost"} or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified


def origin_allowed(origin: str) -> bool:
    return bool(_LOCAL_ORIGIN.match(origin)) or origin.startswith(_APP_SCHEMES)


def cross_origin(origin: str, host: str) -> bool:
    """Whether the rules for foreign pages apply at all."""
    return bool(origin) and origin not in {f"http://{host}", f"https://{host}"}


def preflight_headers(origin: str) -> HeaderPairs:
    return (
        ("Access-Control-Allow-Headers", _ALLOWED_HEADERS),
        ("Access-Control-Allow-Methods", "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"),
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Max-Age", "43200"),
        ("Vary", "Origin"),
        ("Vary", "Access-Control-Request-Method"),
        ("Vary", "Access-Control-Request-Headers"),
    )


def simple_cors_headers(origin: str) -> HeaderPairs:
    return (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
