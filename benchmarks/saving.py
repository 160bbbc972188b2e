"""Conversations that outlive a swap: two real models, of which one fits, as processes of Hearth's
own, each llama.cpp's server with SmolLM2-135M.

1. A conversation of 3,000 tokens whose model was unloaded and loaded again goes on
   `HEARTH_BENCH_SWAPS` times: its first token beside a load and a cold reading of the prompt, its
   text beside cold ones. Two cold texts may differ, and so may the same prompt read in other
   pieces: the text of a server that was not stopped says what is the doing of that.
2. Two agents of 3,000 tokens, one on each model, for `HEARTH_BENCH_MINUTES`: what is read twice.
3. `HEARTH_BENCH_STREAMS` streams that the house's work interrupts, over a stop and a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import aiohttp
import yaml

from benchmarks import house, two_agents
from benchmarks.findings import Finding
from benchmarks.keys import EXTERNAL, INTERNAL, authorization
from benchmarks.process import Child, free_port
from benchmarks.smollm2 import model_file

SUBJECT = "saving"
SWAPS = int(os.environ.get("HEARTH_BENCH_SWAPS", "100"))
STREAMS = int(os.environ.get("HEARTH_BENCH_STREAMS", "500"))
MODELS = ("coder", "writer")
PROMPT_TOKENS = 3000
MOST_TOKENS = 3600
"""Of an agent's conversation, before it begins another."""
QUESTIONS = 3
SHARE_TARGET = 0.1
COLD_SHARE = 0.1
WORDS = two_agents.WORDS
TIMEOUT_S = 600.0
ROOT = Path(__file__).parents[1]
PATHS = ("/v1/chat/completions", "/v1/messages", "/api/chat", "/api/generate")


class Asked(NamedTuple):
    """An answer: its text, when its first piece came, and the prompt tokens that were not read."""

    text: str
    first_s: float
    cached_tokens: int
    prompt_tokens: int


def measure(_rounds: int, place: Path) -> list[Finding]:
    """All three, on fresh gateways."""
    file = model_file()
    findings = list[Finding]()
    for name, work in ("swaps", _swap_back), ("agents", _agents), ("streams", _streams):
        (place / name).mkdir()
        with _hearth(file, place / name) as hearth:
            findings += asyncio.run(work(hearth.url))
    return findings


@contextmanager
def _hearth(file: Path, place: Path) -> Iterator[Child]:
    port = free_port()
    config = {
        "scheduling": {
            "active_hours": "00:00-24:00",
            "preemption": "at_once",
            "preempt_min_remaining_s": 0,
            "preempt_restart_bound_s": 0,
        },
        "queue": {"max_interrupt_count": 100},
        "rate_limits": {
            "default": {"requests_per_minute": 1_000_000, "requests_per_hour": 1_000_000}
        },
        "auth": {"keys": [*map(_key, ("bench", *MODELS)), {**_key("house"), "lane": "internal"}]},
        "gpu": {"vram_gb": 8, "nvml": False},
        "keepalive": {"after_s": TIMEOUT_S},
        "engines": {"own": {"kind": "processes", "ports": _ports()}},
        "models": {
            name: {"vram_gb": 5, "run": {"command": _command(file), "env": _environment()}}
            for name in MODELS
        },
        "storage": {"path": f"{place}/hearth.db"},
        "server": {"port": port, "log_format": "json", "shutdown_grace_s": 1},
    }
    path = place / "hearth.yaml"
    path.write_text(yaml.safe_dump(config))
    with Child(house.serve_command(path), port, log=place / "hearth.log") as child:
        yield child


def _key(name: str) -> dict[str, str]:
    keys = {"bench": EXTERNAL, "house": INTERNAL}
    key = keys.get(name, f"sk-bench-{name}")  # as an agent has it
    return {"name": name, "sha256": sha256(key.encode()).hexdigest()}


def _ports() -> str:
    first = free_port()
    return f"{first}-{first + 19}"


def _command(file: Path) -> list[str]:
    module = "tests.engines.llamacpp.server_command"
    arguments = ["-m", str(file), "--alias", "${MODEL}", "--port", "${PORT}"]
    return [sys.executable, "-m", module, *arguments, "-c", "8192", "-np", "1", "-t", "1"]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}


async def _ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    messages: list[dict[str, str]],
    *,
    key: str = EXTERNAL,
    path: str = PATHS[0],
    began: asyncio.Event | None = None,
    **more: Any,  # noqa: ANN401 - fields of the request
) -> Asked:
    """A streamed answer at temperature 0; `began` is set with its first piece."""
    asked: dict[str, Any] = {"model": model, "messages": messages, "stream": True, **more}
    if path.startswith("/api/"):
        tokens = asked.pop("max_tokens")
        asked["options"] = {"temperature": 0, "num_predict": tokens}
        if path == "/api/generate":
            asked["prompt"] = "\n".join(message["content"] for message in asked.pop("messages"))
    else:
        asked |= {"temperature": 0}
    if path == PATHS[0]:
        asked["stream_options"] = {"include_usage": True}
    began_at = monotonic()
    first_s = 0.0
    text = ""
    usage: dict[str, Any] = {}
    async with session.post(url + path, json=asked, headers=authorization(key)) as answer:
        async for line in answer.content:
            frame = line.removeprefix(b"data: ")
            if not frame.startswith(b"{"):
                continue
            chunk = json.loads(frame)
            if "error" in chunk or chunk.get("type") == "error":
                raise RuntimeError(f"{path}: {chunk}")
            piece = _piece(chunk)
            first_s = first_s or (monotonic() - began_at if piece else 0.0)
            if began is not None and piece:
                began.set()
            text += piece
            usage = chunk.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Asked(text, first_s, cached, usage.get("prompt_tokens", 0))


def _piece(chunk: dict[str, Any]) -> str:
    """The text in a frame of any dialect."""
    parts = [choice["delta"].get("content") or "" for choice in chunk.get("choices") or ()]
    delta = chunk.get("delta")
    parts.append(delta.get("text", "") if isinstance(delta, dict) else "")
    message = chunk.get("message")
    if "done" in chunk:
        parts.append(message.get("content") or "" if isinstance(message, dict) else "")
        parts.append(chunk.get("response") or "")
    return "".join(parts)


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    return aiohttp.ClientSession(raise_for_status=True, timeout=timeout, read_bufsize=2**22)


def _words(rng: Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


# A conversation whose model comes and goes.


async def _swap_back(url: str) -> list[Finding]:
    rng = Random(1)
    begun = [
        {"role": "system", "content": _words(rng, PROMPT_TOKENS)},
        {"role": "user", "content": "Tell me about it."},
        {"role": "assistant", "content": "It is long."},
    ]
    talks = [
        [*begun, {"role": "user", "content": f"Question {number}: " + _words(rng, 12)}]
        for number in range(QUESTIONS)
    ]
    hello = [{"role": "user", "content": "Say hello."}]
    first, other = MODELS
    async with _session() as session:
        limit: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
        cold = [
            [await _ask(session, url, first, talk, cache_prompt=False, **limit) for talk in talks]
            for _ in range(2)
        ]
        await _ask(session, url, first, talks[-1], **limit)
        warm = [await _ask(session, url, first, talk, **limit) for talk in talks]
        load_s = await _load_s(session, url, hello)
        back = list[Asked]()
        for number in range(SWAPS):
            await _ask(session, url, other, hello, max_tokens=1)
            back.append(await _ask(session, url, first, talks[number % QUESTIONS], **limit))
    return _judged(cold, warm, back, load_s)


async def _load_s(session: aiohttp.ClientSession, url: str, hello: list[dict[str, str]]) -> float:
    """Until the first token of a short prompt whose model has to be loaded."""
    order = (*reversed(MODELS), *reversed(MODELS), *reversed(MODELS))
    asked = [await _ask(session, url, model, hello, max_tokens=1) for model in order]
    return median(each.first_s for each in asked)


def _judged(
    cold: list[list[Asked]], warm: list[Asked], back: list[Asked], load_s: float
) -> list[Finding]:
    cold_s = median(each.first_s for run in cold for each in run)
    firsts = sorted(each.first_s for each in back)
    equal = [one.text == two.text for one, two in zip(*cold, strict=True)]
    known = [
        {cold[0][number].text, *([warm[number].text] if equal[number] else [])}
        for number in range(QUESTIONS)
    ]
    compared = [(each, at % QUESTIONS) for at, each in enumerate(back) if equal[at % QUESTIONS]]
    differ = sum(each.text != cold[0][at].text for each, at in compared)
    wrong = sum(each.text not in known[at] for each, at in compared)
    share = min(each.cached_tokens / each.prompt_tokens for each in back)
    target_s = load_s + COLD_SHARE * cold_s
    return [
        Finding(
            subject=SUBJECT,
            name=f"first token after a swap back, median of {len(back)}",
            unit="s",
            measured=median(firsts),
            target=target_s,
            note=f"a load {load_s:.2f} s, a cold prompt {cold_s:.1f} s; slowest {firsts[-1]:.2f} s",
        ),
        Finding(
            subject=SUBJECT,
            name="wrong answers after a swap back",
            unit="",
            measured=wrong,
            target=0,
            note=f"of {len(compared)}; {differ} other than the cold text, equal to a warm one"
            f" of the same server; at least {share:.1%} of each prompt was cached",
        ),
    ]


# Two agents.


async def _agents(url: str) -> list[Finding]:
    agents = [
        two_agents.Agent(
            name=name,
            model=name,
            rng=Random(number),
            first_tokens=PROMPT_TOKENS,
            most_tokens=MOST_TOKENS,
        )
        for number, name in enumerate(MODELS)
    ]
    until = monotonic() + 60 * two_agents.MINUTES
    async with _session() as session:
        await asyncio.gather(*(each.work(session, url, until) for each in agents))
    read = sum(each.read_tokens for each in agents)
    again = sum(each.reread_tokens for each in agents)
    turns = sum(each.turns for each in agents)
    return [
        Finding(
            subject=SUBJECT,
            name=f"tokens read twice in {two_agents.MINUTES:g} minutes, to all that were read",
            unit="",
            measured=again / read,
            target=SHARE_TARGET,
            note=f"{again:,} of {read:,} in {turns} turns",
        )
    ]


# Streams that are interrupted.


async def _streams(url: str) -> list[Finding]:
    rng = Random(2)
    errors = 0
    comparable = 0
    other = 0
    async with _session() as session:
        for number in range(STREAMS):
            path = PATHS[number % len(PATHS)]
            story = f"Tell a long story, number {number}, with these words: {_words(rng, 300)}."
            talk = [{"role": "user", "content": story}]
            asked: dict[str, Any] = {"path": path, "max_tokens": 80}
            wholes = [await _ask(session, url, MODELS[0], talk, **asked) for _ in range(3)]
            # the first one has read the prompt in other pieces than all others
            is_comparable = wholes[1].text == wholes[2].text
            comparable += is_comparable
            began = asyncio.Event()
            stream = asyncio.create_task(_ask(session, url, MODELS[0], talk, began=began, **asked))
            await began.wait()
            hello = [{"role": "user", "content": "Say hello."}]
            await _ask(session, url, MODELS[1], hello, key=INTERNAL, max_tokens=1)
            try:
                other += (await stream).text != wholes[2].text and is_comparable
            except (aiohttp.ClientError, RuntimeError):
                errors += 1
        status = await _status(session, url)
    return [
        Finding(
            subject=SUBJECT,
            name="streams that ended in an error after their model was stopped and started",
            unit="",
            measured=errors,
            target=0,
            note=f"of {STREAMS}; another text than uninterrupted: {other} of {comparable} of which"
            f" two uninterrupted ones were equal; {status}",
        )
    ]


async def _status(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/metrics", headers=authorization(INTERNAL)) as answer:
        lines = (await answer.text()).splitlines()
    wanted = ("hearth_resumed_streams_total", "hearth_conversations_restored_total")
    return ", ".join(line for line in lines if line.startswith(wanted))
