"""A prompt cache for each model, which dies with the unload."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.scheduling.actions import Action
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Arrived, Finished, Input
from hearth.simulation.agents import AGENTS, MOST_TOKENS, SUMMED_UP_TOKENS
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.measures import as_json, summary
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Lane, Usage
from tests.support.fields import Fields

TOKEN_S = 0.01


def turn(number: int, prompt_tokens: int, **more: object) -> WorkloadJob:
    """Of 100 written tokens in 1 s, after `prompt_tokens` that are read at 100 a second."""
    prompt_s = prompt_tokens * TOKEN_S
    usage = Usage(prompt_tokens=prompt_tokens, output_tokens=100, prompt_s=prompt_s, decode_s=1.0)
    fields: Fields = {
        "model": "a",
        "conversation": "one",
        "caller": "agent",
        "streaming": True,
        "after": number - 1 if number else None,
        "service_s": prompt_s + 1.0,
        "first_byte_s": prompt_s,
        "prompt_tokens": prompt_tokens,
        "usage": usage,
        **more,
    }
    return WorkloadJob(id=number, **fields)


def home(*jobs: WorkloadJob, parallel: int = 1) -> Workload:
    return Workload(
        jobs=jobs,
        models={name: ModelSettings(vram_gb=13.0, parallel=parallel) for name in "ab"},
        swap_costs={("", "a"): 2.0, ("", "b"): 2.0},
        vram_gb=24.0,
        resident=("a",),
    )


def run(workload: Workload) -> SimulationRun:
    settings = workload.settings(SchedulerSettings(), PolicyName.AFFINITY)
    return simulate(workload, settings)


def took_s(run: SimulationRun) -> list[float]:
    return [round((record.ended or 0.0) - (record.started or 0.0), 6) for record in run.records]


OTHER_MODEL = {"model": "b", "conversation": "", "usage": Usage()}


@pytest.mark.parametrize(
    ("jobs", "took", "read"),
    [
        # its first turn, then what is new of the second: 500 tokens less 400 and 100 of the answer
        ([turn(0, 400), turn(1, 600)], [5.0, 2.0], (5.0, 0.0)),
        ([turn(0, 400), turn(1, 600, conversation="other")], [5.0, 7.0], (10.0, 0.0)),
        ([turn(0, 400), turn(1, 600, caller="another")], [5.0, 7.0], (10.0, 0.0)),
        ([turn(0, 400, conversation=""), turn(1, 600, conversation="")], [5.0, 7.0], (0.0, 0.0)),
        # another conversation on the same slot leaves it to the host's memory
        (
            [turn(0, 400), turn(1, 600, conversation="other"), turn(2, 600)],
            [5.0, 7.0, 2.0],
            (11.0, 0.0),
        ),
        # a swap in between: everything is read again, the 500 tokens that were known twice
        (
            [turn(0, 400), turn(1, 0, **OTHER_MODEL), turn(2, 600)],
            [5.0, 1.0, 7.0],
            (10.0, 5.0),
        ),
        # on another model it is read again as well
        ([turn(0, 400), turn(1, 600, model="b")], [5.0, 7.0], (10.0, 5.0)),
        # a whole answer
        (
            [turn(0, 400), turn(1, 600, streaming=False, first_byte_s=7.0)],
            [5.0, 2.0],
            (5.0, 0.0),
        ),
    ],
)
def test_going_on_reads_what_is_new_and_a_swap_reads_all_again(jobs, took, read):
    found = run(home(*jobs))
    assert took_s(found) == took
    assert (round(found.read_s, 6), round(found.reread_s, 6)) == read


def test_an_answer_reports_the_time_that_was_spent_and_all_tokens_as_ollama_does():
    workload = home(turn(0, 400), turn(1, 600))
    settings = workload.settings(SchedulerSettings(), PolicyName.AFFINITY)
    scheduler = Scheduler(settings)
    reported = list[Usage]()
    conversations = list[str]()

    def handle(fact: Input, now: float) -> list[Action]:
        if isinstance(fact, Arrived):
            conversations.append(fact.item.conversation)
        if isinstance(fact, Finished):
            reported.append(fact.usage)
        return scheduler.handle(fact, now)

    simulate(workload, settings, handle)
    assert conversations == ["one", "one"]
    assert [(usage.prompt_tokens, round(usage.prompt_s or 0, 6)) for usage in reported] == [
        (400, 4.0),
        (600, 1.0),
    ]


def test_a_prompt_whose_caller_leaves_keeps_whole_batches():
    first = turn(0, 10_000, cancel_after_s=45.0)  # 4,500 tokens: two batches of 2,048
    found = run(home(first, turn(1, 10_000)))
    assert took_s(found)[1] == round((10_000 - 4096) * TOKEN_S + 1.0, 6)
    assert round(found.reread_s, 6) == round((4500 - 4096) * TOKEN_S, 6)


def test_an_interrupted_stream_that_goes_on_before_a_swap_reads_nothing_again():
    stream = turn(0, 400, continues=True, service_s=24.0)
    urgent = replace(
        turn(1, 0, conversation="", usage=Usage(), after=None, at=10.0), lane=Lane.INTERNAL
    )
    found = run(home(stream, urgent))
    assert found.records[0].interrupts == 1
    assert (round(found.records[0].ended or 0, 6), round(found.reread_s, 6)) == (25.01, 0.01)


def test_two_slots_hold_two_conversations():
    jobs = [
        turn(0, 400, after=None),
        turn(1, 400, conversation="two", after=None),
        turn(2, 600, after=0),
        turn(3, 600, conversation="two", after=1),
    ]
    assert took_s(run(home(*jobs, parallel=2))) == [5.0, 5.0, 2.0, 2.0]


@pytest.mark.parametrize("name", AGENTS)
def test_homes_with_agents_say_what_was_read_twice(name):
    workload = AGENTS[name]()
    assert workload == AGENTS[name]()
    found = simulate(
        workload, workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE), keep_decisions=False
    )
    whole = summary(found)
    assert 0 < whole.reread_s < whole.read_s < whole.makespan_s
    assert as_json("adaptive", found)["summary"] == asdict(whole)
    agents = [job for job in workload.jobs if job.lane is Lane.EXTERNAL]
    prompts = sorted(job.prompt_tokens for job in agents)
    assert (prompts[0] >= SUMMED_UP_TOKENS, prompts[-1] <= MOST_TOKENS) == (True, True)
