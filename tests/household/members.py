"""Who lives there: people who chat in every API, embeddings, internal requests that interrupt them,
and jobs and batches, whose acknowledgement is asked for until it comes.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from tests.engines.llamacpp.gguf import WORDS
from tests.household.household import CHATS, EMBEDDER, Household
from tests.soak.callers import ERRORS, End, Ended, Request, judged
from tests.support.fields import Fields
from tests.support.reading import read_to_its_end

TEXTS = tuple(" ".join(WORDS[place : place + 3]) for place in range(0, 48, 3))
"""What is embedded, so that an answer can be told from another's."""
OPENERS = tuple(
    f"conversation {number}: " + " ".join(f"word {number * place}" for place in range(150))
    for number in range(6)
)
"""How longer conversations begin, long enough to be saved when their model is unloaded."""
TOKENS = 24
STREAM_TOKENS = 120
"""Long enough that somebody internal comes meanwhile."""
ASK_AGAIN_S = 0.3
PATIENCE_S = 900.0
LINES = 4
OPENER_SHARE = 0.4


def _chat(*, stream: bool) -> Callable[[str, str], Fields]:
    tokens = STREAM_TOKENS if stream else TOKENS
    asked = {"max_tokens": tokens, "options": {"num_predict": tokens}, "stream": stream}
    return lambda model, text: {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        **asked,
    }


def _prompt(name: str, limit: str, *, stream: bool) -> Callable[[str, str], Fields]:
    tokens = STREAM_TOKENS if stream else TOKENS
    return lambda model, text: {"model": model, name: text, limit: tokens, "stream": stream}


def _embed(_: str, text: str) -> Fields:
    return {"model": EMBEDDER, "input": text}


INTERNAL = {"X-Task-Type": "parse_task"}
REQUESTS = (
    Request("native stream", "/api/chat", 14, _chat(stream=True), ending='"done":true'),
    Request("native whole", "/api/chat", 6, _chat(stream=False)),
    Request("openai stream", "/v1/chat/completions", 14, _chat(stream=True), "data: [DONE]"),
    Request("openai whole", "/v1/chat/completions", 6, _chat(stream=False)),
    Request(
        "completion",
        "/v1/completions",
        8,
        _prompt("prompt", "max_tokens", stream=True),
        ending="data: [DONE]",
    ),
    Request(
        "response",
        "/v1/responses",
        6,
        _prompt("input", "max_output_tokens", stream=True),
        ending='"type":"response.completed"',
    ),
    Request(
        "anthropic stream", "/v1/messages", 14, _chat(stream=True), ending="event: message_stop"
    ),
    Request("leaves", "/api/chat", 6, _chat(stream=True), ending='"done":true', leaves=True),
    Request("internal", "/api/chat", 10, _chat(stream=False), headers=INTERNAL),
    Request("native embedding", "/api/embed", 8, _embed),
    Request("openai embedding", "/v1/embeddings", 8, _embed),
)
LEAVES_AFTER_S = (0.05, 0.3, 1.0, 3.0)


@dataclass(slots=True, kw_only=True)
class Promise:
    """A job or a batch that was acknowledged: its id, by its key, and what was asked of it."""

    kind: str
    promised_id: str
    texts: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class Members:
    """Send requests, and remember how each ended and what was promised; `chance` draws them."""

    home: Household
    session: aiohttp.ClientSession
    chance: random.Random
    ends: list[Ended] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    asked_again: int = 0
    _count: int = 0

    async def live(self, until_s: float, members: int, durable_every_s: float) -> None:
        """Everybody asks one thing after the other until an instant of the monotonic clock."""
        async with asyncio.TaskGroup() as group:
            for _ in range(members):
                group.create_task(self._ask_until(until_s))
            group.create_task(self._promise_until(until_s, durable_every_s))

    async def _ask_until(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            url = self.home.url
            if url is None:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            shares = [each.share for each in REQUESTS]
            await self._one(url, self.chance.choices(REQUESTS, shares)[0])

    async def _one(self, url: str, request: Request) -> None:
        self._count += 1
        asked_at = time.monotonic()
        model = CHATS[self.chance.random() < 0.3]
        body = request.body(model, self.chance.choice(TEXTS))
        if "messages" in body and self.chance.random() < OPENER_SHARE:
            opener = {"role": "user", "content": self.chance.choice(OPENERS)}
            body["messages"][:0] = [opener, {"role": "assistant", "content": "I see."}]
        leaves_s = self.chance.choice(LEAVES_AFTER_S) if request.leaves else PATIENCE_S
        end: End
        try:
            async with asyncio.timeout(leaves_s):
                end, said = await self._answer(url, request, body)
        except TimeoutError:
            end, said = ("left", "") if request.leaves else ("broken", "no answer at all")
        except (aiohttp.ClientError, OSError) as error:
            end, said = "told", repr(error)
            await asyncio.sleep(ASK_AGAIN_S)
        self.ends.append(Ended(request.name, end, asked_at, time.monotonic(), said))

    async def _answer(self, url: str, request: Request, body: Fields) -> tuple[End, str]:
        address = f"{url}{request.path}"
        async with self.session.post(address, json=body, headers=request.headers) as answer:
            text = (await read_to_its_end(answer)).decode()
        if answer.status != request.status:
            is_known = answer.status in ERRORS and "error" in json.loads(text)
            return ("refused" if is_known else "broken"), f"{answer.status} {text[:300]}"
        if request.ending and text.count(request.ending) > 1:
            return "broken", f"ended twice: {text[-600:]}"
        return judged(request, text)

    # What is promised.

    async def _promise_until(self, until_s: float, every_s: float) -> None:
        kinds = (self._job, self._embedding_job, self._batch, self._message_batch)
        number = 0
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until_s:
                group.create_task(kinds[number % len(kinds)](f"key-{number}"))
                number += 1
                await asyncio.sleep(every_s)

    async def _job(self, key: str) -> None:
        model, text = self.chance.choice(CHATS), self.chance.choice(TEXTS)
        asked = {"request": _chat(stream=False)(model, text), "endpoint": "/v1/chat/completions"}
        said = await self._acknowledged("/llm/jobs", asked, key)
        self._keep(key, Promise(kind="job", promised_id=said["id"], texts=(text,)))

    async def _embedding_job(self, key: str) -> None:
        text = self.chance.choice(TEXTS)
        asked = {"request": _embed("", text), "endpoint": "/v1/embeddings"}
        said = await self._acknowledged("/llm/jobs", asked, key)
        self._keep(key, Promise(kind="embedding job", promised_id=said["id"], texts=(text,)))

    async def _batch(self, key: str) -> None:
        texts = tuple(self.chance.choices(TEXTS, k=LINES))
        lines = [
            {
                "custom_id": f"r{n}",
                "method": "POST",
                "url": "/v1/embeddings",
                "body": _embed("", text),
            }
            for n, text in enumerate(texts)
        ]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file = await self._acknowledged("/v1/files", partial(_form, content), "")
        asked = {
            "input_file_id": file["id"],
            "endpoint": "/v1/embeddings",
            "completion_window": "24h",
        }
        said = await self._acknowledged("/v1/batches", asked, key)
        self._keep(key, Promise(kind="batch", promised_id=said["id"], texts=texts))

    async def _message_batch(self, key: str) -> None:
        texts = tuple(self.chance.choices(TEXTS, k=LINES))
        asked = {
            "requests": [
                {"custom_id": f"r{n}", "params": _message(self.chance.choice(CHATS), text)}
                for n, text in enumerate(texts)
            ]
        }
        said = await self._acknowledged("/v1/messages/batches", asked, key)
        self._keep(key, Promise(kind="message batch", promised_id=said["id"], texts=texts))

    def _keep(self, key: str, promise: Promise) -> None:
        assert key not in self.promises
        self.promises[key] = promise

    async def _acknowledged(
        self, path: str, body: Fields | Callable[[], aiohttp.FormData], key: str
    ) -> Any:
        """What answers it, asked again with its key until somebody does."""
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            how: Fields = {"data": body()} if callable(body) else {"json": body}
            if self.home.url is not None:
                try:
                    address = f"{self.home.url}{path}"
                    async with self.session.post(address, headers=headers, **how) as answer:
                        said = await answer.json()
                    if answer.status in (200, 202):
                        return said
                    assert answer.status in (409, 503), said
                except (aiohttp.ClientError, OSError):
                    pass
            self.asked_again += 1
            await asyncio.sleep(ASK_AGAIN_S)


def _message(model: str, text: str) -> Fields:
    return {"model": model, "max_tokens": TOKENS, "messages": [{"role": "user", "content": text}]}


def _form(content: bytes) -> aiohttp.FormData:
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", content, filename="requests.jsonl")
    return form
