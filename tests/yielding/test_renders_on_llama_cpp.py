"""A render of a ComfyUI beside a real llama.cpp server that Hearth starts: the answer that runs
gives way and goes on afterwards as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineSettings
from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import GatewayConfig, GpuSettings, ModelSettings, Settings
from hearth.events import (
    GpuLeaseEnded,
    GpuLeaseGranted,
    ItemResumed,
    ItemYielded,
)
from hearth.gateway import Gateway
from hearth.types import DAY_S
from hearth.yielding.comfyui import CALM_S, FREED_S
from tests.engines.llamacpp.command import run_settings
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.processes.house import left, some_ports
from tests.support.fake_comfyui import FakeComfyUi, serving
from tests.support.home import SkippingClock, house_settings
from tests.support.patience import until
from tests.support.recorder import Recorder

MODEL = "letters"
TOKENS = 8_000
GRACE_S = 0.2


@dataclass
class Studio:
    """A gateway that starts its own servers, beside a ComfyUI."""

    gateway: Gateway
    comfyui: FakeComfyUi
    events: Recorder
    clock: SkippingClock
    client: openai.AsyncOpenAI

    async def stream(self, seen: list[str], tokens: int) -> str:
        """The text of an answer; `seen` has it as it comes."""
        asked: Any = {"temperature": 1e-6, "max_tokens": tokens}
        stream = await self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "tell"}], stream=True, **asked
        )
        async for part in stream:
            seen += [part.choices[0].delta.content or ""]
        return "".join(seen)

    async def begin(self, seen: list[str]) -> asyncio.Task[str]:
        """A stream that has begun to write."""
        seen.clear()
        stream = asyncio.ensure_future(self.stream(seen, TOKENS))
        await until(lambda: len(seen) > 10 or stream.done())
        return stream

    async def gives_way(self, stream: asyncio.Task[str]) -> bool:
        """It is interrupted before it has ended."""
        await until(lambda: self.events.of(ItemYielded) or stream.done())
        return bool(self.events.of(ItemYielded))


def settings_beside(comfyui_url: str, file: Path) -> Settings:
    ports = some_ports()
    gpu = GpuSettings(vram_gb=4.0, nvml=False, home_model="")
    under_yield = YieldSettings(comfyui=comfyui_url, grace_s=GRACE_S)
    run = run_settings(file, context_tokens=2 * TOKENS)
    return house_settings().replace(
        gpu=gpu.model_copy(update={"yield": under_yield}),
        engines={"own": EngineSettings(kind="processes", ports=f"{ports[0]}-{ports[-1]}")},
        models={MODEL: ModelSettings(vram_gb=3.0, run=run)},
    )


@asynccontextmanager
async def open_studio(folder: Path) -> AsyncIterator[Studio]:
    file = folder / "letters.gguf"
    write_model(file, tuple(LETTERS))
    events = Recorder()
    clock = SkippingClock()
    async with FakeComfyUi() as comfyui, serving(comfyui) as comfyui_url:
        running = running_gateway(
            GatewayConfig(settings=settings_beside(comfyui_url, file)),
            host="127.0.0.1",
            port=0,
            clock=clock,
            sinks=(events,),
        )
        async with (
            running as (gateway, url),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        ):
            yield Studio(gateway, comfyui, events, clock, client)


async def test_a_stream_gives_way_to_a_render_and_goes_on_as_one_answer(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        seen: list[str] = []
        stream = await studio.begin(seen)
        studio.comfyui.post(seconds=DAY_S)
        # so small a model may have written all before the job is seen: then it is asked again
        while not await studio.gives_way(stream):
            stream = await studio.begin(seen)
        await studio.events.first(GpuLeaseGranted)
        assert list(left()) == []  # no server has memory while it renders
        studio.comfyui.interrupt()
        await until(lambda: not studio.comfyui.queue_info["exec_info"]["queue_remaining"])
        studio.clock.skip(CALM_S)
        await until(lambda: "POST /free" in studio.comfyui.asked)
        studio.clock.skip(FREED_S)
        assert (await studio.events.first(GpuLeaseEnded)).why == "released"
        await studio.events.first(ItemResumed)
        so_far = len(seen)
        await until(lambda: len(seen) > so_far + 10 or stream.done())
        stream.cancel()
        text = "".join(seen)
        assert (await studio.stream([], len(text))).startswith(text)
