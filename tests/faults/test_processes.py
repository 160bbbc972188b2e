"""Signals, limits and odd surroundings, as a real process meets them."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from tests.faults.serving import SLOW, THINKER, home
from tests.support.examples import EXAMPLES
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.timeout(180)
ORDERLY = "server: {log_format: json, log_level: debug, shutdown_grace_s: 300}\n"
STOPPED_S = 4.0 if EXAMPLES == 1 else 30.0
"""Longer than the silence that the configuration allows, before the first byte and after it."""


async def test_a_process_that_was_stopped_for_a_while_goes_on_as_if_nothing_had_been(tmp_path: Path):
    async with home(tmp_path, ORDERLY) as house:
        serving = await (await house.serve()).listening()
        await house.ask(serving.url, THINKER, prompt="")
        streams = [await house.begin(serving.url, int(100 * STOPPED_S * 1.5)) for _ in range(3)]
        streams += [await house.begin(serving.url, 3, THINKER) for _ in range(2)]
        serving.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)  # a stopped process gives no sign to wait for
        serving.process.send_signal(signal.SIGCONT)
        answers = await asyncio.wait_for(asyncio.gather(*streams), 180)
        assert all(status == 200 and lines[-1]["done_reason"] == "length" for status, lines in answers)
        assert serving.of("item_resent") == serving.of("backend_down") == serving.of("internal_fault") == []
        assert await serving.end(signal.SIGTERM) == 0


async def test_a_kill_in_mid_stream_leaves_nothing_running_and_one_during_an_orderly_stop_loses_no_job(tmp_path: Path):
    async with home(tmp_path, ORDERLY) as house:
        serving = await (await house.serve()).listening()
        stream = await house.begin(serving.url, 100_000)
        assert await serving.end(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(aiohttp.ClientError):
            await stream
        await house.until(lambda: not house.emulator.in_flight)
        loads = len(house.emulator.loads)
        serving = await (await house.serve()).listening()  # looks what is loaded
        assert (await house.ask(serving.url, SLOW))[0] == 200
        assert (len(house.emulator.loads), serving.of("swap_started")) == (loads, [])
        stream = await house.begin(serving.url, 100_000)
        body = {"request": {"model": SLOW, "prompt": "hi", "stream": False, "options": {"num_predict": 100_000}}}
        async with house.session.post(f"{serving.url}/llm/jobs", json=body) as got:
            assert got.status == 202
        serving.process.send_signal(signal.SIGTERM)
        await serving.until("gateway_stopping")
        assert await serving.end(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(aiohttp.ClientError):
            await stream
        with closing(sqlite3.connect(tmp_path / "hearth.db")) as file:
            assert file.execute("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')").fetchone() == (1,)


async def test_a_signal_during_the_start_ends_it_and_the_next_start_works(tmp_path: Path):
    async with home(tmp_path, ORDERLY) as house:
        at_once = await house.serve()
        assert await at_once.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        with_its_first_word = await house.serve()
        await house.until(lambda: with_its_first_word.said)
        assert await with_its_first_word.end(signal.SIGTERM) == 0
        assert with_its_first_word.of("internal_fault") == []
        serving = await (await house.serve()).listening()
        assert (await house.ask(serving.url))[0] == 200
        assert await serving.end(signal.SIGTERM) == 0


async def test_in_odd_surroundings_a_hundred_orders_to_read_the_file_cost_no_request_and_a_second_signal_ends_a_long_grace(tmp_path: Path):
    nowhere = str(tmp_path / "nowhere")
    environ = {"HOME": nowhere, "TMPDIR": nowhere, "LC_ALL": "C", "LANG": "C", "TZ": "Nowhere/Such", "HTTP_PROXY": "http://127.0.0.1:9"}
    async with home(tmp_path, ORDERLY) as house:
        serving = await (await house.serve(environ=environ, first="import os; os.umask(0)")).listening()
        house.file.write_text(house.file.read_text() + "logging_of_the_tests: unknown\n")
        asked = [asyncio.ensure_future(house.ask(serving.url)) for _ in range(20)]
        for _ in range(100):
            serving.process.send_signal(signal.SIGHUP)
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        await serving.until("config_rejected")
        stream = await house.begin(serving.url, 100_000)
        serving.process.send_signal(signal.SIGTERM)
        await serving.until("gateway_stopping")
        assert await serving.end(signal.SIGINT) == 0
        assert "error" in (await stream)[1][-1]
        assert len(serving.of("config_rejected")) <= 3
        assert serving.of("internal_fault") == []
        assert (tmp_path / "hearth.db").stat().st_mode & 0o077 == 0


DESCRIPTORS = 64
FEW_DESCRIPTORS = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))"


async def test_a_process_out_of_descriptors_serves_again_when_there_are_some(tmp_path: Path):
    async with home(tmp_path, ORDERLY) as house:
        serving = await (await house.serve(first=FEW_DESCRIPTORS)).listening()
        port = int(serving.url.rpartition(":")[2])
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(DESCRIPTORS + 40)]
        await house.until(lambda: sum(reader.at_eof() or writer.transport.is_closing() for reader, writer in crowd) >= 40)
        for _, writer in crowd:
            writer.transport.abort()
        await house.until(lambda: serving.descriptors() < 40)
        async with asyncio.timeout(WITHIN_S):
            assert (await house.ask(serving.url))[0] == 200
        assert await serving.end(signal.SIGTERM) == 0
        with closing(sqlite3.connect(tmp_path / "hearth.db")) as file:
            assert file.execute("SELECT outcome FROM invocation_log").fetchall() == [("completed",)]


ON_ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"


@pytest.mark.skipif(EXAMPLES == 1, reason="holds a whole core for half a minute: make reliability")
async def test_a_process_that_shares_one_core_with_four_others_is_slow_and_right(tmp_path: Path):
    spinning = (sys.executable, "-c", f"{ON_ONE_CORE}\nwhile True: pass")
    spin = [await asyncio.create_subprocess_exec(*spinning) for _ in range(4)]
    try:
        async with home(tmp_path, ORDERLY) as house:
            serving = await (await house.serve(first=ON_ONE_CORE)).listening()
            answers = await asyncio.gather(*(house.ask(serving.url, tokens=50, stream=True) for _ in range(100)))
            assert all(status == 200 and lines[-1]["done_reason"] == "length" for status, lines in answers)
            assert await serving.end(signal.SIGTERM) == 0
            assert serving.of("internal_fault") == []
    finally:
        for each in spin:
            each.kill()
            await each.wait()
