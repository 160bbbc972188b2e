"""The people and programs of the demo: a few requests on a fixed rhythm, over HTTP like any client.

Every request carries an `X-Request-Id` of the form `caller-number`, by which the narrator tells them apart (without keys, all callers are
`local` to the gateway).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp

HOME_MODEL = "qwen2.5:32b-instruct-q6_K"
_CODER = "qwen2.5-coder:14b"
_CHAT = "llama3.1:8b"
_NOTES = "nomic-embed-text"
_REVIEW = "def heat(room, target):\n    return target - room.temperature\n" * 1400
"""About 25,000 tokens: at the coder's 2,000 tokens/s it keeps the GPU long enough to be interrupted."""

CALLERS = ("assistant", "writer", "chat", "editor", "notes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, `pause_s` after the one before; `task_type` marks the house's own work."""

    pause_s: float
    caller: str
    path: str
    body: Mapping[str, object]
    task_type: str | None = None


ROUND = (
    Visit(
        pause_s=0.5,
        caller="writer",
        path="/api/generate",
        body={
            "model": HOME_MODEL,
            "prompt": "Write a story about the hearth of a house.",
            "options": {"num_predict": 200},
        },
    ),
    Visit(
        pause_s=0.4,
        caller="chat",
        path="/api/chat",
        body={"model": _CHAT, "messages": [{"role": "user", "content": "What can I cook with leeks?"}]},
    ),
    Visit(
        pause_s=0.3,
        caller="editor",
        path="/v1/chat/completions",
        body={"model": _CODER, "messages": [{"role": "user", "content": "Name this function."}]},
    ),
    Visit(
        pause_s=0.8,
        caller="assistant",
        path="/api/generate",
        body={
            "model": HOME_MODEL,
            "prompt": "Turn this into a task: call the chimney sweep on Monday.",
            "stream": False,
            "options": {"num_predict": 30},
        },
        task_type="parse_task",
    ),
    Visit(pause_s=1.5, caller="notes", path="/api/embed", body={"model": _NOTES, "input": "The boiler was serviced in May."}),
    Visit(
        pause_s=3.5,
        caller="editor",
        path="/v1/chat/completions",
        body={"model": _CODER, "messages": [{"role": "user", "content": f"Review this file:\n{_REVIEW}"}]},
    ),
    Visit(
        pause_s=1.0,
        caller="assistant",
        path="/api/generate",
        body={"model": HOME_MODEL, "prompt": "Which of today's tasks is urgent?", "stream": False, "options": {"num_predict": 30}},
        task_type="parse_task",
    ),
)
LULL_S = 8.0
"""Quiet time after a round in which the home model comes back."""


class Callers:
    """Ask the gateway at `url`, round after round.

    Args:
        pace: multiplies every pause; 1 suits an emulator that is ten times faster than real.
        complain: told in plain words when a request did not get its answer.
    """

    def __init__(self, url: str, *, pace: float, complain: Callable[[str], None]) -> None:
        self._url = url
        self._pace = pace
        self._complain = complain

    async def live(self, rounds: int | None = None) -> None:
        """Do `rounds` rounds, None for ever; a round ends when all its answers are there."""
        numbers = itertools.count(1)
        async with aiohttp.ClientSession(self._url, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)) as session:
            for _ in itertools.count() if rounds is None else range(rounds):
                await self._round(session, numbers)
                await asyncio.sleep(LULL_S * self._pace)

    async def _round(self, session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        async with asyncio.TaskGroup() as asking:
            for visit in ROUND:
                await asyncio.sleep(visit.pause_s * self._pace)
                asking.create_task(self._ask(session, visit, next(numbers)))

    async def _ask(self, session: aiohttp.ClientSession, visit: Visit, number: int) -> None:
        headers = {"X-Request-Id": f"{visit.caller}-{number}"}
        if visit.task_type is not None:
            headers["X-Task-Type"] = visit.task_type
        try:
            async with session.post(visit.path, json=visit.body, headers=headers) as response:
                answer = await response.read()
        except aiohttp.ClientError as error:
            self._complain(f"{visit.caller} lost its connection: {error}")
            return
        if response.status >= 400:
            self._complain(f"{visit.caller} was answered {response.status}: {answer[:200].decode(errors='replace')}")
