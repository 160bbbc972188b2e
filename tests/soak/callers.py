"""A house full of callers: every API, streams and whole answers, embeddings, jobs, people who
leave.

Each caller judges what it got: a whole answer, an error in the words of its API, or something that
no caller must ever see.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import aiohttp

from tests.soak.model_server import EMBEDDER, HOME, SECOND
from tests.support.fields import Fields
from tests.support.reading import read_to_its_end

SECOND_SHARE = 0.1
PATIENCE_S = 600.0
LEAVES_AFTER_S = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Before anything came, while waiting, in the middle of the answer; some stay until the end."""
ERRORS = frozenset({500, 502, 503, 504})
"""Statuses that a bad minute of the model server may have.

Anything else that is not 200 is a defect, of Hearth or of this test.
"""
Body = Fields


End = Literal["whole", "refused", "told", "left", "broken"]  # how a request ended for its caller


class Request(NamedTuple):
    """One kind of request."""

    name: str
    path: str
    share: int  # how many of a hundred
    body: Callable[[str, str], Body]
    # the last words of a stream that is complete; empty for an answer that comes whole
    ending: str = ""
    leaves: bool = False
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    status: int = 200


def _chat(*, stream: bool) -> Callable[[str, str], Body]:
    asked = {"max_tokens": 40, "options": {"num_predict": 40}, "stream": stream}
    return lambda model, text: {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        **asked,
    }


def _generate(model: str, text: str) -> Body:
    return {"model": model, "prompt": text, "stream": False, "options": {"num_predict": 40}}


def _embed(_: str, text: str) -> Body:
    return {"model": EMBEDDER, "input": text}


def _job(_: str, text: str) -> Body:
    return {"request": {"model": HOME, "prompt": text, "options": {"num_predict": 40}}}


REQUESTS = (
    Request("native stream", "/api/chat", 15, _chat(stream=True), ending='"done":true'),
    Request("native whole", "/api/generate", 10, _generate),
    Request("openai stream", "/v1/chat/completions", 15, _chat(stream=True), ending="data: [DONE]"),
    Request("openai whole", "/v1/chat/completions", 10, _chat(stream=False)),
    Request(
        "anthropic stream", "/v1/messages", 10, _chat(stream=True), ending="event: message_stop"
    ),
    Request("anthropic whole", "/v1/messages", 5, _chat(stream=False)),
    Request("native embedding", "/api/embed", 5, _embed),
    Request("openai embedding", "/v1/embeddings", 5, _embed),
    Request("the house", "/api/generate", 10, _generate, headers={"X-Task-Type": "parse_task"}),
    Request("leaves", "/api/chat", 10, _chat(stream=True), ending='"done":true', leaves=True),
    Request("job", "/llm/jobs", 5, _job, status=202),
)


class Ended(NamedTuple):
    """One request from its caller's side; instants of the monotonic clock."""

    name: str
    end: End
    asked_at: float
    ended_at: float
    said: str = ""


class Callers:
    """Sends requests and remembers how each ended.

    `asked`: so far; `jobs`: ids of those that were accepted.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, chance: random.Random) -> None:
        self.asked = 0
        self.ends: list[Ended] = []
        self.jobs: list[str] = []
        self._url = url
        self._session = session
        self._chance = chance
        self._under_way: set[asyncio.Task[None]] = set()

    async def call(self, rate_per_s: float, seconds: float) -> None:
        """Ask so often, whoever is still waiting; returns when the last one has been asked."""
        began_at = time.monotonic()
        count = int(rate_per_s * seconds)
        for number in range(count):
            await asyncio.sleep(max(0.0, began_at + number / rate_per_s - time.monotonic()))
            task = asyncio.ensure_future(
                self._one(self._chance.choices(REQUESTS, [one.share for one in REQUESTS])[0])
            )
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def answered(self) -> None:
        """Wait until nobody waits any more."""
        await asyncio.gather(*self._under_way)

    async def _one(self, request: Request) -> None:
        self.asked += 1
        asked_at = time.monotonic()
        text = f"request {self.asked} " + "word " * self._chance.randrange(1, 60)
        model = SECOND if self._chance.random() < SECOND_SHARE else HOME
        try:
            async with asyncio.timeout(
                self._chance.choice(LEAVES_AFTER_S) if request.leaves else PATIENCE_S
            ):
                end, said = await self._ask(request, request.body(model, text))
        except TimeoutError:
            end, said = ("left", "") if request.leaves else ("broken", "no answer at all")
        except (aiohttp.ClientError, ValueError) as error:
            end = "broken"
            said = repr(error)
        self.ends.append(Ended(request.name, end, asked_at, time.monotonic(), said))

    async def _ask(self, request: Request, body: Body) -> tuple[End, str]:
        async with self._session.post(
            f"{self._url}{request.path}", json=body, headers=request.headers
        ) as answer:
            text = (await read_to_its_end(answer)).decode()
        if answer.status != request.status:
            known = answer.status in ERRORS and "error" in json.loads(text)
            return ("refused" if known else "broken"), f"{answer.status} {text[:300]}"
        if request.path == "/llm/jobs":
            self.jobs.append(json.loads(text)["id"])
        return judged(request, text)


def judged(request: Request, text: str) -> tuple[End, str]:
    """How an answer of the expected status ended, and its last words where that was not well."""
    if not request.ending:
        return ("whole", "") if isinstance(json.loads(text), dict) else ("broken", text[:300])
    last = text.strip().rpartition("\n\n" if request.path.startswith("/v1") else "\n")[2]
    if request.ending in last:
        return "whole", ""
    return ("told" if "error" in last else "broken"), last[-300:]
