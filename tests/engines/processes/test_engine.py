"""Servers that start, stop and fail in every way, real processes all."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from hearth.engines.processes import crashes
from hearth.engines.processes.guard import descendants
from hearth.errors import BackendGone, LoadError, ModelGone, ModelLeftAlone
from hearth.events import EngineExited
from hearth.types import BackendCall, LoadOptions
from tests.engines.processes.house import SERVER, house, left, odd, some_ports, until_gone
from tests.engines.processes.odd_server import EXIT_CODE
from tests.engines.stub_server import read
from tests.support.patience import until

A = "a"
B = "b"
OPTIONS = LoadOptions()


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def resident(engine) -> list[str]:
    return [model.name for model in await engine.resident()]


async def test_a_model_is_loaded_by_starting_its_server_and_unloaded_by_ending_it():
    async with house(
        {A: odd(env={"ODD": "${MODEL}"}), B: odd("has-children", stop_grace_s=0.5)}
    ) as home:
        engine = home.engine
        for name in (A, B):
            await engine.load(name, OPTIONS)
        assert await resident(engine) == [A, B]
        [model, _] = await engine.resident()
        assert (model.size_mib, model.vram_mib, model.context_tokens) == (3.0, 3.0, 64)
        assert [listed.slots for listed in await engine.installed()] == [2, 2]
        assert engine.servers[A].log.after(0)[0] == ["odd server a"]
        memory = await engine.memory_mib()
        assert memory is not None
        assert memory > 1.0
        await engine.unload(A)
        assert await resident(engine) == [B]
        await engine.unload(B)
        assert left() == set()
        assert home.events.all == []


async def test_a_server_that_is_not_llama_cpps_is_asked_as_any_with_openais_api():
    async with house({A: odd("other")}) as home:
        await home.engine.load(A, OPTIONS)
        [model] = await home.engine.resident()
        assert (model.name, model.vram_mib) == (A, 2048.0)
        assert not home.engine.counts_unasked
        body = b'{"model": "a", "prompt": "x", "max_tokens": 3}'
        call = BackendCall(method="POST", path="/v1/completions", body=body)
        answer = json.loads(b"".join(await read(await home.engine.open(call))))
        assert answer["choices"][0]["text"] == "odd odd odd"
        assert answer["model"] == "odd"


async def test_nothing_is_started_once_the_engine_is_closed():
    async with house({A: odd()}) as home:
        await home.engine.load(A, OPTIONS)
        await home.engine.aclose()
        assert left() == set()
        with pytest.raises(LoadError, match="Hearth is stopping"):
            await home.engine.load(A, OPTIONS)


async def test_a_run_leaves_no_descriptor_and_no_zombie():
    async with house({A: odd(), B: odd().model_validate({"command": ["false"]})}) as home:
        counts = []
        for _ in range(3):
            await home.engine.load(A, OPTIONS)
            await home.engine.unload(A)
            with pytest.raises(LoadError):
                await home.engine.load(B, OPTIONS)
            await home.engine.unload(B)
            counts.append((descriptors(), descendants(os.getpid())))
        assert counts[0] == counts[1] == counts[2]


async def test_a_server_that_ignores_a_stop_is_killed_after_its_grace():
    async with house({A: odd("ignores-term", stop_grace_s=0.2)}) as home:
        await home.engine.load(A, OPTIONS)
        await home.engine.unload(A)
        assert left() == set()


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"command": ["/nowhere/server"]}, "could not be started: No such file or directory"),
        ({"command": [str(SERVER)]}, "could not be started: Permission denied"),
        ({"command": ["sh", "-c", "exit 3"]}, "ended with exit code 3 before it was ready"),
        ({"command": ["sh", "-c", "kill -11 $$"]}, "was ended by SIGSEGV before it was ready"),
        (odd("forks-away"), "ended with exit code 0 before it was ready"),
        (odd("unready", start_timeout_s=1.0), "was not ready within 1 s"),
        (odd("silent", start_timeout_s=1.0), "was not ready within 1 s"),
        (odd("elsewhere", start_timeout_s=2.0), r"it listens on \d+, not on \$\{PORT\}"),
        (
            {"command": ["true", "${env.HEARTH_TEST_MISSING}"]},
            r"models.a.run.command\[1\]: the environment variable HEARTH_TEST_MISSING is not set",
        ),
        ({"command": ["true"], "env": {"X": "${env.HEARTH_TEST_MISSING}"}}, r"models.a.run.env.X:"),
    ],
    ids=str,
)
async def test_a_server_that_does_not_start_is_said_why_and_nothing_is_left(run, says: str):
    settings = run if not isinstance(run, dict) else odd().model_validate(run)
    async with house({A: settings, B: odd()}) as home:
        await home.engine.load(B, OPTIONS)
        with pytest.raises(LoadError, match=says):
            await home.engine.load(A, OPTIONS)
        assert await resident(home.engine) == [B]
        await home.engine.unload(B)
        await until_gone()


async def test_a_load_that_is_left_ends_its_server_at_once():
    async with house({A: odd("silent", "ignores-term", stop_grace_s=600.0)}) as home:
        load = asyncio.ensure_future(home.engine.load(A, OPTIONS))
        await until(lambda: home.engine.servers[A].log.after(0)[1])
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        # whoever has cut it gives the memory to another program now
        assert left() == set()


async def test_a_program_on_the_port_is_named_and_not_taken_for_the_server():
    ports = some_ports(1)
    listens = (
        "import socket, sys, time; time.sleep(0.3);"
        " held = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
    )
    async with house({A: odd("silent")}, ports) as home:
        load = asyncio.ensure_future(home.engine.load(A, OPTIONS))
        await until(lambda: home.engine.servers[A].log.after(0)[1])
        stranger = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", listens, str(ports[0])
        )
        try:
            with pytest.raises(LoadError, match=f"another program listens on port {ports[0]}"):
                await load
        finally:
            stranger.kill()
            await stranger.wait()


async def test_a_port_that_is_taken_is_passed_over_and_none_is_given_twice():
    ports = some_ports(3)
    with socket.create_server(("127.0.0.1", ports[0])):
        async with house({A: odd(), B: odd(), "c": odd()}, ports) as home:
            await home.engine.load(A, OPTIONS)
            await home.engine.load(B, OPTIONS)
            with pytest.raises(LoadError, match=r"none of the ports .* give engines.own.ports"):
                await home.engine.load("c", OPTIONS)
            await home.engine.unload(A)
            await home.engine.load("c", OPTIONS)


async def test_a_server_that_ends_by_itself_is_reported_and_starts_again():
    async with house({A: odd(), B: odd()}) as home:
        engine = home.engine
        await engine.load(A, OPTIONS)
        await engine.load(B, OPTIONS)
        await home.ask(A, "/exit")
        exited = await home.events.first(EngineExited)
        assert exited.model == A
        assert f"exit code {EXIT_CODE}" in exited.how
        assert await resident(engine) == [B]
        body = b'{"model": "a", "prompt": "x"}'
        call = BackendCall(method="POST", path="/v1/completions", body=body)
        with pytest.raises(ModelGone):
            await engine.open(call)
        await engine.load(A, OPTIONS)
        assert await resident(engine) == [A, B]


async def test_a_server_that_has_just_ended_is_reported_and_not_taken_for_loaded():
    async with house({A: odd()}) as home:
        await home.engine.load(A, OPTIONS)
        run = home.engine.servers[A].run
        assert run is not None
        asked = asyncio.ensure_future(home.ask(A, "/exit"))
        await run.tree.exit
        load = asyncio.ensure_future(home.engine.load(A, OPTIONS))
        await asyncio.sleep(0)
        await home.engine.unload(A)
        [exited] = home.events.of(EngineExited)
        assert f"exit code {EXIT_CODE}" in exited.how
        await load
        assert home.engine.servers[A].run is not run
        await asked


async def test_a_server_that_ends_with_a_request_says_how():
    async with house({A: odd("other", "dies")}) as home:
        await home.engine.load(A, OPTIONS)
        body = b'{"model": "a", "prompt": "x"}'
        call = BackendCall(method="POST", path="/v1/completions", body=body)
        with pytest.raises(ModelGone, match=f"the server of a ended with exit code {EXIT_CODE}: "):
            await home.engine.open(call)


async def test_a_server_that_loses_its_socket_is_ended():
    async with house({A: odd()}) as home:
        await home.engine.load(A, OPTIONS)
        deaf = asyncio.ensure_future(home.ask(A, "/deaf"))
        run = home.engine.servers[A].ready
        body = b'{"model": "a", "prompt": "x"}'
        call = BackendCall(method="POST", path="/v1/completions", body=body)
        while home.engine.servers[A].ready is run:
            with suppress(ModelGone, BackendGone):  # until it has heard, it answers, or breaks off
                (await home.engine.open(call)).close()
        exited = await home.events.first(EngineExited)
        assert "does not listen" in exited.how
        deaf.cancel()
        await until_gone()


async def test_a_server_that_keeps_failing_is_left_alone():
    async with house({A: odd().model_validate({"command": ["false"]})}) as home:
        for _ in range(crashes.SEVERAL - 1):
            with pytest.raises(LoadError) as failed:
                await home.engine.load(A, OPTIONS)
            assert not isinstance(failed.value, ModelLeftAlone)
        for _ in range(2):
            with pytest.raises(ModelLeftAlone, match=r"exit code 1.* hearth models log a") as alone:
                await home.engine.load(A, OPTIONS)
            assert 0 < (alone.value.retry_after_s or 0) <= crashes.FIRST_PAUSE_S


async def test_a_guard_that_is_killed_takes_its_tree_along():
    async with house({A: odd("has-children")}) as home:
        await home.engine.load(A, OPTIONS)
        run = home.engine.servers[A].run
        assert run is not None
        run.tree._guard.kill()
        exited = await home.events.first(EngineExited)
        assert "lost its guard" in exited.how
        await until_gone()


async def test_what_a_server_logs_costs_no_more_than_its_last_lines():
    async with house({A: odd("logs", "20000")}) as home:
        await home.engine.load(A, OPTIONS)
        lines, written = home.engine.servers[A].log.after(0)
        assert (len(lines), written) == (200, 20002)
        assert lines[-2] == "the last line"
        assert {len(line) for line in lines[:-2]} == {995}


async def test_a_model_is_loaded_again_right_after_its_load_was_cut():
    async with house({A: odd()}) as home:
        load = asyncio.ensure_future(home.engine.load(A, OPTIONS))
        await until(lambda: home.engine.servers[A].log.after(0)[1])
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        await home.engine.load(A, OPTIONS)
        assert await resident(home.engine) == [A]


async def test_a_server_that_is_about_to_stop_is_not_taken_for_a_loaded_one():
    async with house({A: odd()}) as home:
        await home.engine.load(A, OPTIONS)
        first = home.engine.servers[A].run
        unload = asyncio.ensure_future(home.engine.unload(A))
        await asyncio.sleep(0)
        unload.cancel()
        await home.engine.load(A, OPTIONS)
        assert home.engine.servers[A].run is not first
        assert await resident(home.engine) == [A]


async def test_two_engines_side_by_side_begin_with_other_ports():
    ports = some_ports()
    async with AsyncExitStack() as stack:
        firsts = [await stack.enter_async_context(house({A: odd()}, ports)) for _ in range(9)]
        assert len({home.engine.ports.take() for home in firsts}) > 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"Model": "a", "metadata": {"model": "b"}, "prompt": "x"}',
        b'{"mod\\u0065l": "a", "metadata": {"model": "b"}, "prompt": "x"}',
        b'{"metadata": {"model": "b"}, "MODEL": "a", "prompt": "x"}',
    ],
)
async def test_a_name_further_in_is_not_the_model_that_is_asked(body: bytes):
    async with house({A: odd("other"), B: odd("other")}) as home:
        await home.engine.load(B, OPTIONS)
        with pytest.raises(ModelGone):
            await home.engine.open(BackendCall(method="POST", path="/v1/completions", body=body))
