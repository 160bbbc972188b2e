"""The demo's callers speak plain HTTP to whatever listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from hearth.cli.demo_callers import CALLERS, HOME_MODEL, ROUND, Callers
from hearth.emulator.service_model import default_profiles


@asynccontextmanager
async def server(status: int = 200) -> AsyncIterator[tuple[str, list[web.Request]]]:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        await request.json()
        seen.append(request)
        return web.json_response({"error": "the queue is full"}, status=status)

    app = web.Application(client_max_size=2**20)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def test_a_round_is_asked_in_order_and_every_request_has_its_own_id():
    complaints: list[str] = []
    async with server() as (url, seen):
        await Callers(url, pace=0.0, complain=complaints.append).live(rounds=2)
    ids = sorted((request.headers["X-Request-Id"] for request in seen), key=lambda name: int(name.rpartition("-")[2]))
    assert ids == [f"{visit.caller}-{number}" for number, visit in enumerate(ROUND * 2, start=1)]
    assert complaints == []


async def test_only_the_assistant_claims_to_be_the_house():
    async with server() as (url, seen):
        await Callers(url, pace=0.0, complain=print).live(rounds=1)
    claiming = {request.headers["X-Request-Id"].rpartition("-")[0] for request in seen if "X-Task-Type" in request.headers}
    assert claiming == {"assistant"}


async def test_a_refusal_is_complained_about_in_words():
    complaints: list[str] = []
    async with server(status=503) as (url, _):
        await Callers(url, pace=0.0, complain=complaints.append).live(rounds=1)
    assert len(complaints) == len(ROUND)
    assert all("was answered 503" in complaint and "the queue is full" in complaint for complaint in complaints)


async def test_a_gateway_that_is_gone_is_complained_about_and_survived():
    async with server() as (url, _):
        pass
    complaints: list[str] = []
    await Callers(url, pace=0.0, complain=complaints.append).live(rounds=1)
    assert all("lost its connection" in complaint for complaint in complaints)
    assert len(complaints) == len(ROUND)


def test_every_model_of_the_round_is_one_that_the_emulator_has():
    installed = {profile.name for profile in default_profiles()}
    assert {visit.body["model"] for visit in ROUND} <= installed
    assert HOME_MODEL in installed


def test_every_caller_that_is_announced_asks_something():
    assert {visit.caller for visit in ROUND} == set(CALLERS)
