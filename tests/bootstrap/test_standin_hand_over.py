"""Once an Ollama answers where the emulator stands in, new work goes there: without a restart, and
with nothing of the emulator left.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from hearth.bootstrap.standin import StandIn
from hearth.clock import SystemClock
from hearth.config.settings import (
    BackendMode,
    BackendSettings,
    EngineSettings,
    GatewayConfig,
    GpuSettings,
    ModelSettings,
    SchedulingSettings,
    StorageSettings,
)
from hearth.emulator import Emulator, default_profiles
from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    EmulatorStarted,
    EmulatorStopped,
    ItemDiverged,
    ItemInterrupted,
    ItemResumed,
    JobEnded,
    ResidencyDrifted,
    SwapFailed,
)
from hearth.gateway import Gateway
from hearth.scheduling.state import GatewayState
from hearth.types import Priority
from tests.bootstrap.by_hand import Tried, free_address, tried, untouched
from tests.support.home import WHOLE_DAY
from tests.support.patience import in_time

BOTH = "llama3.1:8b"
"""A model that the emulator has, and the Ollama that comes, too."""
OURS = "house:8b"
EMULATORS = "qwen2.5-coder:14b"
LONG: list[dict[str, str]] = [{"role": "user", "content": "word " * 8_000}]
"""Seconds of the emulator, which reads it first."""

pytestmark = pytest.mark.usefixtures("by_hand")


@asynccontextmanager
async def ollama_at(url: str) -> AsyncIterator[Emulator]:
    """An Ollama, as far as anybody can see: an emulator without its marks, whose models have
    other digests than those of the emulator that stands in.
    """
    quick = default_profiles()[0].model_copy(
        update={"load_s": 0.2, "decode_tokens_per_s": 2000.0, "vram_gib": 3.0, "size_gib": 2.0}
    )
    of_its_own = [{"name": name, "system": "Be kind."} for name in (BOTH, OURS)]
    profiles = [quick.model_copy(update=each) for each in of_its_own]
    ollama = Emulator(profiles, clock=SystemClock(), seed=1, marked=False)
    address = urlsplit(url)
    await ollama.start(address.hostname or "", address.port or 0)
    try:
        yield ollama
    finally:
        await ollama.stop()


async def generate(house: Tried, model: str, tokens: int = 2) -> tuple[int, Any, Any]:
    body = {"model": model, "prompt": "hi", "stream": False, "options": {"num_predict": tokens}}
    return await house.post("/api/generate", **body)


async def handed_over(house: Tried) -> EmulatorStopped:
    async with in_time():
        await house.events.until(lambda: bool(house.events.of(EmulatorStopped)))
        await house.events.until(lambda: len(house.events.of(BackendCameUp)) == 2)
    return house.events.of(EmulatorStopped)[0]


async def becomes(gateway: Gateway, holds: Callable[[], bool]) -> None:
    """Returns after the first decision of the scheduler, this one included, after which it
    holds.
    """
    async with in_time():
        async for _ in gateway.worker.changes():
            if holds():
                return


async def streaming(house: Tried) -> tuple[GatewayState, asyncio.Task[Any]]:
    """The state of the queue, and a stream that has begun."""
    state = house.gateway.worker.scheduler.gateway
    running = asyncio.create_task(
        house.text_of("/v1/chat/completions", model=BOTH, messages=LONG, stream=True)
    )
    await becomes(house.gateway, lambda: bool(state.running))
    return state, running


def residents(gateway: Gateway) -> set[str]:
    return set(gateway.worker.scheduler.device.residency.residents)


async def test_new_work_goes_to_the_ollama_that_came_and_running_work_finishes():
    url = free_address()
    async with tried(untouched(url)) as house:
        status, _, headers = await generate(house, BOTH)
        assert (status, headers["x-hearth-emulator"]) == (200, "1")
        state, running = await streaming(house)
        async with ollama_at(url) as ollama:
            await becomes(house.gateway, lambda: state.handing_over)
            waiting = asyncio.create_task(generate(house, BOTH))
            stopped = await handed_over(house)
            assert stopped.reason == f"Ollama answers at {url}"
            _, said, headers = await running
            assert (
                headers["x-hearth-emulator"],
                '"hearth-emulator"' in said,
                said.endswith("data: [DONE]\n\n"),
            ) == ("1", True, True)
            for answer in (await waiting, await generate(house, BOTH), await generate(house, OURS)):
                status, _, headers = answer
                assert (status, "x-hearth-emulator" in headers) == (200, False), answer
            # loaded by Hearth, although the emulator had the first
            assert [name for name, _ in ollama.loads] == [BOTH, OURS]
            assert (await generate(house, EMULATORS))[:2] == (
                404,
                {"error": f"model '{EMULATORS}' not found"},
            )
            _, tags = await house.get("/api/tags")
            assert {model["name"] for model in tags["models"]} == {BOTH, OURS}
            _, shown = await house.get("/llm/queue/status")
            assert (
                shown["backend"]["url"],
                shown["backend"]["emulator"],
                shown["backend"]["instead_of"],
            ) == (url, False, None)
            assert shown["gpu"]["swaps_this_hour"] == 2
            assert (await house.get("/healthz"))[1]["emulator"] is False
            assert residents(house.gateway) == {OURS}
    assert (house.events.of(SwapFailed), house.events.of(ResidencyDrifted)) == ([], [])


async def test_what_waits_for_a_model_that_only_the_emulator_had_is_told_to_ask_again():
    url = free_address()
    asked = {"model": EMULATORS, "messages": [{"role": "user", "content": "hi"}]}
    async with tried(untouched(url)) as house:
        state, running = await streaming(house)
        native = asyncio.create_task(generate(house, EMULATORS))
        others = asyncio.create_task(house.post("/v1/chat/completions", **asked))
        await becomes(house.gateway, lambda: len(state.entries) == 3)
        async with ollama_at(url):
            await handed_over(house)
            status, answer, headers = await native
            changed = "The model server has changed while the request waited for it. Send it again."
            assert (status, answer, headers["retry-after"]) == (503, {"error": changed}, "1")
            assert "x-hearth-emulator" not in headers
            status, answer, _ = await others
            assert (status, answer["error"]["message"]) == (503, changed)
            assert (await running)[0] == 200
            assert (await generate(house, EMULATORS))[0] == 404


async def test_what_was_learned_of_the_emulator_and_of_ollama_is_kept_apart(tmp_path: Path):
    url = free_address()
    storage = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    settings = untouched(url, storage=storage)
    async with tried(settings, store=True) as house:
        estimates = house.gateway.worker.scheduler.device.estimates
        await generate(house, BOTH)
        assert estimates.knows_load(BOTH)
        emulators_s = estimates.swap_s("", BOTH)
        async with ollama_at(url):
            await handed_over(house)
            assert not estimates.knows_load(BOTH)
            await generate(house, BOTH)
            ours_s = estimates.swap_s("", BOTH)
            assert ours_s < emulators_s / 2
    for comes, expected_s in ((False, emulators_s), (True, ours_s)):
        async with tried(settings, store=True) as house:
            estimates = house.gateway.worker.scheduler.device.estimates
            if comes:
                async with ollama_at(url):
                    await handed_over(house)
            assert estimates.swap_s("", BOTH) == pytest.approx(expected_s)


async def test_the_log_says_which_requests_the_emulator_worked_on(tmp_path: Path):
    url = free_address()
    path = tmp_path / "hearth.db"
    async with tried(
        untouched(url, storage=StorageSettings(path=str(path), reserve_mib=0)), store=True
    ) as house:
        assert (await generate(house, BOTH))[0] == 200
        async with ollama_at(url):
            await handed_over(house)
            assert (await generate(house, BOTH))[0] == 200
    with closing(sqlite3.connect(path)) as store:
        assert store.execute(
            "SELECT model, emulated FROM invocation_log ORDER BY id"
        ).fetchall() == [(BOTH, 1), (BOTH, 0)]


async def test_of_the_emulators_jobs_the_running_one_completes_and_others_fail(tmp_path: Path):
    url = free_address()
    storage = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    async with tried(untouched(url, storage=storage), store=True) as house:
        await generate(house, BOTH)
        asked = {"model": BOTH, "messages": LONG}
        names = [(await house.post("/llm/jobs", request=asked))[1]["id"] for _ in range(6)]
        state = house.gateway.worker.scheduler.gateway
        await becomes(house.gateway, lambda: bool(state.running))
        async with ollama_at(url):
            await handed_over(house)
            async with in_time():
                await house.events.until(lambda: len(house.events.of(JobEnded)) == 6)
            ends = {end.job_id: (end.state, end.reason) for end in house.events.of(JobEnded)}
            assert [ends[name] for name in names] == [("completed", "")] + [
                ("failed", "emulator_gone")
            ] * 5
            real = (await house.post("/llm/jobs", request={"model": OURS, "prompt": "hi"}))[1]["id"]
            async with in_time():
                await house.events.until(lambda: len(house.events.of(JobEnded)) == 7)
            assert (await house.get(f"/llm/jobs/{real}"))[1]["emulator"] is False


class Neighbour:
    """Something else at an address: a program that is no Ollama, or (`service`) another Hearth."""

    def __init__(self, service: str) -> None:
        self.asked = asyncio.Queue[str]()
        self._service = service

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.put_nowait(request.path)
        if not self._service:
            return web.Response(text="It works!", content_type="text/html")
        return web.json_response(
            {"version": "0.33.0"} if request.path == "/api/version" else {"service": self._service}
        )


@asynccontextmanager
async def neighbour_at(url: str, service: str) -> AsyncIterator[Neighbour]:
    neighbour = Neighbour(service)
    address = urlsplit(url)
    app = web.Application()
    app.router.add_get("/{path:.*}", neighbour.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, address.hostname, address.port).start()
    try:
        yield neighbour
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("service", "last"), [("", "/api/version"), ("hearth", "/healthz")])
async def test_what_listens_and_is_no_ollama_is_left_alone_and_asked_again(service: str, last: str):
    url = free_address()
    async with tried(untouched(url)) as house:
        async with neighbour_at(url, service) as neighbour, in_time():
            asked = 0
            while asked < 2:
                asked += await neighbour.asked.get() == last
        assert house.events.of(EmulatorStopped) == []
        async with ollama_at(url):
            await handed_over(house)


async def test_once_configured_the_model_server_is_waited_for_and_taken(tmp_path: Path):
    url = free_address()
    async with tried(untouched(url)) as house:
        settings = untouched(
            url,
            models={BOTH: ModelSettings(parallel=2)},
            backend=BackendSettings(wait_when_down_s=0.05),
        )
        assert house.gateway.reload(GatewayConfig(settings=settings))
        async with in_time():
            await house.events.until(lambda: bool(house.events.of(BackendWentDown)))
        assert [event.reason for event in house.events.of(EmulatorStopped)] == [
            "models is configured"
        ]
        assert (await house.get("/readyz"))[0] == 503
        assert (await generate(house, BOTH))[0] == 503
        async with ollama_at(url):
            async with in_time():
                await house.events.until(lambda: len(house.events.of(BackendCameUp)) == 2)
            assert (await generate(house, BOTH))[0] == 200
        assert len(house.events.of(EmulatorStarted)) == 1


async def test_an_engine_that_is_configured_meanwhile_waits_for_the_next_start():
    url = free_address()
    row = EngineSettings(kind="llama_server", url=free_address())
    async with tried(untouched(url)) as house, AsyncExitStack() as held:
        settings = untouched(url, engines={"main": row})
        assert house.gateway.reload(GatewayConfig(settings=settings))
        _, shown = await house.get("/llm/queue/status")
        assert shown["config"]["restart_pending"] == ["engines.main"]
        standin = StandIn(
            house.gateway,
            turn_to=lambda _: None,
            learned=None,
            stop_emulator=AsyncExitStack().aclose,
            closing=held,
        )
        assert await standin.reason() == ""
        assert house.events.of(EmulatorStopped) == []


async def test_a_gateway_that_was_told_to_emulate_waits_for_no_ollama():
    async with tried(untouched(free_address()), backend_mode=BackendMode.EMULATOR) as house:
        _, shown = await house.get("/llm/queue/status")
        assert (shown["backend"]["emulator"], shown["backend"]["instead_of"]) == (True, None)


@pytest.mark.parametrize(("configured_gb", "counts_gb"), [(None, 24.0), (12.0, 12.0)])
async def test_the_memory_of_an_emulator_that_was_asked_for_is_known(configured_gb, counts_gb):
    settings = untouched(free_address(), gpu=GpuSettings(vram_gb=configured_gb))
    async with tried(settings, backend_mode=BackendMode.EMULATOR) as house:
        device = house.gateway.worker.scheduler.device
        await becomes(house.gateway, lambda: device.residency.capacity_mib == counts_gb * 1024)


async def test_the_memory_of_an_emulator_is_not_that_of_the_ollama_after_it():
    url = free_address()
    async with tried(untouched(url)) as house, ollama_at(url):
        await handed_over(house)
        assert house.gateway.worker.scheduler.device.residency.capacity_mib is None


async def test_an_answer_the_emulator_began_is_not_finished_by_the_new_ollama():
    url = free_address()
    at_once = SchedulingSettings(
        active_hours=WHOLE_DAY,
        preemption="at_once",
        preempt_min_remaining_s=0.0,
        preempt_restart_bound_s=0.0,
    )
    async with tried(untouched(url, scheduling=at_once)) as house:
        state = house.gateway.worker.scheduler.gateway
        turns = [{"role": "user", "content": "hi"}]
        asked = {"model": BOTH, "messages": turns, "stream": True}
        async with house.stream("/v1/chat/completions", **asked) as answer:
            assert b'"hearth-emulator"' in await answer.content.readline()
            internal = await house.gateway.worker.enqueue_internal(
                prompt="word " * 8_000, model=BOTH, task_type="urgent", priority=Priority.CRITICAL
            )
            async with in_time():
                await house.events.until(lambda: bool(house.events.of(ItemInterrupted)))
            async with ollama_at(url):
                await becomes(house.gateway, lambda: state.handing_over)
                await handed_over(house)
                await internal
                rest = await answer.text()
    # behind made-up text comes nothing but the error
    assert '"error"' in rest
    assert "[DONE]" not in rest
    assert len(house.events.of(ItemDiverged)) == 1
    assert house.events.of(ItemResumed) == []
