"""The gateway before an engine that is no Ollama."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.api.app import HearthApp
from hearth.config.settings import GatewayConfig
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from tests.support.echo_engine import EchoEngine
from tests.support.fields import Fields
from tests.support.house import gateway_over, settings_with
from tests.support.http import ask
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, in_virtual_time


@asynccontextmanager
async def home(*models: str) -> AsyncIterator[tuple[Gateway, HearthApp]]:
    identity = BackendIdentity(mode="ollama", url="http://echo", emulator=False)
    gateway = gateway_over(
        EchoEngine(*models),
        GatewayConfig(settings=settings_with(gpu={"home_model": "Parrot"})),
        identity=identity,
        clock=LoopClock(),
        events=EventFanout((Recorder(),)),
    )
    async with gateway:
        yield gateway, HearthApp(gateway)


def asked(model: str, **more: Any) -> Fields:
    return {"model": model, "prompt": "who is there?", **more}


@in_virtual_time
async def test_it_is_loaded_answers_whole_and_streamed_and_is_swapped():
    async with home("parrot", "mynah") as (gateway, app):
        for model in ("parrot", "MYNAH"):
            whole = await ask(app, "POST", "/api/generate", asked(model, stream=False))
            assert (whole.status, json.loads(whole.body)["response"]) == (200, "who is there?")
            streamed = await ask(app, "POST", "/api/generate", asked(model))
            lines = [json.loads(line) for line in streamed.body.splitlines()]
            assert [line["response"] for line in lines] == ["who ", "is ", "there? ", ""]
            listed = {row["name"]: row["resident"] for row in await gateway.models()}
            assert listed[model.lower()] is True


@in_virtual_time
async def test_names_addresses_and_advice_are_its_own():
    async with home("mynah") as (gateway, app):
        assert gateway.warnings() == [
            "home model Parrot is not installed: name Parrot when it is made"
        ]
        assert gateway.worker.scheduler.device.cuts_loads is False
        for path in ("/v1/chat/completions", "/api/tags"):
            assert (await ask(app, "POST", path, asked("mynah"))).status == 404
        pulled = await ask(app, "POST", "/api/pull", asked("mynah"))
        assert pulled.status == 501
        assert pulled.error.endswith("does not pull models on request: name mynah when it is made")
        assert (await ask(app, "POST", "/api/generate", asked("mynah:7b"))).status == 404
