"""The emulated server: an HTTP listener inside the caller's event loop, no signal handlers, no
threads.

Texts and redirects as gin writes them; Host and Origin rules from ollama/ollama `server/routes.go`
and `envconfig`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import sys
from collections.abc import Awaitable, Callable
from html import escape
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from multidict import CIMultiDict

from hearth.emulator import generation, management
from hearth.emulator.engine import EmulatedServer, LoggedRequest
from hearth.emulator.models import OllamaError
from hearth.emulator.wire import CallHandler, EmulatedCall, write_headers_like_go
from hearth.errors import BadRequest
from hearth.types import MIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAX_BODY_BYTES = 2**40
_MAX_DECODED_BYTES = 20 * MIB
_CALL = web.RequestKey("call", EmulatedCall)
_SLASHES = re.compile("//+")
_ALLOWED_HEADERS = (
    "Authorization,Content-Type,User-Agent,Accept,X-Requested-With,Openai-Beta,X-Stainless-Arch,"
    "X-Stainless-Async,X-Stainless-Custom-Poll-Interval,X-Stainless-Helper-Method,"
    "X-Stainless-Lang,X-Stainless-Os,X-Stainless-Package-Version,X-Stainless-Poll-Helper,"
    "X-Stainless-Retry-Count,X-Stainless-Runtime,X-Stainless-Runtime-Version,X-Stainless-Timeout"
)
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0)(:\d+)?\Z")
_APP_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
_PREFLIGHT = (
    ("Access-Control-Allow-Headers", _ALLOWED_HEADERS),
    ("Access-Control-Allow-Methods", "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"),
    ("Access-Control-Max-Age", "43200"),
    ("Vary", "Access-Control-Request-Method"),
    ("Vary", "Access-Control-Request-Headers"),
)
_ROUTES: tuple[tuple[str, str, CallHandler], ...] = (
    ("GET HEAD", "/", management.root),
    ("GET HEAD", "/api/version", management.version),
    ("GET", "/api/status", management.status),
    ("GET HEAD", "/api/tags", management.tags),
    ("GET", "/api/ps", management.ps),
    ("POST", "/api/generate", generation.generate),
    ("POST", "/api/chat", generation.chat),
    ("POST", "/api/embed", generation.embed),
    ("POST", "/api/embeddings", generation.legacy_embeddings),
    ("POST", "/api/show", management.show),
    ("POST", "/api/create", management.create),
    ("POST", "/api/pull", management.pull),
    ("POST", "/api/push", management.push),
    ("POST", "/api/copy", management.copy),
    ("DELETE", "/api/delete", management.delete),
    ("HEAD", "/api/blobs/{tail}", management.find_blob),
    ("POST", "/api/blobs/{tail}", management.put_blob),
    ("POST", "/v1/chat/completions", generation.chat_completions),
    ("POST", "/v1/completions", generation.completions),
    ("POST", "/v1/embeddings", generation.openai_embeddings),
    ("POST", "/v1/responses", generation.responses),
    ("POST", "/v1/messages", generation.messages),
    ("POST", "/v1/audio/transcriptions", generation.transcriptions),
    ("GET", "/v1/models", management.v1_models),
    ("GET", "/v1/models/{tail}", management.v1_model),
)
"""Every path that Ollama v0.33.0-rc2 serves, cloud routes excepted."""
WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Emulator(EmulatedServer):
    """An Ollama without a GPU; arguments as for `EmulatedServer`."""

    _runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and return the base URL, `http://host:port`; port 0 takes a free one.

        Raises `OSError` when the port is taken.
        """
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._log_and_check])
        for methods, path, handler in _ROUTES:
            for method in methods.split():
                app.router.add_route(method, path, self._endpoint(handler))
        for path in sorted({path for _, path, _ in _ROUTES if path != "/"}):
            app.router.add_route("*", f"{path}/", _redirect)
        if self.marked:
            app.on_response_prepare.append(_mark)
        app.on_response_prepare.append(write_headers_like_go)
        runner = web.AppRunner(
            app,
            auto_decompress=False,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.05,
        )
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, host, port)
        await site.start()
        self._loop_task = asyncio.create_task(self._load_in_order())
        bound_port = runner.addresses[0][1]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound_port}"

    async def stop(self) -> None:
        """Close every connection, open streams included; idempotent."""
        runner = self._runner
        self._runner = None
        if runner is None:
            return
        await runner.cleanup()
        await self._end()

    @web.middleware
    async def _log_and_check(self, request: web.Request, handler: WebHandler) -> web.StreamResponse:
        if "//" in request.raw_path.partition("?")[0]:
            return _without_double_slashes(request)
        received_at = self.clock.monotonic()
        body = _decoded(request, await request.read())
        self._requests.append(LoggedRequest(request.method, request.path_qs, body))
        call = EmulatedCall(request, self, received_at, body)
        request[_CALL] = call
        host = request.headers.get(hdrs.HOST, "")
        origin = request.headers.get(hdrs.ORIGIN, "")
        foreign = foreign_page(origin, host)
        if not served(host, origin):
            return web.Response(status=403)
        if foreign:
            call.headers.extend([("Access-Control-Allow-Origin", origin), ("Vary", "Origin")])
        try:
            if foreign and request.method == hdrs.METH_OPTIONS:
                return _preflight(request, call)
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as missing:
            return _not_served(missing, call)

    def _endpoint(self, handler: CallHandler) -> WebHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            call = request[_CALL]
            try:
                await handler(call)
            except (BadRequest, OllamaError) as error:
                await call.refuse(error)
            return await call.finish()

        return answer


def _preflight(request: web.Request, call: EmulatedCall) -> web.Response:
    missing = request.match_info.http_exception
    allow = _allow(missing) if isinstance(missing, web.HTTPMethodNotAllowed) else {}
    return web.Response(
        status=204, headers=CIMultiDict([*allow.items(), *call.headers.items(), *_PREFLIGHT])
    )


def _allow(error: web.HTTPMethodNotAllowed) -> dict[str, str]:
    return {hdrs.ALLOW: ", ".join(sorted(error.allowed_methods))}


def _not_served(missing: web.HTTPException, call: EmulatedCall) -> web.Response:
    """The answer to a path or method without a route."""
    headers = CIMultiDict([*call.headers.items(), (hdrs.CONTENT_TYPE, "text/plain")])
    if isinstance(missing, web.HTTPMethodNotAllowed):
        headers.update(_allow(missing))
        return web.Response(status=405, body=b"405 method not allowed", headers=headers)
    return web.Response(status=404, body=b"404 page not found", headers=headers)


async def _mark(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Hearth-Emulator"] = "1"


def _without_double_slashes(request: web.Request) -> web.Response:
    """The answer of Go's mux, before Ollama sees a request: it keeps a slash at the end."""
    path, mark, query = request.raw_path.partition("?")
    target = _SLASHES.sub("/", path) + mark + query
    if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        return web.Response(status=307, headers={hdrs.LOCATION: target})
    headers = {hdrs.LOCATION: target, hdrs.CONTENT_TYPE: "text/html; charset=utf-8"}
    return web.Response(
        status=307,
        body=f'<a href="{escape(target)}">Temporary Redirect</a>.\n\n'.encode(),
        headers=headers,
    )


async def _redirect(request: web.Request) -> web.Response:
    """The answer to a path with a slash too many."""
    target = request.rel_url.raw_path.rstrip("/")
    call = request[_CALL]
    headers = CIMultiDict([*call.headers.items(), (hdrs.LOCATION, target)])
    if request.method != hdrs.METH_GET:
        return web.Response(status=307, headers=headers)
    headers[hdrs.CONTENT_TYPE] = "text/html; charset=utf-8"
    return web.Response(
        status=301, body=f'<a href="{target}">Moved Permanently</a>.\n\n'.encode(), headers=headers
    )


def served(host: str, origin: str) -> bool:
    """Whether a server bound to loopback answers: for a local name or a private address, and to no
    foreign page but local ones and apps.
    """
    own = _LOCAL_ORIGIN.match(origin) or origin.startswith(_APP_SCHEMES)
    if foreign_page(origin, host) and not own:
        return False
    name = (urlsplit(f"//{host}").hostname or "").lower()
    if name in {"", "localhost"} or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified


def foreign_page(origin: str, host: str) -> bool:
    """Whether a page of another origin asks."""
    return origin not in {"", f"http://{host}", f"https://{host}"}


def _decoded(request: web.Request, body: bytes) -> bytes:
    """Ollama takes zstd on `/v1`, and reads every other coding as if it were none."""
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "").lower()
    if coding != "zstd" or not request.path.startswith("/v1/"):
        return body
    try:
        return zstd.ZstdDecompressor().decompress(body, max_length=_MAX_DECODED_BYTES)
    except zstd.ZstdError:
        return b""
