"""Traps that other gateways fell into, each as the test that would have caught it, on the whole
assembly or its source.

Tested elsewhere: what is the scheduler's own decision (the table `TRAPS` of
`scheduling/test_rules.py`), a limiter that loses counts or invents them, or advises a constant time
(`test_rate_limiter.py`, `worker/test_store.py`), a status that reorders the queue it shows
(`worker/test_submitting.py`), an answer that is read whole before its first byte goes out
(`api/test_streaming.py`), callers who leave and 429 as the clients' own error (`clients/`), and
preemption of what really runs (`worker/test_preempting.py`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import aiohttp

import hearth
from hearth.config import settings as settings_module
from hearth.config.fields import Section
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.events import ItemQueued
from tests.support.fields import Fields
from tests.support.home import EMBEDDER, HELLO, LLAMA, house_settings, open_home

SOURCE = Path(hearth.__file__).parent
WAYS_IN = (*INFERENCE_ROUTES, "/llm/completions")


def body_for(path: str) -> Fields:
    """A small request for any way in."""
    if path == "/llm/completions":
        return {"prompt": "x", "model": LLAMA, "max_tokens": 1}
    if INFERENCE_ROUTES[path].kind == "embed":
        return {"model": EMBEDDER, "input": "x", "prompt": "x"}
    asked: Fields = {"model": LLAMA, "stream": False}
    if path == Endpoint.GENERATE:
        return asked | {"prompt": "x", "options": {"num_predict": 1}}
    if path == Endpoint.CHAT:
        return asked | {"messages": HELLO, "options": {"num_predict": 1}}
    content = {
        Endpoint.OPENAI_COMPLETIONS: {"prompt": "x"},
        Endpoint.OPENAI_RESPONSES: {"input": "x"},
    }.get(Endpoint(path))
    return asked | {"max_tokens": 1, "max_output_tokens": 1} | (content or {"messages": HELLO})


async def test_every_way_in_names_its_model_and_counts_against_one_limit():
    """donna: `required_model` was set nowhere, the limiter keyed on a field of the body.

    LiteLLM #17706: `/v1/responses` uncounted.
    """
    # embeddings have a limit of their own
    counted = [path for path in WAYS_IN if "embed" not in path]
    async with (
        open_home(house_settings(per_minute=len(counted))) as home,
        aiohttp.ClientSession(trust_env=False) as session,
    ):
        for n, path in enumerate(WAYS_IN):
            claims = {} if path == "/llm/completions" else {"caller": f"c{n}", "user": f"u{n}"}
            claimed = {"X-Caller": f"h{n}", "X-Forwarded-For": f"10.0.0.{n}"}
            async with session.post(
                home.url + path, json=body_for(path) | claims, headers=claimed
            ) as got:
                assert got.status == 200, path
                json.loads(await got.read())
            needed = f"{EMBEDDER}:latest" if "embed" in path else LLAMA
            assert home.events.of(ItemQueued)[-1].model in (
                needed,
                needed.removesuffix(":latest"),
            ), path
            assert needed in home.emulator.resident, path
        async with session.post(f"{home.url}/api/chat", json=body_for("/api/chat")) as got:
            assert got.status == 429
        assert {event.caller for event in home.events.of(ItemQueued)} == {"local"}


def test_nothing_is_built_on_the_middleware_that_hides_departures():
    """claude-code-proxy PR #114: `BaseHTTPMiddleware` swallows `http.disconnect`."""
    assert [
        path
        for path, tree in _modules()
        for name in _names(tree)
        if name in {"BaseHTTPMiddleware", "add_middleware"}
    ] == []


def test_every_setting_is_read_by_something_that_acts_on_it():
    """donna: `allow_cloud`, the budgets and the drain minutes were parsed and never used."""
    sections = {
        section
        for section in vars(settings_module).values()
        if isinstance(section, type) and issubclass(section, Section)
    }
    settings = {name for section in sections for name in section.model_fields}
    acted_on = {
        name
        for path, tree in _modules()
        if not _only_describes(path)
        for name in _attributes_read(tree)
    }

    assert len(sections) > 20
    assert "yielding" in acted_on
    # a word of Python's own, read as `yielding`
    assert settings - acted_on - {"yield"} == set()


def _only_describes(path: Path) -> bool:
    """The modules that read, check and show the file touch every key without acting on it."""
    return SOURCE / "config" in path.parents and path.name not in {
        "active_hours.py",
        "caller_settings.py",
        "settings.py",
    }


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
    return (
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )
