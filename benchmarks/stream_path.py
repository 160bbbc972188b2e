"""Which functions of the gateway one stream passes, socket to socket."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import aiohttp

import hearth
from hearth.config.settings import BackendMode
from hearth.observability.fanout import EventFanout

MODEL = "llama3.1:8b"
SETTINGS = """
scheduling: {active_hours: "00:00-24:00", preempt_min_remaining_s: 0}
gpu: {nvml: false}
"""
SETTLED_S = 0.3
"""What follows an answer is over by then."""
BEGUN_S = 0.5
_ROOT = f"{Path(hearth.__file__).parent}/"


def modules_of_calls(folder: Path, *, interrupted: bool) -> list[str]:
    """The module of each function that a stream calls, in the order of their first calls."""
    return asyncio.run(_recorded(folder, interrupted=interrupted))


def returns(modules: list[str]) -> int:
    """How often the way goes back to a module that it has left."""
    left = set[str]()
    count = 0
    for before, after in pairwise(modules):
        if before != after:
            left.add(before)
            count += after in left
    return count


async def _recorded(folder: Path, *, interrupted: bool) -> list[str]:
    file = folder / "hearth.yaml"
    file.write_text(SETTINGS)
    config = hearth.load_gateway_config(file)
    async with (
        hearth.running_gateway(
            config,
            host="127.0.0.1",
            port=0,
            backend_mode=BackendMode.EMULATOR,
            sinks=(EventFanout(),),
        ) as (_, url),
        aiohttp.ClientSession(url) as client,
    ):
        await _ask(client, stream=True)  # the model is in memory then, and its template known
        await asyncio.sleep(SETTLED_S)
        called = dict[CodeType, None]()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                called.setdefault(frame.f_code)

        sys.setprofile(note)
        if interrupted:
            stream = asyncio.create_task(_ask(client, stream=True, max_tokens=400))
            await asyncio.sleep(BEGUN_S)
            await _ask(client, stream=False, max_tokens=4)
            await stream
        else:
            await _ask(client, stream=True)
        sys.setprofile(None)
    files = (code.co_filename for code in called if code.co_filename.startswith(_ROOT))
    modules = (file.removeprefix(_ROOT) for file in files)
    return [module for module in modules if not module.startswith("emulator/")]


async def _ask(client: aiohttp.ClientSession, *, stream: bool, max_tokens: int = 80) -> None:
    """Without a stream it is an internal call, which interrupts one."""
    turns = [{"role": "user", "content": "Tell me a story about a river."}]
    body = {"model": MODEL, "messages": turns, "stream": stream, "max_tokens": max_tokens}
    headers = {} if stream else {"X-Task-Type": "parse_task"}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        await answer.read()
