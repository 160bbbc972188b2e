"""Traps that other gateways fell into, each as the test that would have caught it, on the whole assembly.

Tested elsewhere: everything that is the scheduler's own decision (`scheduling/test_traps.py`: a woken model that is drained before its
waiters are served, the fast path past the queue, unload races, home restore against an arrival, eviction of busy models, ping-pong of
equals, order among equals), "stats_24h" that counts since the start (`observability/test_windows.py`), a limiter that loses counts or
invents them (`test_rate_limiter.py`), priorities as names (`admission/test_gate.py`), callers who leave in every phase
(`api/test_leaving.py`, `clients/`), 429 as the clients' own error (`clients/`), and preemption of what really runs
(`clients/test_lanes.py`, `worker/test_preempting.py`).
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import ollama
import pytest

import hearth
from hearth.config import settings as settings_module
from hearth.config.fields import Section
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import CallerLimits, GpuSettings, QueueSettings, RateLimitSettings, Settings
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.events import ConfigReloaded, ItemDispatched, ItemQueued, SwapFailed
from hearth.types import WorkKind
from tests.clients.home import CODER, EMBEDDER, HEAVY, HELLO, LLAMA, LONG, NARROW, SLOW, Home, StartHome, house_settings, open_home
from tests.support.patience import WITHIN_S

SOURCE = Path(hearth.__file__).parent


@pytest.fixture
async def start_home() -> AsyncIterator[StartHome]:
    async with AsyncExitStack() as stack:

        async def start(settings: Settings | None = None) -> Home:
            return await stack.enter_async_context(open_home(settings or house_settings()))

        yield start


@pytest.fixture
async def home(start_home: StartHome) -> Home:
    return await start_home()


def body_for(path: str, model: str | None = None) -> dict[str, Any]:
    """A small request for any inference route."""
    route = INFERENCE_ROUTES[path]
    if route.kind is WorkKind.EMBED:
        return {"model": model or EMBEDDER, "input": "x", "prompt": "x"}
    asked: dict[str, Any] = {"model": model or LLAMA, "stream": False}
    if path == Endpoint.GENERATE:
        return asked | {"prompt": "x", "options": {"num_predict": 1}}
    if path == Endpoint.CHAT:
        return asked | {"messages": HELLO, "options": {"num_predict": 1}}
    content = {Endpoint.OPENAI_COMPLETIONS: {"prompt": "x"}, Endpoint.OPENAI_RESPONSES: {"input": "x"}}.get(Endpoint(path))
    return asked | {"max_tokens": 1, "max_output_tokens": 1} | (content or {"messages": HELLO})


async def post(home: Home, path: str, body: dict[str, Any], **headers: str) -> tuple[int, Any, str]:
    """Status, body and Retry-After of one request."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(home.url + path, json=body, headers=named) as got,
    ):
        return got.status, json.loads(await got.read()), got.headers.get("retry-after", "")


@pytest.mark.parametrize("path", [*INFERENCE_ROUTES, "/llm/completions"])
async def test_every_way_in_tells_the_queue_which_model_it_needs(home, path):
    """donna: `required_model` was set nowhere, so affinity, swaps and the home model never came to life."""
    body = {"prompt": "x", "model": LLAMA, "max_tokens": 1} if path == "/llm/completions" else body_for(path)
    status, _, _ = await post(home, path, body)

    assert status == 200
    needed = f"{EMBEDDER}:latest" if "embed" in path else LLAMA
    assert [event.model for event in home.events.of(ItemQueued)] in ([needed], [needed.removesuffix(":latest")])
    assert home.emulator.resident == (needed,)


@pytest.mark.parametrize("path", [*INFERENCE_ROUTES, "/llm/completions"])
async def test_every_way_in_counts_against_the_same_limit(start_home: StartHome, path):
    """LiteLLM #17706: `/v1/responses` was not counted at all."""
    home = await start_home(house_settings(per_minute=1))
    body = {"prompt": "x", "model": LLAMA, "max_tokens": 1} if path == "/llm/completions" else body_for(path)
    first, _, _ = await post(home, path, body)
    second, _, _ = await post(home, "/api/chat", body_for("/api/chat"))

    assert (first, second) == (200, 429)


@pytest.mark.parametrize("path", INFERENCE_ROUTES)
async def test_nothing_a_caller_writes_makes_it_another_caller(start_home: StartHome, path):
    """donna: the limiter was keyed on a field of the body and skipped where that was missing."""
    home = await start_home(house_settings(per_minute=2))
    statuses = [
        (await post(home, path, body_for(path) | {"caller": f"c{n}", "user": f"u{n}"}, X_Caller=f"h{n}", X_Forwarded_For=f"10.0.0.{n}"))[0]
        for n in range(3)
    ]

    assert statuses == [200, 200, 429]
    assert {event.caller for event in home.events.of(ItemQueued)} == {"local"}


async def test_the_advice_of_when_to_come_back_is_computed(start_home: StartHome):
    """donna: a constant `Retry-After: 60`."""
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=5, requests_per_hour=1))
    home = await start_home(house_settings().replace(rate_limits=limits))
    await post(home, "/api/chat", body_for("/api/chat"))
    status, _, retry_after_s = await post(home, "/api/chat", body_for("/api/chat"))

    assert status == 429
    assert 3590 <= int(retry_after_s) <= 3600


async def test_looking_at_the_queue_does_not_change_its_order(home):
    """donna: the status page popped the queue and appended what it had seen."""
    async with home.native() as native, aiohttp.ClientSession(trust_env=False) as session:
        stream = await native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
        await anext(stream)
        waiting = []
        for place in range(5):
            waiting.append(asyncio.ensure_future(native.chat(model=SLOW, messages=HELLO, options={"num_predict": 1})))
            await home.until(lambda status, n=place + 1: status["external_queue"]["pending"] == n)
        for _ in range(10):
            async with session.get(f"{home.url}/llm/queue/status") as got:
                await got.read()
        await stream.aclose()
        await asyncio.gather(*waiting)

    started = [event.sequence for event in home.events.of(ItemDispatched)]
    assert started == sorted(started)
    assert len(started) == 6


async def test_a_model_that_is_installed_but_did_not_load_in_time_is_not_taken_for_loaded(start_home: StartHome):
    """donna and oqp: a timeout was recorded as a success, and "installed" was read as "loaded"."""
    home = await start_home(house_settings(gpu=GpuSettings(home_model="", swap_timeout_s=0.1)))
    status, said, _ = await post(home, "/api/chat", body_for("/api/chat", HEAVY))

    assert status == 503
    assert "did not load" in said["error"]
    assert home.events.of(ItemDispatched) == []
    assert len(home.events.of(SwapFailed)) == 1
    assert home.gateway.worker.tracker.loaded_model is None


async def test_a_model_that_somebody_unloaded_behind_our_back_still_serves(home):
    """llama-swap #946: an unload that raced a request left the model dead for ever, and health was green."""
    await post(home, "/api/chat", body_for("/api/chat"))
    async with ollama.AsyncClient(host=f"http://127.0.0.1:{home.port}", trust_env=False) as direct:
        await direct.generate(model=LLAMA, keep_alive=0)
    status, said, _ = await post(home, "/api/chat", body_for("/api/chat"))

    assert (status, said["done"]) == (200, True)


async def test_a_stream_is_passed_on_while_the_model_still_writes(home):
    """oqp: the HTTP client read the whole answer before the first byte went out."""
    async with home.native() as native:
        stream = await native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
        first = await asyncio.wait_for(anext(stream), WITHIN_S)
        assert home.emulator.in_flight == {SLOW: 1}
        await stream.aclose()
        await home.idle()

    assert not first.done


async def test_a_reload_keeps_running_streams_waiting_requests_and_loaded_models(home):
    """llama-swap #281: a reload built a new world beside the old one and shut that down under its callers."""
    async with home.native() as native:
        stream = await native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
        await anext(stream)
        waiting = asyncio.ensure_future(native.chat(model=SLOW, messages=HELLO, options={"num_predict": 2}))
        await home.until(lambda status: status["external_queue"]["pending"] == 1)
        changed = home.gateway.config.settings.replace(queue=QueueSettings(max_external_depth=7))
        for _ in range(2):
            assert home.gateway.reload(GatewayConfig(settings=changed))
        assert [(await anext(stream)).done for _ in range(5)] == [False] * 5
        await stream.aclose()
        assert (await waiting).eval_count == 2
    assert [name for name, _ in home.emulator.loads] == [SLOW]
    assert [event.generation for event in home.events.of(ConfigReloaded)] == [2, 2]


async def test_a_limit_survives_a_reload(start_home: StartHome):
    """A new limiter at each reload would forget what was used."""
    settings = house_settings(per_minute=1)
    home = await start_home(settings)
    await post(home, "/api/chat", body_for("/api/chat"))
    home.gateway.reload(GatewayConfig(settings=settings.replace(queue=QueueSettings(max_external_depth=7))))

    assert (await post(home, "/api/chat", body_for("/api/chat")))[0] == 429


async def test_a_busy_model_is_never_evicted_for_one_that_waits(start_home: StartHome):
    """LocalAI: after some tries the eviction went ahead under a running request."""
    home = await start_home(house_settings(gpu=NARROW))
    async with home.native() as native:
        stream = await native.chat(model=SLOW, messages=HELLO, options={"num_predict": 40}, stream=True)
        await anext(stream)
        other = asyncio.ensure_future(native.chat(model=CODER, messages=HELLO, options={"num_predict": 1}))
        rest = [part async for part in stream]

        assert rest[-1].eval_count == 40
        assert (await other).eval_count == 1
    assert home.emulator.max_concurrent == 1


def test_nothing_is_built_on_the_middleware_that_hides_departures():
    """claude-code-proxy PR #114: `BaseHTTPMiddleware` swallows `http.disconnect`."""
    assert [path for path, tree in _modules() for name in _names(tree) if name in {"BaseHTTPMiddleware", "add_middleware"}] == []


def test_every_setting_is_read_by_something_that_acts_on_it():
    """donna: `allow_cloud`, the budgets and the drain minutes were parsed and never used."""
    sections = {section for section in vars(settings_module).values() if isinstance(section, type) and issubclass(section, Section)}
    settings = {name for section in sections for name in section.model_fields}
    acted_on = {name for path, tree in _modules() if not _only_describes(path) for name in _attributes_read(tree)}

    assert len(sections) > 20
    assert settings - acted_on == set()


def _only_describes(path: Path) -> bool:
    """The modules that read, check and show the file touch every key without acting on it."""
    return SOURCE / "config" in path.parents and path.name not in {"gateway_config.py", "active_hours.py", "settings.py"}


def _modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def _attributes_read(tree: ast.AST) -> Iterator[str]:
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
