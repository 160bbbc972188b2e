"""The people and programs of `hearth demo`: a few requests on a fixed rhythm, over HTTP like any client.

Every request carries an `X-Request-Id` of the form `caller-number`, by which the narrator tells them apart (without keys, all callers are
`local` to the gateway).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp

HOME_MODEL = "qwen2.5:32b-instruct-q6_K"
_CODER = "qwen2.5-coder:14b"
_REVIEW = "def heat(room, target):\n    return target - room.temperature\n" * 1400
"""About 25,000 tokens: at the coder's 2,000 tokens/s it keeps the GPU long enough to be interrupted."""
LULL_S = 8.0
"""Quiet time after a round in which the home model comes back."""


class Visit(NamedTuple):
    """One request, `pause_s` after the one before; `task_type` marks the house's own work."""

    pause_s: float
    caller: str
    path: str
    body: Mapping[str, object]
    task_type: str | None = None


def _generate(prompt: str, max_tokens: int, *, stream: bool = True) -> Mapping[str, object]:
    body = {"model": HOME_MODEL, "prompt": prompt, "options": {"num_predict": max_tokens}}
    return body if stream else body | {"stream": False}


def _chat(model: str, content: str) -> Mapping[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": content}]}


_SWEEP = "Turn this into a task: call the chimney sweep on Monday."
ROUND = (
    Visit(0.5, "writer", "/api/generate", _generate("Write a story about the hearth of a house.", 200)),
    Visit(0.4, "chat", "/api/chat", _chat("llama3.1:8b", "What can I cook with leeks?")),
    Visit(0.3, "editor", "/v1/chat/completions", _chat(_CODER, "Name this function.")),
    Visit(0.8, "assistant", "/api/generate", _generate(_SWEEP, 30, stream=False), "parse_task"),
    Visit(1.5, "notes", "/api/embed", {"model": "nomic-embed-text", "input": "The boiler was serviced in May."}),
    Visit(3.5, "editor", "/v1/chat/completions", _chat(_CODER, f"Review this file:\n{_REVIEW}")),
    Visit(1.0, "assistant", "/api/generate", _generate("Which of today's tasks is urgent?", 30, stream=False), "parse_task"),
)
CALLERS = tuple(dict.fromkeys(visit.caller for visit in ROUND))


async def ask_for_ever(url: str, *, pace: float, complain: Callable[[str], None], rounds: int | None = None) -> None:
    """Ask the gateway at `url`, round after round; a round ends when all its answers are there.

    Args:
        pace: multiplies every pause; 1 suits an emulator that is ten times faster than real.
        complain: called in plain words when a request did not get its answer.
    """
    numbers = itertools.count(1)
    async with aiohttp.ClientSession(url, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)) as session:
        for _ in itertools.count() if rounds is None else range(rounds):
            async with asyncio.TaskGroup() as asking:
                for visit in ROUND:
                    await asyncio.sleep(visit.pause_s * pace)
                    asking.create_task(_ask(session, visit, next(numbers), complain))
            await asyncio.sleep(LULL_S * pace)


async def _ask(session: aiohttp.ClientSession, visit: Visit, number: int, complain: Callable[[str], None]) -> None:
    headers = {"X-Request-Id": f"{visit.caller}-{number}"}
    if visit.task_type is not None:
        headers["X-Task-Type"] = visit.task_type
    try:
        async with session.post(visit.path, json=visit.body, headers=headers) as response:
            answer = await response.read()
    except aiohttp.ClientError as error:
        complain(f"{visit.caller} lost its connection: {error}")
        return
    if response.status >= 400:
        complain(f"{visit.caller} was answered {response.status}: {answer[:200].decode(errors='replace')}")
