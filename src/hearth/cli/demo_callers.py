"""The callers of `hearth demo`: requests on a fixed rhythm, over HTTP like any client's, each caller with a key of its own."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp

from hearth.config.settings import KeySettings
from hearth.types import Lane

HOME_MODEL = "qwen2.5:32b-instruct-q6_K"
_CODER = "qwen2.5-coder:14b"
_REVIEW = "def heat(room, target):\n    return target - room.temperature\n" * 1400
"""About 25,000 tokens: at the coder's 2,000 tokens/s it keeps the GPU long enough to be interrupted."""
LULL_S = 8.0
"""Quiet time after a round in which the home model comes back."""


class Visit(NamedTuple):
    """One request, `pause_s` after the one before; one with a `task_type` is internal."""

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


_ASSISTANT, _CHAT, _EDITOR, _NOTES, _WRITER = "assistant", "chat", "editor", "notes", "writer"
_COOKING = _chat("llama3.1:8b", "What can I cook with leeks?")
_NAMING = _chat(_CODER, "Name this function.")
_TASK = _generate("Turn this into a task: call the chimney sweep on Monday.", 30, stream=False)
_NOTE = {"model": "nomic-embed-text", "input": "The boiler was serviced in May."}
ROUND = (
    Visit(0.5, _WRITER, "/api/generate", _generate("Write a story about the hearth of a house.", 200)),
    Visit(0.4, _CHAT, "/api/chat", _COOKING),
    Visit(0.3, _EDITOR, "/v1/chat/completions", _NAMING),
    Visit(0.8, _ASSISTANT, "/api/generate", _TASK, "parse_task"),
    Visit(0.2, _CHAT, "/api/chat", _COOKING),
    Visit(0.2, _EDITOR, "/v1/chat/completions", _NAMING),
    Visit(0.2, _NOTES, "/api/embed", _NOTE),
    Visit(0.2, _CHAT, "/api/chat", _COOKING),
    Visit(0.2, _EDITOR, "/v1/chat/completions", _NAMING),
    Visit(0.2, _NOTES, "/api/embed", _NOTE),
    Visit(0.2, _CHAT, "/api/chat", _COOKING),
    Visit(0.2, _EDITOR, "/v1/chat/completions", _NAMING),
    Visit(0.2, _CHAT, "/api/chat", _COOKING),
    Visit(0.2, _EDITOR, "/v1/chat/completions", _NAMING),
    Visit(4.0, _EDITOR, "/v1/chat/completions", _chat(_CODER, f"Review this file:\n{_REVIEW}")),
    Visit(1.2, _ASSISTANT, "/api/generate", _generate("Which of today's tasks is urgent?", 30, stream=False), "parse_task"),
)
CALLERS = tuple(dict.fromkeys(visit.caller for visit in ROUND))
VISITOR = "you"


def key_of(caller: str) -> str:
    """Not secret: the demo's gateway listens on this machine only, and its answers are made up."""
    return f"hearth-demo-{caller}"


def demo_keys() -> tuple[KeySettings, ...]:
    """A key for every caller, and one with all rights for whoever watches."""
    return tuple(
        KeySettings(
            name=name,
            sha256=hashlib.sha256(key_of(name).encode()).hexdigest(),
            lane=Lane.INTERNAL if name == _ASSISTANT else Lane.EXTERNAL,
            admin=name == VISITOR,
        )
        for name in (*CALLERS, VISITOR)
    )


async def ask_for_ever(url: str, *, pace: float, complain: Callable[[str], None], rounds: int | None = None) -> None:
    """Ask the gateway at `url`, round after round; a round ends when all its answers are there.

    Args:
        pace: multiplies every pause; 1 suits an emulator that is ten times faster than real.
        complain: called in plain words when a request did not get its answer.
    """
    async with aiohttp.ClientSession(url, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)) as session:
        for _ in itertools.count() if rounds is None else range(rounds):
            async with asyncio.TaskGroup() as asking:
                for visit in ROUND:
                    await asyncio.sleep(visit.pause_s * pace)
                    asking.create_task(_ask(session, visit, complain))
            await asyncio.sleep(LULL_S * pace)


async def _ask(session: aiohttp.ClientSession, visit: Visit, complain: Callable[[str], None]) -> None:
    headers = {"Authorization": f"Bearer {key_of(visit.caller)}"}
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
