"""Every made-up answer says so, whichever way it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.clock import SystemClock
from hearth.config.settings import BackendMode, KeepaliveSettings, StorageSettings
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.events import JobEnded
from tests.bootstrap.by_hand import free_address, tried, untouched
from tests.gateway.test_traps import body_for
from tests.support.fields import Fields
from tests.support.patience import in_time
from tests.support.places import ROOT

MODEL = "llama3.1:8b"
FAST = tuple(
    profile.model_copy(update={"load_s": 0.01, "decode_tokens_per_s": 5000.0})
    for profile in default_profiles()
)


@pytest.fixture
async def emulator_url():
    """A `hearth emulate` somewhere else, which a gateway takes for its model server."""
    emulator = Emulator(FAST, clock=SystemClock(), speed=100.0)
    yield await emulator.start()
    await emulator.stop()


ASKED: dict[str, Fields] = {path: body_for(path) for path in INFERENCE_ROUTES}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", INFERENCE_ROUTES)
async def test_an_answer_of_the_emulator_says_so_in_every_dialect(
    emulator_url: str, path: str, streaming: bool
):
    async with tried(
        untouched(free_address()), backend_mode=BackendMode.OLLAMA, backend_url=emulator_url
    ) as house:
        body = ASKED[path] | (
            {"stream": streaming} if INFERENCE_ROUTES[path].kind == "generate" else {}
        )
        status, text, headers = await house.text_of(path, **body)
        assert (status, headers.getall("x-hearth-emulator")) == (200, ["1"]), text
        if path in {"/v1/chat/completions", "/v1/completions"}:
            assert '"system_fingerprint":"hearth-emulator"' in text
            assert "fp_ollama" not in text
        _, _, headers = await house.text_of("/api/show", model=MODEL)
        assert headers["x-hearth-emulator"] == "1"


async def test_a_stream_that_begins_with_a_sign_of_life_is_marked_too():
    keepalive = KeepaliveSettings(after_s=0.1, every_s=0.1)  # a load takes seconds
    running = tried(
        untouched(free_address(), keepalive=keepalive), backend_mode=BackendMode.EMULATOR
    )
    async with (
        running as house,
        house.stream(
            "/api/generate", model=MODEL, prompt="hi", options={"num_predict": 1}
        ) as response,
    ):
        first = json.loads(await response.content.readline())
        assert (first["response"], response.headers["x-hearth-emulator"]) == ("", "1")


@pytest.mark.usefixtures("by_hand")
async def test_what_a_program_gets_in_process_and_as_a_completion_and_a_job_says_so(tmp_path: Path):
    storage = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    async with tried(untouched(free_address(), storage=storage), store=True) as house:
        completion = await (await house.gateway.worker.enqueue_internal("hi", MODEL, max_tokens=1))
        assert completion.emulator
        status, answer, headers = await house.post(
            "/llm/completions", prompt="hi", model=MODEL, max_tokens=1
        )
        assert (status, answer["emulator"], headers["x-hearth-emulator"]) == (200, True, "1")
        status, job, _ = await house.post(
            "/llm/jobs", request={"model": MODEL, "prompt": "hi", "options": {"num_predict": 1}}
        )
        assert status == 202
        async with in_time():
            await house.events.until(lambda: bool(house.events.of(JobEnded)))
        _, shown, *_ = await house.get(f"/llm/jobs/{job['id']}")
        assert (shown["state"], shown["emulator"]) == ("completed", True)
        _, status_page = await house.get("/llm/queue/status")
        assert status_page["backend"]["emulator"] is True


SNIPPET = """
import asyncio, hearth
from tests.bootstrap.by_hand import free_address, untouched

async def main():
    config = hearth.GatewayConfig(settings=untouched(free_address()))
    async with await hearth.build_gateway(config) as gateway:
        call = await gateway.worker.enqueue_internal("hi", "llama3.1:8b", max_tokens=1)
        print((await call).emulator)

asyncio.run(main())
"""


def test_a_program_that_embeds_hearth_is_told_on_stderr():
    environ = {"PYTHONPATH": str(ROOT), "PATH": "", "HEARTH_SMALL_MODEL": "off"}
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
    assert "answers are made up" in done.stderr
