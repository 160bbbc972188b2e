"""A gateway in front of an Ollama with a known bug: it avoids the bug, heals it, or says so in the
caller's own dialect.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest

from hearth.clock import SystemClock
from hearth.config.settings import GpuSettings, ModelSettings, OllamaSettings
from hearth.emulator import Emulator
from hearth.errors import BackendGone
from hearth.events import ItemResent, ResidencyDrifted, SwapCompleted, SwapFailed
from tests.emulator.callers import (
    SLOW,
    STREAMS,
    Caller,
    cancel,
    leave_in_mid_stream,
    loaded_names,
    model,
)
from tests.support.fields import Fields
from tests.support.home import Home, house_settings, open_home
from tests.support.patience import until, within_limit

SHORT_S = 1.0
"""A timeout that a test waits for."""


@dataclass
class Healing(Home):
    """With a caller in front."""

    caller: Caller


@pytest.fixture
async def build(session: aiohttp.ClientSession) -> AsyncIterator[Any]:
    """Builds homes whose Ollama has quirks; everything is stopped after the test."""
    async with AsyncExitStack() as stack:

        async def build(
            *quirks: str,
            parallel: int = 1,
            first_byte_timeout_s: float = 30.0,
            swap_timeout_s: float = 30.0,
            num_ctx: int | None = None,
            **facts: Any,
        ) -> Healing:
            models = [model("a", **{**SLOW, **facts}), model("b", **SLOW)]
            emulator = Emulator(
                models, clock=SystemClock(), seed=1, quirks=quirks, num_parallel=parallel
            )
            gpu = GpuSettings(
                home_model="",
                swap_timeout_s=swap_timeout_s,
                swap_cost_prior_s=0.1,
                parallel=parallel,
            )
            settings = house_settings(gpu=gpu).replace(
                models=MappingProxyType({"a": ModelSettings(parallel=parallel, num_ctx=num_ctx)}),
                ollama=OllamaSettings(first_byte_timeout_s=first_byte_timeout_s),
            )
            home = await stack.enter_async_context(open_home(settings, emulator))
            return Healing(**vars(home), caller=Caller(session, home.url))

        yield build


def told(path: str, body: bytes) -> str:
    """The error that a stream ends with, in the dialect of the route; a `KeyError` where it ends
    with none.
    """
    last = json.loads(body.strip().split(b"\n")[-1].removeprefix(b"data: "))
    error = last["error"]
    assert path.startswith("/api/") or body.strip().split(b"\n\n")[-1].startswith(
        (b"data: ", b"event: error\n")
    )
    return str(error if path.startswith("/api/") else error["message"])


async def test_alternating_models_never_wedge_though_every_caller_sends_a_keep_alive(build):
    home = await build("eviction-wedge", parallel=2)
    long = home.caller.begin("a", tokens=40, keep_alive=-1)
    await until(lambda: home.emulator.in_flight)
    others = [home.caller.begin(name, keep_alive=-1) for name in ("b", "a", "b", "a")]
    answers = await within_limit(asyncio.gather(long, *others))
    assert all(answer["done"] is True for answer in answers)
    assert set(loaded_names(home.emulator)) == {"a", "b"}


async def test_a_leaked_slot_costs_the_next_stream_one_timeout_and_a_reload(build):
    home = await build("slot-leak", first_byte_timeout_s=SHORT_S)
    await leave_in_mid_stream(home.emulator, home.caller)
    assert home.emulator.leaked_slots == {"a:latest": 1}
    loads = len(home.emulator.loads)
    resent = len(home.events.of(ItemResent))
    began_at = time.monotonic()
    status, body = await home.caller.stream("/api/chat")
    assert status == 200
    assert json.loads(body.splitlines()[-1])["done"] is True
    assert time.monotonic() - began_at >= SHORT_S
    assert len(home.emulator.loads) == loads + 1
    assert len(home.events.of(ItemResent)) == resent + 1
    assert home.emulator.leaked_slots == {}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_without_its_end_is_ended_with_an_error_in_its_own_dialect(path, build):
    home = await build("no-done")
    status, body = await home.caller.stream(path)
    assert status == 200
    assert told(path, body) == BackendGone().message


def swaps(home: Healing) -> list[SwapCompleted]:
    return home.events.of(SwapCompleted)


HEALED: dict[str, tuple[Fields, str, Callable[[Healing], bool]]] = {
    # what the model `a` is like beside, whom callers ask for in turn, and what shows that the bug
    # was there
    "dead-runner=1": ({}, "aaa", lambda home: loaded_names(home.emulator) == ["a", "a", "a"]),
    "stuck-unload=0.1": (
        {},
        "ab",
        lambda home: home.emulator.resident == ("b:latest",) and swaps(home)[-1].swap_s > 0.1,
    ),
    "cpu-offload": (
        {"size_gib": 26.0, "vram_gib": 28.0},
        "a",
        lambda home: [swap.offloaded for swap in swaps(home)] == [True],
    ),
    "busy-503=2": (
        {},
        "aa",
        lambda home: {event.reason for event in home.events.of(ItemResent)} == {"backend_busy"},
    ),
}


@pytest.mark.parametrize("quirk", HEALED)
async def test_callers_see_nothing_of_a_bug_that_can_be_healed(quirk: str, build):
    facts, asked, shows = HEALED[quirk]
    home = await build(quirk, **facts)
    assert [(await home.caller.generate(name))["done"] for name in asked] == [True] * len(asked)
    assert shows(home)


async def test_a_load_that_never_ends_is_a_503_and_the_other_model_is_served(build):
    home = await build("endless-load=a", swap_timeout_s=SHORT_S)
    began_at = time.monotonic()
    hopeless = home.caller.begin("a")
    await until(lambda: any(b'"a' in one.body for one in home.emulator.requests))
    other = home.caller.begin("b")
    refused = await hopeless
    assert time.monotonic() - began_at >= SHORT_S
    assert refused["status"] == 503
    assert "did not load within" in refused["error"]
    assert (await other)["done"] is True


async def test_a_prompt_read_for_nobody_delays_the_next_until_a_reload(build):
    home = await build("ignores-disconnect", prompt_tokens_per_s=10.0)
    await home.caller.post("/api/generate", model="a")
    call = home.caller.begin("a")
    await until(lambda: home.emulator.in_flight)
    await cancel(call)
    following = home.caller.begin("b")
    assert (await following)["done"] is True
    assert home.emulator.in_flight == {}
    assert loaded_names(home.emulator) == ["a", "b"]


def seen(home: Healing, count: int) -> bool:
    return len(home.events.of(ResidencyDrifted)) >= count


async def test_a_pinned_context_of_native_requests_only_reloads_at_each_change(build):
    home = await build(num_ctx=2048)
    await home.caller.generate("a")
    for count, path in enumerate(
        ("/v1/messages", "/api/generate", "/v1/chat/completions"), start=1
    ):
        await home.caller.stream(path)
        await until(partial(seen, home, count))
    pinned = "a:latest (8192 -> 2048 tokens)"
    own = "a:latest (2048 -> 8192 tokens)"
    assert [drift.reloaded for drift in home.events.of(ResidencyDrifted)] == [
        (own,),
        (pinned,),
        (own,),
    ]


async def test_ollama_stop_unloads_an_unused_model_and_leaves_a_used_one(build):
    home = await build()
    stream = await home.caller.begin_stream()
    wished = await home.caller.unload("a")
    assert (wished["status"], wished["done_reason"], home.emulator.resident) == (
        200,
        "unload",
        ("a:latest",),
    )
    stream.close()
    await until(lambda: not home.emulator.in_flight)
    assert (await home.caller.unload("a"))["done_reason"] == "unload"
    await until(lambda: not home.emulator.resident)


async def test_a_model_deleted_in_memory_gives_way_to_its_origin(build):
    home = await build()
    direct = Caller(home.caller.session, home.direct_url)
    await direct.post("/api/create", model="butler", system="Be brief.", **{"from": "a"})
    await home.caller.generate("butler")
    async with home.caller.session.delete(
        f"{home.direct_url}/api/delete", json={"model": "butler"}
    ):
        assert home.emulator.resident == ("butler:latest",)
    assert (await home.caller.generate("a"))["done"] is True
    assert home.emulator.resident == ("a:latest",)
    assert home.events.of(SwapFailed) == []
