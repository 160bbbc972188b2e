"""Other programs take memory of the card again and again from servers of llama.cpp that stream.

`HEARTH_LEASES` random leases (50), with an orderly end and a `kill -9` of the gateway in between.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hearth.execution.tasks import cancel_all
from tests.reliability.card import Card
from tests.reliability.leased import (
    CAPACITY_GB,
    QUESTIONS,
    SIZES_GB,
    Answers,
    Caller,
    Question,
    World,
    generating,
)
from tests.reliability.lessees import WAYS, Lessees
from tests.reliability.served import some
from tests.support.examples import needs_quiet
from tests.support.patience import in_time, within_limit

LEASES = int(os.environ.get("HEARTH_LEASES", "50"))
LESSEES = 2
CALLERS = 4
MOST_PAUSE_S = 4.0
KEPT_S = 12.0
"""Leases that are in force over the end of a gateway."""
AIMED = 8
ONE_FITS_GB = 3.5
COUNTED = (
    "item_yielded",
    "item_interrupted",
    "item_resumed",
    "swap_started",
    "swap_completed",
    "load_cut",
    "conversations_saved",
    "conversation_restored",
    "conversation_unsaved",
)
JOB_QUESTIONS = [
    Question(api="generate", model=model, number=1, streams=False) for model in SIZES_GB
]

pytestmark = [needs_quiet, pytest.mark.timeout(1800)]


@asynccontextmanager
async def watched(folder: Path, capacity_gb: float = CAPACITY_GB) -> AsyncIterator[World]:
    """A world whose card is looked at all the time."""
    world = World(folder, Card(folder, SIZES_GB, capacity_gb))
    watching = asyncio.ensure_future(world.card.watch())
    try:
        yield world
    finally:
        watching.cancel()
    assert world.said("internal_fault") == []
    assert world.card.wrong == []


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("HEARTH_SEED") or random.SystemRandom().randrange(2**32))
    sys.stdout.write(f"HEARTH_SEED={seed}\n")
    return random.Random(seed)


MOMENTS = {
    "save": ("swap_started", 0.1),
    "load": ("swap_started", 1.5),
    "restore": ("swap_completed", 0.2),
}
"""The event after which, and within how many seconds."""


@pytest.mark.parametrize(("event", "within_s"), MOMENTS.values(), ids=MOMENTS)
async def test_a_lease_at_any_moment_of_a_swap_loses_nothing(
    tmp_path: Path, chance: random.Random, event: str, within_s: float
):
    """Only one model fits, and callers of all three have them swapped again and again."""
    async with watched(tmp_path, ONE_FITS_GB) as world, world.one_life() as gateway:
        await world.learn(QUESTIONS)
        lessees = Lessees(world, chance)
        async with calling(world, chance) as answers:
            for _ in range(AIMED):
                await gateway.until(some(event, len(world.said(event)) + 1))
                await asyncio.sleep(chance.uniform(0.0, within_s))
                await lessees.take("ended by hand", None)
            await _nothing_is_leased(lessees)
        await _all_models_answer(world, answers)
        await gateway.stopped_s()
        _judge(world, lessees, answers)


async def test_nothing_is_lost_or_in_the_way_over_random_leases(
    tmp_path: Path, chance: random.Random
):
    async with watched(tmp_path) as world, AsyncExitStack() as lives:
        await lives.enter_async_context(world.one_life())
        await world.learn(QUESTIONS)
        lessees = Lessees(world, chance)
        kinds = [chance.choice(tuple(WAYS)) for _ in range(LEASES)]
        jobs = await _submit_jobs(world)
        async with calling(world, chance) as answers:
            for number, by in enumerate((signal.SIGTERM, signal.SIGKILL, None)):
                await _take(lessees, kinds[number::3])
                if by is not None:
                    await _end_with_leases(lessees, by, lives)
            await _nothing_is_leased(lessees)
        await _all_models_answer(world, answers)
        await _jobs_are_done(world, jobs)
        await world.end(signal.SIGTERM)
        _judge(world, lessees, answers)


def _judge(world: World, lessees: Lessees, answers: Answers) -> None:
    counts = ", ".join(f"{event} {len(world.said(event))}" for event in COUNTED)
    sys.stdout.write(
        f"leases: {lessees.shown()}; the latest event before each: {_moments(world)};"
        f" answers: {answers.shown()}; {counts}; looked at the card {world.card.looks} times\n"
    )
    assert (answers.wrong, lessees.wrong, lessees.late) == ([], [], [])
    assert world.said("gpu_lease_late") == []


def _moments(world: World) -> str:
    """What models did when leases were taken."""
    found: Counter[str] = Counter()
    for log in world.logs:
        latest = "none"
        for line in log:
            if line["event"] == "gpu_lease_taken":
                found[latest] += 1
            elif line["event"] in COUNTED:
                latest = line["event"]
    return ", ".join(f"{event} {count}" for event, count in found.items())


@asynccontextmanager
async def calling(world: World, chance: random.Random) -> AsyncIterator[Answers]:
    """Callers for the time of the block; at its end each waits for its last answer."""
    answers = Answers()
    callers = [Caller(world, random.Random(chance.random()), answers) for _ in range(CALLERS)]
    working = [asyncio.ensure_future(caller.work()) for caller in callers]
    try:
        yield answers
        for caller in callers:
            caller.is_over = True
        await within_limit(asyncio.gather(*working))
    finally:
        await cancel_all(working)


async def _all_models_answer(world: World, answers: Answers) -> None:
    last = Caller(world, random.Random(0), answers)
    await within_limit(asyncio.gather(*map(last.ask, QUESTIONS)))


async def _take(lessees: Lessees, kinds: list[str]) -> None:
    """Several at a time, with pauses."""
    waiting = list(kinds)

    async def work() -> None:
        while waiting:
            await lessees.take_some(waiting.pop())
            await asyncio.sleep(lessees.chance.uniform(0.0, MOST_PAUSE_S))

    async with asyncio.TaskGroup() as group:
        for _ in range(LESSEES):
            group.create_task(work())


async def _end_with_leases(lessees: Lessees, by: signal.Signals, lives: AsyncExitStack) -> None:
    """The gateway's end and the next one's begin, while two leases are in force: these stay, and
    end when they are to.
    """
    world = lessees.world
    kept = [await lessees.taken(gb, KEPT_S, waits=True) for gb in (2.0, 3.0)]
    await world.end(by)
    await lives.enter_async_context(world.one_life())
    assert {lease_id for lease_id, _ in kept} <= set(await lessees.listed())
    for lease_id, claim in kept:
        await asyncio.sleep(max(0.0, (claim.until or 0.0) - asyncio.get_running_loop().time()))
        del world.card.claims[lease_id]


async def _nothing_is_leased(lessees: Lessees) -> None:
    async with in_time():
        while await lessees.listed():  # noqa: ASYNC110 - connections that have just been closed
            await asyncio.sleep(0.05)


async def _submit_jobs(world: World) -> dict[str, Question]:
    jobs = {}
    for question in JOB_QUESTIONS * 3:
        status, said = await world.call("POST", "/llm/jobs", {"request": generating(question)})
        assert status == 202, said
        jobs[said["id"]] = question
    return jobs


async def _jobs_are_done(world: World, jobs: dict[str, Question]) -> None:
    for job_id, question in jobs.items():
        async with in_time():
            while (job := await _job(world, job_id))["state"] in {"queued", "running"}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert job["state"] == "completed"
        assert job["result"]["response"] == world.texts[question.topic]


async def _job(world: World, job_id: str) -> Any:
    status, said = await world.call("GET", f"/llm/jobs/{job_id}")
    assert status == 200
    return said
