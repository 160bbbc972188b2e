"""Homes with agents, whose conversations are long: what a swap throws away has to be read again.

An agent works on tasks: its turns follow each other by the seconds that its tools take, and a while
goes by between two tasks. Each turn repeats the conversation and adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.homes import ASSISTANT, CUT_S
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Lane, Priority, Usage

LONG_TOKENS = 30_000
"""A conversation of a coding agent: its instructions, tools, and the files it has read."""
MOST_TOKENS = 36_000
SUMMED_UP_TOKENS = 24_000
READ_TPS = 600.0
"""A prompt of 30,000 tokens takes 50 s (a model of 32 billion parameters on one card)."""
WRITTEN_TPS = 30.0
AGENT_LOAD_S = 12.0
ASSISTANT_LOAD_S = 5.0
ASSISTANT_READ_TPS = 1500.0
ASSISTANT_TOKENS = 4_000
"""What a home's assistant is told of the rooms and devices."""


class _AgentDrawing:
    """Draws the requests of one home; made for one and thrown away."""

    def __init__(self, seed: int) -> None:
        self.jobs: list[WorkloadJob] = []
        self._rng = Random(seed)  # noqa: S311 - made-up work, no secret

    def agent(self, name: str, model: str, *, tasks: int, turns: int, pause_s: float) -> None:
        """A task goes on with the conversation of the one before, until that is cut back to a new
        one with a summary.
        """
        rng = self._rng
        conversation = 0
        prompt_tokens = LONG_TOKENS
        for turn in range(tasks * turns):
            gap_s = rng.uniform(1.0, 5.0) if turn % turns else rng.expovariate(1 / pause_s)
            output_tokens = round(rng.uniform(60, 400))
            job = self._job(name, model, prompt_tokens, output_tokens, READ_TPS)
            job = replace(job, conversation=f"{conversation}", streaming=True, continues=True)
            self._append(job, turn, gap_s)
            prompt_tokens += output_tokens + round(rng.uniform(50, 400))
            if prompt_tokens > MOST_TOKENS:
                prompt_tokens = SUMMED_UP_TOKENS
                conversation += 1

    def assistant(self, *, visits: int) -> None:
        """Somebody asks three times in a row, then not for minutes."""
        rng = self._rng
        for turn in range(3 * visits):
            gap_s = rng.uniform(6.0, 18.0) if turn % 3 else rng.expovariate(1 / 240.0)
            output_tokens = round(rng.uniform(20, 80))
            prompt_tokens = ASSISTANT_TOKENS + 100 * (turn % 3)
            job = self._job(ASSISTANT, ASSISTANT, prompt_tokens, output_tokens, ASSISTANT_READ_TPS)
            job = replace(
                job,
                conversation=f"{turn // 3}",
                lane=Lane.INTERNAL,
                priority=Priority.CRITICAL,
                streaming=True,
            )
            self._append(job, turn, gap_s)

    def _job(
        self, caller: str, model: str, prompt_tokens: int, output_tokens: int, read_tps: float
    ) -> WorkloadJob:
        prompt_s = prompt_tokens / read_tps
        decode_s = output_tokens / WRITTEN_TPS
        return WorkloadJob(
            id=len(self.jobs),
            model=model,
            caller=caller,
            service_s=prompt_s + decode_s,
            first_byte_s=prompt_s,
            prompt_tokens=prompt_tokens,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                prompt_s=prompt_s,
                decode_s=decode_s,
            ),
        )

    def _append(self, job: WorkloadJob, turn: int, gap_s: float) -> None:
        after = job.id - 1 if turn else None
        at = 0.0 if turn else gap_s
        self.jobs.append(replace(job, at=at, after=after, think_s=gap_s if turn else 0.0))


def _home(jobs: list[WorkloadJob], load_s: dict[str, float], *, home: str = "") -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=20.0, parallel=1) for name in load_s},
        swap_costs={("", name): seconds for name, seconds in load_s.items()},
        vram_gb=24.0,
        resident=(next(iter(load_s)),),
        home=home,
        cut_s=CUT_S,
    )


def home_two_agents(*, seed: int = 1) -> Workload:
    """Two agents with 30,000 tokens each, on two models that do not fit beside each other."""
    drawing = _AgentDrawing(seed)
    drawing.agent("coding", "coder", tasks=10, turns=12, pause_s=60.0)
    drawing.agent("research", "writer", tasks=10, turns=12, pause_s=60.0)
    return _home(drawing.jobs, {"coder": AGENT_LOAD_S, "writer": AGENT_LOAD_S})


def home_agent_and_assistant(*, seed: int = 1) -> Workload:
    """An agent with 30,000 tokens, and the home's assistant on a model that does not fit beside."""
    drawing = _AgentDrawing(seed)
    drawing.assistant(visits=12)
    drawing.agent("coding", "coder", tasks=10, turns=12, pause_s=60.0)
    load_s = {ASSISTANT: ASSISTANT_LOAD_S, "coder": AGENT_LOAD_S}
    return _home(drawing.jobs, load_s, home=ASSISTANT)


AGENTS: Mapping[str, Callable[..., Workload]] = {
    "home_two_agents": home_two_agents,
    "home_agent_and_assistant": home_agent_and_assistant,
}
