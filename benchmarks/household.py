"""A household, directly and through Hearth: four chat and four coder callers on two models, and one
assistant of the house's own.

Each has one request open and sends the next one after its pause, until it has sent as many as
everybody else; the assistant goes on while the others are at it. Nobody is streamed to. Saturated,
the eight callers do not pause. The model server is the emulator, ten times faster than real, or the
Ollama at `OLLAMA_URL` with the models `CHAT_MODEL` and `CODER_MODEL`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import monotonic

import aiohttp

from benchmarks.findings import Finding, quantile
from benchmarks.house import serve_command
from benchmarks.keys import EXTERNAL, INTERNAL, authorization
from benchmarks.process import Child, free_port

SPEED = 10.0
ASSISTANT_PAUSE_S = 4.0
CALLER_TOKENS = 100
ASSISTANT_TOKENS = 50
"""Mean tokens of an answer; lengths are exponential."""
SEED = 51
ASSISTANT = 8
EMULATED = ("chat:8b", "coder:8b")
MODELS = "".join(
    f"- {{name: '{name}', vram_gib: 5.5, load_s: 1.0, unload_s: 0.3, decode_tokens_per_s: 80}}\n"
    for name in EMULATED
)
CONFIG = """\
scheduling:
  active_hours: "00:00-24:00"
  preempt_min_remaining_s: {least_s}
  preempt_restart_bound_s: {bound_s}
queue: {{max_external_depth: 100, max_internal_depth: 100}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
auth:
  keys:
  - {{name: bench, sha256: "{external}"}}
  - {{name: house, sha256: "{internal}", lane: internal}}
gpu: {{home_model: "", parallel: 1, swap_cost_prior_s: {prior_s}}}
backend: {{mode: ollama}}
ollama: {{url: "{upstream}"}}
storage: {{path: "{place}/hearth-{port}.db"}}
server: {{port: {port}, shutdown_grace_s: 1}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the eight callers are, and the most that means may be, times those directly."""

    name: str
    pause_s: float
    calls: int  # of each of the eight callers; all count, so that nobody who waited is left out
    assistant_target: float
    others_target: float


LOADS = (
    Load(name="saturated", pause_s=0.0, calls=15, assistant_target=0.35, others_target=1.05),
    # with few answers of the assistant, the ratio of two means differs by a fifth between runs
    Load(name="with pauses", pause_s=15.0, calls=40, assistant_target=0.65, others_target=1.0),
)


@dataclass(slots=True)
class Tally:
    """What one run has seen: seconds of each answer by class, and the model of each answer in order
    of their ends.
    """

    latencies_s: dict[str, list[float]] = field(
        default_factory=lambda: {"assistant": [], "others": []}
    )
    models: list[str] = field(default_factory=list)
    interruptions: int = 0

    @property
    def swaps(self) -> int:
        """Changes of the model from one answer to the next."""
        return sum(
            before != after for before, after in zip(self.models, self.models[1:], strict=False)
        )


def measure(_rounds: int, place: Path) -> list[Finding]:
    """Saturated and with pauses, each directly and through Hearth; the rounds of other measurements
    do not apply.
    """
    url = os.environ.get("OLLAMA_URL")
    if url is not None:
        models = (os.environ["CHAT_MODEL"], os.environ["CODER_MODEL"])
        return _both(url, models, place, speed=1.0)
    port = free_port()
    file = place / "models.yaml"
    file.write_text(MODELS)
    command = [
        sys.executable,
        "-c",
        "from hearth.cli import main; main()",
        "emulate",
        "--port",
        str(port),
    ]
    with Child(
        [*command, "--speed", str(SPEED), "--models", str(file), "--vram-gb", "8", "--seed", "1"],
        port,
    ) as emulator:
        return _both(emulator.url, EMULATED, place, speed=SPEED)


def _both(url: str, models: tuple[str, str], place: Path, *, speed: float) -> list[Finding]:
    found = list[Finding]()
    for load in LOADS:
        direct = asyncio.run(_run(url, models, load, speed))
        with _hearth(url, place, speed) as hearth:
            through = asyncio.run(_run(hearth.url, models, load, speed))
            through.interruptions = asyncio.run(_interruptions(hearth.url))
        found += findings(load, direct, through, speed=speed)
    return found


def findings(load: Load, direct: Tally, through: Tally, *, speed: float) -> list[Finding]:
    """By class: the ratio of the mean latencies, and mean, p50 and p95 of both; swaps and
    interruptions. Seconds of full speed.
    """
    found = []
    for kind, target in (("assistant", load.assistant_target), ("others", load.others_target)):
        here, there = (
            [each * speed for each in tally.latencies_s[kind]] for tally in (through, direct)
        )
        if not here or not there:
            found.append(
                Finding(
                    subject=load.name,
                    name=f"{kind}, mean through / directly",
                    unit="",
                    measured=None,
                    note="no answers",
                )
            )
            continue
        ratio = fmean(here) / fmean(there)
        note = f"{len(here)} and {len(there)} answers"
        found.append(
            Finding(
                subject=load.name,
                name=f"{kind}, mean through / directly",
                unit="",
                measured=ratio,
                target=target,
                note=note,
            )
        )
        for what, of in (
            ("mean", fmean),
            ("p50", median),
            ("p95", lambda values: quantile(values, 0.95)),
        ):
            found.append(
                Finding(
                    subject=load.name,
                    name=f"{kind}, {what}",
                    unit="s",
                    measured=of(here),
                    beside={"directly": of(there)},
                )
            )
    note = f"{through.interruptions} interruptions"
    return [
        *found,
        Finding(
            subject=load.name,
            name="swaps",
            unit="",
            measured=through.swaps,
            beside={"directly": direct.swaps},
            note=note,
        ),
    ]


def _hearth(url: str, place: Path, speed: float) -> Child:
    port = free_port()
    file = place / f"household-{port}" / "hearth.yaml"
    file.parent.mkdir()
    digests = {
        name: sha256(key.encode()).hexdigest()
        for name, key in (("external", EXTERNAL), ("internal", INTERNAL))
    }
    scaled = {"least_s": 2.0 / speed, "bound_s": 10.0 / speed, "prior_s": 5.0 / speed}
    file.write_text(CONFIG.format(upstream=url, place=place, port=port, **scaled, **digests))
    return Child(serve_command(file), port, log=place / "hearth.log")


async def _run(url: str, models: tuple[str, str], load: Load, speed: float) -> Tally:
    """Everybody at it until the eight callers have had their answers."""
    tally = Tally()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        callers = [_Caller(session, url, models[number % 2], number, tally) for number in range(8)]
        assistant = _Caller(session, url, models[0], ASSISTANT, tally)
        asking = asyncio.create_task(assistant.ask(itertools.count(), ASSISTANT_PAUSE_S / speed))
        try:
            pause_s = load.pause_s / speed
            await asyncio.gather(*[each.ask(range(load.calls), pause_s) for each in callers])
        finally:
            asking.cancel()
            await asyncio.wait((asking,))
    return tally


@dataclass(frozen=True, slots=True)
class _Caller:
    """One closed loop; the last number is the assistant."""

    session: aiohttp.ClientSession
    url: str
    model: str
    number: int
    tally: Tally

    async def ask(self, calls: Iterable[int], pause_s: float) -> None:
        """So many calls, each a pause after the answer before it."""
        rng = Random(SEED + self.number)
        is_assistant = self.number == ASSISTANT
        headers = authorization()
        if is_assistant:
            headers = {**authorization(INTERNAL), "X-Task-Type": "bench"}
        for _ in calls:
            body = _chat(rng, self.model, ASSISTANT_TOKENS if is_assistant else CALLER_TOKENS)
            asked_at = monotonic()
            async with self.session.post(
                f"{self.url}/api/chat", json=body, headers=headers
            ) as answer:
                await answer.read()
                answer.raise_for_status()
            kind = "assistant" if is_assistant else "others"
            self.tally.latencies_s[kind].append(monotonic() - asked_at)
            self.tally.models.append(self.model)
            await asyncio.sleep(rng.expovariate(1 / pause_s) if pause_s else 0.0)


def _chat(rng: Random, model: str, mean_tokens: int) -> dict[str, object]:
    options = {
        "num_predict": 5 + int(rng.expovariate(1 / mean_tokens)),
        "seed": rng.randrange(1000),
    }
    prompt = f"Tell a long story about the number {rng.randrange(10**6)}."
    return {
        "model": model,
        "stream": False,
        "options": options,
        "messages": [{"role": "user", "content": prompt}],
    }


async def _interruptions(url: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/metrics", headers=authorization(INTERNAL)) as answer,
    ):
        lines = (await answer.text()).splitlines()
    return round(
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("hearth_preemptions_total")
        )
    )
