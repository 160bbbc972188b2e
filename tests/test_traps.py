"""Traps that other gateways fell into, each as the test that would have caught it, on the whole assembly.

Tested elsewhere: everything that is the scheduler's own decision (`scheduling/test_traps.py`: a woken model that is drained before its
waiters are served, the fast path past the queue, unload races, home restore against an arrival, eviction of busy models, ping-pong of
equals, order among equals), "stats_24h" that counts since the start (`observability/test_windows.py`), a limiter that loses counts or
invents them (`test_rate_limiter.py`), priorities as names (`admission/test_gate.py`), callers who leave in every phase
(`api/test_leaving.py`, `clients/`), 429 as the clients' own error (`clients/`), and preemption of what really runs
(`worker/test_preempting.py`).
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import hearth
from hearth.config import settings as settings_module
from hearth.config.fields import Section
from hearth.config.settings import CallerLimits, RateLimitSettings, Settings
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.events import ItemDispatched, ItemQueued
from tests.clients.home import EMBEDDER, HELLO, LLAMA, LONG, SLOW, Home, StartHome, house_settings, open_home
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
    if route.kind == "embed":
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


WAYS_IN = (*INFERENCE_ROUTES, "/llm/completions")


async def test_every_way_in_names_its_model_counts_against_one_limit_and_believes_no_caller(start_home: StartHome):
    """donna: `required_model` was set nowhere, the limiter keyed on a field of the body. LiteLLM #17706: `/v1/responses` uncounted."""
    home = await start_home(house_settings(per_minute=len(WAYS_IN)))
    for n, path in enumerate(WAYS_IN):
        claims = {} if path == "/llm/completions" else {"caller": f"c{n}", "user": f"u{n}"}
        body = {"prompt": "x", "model": LLAMA, "max_tokens": 1} if path == "/llm/completions" else body_for(path)
        status, _, _ = await post(home, path, body | claims, X_Caller=f"h{n}", X_Forwarded_For=f"10.0.0.{n}")
        assert status == 200, path
        needed = f"{EMBEDDER}:latest" if "embed" in path else LLAMA
        assert home.events.of(ItemQueued)[-1].model in (needed, needed.removesuffix(":latest")), path
        assert needed in home.emulator.resident, path

    assert (await post(home, "/api/chat", body_for("/api/chat")))[0] == 429
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


async def test_a_stream_is_passed_on_while_the_model_still_writes(home):
    """oqp: the HTTP client read the whole answer before the first byte went out."""
    async with home.native() as native:
        stream = await native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
        first = await asyncio.wait_for(anext(stream), WITHIN_S)
        assert home.emulator.in_flight == {SLOW: 1}
        await stream.aclose()
        await home.idle()

    assert not first.done


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


@cache
def _modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]


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
