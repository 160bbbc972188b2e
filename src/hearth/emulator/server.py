"""The emulated server: an HTTP listener inside the caller's event loop, no signal handlers, no threads.

Owns the routes' dispatch, the requests log and the life of the engine. Started by `bootstrap`, `cli` and tests.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiohttp import hdrs, web

from hearth.clock import Clock
from hearth.emulator.engine import Engine, Limits
from hearth.emulator.errors import OllamaError, error_body
from hearth.emulator.exchange import JSON, JSON_UTF8, Call, Server
from hearth.emulator.faults import Faults
from hearth.emulator.models import Catalogue, EmulatedModel
from hearth.emulator.quirks import Quirk
from hearth.emulator.routes import build_routes
from hearth.emulator.routing import Matched, Refused, cross_origin, host_allowed, origin_allowed, preflight_headers, simple_cors_headers
from hearth.emulator.sinks import WireSink, write_headers_like_go
from hearth.errors import BadRequest
from hearth.service_model import ModelProfile, ServiceModel
from hearth.types import MIB, Dialect

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LOGGED_REQUESTS = 10_000
_MAX_BODY_BYTES = 2**40
_MAX_DECODED_BYTES = 20 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request as it arrived, before any check."""

    method: str
    path: str
    body: bytes


class Emulator:
    """An Ollama without a GPU.

    Args:
        profiles: installed models; a plain profile behaves like a library model.
        speed: divides every service time (load, unload, prompt, decode); keep_alive times are not scaled.
        seed: makes ids and the seeds of requests without one repeatable; None is different on each run.
        num_parallel: slots per model; max_queue: loads that may wait before 503; max_loaded: models in memory at most.
        vram_gib: memory of the emulated card; 0 is a machine without one.
        quirks: known bugs of a real Ollama to show; raises `ConfigError` when one is given twice.
    """

    def __init__(
        self,
        profiles: Sequence[ModelProfile | EmulatedModel],
        *,
        clock: Clock,
        speed: float = 1.0,
        seed: int | None = None,
        num_parallel: int = 1,
        max_queue: int = 512,
        max_loaded: int = 3,
        vram_gib: float = 24.0,
        quirks: frozenset[Quirk] = frozenset(),
    ) -> None:
        models = [EmulatedModel(profile=one) if isinstance(one, ModelProfile) else one for one in profiles]
        service = ServiceModel([model.profile for model in models], speed=speed)
        limits = Limits(parallel=num_parallel, waiting=max_queue, loaded=max_loaded, vram_gib=vram_gib)
        self._clock = clock
        rng = random.Random(seed)  # noqa: S311 - ids, texts and which request a quirk hits, no secrets
        self._engine = Engine(service, limits, clock, Faults(quirks, rng))
        self._server = Server(
            catalogue=Catalogue(models, now_wall=clock.wall()),
            engine=self._engine,
            rng=rng,
        )
        self._routes = build_routes()
        self._requests: deque[LoggedRequest] = deque(maxlen=_LOGGED_REQUESTS)
        self._runner: web.AppRunner | None = None

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Executions that hold a slot now, by model name with tag."""
        return {name: count for name, count in self._engine.running.items() if count}

    @property
    def max_concurrent(self) -> int:
        """The most executions that ever held slots at the same time."""
        return self._engine.max_running

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of the models in memory."""
        return tuple(runner.name for runner in self._engine.resident())

    @property
    def leaked_slots(self) -> Mapping[str, int]:
        """Slots that callers took with them, by name of the loaded model."""
        return dict(self._engine.leaked)

    @property
    def loads(self) -> tuple[tuple[str, float], ...]:
        """The latest completed loads, oldest first: model name with tag, and the instant on the monotonic clock."""
        return tuple(self._engine.loads)

    @property
    def requests(self) -> tuple[LoggedRequest, ...]:
        """The latest requests, oldest first."""
        return tuple(self._requests)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and return the base URL, `http://host:port`; port 0 takes a free one. Raises `OSError` when the port is taken."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(write_headers_like_go)
        runner = web.AppRunner(app, auto_decompress=False, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, host, port)
        await site.start()
        self._engine.start()
        bound_port = runner.addresses[0][1]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound_port}"

    async def stop(self) -> None:
        """Close every connection, open streams included; idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await runner.cleanup()
        await self._engine.stop()

    def kill_runner(self, model: str) -> None:
        """End the process that runs `model` as a crash would: streams break off, and it stays listed until the next request."""
        self._engine.kill(self._server.catalogue.require(model).model.weights)

    def let_go(self) -> None:
        """End every unload that is stuck (quirk `stuck-unload`)."""
        self._engine.let_go()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        received_at = self._clock.monotonic()
        body = _decoded(request, await request.read())
        self._requests.append(LoggedRequest(method=request.method, path=request.path_qs, body=body))
        sink = WireSink(request)
        refused = self._foreign(request, sink)
        found = refused or self._routes.match(request.method, request.path)
        if isinstance(found, Refused):
            for name, value in found.headers:
                sink.add_header(name, value)
            await sink.whole(found.body, found.content_type, status=found.status)
        else:
            call = Call(path=request.path, body=body, received_at=received_at, dialect=found.dialect, tail=found.tail)
            await self._serve(found, call, sink)
        return await sink.finish()

    def _foreign(self, request: web.Request, sink: WireSink) -> Refused | None:
        """Host and Origin rules; also adds the CORS headers of an allowed foreign page."""
        host, origin = request.headers.get(hdrs.HOST, ""), request.headers.get(hdrs.ORIGIN, "")
        if not host_allowed(host):
            return Refused(status=403)
        if not cross_origin(origin, host):
            return None
        if not origin_allowed(origin):
            return Refused(status=403)
        if request.method == hdrs.METH_OPTIONS:
            allowed = self._routes.match(request.method, request.path)
            allow = tuple(pair for pair in (allowed.headers if isinstance(allowed, Refused) else ()) if pair[0] == "Allow")
            return Refused(status=204, headers=(*allow, *preflight_headers(origin)))
        for name, value in simple_cors_headers(origin):
            sink.add_header(name, value)
        return None

    async def _serve(self, found: Matched, call: Call, sink: WireSink) -> None:
        try:
            await found.handler(self._server, call, sink)
        except BadRequest as error:
            await self._refuse(OllamaError(400, error.message, at_bind=True), call, sink)
        except OllamaError as error:
            await self._refuse(error, call, sink)

    async def _refuse(self, error: OllamaError, call: Call, sink: WireSink) -> None:
        body = error_body(error, call.dialect, self._server.hex_id("req_", 24))
        if call.dialect is Dialect.OLLAMA or error.at_bind:
            await sink.whole(body, JSON_UTF8, status=error.status)
        else:
            await sink.whole(body + b"\n", JSON, status=error.status)


def _decoded(request: web.Request, body: bytes) -> bytes:
    """Ollama takes zstd on `/v1`, and reads every other coding as if it were none."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "").lower() != "zstd" or not request.path.startswith("/v1/"):
        return body
    try:
        return zstd.ZstdDecompressor().decompress(body, max_length=_MAX_DECODED_BYTES)
    except zstd.ZstdError:
        return b""
