"""Two agents with conversations of 1,500 tokens on two real models that do not fit beside each
other, through Hearth: what is read twice with warm conversations in the price of a swap, and
without.

The home `home_two_agents` of the simulator, some eight times smaller and faster. An agent counts
itself: what its last turn had read and written, and the model server did not have in its cache.
`HEARTH_BENCH_MINUTES` shortens each run of ten minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import aiohttp
import yaml

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.keys import authorization
from benchmarks.process import Child, free_port
from benchmarks.smollm2 import model_file
from benchmarks.two_models import MODELS

SUBJECT = "two agents"
MINUTES = float(os.environ.get("HEARTH_BENCH_MINUTES", "10"))
SHARE_TARGET = 0.4
WORDS = ("garden", "river", "window", "house", "stone", "letter", "bread", "winter", "music")
FIRST_TOKENS = 1200
MOST_TOKENS = 1700
WRITTEN_TOKENS = 30
TOOL_S = (0.3, 1.0)
TURNS = 12
"""Of a task."""
PAUSE_S = 8.0
"""Between two tasks, in the mean."""
TIMEOUT_S = 300.0


@dataclass(slots=True)
class Agent:
    """One caller, and what it has seen.

    Attributes:
        first_tokens: of its instructions, about. most_tokens: of a conversation, before another.
    """

    name: str
    model: str
    rng: Random
    first_tokens: int = FIRST_TOKENS
    most_tokens: int = MOST_TOKENS
    turns: int = 0
    read_tokens: int = 0
    reread_tokens: int = 0
    waited_s: float = 0.0
    _known_tokens: int = 0
    _messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"sk-bench-{self.name}"

    async def work(self, session: aiohttp.ClientSession, url: str, until: float) -> None:
        """Take turns until then."""
        while monotonic() < until:
            await self._turn(session, url)
            self.turns += 1
            pause_s = self.rng.uniform(*TOOL_S)
            if self.turns % TURNS == 0:
                pause_s = self.rng.expovariate(1 / PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _turn(self, session: aiohttp.ClientSession, url: str) -> None:
        if not self._messages or self._known_tokens > self.most_tokens:
            self._known_tokens = 0
            self._messages = [{"role": "system", "content": self._words(self.first_tokens)}]
        self._messages.append({"role": "user", "content": self._words(20)})
        text, usage = await self._asked(session, url)
        prompt_tokens = usage["prompt_tokens"]
        cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        self.read_tokens += prompt_tokens - cached_tokens
        self.reread_tokens += max(0, min(self._known_tokens, prompt_tokens) - cached_tokens)
        # the last one was written, and not read
        self._known_tokens = prompt_tokens + usage["completion_tokens"] - 1
        self._messages.append({"role": "assistant", "content": text})

    async def _asked(self, session: aiohttp.ClientSession, url: str) -> tuple[str, dict[str, Any]]:
        asked = {
            "model": self.model,
            "messages": self._messages,
            "max_tokens": WRITTEN_TOKENS,
            "temperature": 0.5,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text = ""
        usage: dict[str, Any] = {}
        asked_at = monotonic()
        began = False
        async with session.post(
            f"{url}/v1/chat/completions", json=asked, headers=authorization(self.key)
        ) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                if not began:
                    began = True
                    self.waited_s += monotonic() - asked_at
                frame = json.loads(line[6:])
                usage = frame.get("usage") or usage
                for choice in frame.get("choices") or ():
                    text += choice["delta"].get("content") or ""
        return text, usage

    def _words(self, count: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(count))


def measure(_rounds: int, place: Path) -> list[Finding]:
    """Without, then with warm conversations, each for `MINUTES` on a fresh gateway."""
    file = model_file()
    cold = _run(file, place / "cold", warm=False)
    warm = _run(file, place / "warm", warm=True)
    per_turn = _reread(warm) / _turns(warm) / (_reread(cold) / _turns(cold))
    return [
        Finding(
            subject=SUBJECT,
            name=f"tokens read twice in {MINUTES:g} minutes, to those without",
            unit="",
            measured=_reread(warm) / _reread(cold),
            target=SHARE_TARGET,
            note=f"{_reread(warm):,} and {_reread(cold):,}; per turn {per_turn:.2f}",
        ),
        Finding(
            subject=SUBJECT,
            name="turns",
            unit="",
            measured=_turns(warm),
            beside={"without": _turns(cold)},
        ),
        Finding(
            subject=SUBJECT,
            name="mean wait for the first piece",
            unit="s",
            measured=_wait_s(warm),
            beside={"without": _wait_s(cold)},
        ),
    ]


def _reread(agents: list[Agent]) -> int:
    return sum(agent.reread_tokens for agent in agents)


def _turns(agents: list[Agent]) -> int:
    return sum(agent.turns for agent in agents)


def _wait_s(agents: list[Agent]) -> float:
    return sum(agent.waited_s for agent in agents) / _turns(agents)


def _run(file: Path, place: Path, *, warm: bool) -> list[Agent]:
    place.mkdir()
    agents = [
        Agent(name=name, model=model, rng=Random(number))
        for number, (name, model) in enumerate(zip(("coding", "research"), MODELS, strict=True))
    ]
    port = free_port()
    program = [sys.executable, "-m", "benchmarks.two_models", str(port), str(file)]
    with ExitStack() as stack:
        server = stack.enter_context(Child(program, port, log=place / "models.log"))
        hearth = stack.enter_context(_hearth(server, place, agents, warm=warm))
        asyncio.run(_work(agents, hearth.url))
    return agents


def _hearth(server: Child, place: Path, agents: list[Agent], *, warm: bool) -> Child:
    port = free_port()
    config = yaml.safe_load(house.config_text(server, place, port=port, parallel=1, model=""))
    config["auth"]["keys"] = [
        {"name": agent.name, "sha256": sha256(agent.key.encode()).hexdigest()} for agent in agents
    ]
    config["scheduling"] = {"warm_conversations": warm}
    config["gpu"]["vram_gb"] = 8
    config["models"] = {name: {"vram_gb": 5.0} for name in MODELS}
    path = place / "hearth.yaml"
    path.write_text(yaml.safe_dump(config))
    return Child(house.serve_command(path), port, log=place / "hearth.log")


async def _work(agents: list[Agent], url: str) -> None:
    until = monotonic() + 60 * MINUTES
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(raise_for_status=True, timeout=timeout) as session:
        await asyncio.gather(*(agent.work(session, url, until) for agent in agents))
