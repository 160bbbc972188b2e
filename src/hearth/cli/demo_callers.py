"""The callers of `hearth demo`, and what is told of them while they ask.

The people and programs of the demo: a few requests on a fixed rhythm, over HTTP like any client.

Every request carries an `X-Request-Id` of the form `caller-number`, by which the narrator tells them apart (without keys, all callers are
`local` to the gateway).

The demo in plain words: an event sink that says what the gateway does as it does it.

Reads events only; never asks the gateway anything.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp
from rich.console import Console
from rich.text import Text

from hearth.cli.gateway_client import printable
from hearth.cli.views import duration
from hearth.events import (
    Event,
    ItemDispatched,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemProtected,
    ItemQueued,
    ItemResumed,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.types import Lane, Outcome, Way

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


_WORTH_SAYING_S = 0.05


def who(event: ItemEvent) -> str:
    """The demo's caller by the request id (`caller-number`), else the gateway's name for a visitor."""
    name, _, number = event.request_id.rpartition("-")
    return name if number.isdecimal() and name in CALLERS else printable(event.caller)


class Narrator:
    """Prints one line per event that a newcomer should notice.

    Args:
        speed: how much faster than real the emulator is; measured swap times are also told at real speed.
    """

    def __init__(self, console: Console, *, speed: float) -> None:
        self._console = console
        self._speed = speed
        self._began_at: float | None = None
        self._urgent = "the house"

    def emit(self, event: Event) -> None:
        """Say it."""
        if self._began_at is None:
            self._began_at = event.at
        if isinstance(event, ItemQueued) and event.lane is Lane.INTERNAL:
            self._urgent = who(event)
        line = self._line(event)
        if line is not None:
            self._console.print(Text.assemble((f"{event.at - self._began_at:6.1f} s  ", "dim"), line))

    def complain(self, text: str) -> None:
        """A caller's own words about a request that went wrong; no time, since it is no event."""
        self._console.print(Text(f"{'':10}{printable(text)}", style="red"))

    def _line(self, event: Event) -> Text | None:
        match event:
            case ItemInterrupted():
                return _interrupted(event, self._urgent)
            case ItemEvent():
                return _of_item(event)
            case SwapCompleted():
                return _swap_completed(event, self._speed)
            case SwapStarted():
                return _swap_started(event)
            case SwapFailed():
                return _swap_failed(event)
        return None


def _swap_failed(event: SwapFailed) -> Text:
    models = event.to_model or ", ".join(event.from_models)
    what = "could not be loaded" if event.to_model else "does not leave"
    return Text(f"{printable(models)} {what}: {printable(event.detail)}", style="bold red")


def _of_item(event: ItemEvent) -> Text | None:
    match event:
        case ItemQueued():
            return _queued(event)
        case ItemDispatched():
            return _dispatched(event)
        case ItemResumed():
            return _resumed(event)
        case ItemProtected():
            return _protected(event)
        case ItemEnded():
            return _ended(event)
    return None


def _of_caller(event: ItemEvent, words: str, style: str = "") -> Text:
    name_style = "bold cyan" if event.lane is Lane.INTERNAL else "bold"
    return Text.assemble((f"{who(event):<10}", name_style), (words, style))


def _queued(event: ItemQueued) -> Text:
    ahead = f", {event.position} ahead" if event.position else ""
    return _of_caller(event, f"asks {printable(event.model or 'any model')}{ahead}")


def _dispatched(event: ItemDispatched) -> Text | None:
    if event.attempt > 1:
        return _of_caller(event, f"runs again (try {event.attempt})", "green")
    if event.waited_s < _WORTH_SAYING_S:
        return None
    return _of_caller(event, f"runs after {duration(event.waited_s)} of waiting")


def _interrupted(event: ItemInterrupted, urgent: str) -> Text:
    return _of_caller(event, f"is interrupted after {duration(event.ran_s)}: {urgent} goes first", "magenta")


def _resumed(event: ItemResumed) -> Text:
    again = "read again" if event.how is Way.CONTINUE else "repeated and compared"
    return _of_caller(event, f"goes on where it stopped: {event.again_tokens} tokens {again} in {duration(event.catch_up_s)}", "green")


def _protected(event: ItemProtected) -> Text:
    return _of_caller(event, f"was interrupted {event.interrupt_count} times: from now on it may finish", "magenta")


def _ended(event: ItemEnded) -> Text:
    if event.outcome is not Outcome.COMPLETED:
        return _of_caller(event, f"{event.outcome.value}: {printable(event.reason)}", "red")
    waited = f", {duration(event.queue_s)} of them waiting" if event.queue_s >= _WORTH_SAYING_S else ""
    return _of_caller(event, f"has its answer after {duration(event.total_s)}{waited}", "green")


def _swap_started(event: SwapStarted) -> Text:
    model = printable(event.to_model)
    if event.why == "home":
        return Text(f"nobody waits: {model} comes home", style="blue")
    leaving = ", ".join(printable(name) for name in event.from_models)
    return Text(f"swap: {leaving} makes room for {model}" if leaving else f"load: {model}", style="yellow")


def _swap_completed(event: SwapCompleted, speed: float) -> Text:
    real = f" ({duration(event.swap_s * speed)} on a real card)" if speed != 1 else ""
    return Text(f"{printable(event.to_model)} is loaded after {duration(event.swap_s)}{real}", style="yellow")
