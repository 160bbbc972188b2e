"""A gateway with llama.cpp servers of its own that do not all fit, one life after the other; and
callers with the official clients, each of whom knows what it has to be answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp
import ollama
import openai

from hearth.types import frozen
from tests.engines.llamacpp.gguf import LETTERS, WORDS, write_model
from tests.engines.processes.house import some_ports
from tests.reliability.card import SERVER, Card
from tests.reliability.served import Process, of
from tests.support.fields import Fields
from tests.support.patience import in_time, within_limit
from tests.support.places import ROOT

SIZES_GB = {"alder": 3.0, "birch": 3.0, "cedar": 2.0}
CAPACITY_GB = 6.0
GRACE_S = 0.5
STOP_GRACE_S = 1.0
HOLD_S = 4.0
TOKENS = 3000
"""One to a few seconds of an answer: leases come in the middle."""
CONFIG = """
gpu:
  home_model: ""
  nvml: false
  vram_gb: {capacity_gb}
  yield: {{grace_s: {grace_s}, hold_s: {hold_s}}}
engines: {{own: {{kind: processes, ports: "{first}-{last}"}}}}
models: {models}
conversations: {{directory: "{folder}/conversations"}}
keepalive: {{after_s: 600}}
queue: {{max_external_depth: 1000}}
scheduling: {{preemption: at_once, active_hours: "00:00-24:00"}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
jobs: {{max_attempts: 100}}
server: {{log_format: json, shutdown_grace_s: 1}}
"""
Api: TypeAlias = Literal["chat", "generate"]


@frozen
class Question:
    """`api`: `chat` is asked by OpenAI's client, `generate` by Ollama's."""

    api: Api
    model: str
    number: int
    streams: bool = True

    @property
    def prompt(self) -> str:
        """Some 400 tokens: enough for its conversation to be saved."""
        chance = random.Random(self.number)
        return " ".join(chance.choice(WORDS) for _ in range(70))

    @property
    def topic(self) -> tuple[Api, str, int]:
        """What the answer depends on."""
        return self.api, self.model, self.number


QUESTIONS = [
    Question(api=api, model=model, number=number, streams=streams)
    for api in ("chat", "generate")
    for model in SIZES_GB
    for number in (1, 2)
    for streams in (True, True, False)
]


async def answer(url: str, question: Question, seen: list[str] | None = None) -> str:
    """The text; `seen` has it as it comes. Raises what the clients raise."""
    pieces = [] if seen is None else seen
    if question.api == "chat":
        await _chat(url, question, pieces)
    else:
        await _generate(url, question, pieces)
    return "".join(pieces)


async def _chat(url: str, question: Question, seen: list[str]) -> None:
    asked: Any = {"temperature": 0, "seed": 7, "max_tokens": TOKENS, "model": question.model}
    asked["messages"] = [{"role": "user", "content": question.prompt}]
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=600
    ) as client:
        if question.streams:
            async for part in await client.chat.completions.create(stream=True, **asked):
                seen += [part.choices[0].delta.content or ""]
        else:
            whole = await client.chat.completions.create(**asked)
            seen += [whole.choices[0].message.content or ""]


async def _generate(url: str, question: Question, seen: list[str]) -> None:
    asked: Any = generating(question)
    async with ollama.AsyncClient(url, timeout=600) as client:
        if question.streams:
            is_done = False
            async for part in await client.generate(stream=True, **asked):
                seen += [part.response]
                is_done = part.done or False
            assert is_done, "a stream without an end"
        else:
            seen += [(await client.generate(**asked)).response]


def generating(question: Question) -> Fields:
    options = {"temperature": 0, "seed": 7, "num_predict": TOKENS}
    return {"model": question.model, "prompt": question.prompt, "options": options}


class Refused(Exception):
    """Another program has the card."""


class Broken(Exception):
    """The answer ended in an error."""


async def told(url: str, question: Question, seen: list[str]) -> str:
    """As `answer`; raises Refused or Broken."""
    try:
        return await answer(url, question, seen)
    except openai.APIStatusError as error:
        status, why = error.status_code, str(error)
    except ollama.ResponseError as error:
        status, why = error.status_code, error.error
    except (openai.APIError, OSError, aiohttp.ClientError) as error:
        raise Broken(repr(error)) from error
    except Exception as error:  # of the library below the official clients
        if type(error).__module__.partition(".")[0] not in {"httpx", "httpcore"}:
            raise
        raise Broken(repr(error)) from error
    if status == 503 and "Another program has the GPU" in why:
        raise Refused
    raise Broken(f"{status} {why}")


@dataclass
class World:
    """One gateway after the other, and the card. `life` counts them.

    Attributes:
        url: of the gateway; `is_stopping`: it is to end, and answers may break off with it.
    """

    folder: Path
    card: Card
    life: int = 0
    url: str = ""
    is_stopping: bool = False
    gateway: Process | None = None
    logs: list[list[Fields]] = field(default_factory=list)
    texts: dict[tuple[Api, str, int], str] = field(default_factory=dict)

    @asynccontextmanager
    async def one_life(self) -> AsyncIterator[Process]:
        """A gateway for the time of the block, which may end it by itself."""
        environ = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
        starting = Process.start(self.folder, self._config(), options=(), environ=environ)
        async with starting as gateway:
            self.logs.append(gateway.said)
            self.url = await gateway.url()
            self.life += 1
            self.is_stopping = False
            self.gateway = gateway
            yield gateway

    def _config(self) -> str:
        return CONFIG.format(
            capacity_gb=self.card.capacity_gb,
            grace_s=GRACE_S,
            hold_s=HOLD_S,
            first=self.ports[0],
            last=self.ports[-1],
            models=json.dumps({name: self._model(name) for name in SIZES_GB}),
            folder=self.folder,
        )

    def __post_init__(self) -> None:
        self.ports = some_ports()
        for seed, name in enumerate(SIZES_GB):
            write_model(self.folder / f"{name}.gguf", tuple(LETTERS), seed=seed)

    def _model(self, name: str) -> Fields:
        command = [
            *(sys.executable, "-m", SERVER, "--alias", name, "--port", "${PORT}", "-t", "1"),
            *("-m", str(self.folder / f"{name}.gguf"), "-np", "1", "-c", "8192"),
        ]
        env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        run = {"command": command, "env": env, "stop_grace_s": STOP_GRACE_S}
        return {"engine": "own", "vram_gb": SIZES_GB[name], "run": run}

    async def end(self, by: signal.Signals) -> None:
        """The gateway's; its servers may outlive it by their grace."""
        assert self.gateway is not None
        self.is_stopping = True
        code = 0 if by == signal.SIGTERM else -by
        os.kill(self.gateway.process.pid, by)
        assert await within_limit(self.gateway.process.wait()) == code

    def said(self, event: str) -> list[Fields]:
        """In all lives."""
        return [line for log in self.logs for line in of(log, event)]

    async def learn(self, questions: list[Question]) -> None:
        """What each is answered while nothing interrupts."""
        for question in questions:
            if question.topic not in self.texts:
                self.texts[question.topic] = await answer(self.url, question)

    async def call(self, method: str, path: str, body: Fields | None = None) -> tuple[int, Any]:
        async with (
            in_time(),
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body) as got,
        ):
            return got.status, await got.json()


@dataclass
class Answers:
    """How often which, and what is wrong with them."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def shown(self) -> str:
        return ", ".join(f"{count} {end}" for end, count in self.ends.items())


@dataclass
class Caller:
    """Asks one question after the other until it is to stop; each until it is answered."""

    world: World
    chance: random.Random
    answers: Answers
    is_over: bool = False

    async def work(self) -> None:
        while not self.is_over:
            await self.ask(self.chance.choice(QUESTIONS))

    async def ask(self, question: Question) -> None:
        """Until it is answered."""
        while not await self._is_answered(question):  # noqa: ASYNC110 - it asks again
            await asyncio.sleep(0.1)

    async def _is_answered(self, question: Question) -> bool:
        life = self.world.life
        seen: list[str] = []
        try:
            text = await told(self.world.url, question, seen)
        except Refused:
            self._note("refused", f"{question} after {len(seen)} pieces" if seen else "")
            return False
        except Broken as error:
            if self.world.life != life or self.world.is_stopping:
                self._note("lost with their gateway")
            else:
                self._note("broken", f"{question}: {error} after {len(seen)} pieces")
            return False
        wanted = self.world.texts[question.topic]
        end = "streamed" if question.streams else "whole"
        self._note(end, "" if text == wanted else _differs(question, text, wanted))
        return True

    def _note(self, end: str, wrong: str = "") -> None:
        self.answers.ends[end] += 1
        if wrong:
            self.answers.wrong.append(wrong)


def _differs(question: Question, text: str, wanted: str) -> str:
    pairs = enumerate(zip(text, wanted, strict=False))
    same = next((at for at, (one, two) in pairs if one != two), min(len(text), len(wanted)))
    return f"{question}: another text from character {same} of {len(text)}, {len(wanted)} wanted"
