"""Where nothing is configured and nothing listens, the small model answers if it is installed, and
goes on beside an Ollama that comes.

The server is llama.cpp's, with a tiny model in place of the real weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hearth.bootstrap.standin import StderrNotice
from hearth.clock import SystemClock
from hearth.config.settings import BackendMode, ModelSettings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.engines.small_model.files import NAME, VARIABLE
from hearth.events import BackendCameUp, BackendWentDown, EmulatorStarted, SmallModelAnswers
from tests.bootstrap.by_hand import free_address, tried, untouched
from tests.engines.small_model.installing import install_weights

pytestmark = pytest.mark.usefixtures("by_hand")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_weights(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(VARIABLE, "")


async def test_it_answers_and_that_is_said_first():
    url = free_address()
    async with tried(untouched(url)) as house:
        first = house.events.all[0]
        assert isinstance(first, SmallModelAnswers)
        assert (first.model, first.reason) == (
            NAME,
            f"nothing is configured, and nothing listens at {url}",
        )
        assert house.events.of(EmulatorStarted) == []
        status, answer, headers = await house.post(
            "/api/generate", model=NAME, prompt="hi", stream=False, options={"num_predict": 3}
        )
        assert (status, answer["done"], answer["eval_count"]) == (200, True, 3)
        assert "x-hearth-emulator" not in headers
        _, health = await house.get("/healthz")
        assert health["emulator"] is False
        assert await house.get("/readyz") == (200, {"ready": True})
        _, listed = await house.get("/api/tags")
        assert [model["name"] for model in listed["models"]] == [NAME]


async def test_it_is_in_the_memory_of_this_machine_and_takes_none_of_the_card():
    async with tried(untouched(free_address())) as house:
        status, _, _ = await house.post(
            "/api/generate", model=NAME, prompt="hi", stream=False, options={"num_predict": 1}
        )
        assert status == 200
        _, shown = await house.get("/api/ps")
        (loaded,) = shown["models"]
        assert (loaded["name"], loaded["size_vram"], loaded["size"] > 0) == (NAME, 0, True)
        await house.gateway.worker.watch.look()
        (model,) = await house.gateway.models()
        assert (model["remote"], model["resident"], model["offloaded"]) == (False, True, False)
        assert model["vram_mib"] == 0


async def test_a_missing_ollama_that_nobody_has_configured_is_no_fault():
    url = free_address()
    async with tried(untouched(url)) as house:
        status, answer, _ = await house.post("/api/chat", model="nobody:1b", messages=[])
        assert (status, answer) == (404, {"error": "model 'nobody:1b' not found"})
        assert house.events.of(BackendWentDown) == []
        assert (await house.get("/api/version"))[0] == 200
        (warning,) = house.gateway.warnings()
        assert warning.startswith(f"nothing is configured, and no Ollama answers at {url}, so a")
        (engine,) = json.loads(json.dumps(house.gateway.health()))["backend"]["engines"]
        known = {"name": "small-model", "kind": "small_model", "url": None, "up": True}
        assert known.items() <= engine.items()


async def test_an_ollama_that_comes_serves_beside_it():
    url = free_address()
    async with tried(untouched(url)) as house:
        assert (await house.get("/api/tags"))[0] == 200
        emulator = Emulator(default_profiles(), clock=SystemClock(), speed=500)
        host, port = url.removeprefix("http://").split(":")
        await emulator.start(host, int(port))
        try:
            await house.events.until(
                lambda: any(event.engine == "main" for event in house.events.of(BackendCameUp))
            )
            for model in ("llama3.1:8b", NAME):
                status, answer, _ = await house.post(
                    "/api/generate",
                    model=model,
                    prompt="hi",
                    stream=False,
                    options={"num_predict": 2},
                )
                assert (status, answer["model"]) == (200, model)
            assert house.gateway.warnings() == []
        finally:
            await emulator.stop()
        await house.events.until(lambda: bool(house.events.of(BackendWentDown)))
        assert [event.engine for event in house.events.of(BackendWentDown)] == ["main"]
        (warning,) = house.gateway.warnings()
        assert warning.startswith("the engine main (Ollama at ")


async def test_where_it_was_turned_off_or_the_emulator_was_asked_for_that_answers(
    monkeypatch: pytest.MonkeyPatch,
):
    async with tried(untouched(free_address()), backend_mode=BackendMode.EMULATOR) as house:
        assert house.events.of(SmallModelAnswers) == []
        assert [event.reason for event in house.events.of(EmulatorStarted)] == ["it was asked for"]
    monkeypatch.setenv(VARIABLE, "off")
    async with tried(untouched(free_address())) as house:
        (started,) = house.events.of(EmulatorStarted)
        assert started.reason.endswith(f", and {VARIABLE} is off")


async def test_with_a_configuration_neither_answers():
    models = {"llama3.1:8b": ModelSettings(parallel=2)}
    async with tried(untouched(free_address(), models=models)) as house:
        assert house.events.of(SmallModelAnswers) + house.events.of(EmulatorStarted) == []
        assert (await house.get("/readyz"))[0] == 503


def test_a_program_that_embeds_hearth_is_told_on_stderr(capsys: pytest.CaptureFixture[str]):
    StderrNotice().emit(SmallModelAnswers(at=0.0, model=NAME, reason="nothing listens"))
    assert capsys.readouterr().err == (f"hearth: {NAME}, a small model, answers: nothing listens\n")
