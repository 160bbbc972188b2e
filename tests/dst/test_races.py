"""Two things at one instant, for what generated houses rarely bring to the same turn of the loop:
each race 256 times in CI, a thousand times in `make reliability`.
"""

from __future__ import annotations

import asyncio
import math

import pytest

from hearth.events import JobEnded
from tests.dst.outside import SharedOllama
from tests.jobs.batch_house import BatchHouse, jsonl, lines
from tests.jobs.house import JobHouse, job
from tests.queue.embedding_house import SERVICE_S, EmbeddingHouse, vector_in
from tests.queue.test_races import at, winners_of
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import FakeModel
from tests.support.house import FULL_TEXT, House, body_of, settings_with, text_of
from tests.support.ollama_wire import vector_of
from tests.support.virtual_time import sleep_until

SEEDS = (1,) if EXAMPLES == 1 else (1, 2, 3, 4)
ROUNDS = 256
APART_S = 60.0


def turns(start: float) -> int:
    """0 to 3, from round to round."""
    return round(start / APART_S) % 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_request_at_the_home_models_return_is_served(seed: int):
    models = [FakeModel(name=name, load_s=1.0, unload_s=0.5) for name in "ab"]
    settings = settings_with(gpu={"home_model": "a", "restore_home_delay_s": 8.0})

    async def race(house: House, start: float) -> str:
        await house.answer("b")
        leaves_at = house.now + 8.0
        # of two timers for one instant the older one is first
        asked_at = leaves_at if turns(start) else math.nextafter(leaves_at, 0.0)
        late = await at(asked_at, lambda: house.submit("b"), turns=turns(start))
        assert text_of(await body_of(late)) == FULL_TEXT
        stayed = house.now < leaves_at + 1.1
        # the return that had begun, the way back, the answer
        assert stayed or house.now <= leaves_at + 1.5 + 1.5 + 1.0
        await sleep_until(start + 40.0)
        assert [each.name for each in await house.ollama.resident()] == ["a:latest"]
        return "stayed" if stayed else "went and came back"

    winners = winners_of(
        race,
        seed,
        lambda: House(*models, resident="a", settings=settings),
        rounds=ROUNDS,
        apart_s=APART_S,
    )
    assert winners == {"stayed", "went and came back"}


def shared_house() -> House:
    """Somebody else uses its model server too."""
    house = House(
        *(FakeModel(name=name, load_s=1.0) for name in "ab"), resident="a", ollama=SharedOllama
    )
    assert isinstance(house.ollama, SharedOllama)
    house.ollama.believed = lambda: frozenset(house.worker.scheduler.device.residency.residents)
    return house


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", [None, "b"])
def test_a_model_that_goes_as_it_is_asked_for_is_asked_all_the_same(seed: int, other: str | None):
    async def race(house: House, start: float) -> str:
        shared = house.ollama
        assert isinstance(shared, SharedOllama)

        def interfere() -> None:
            shared.take_away("a") if other is None else shared.bring(other)
            house.gateway._watch.poke()

        loads = len(shared.control)
        # a look takes a few turns
        asking = asyncio.ensure_future(
            at(start + 1.0, lambda: house.submit("a"), turns=4 * turns(start))
        )
        await at(start + 1.0, interfere, turns=0)
        assert text_of(await body_of(await asking)) == FULL_TEXT
        assert house.now <= start + 1.0 + 0.5 + 1.0 + 1.0  # an unload, a load, the answer
        reloaded = any(each.kind == "load" for each in shared.control[loads:])
        await asyncio.sleep(20.0)
        if shared.gpu.place("a:latest") is None:
            await house.answer("a")
        return "reloaded" if reloaded else "served"

    assert winners_of(race, seed, shared_house, rounds=ROUNDS, apart_s=APART_S) == {
        "reloaded",
        "served",
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("instant", ["sent", "answered"])
def test_who_leaves_a_shared_call_leaves_the_others_their_vectors(seed: int, instant: str):
    async def race(house: EmbeddingHouse, start: float) -> str:
        names = [f"{start} {place}" for place in range(3)]
        first, leaving, staying = [house.ask(name) for name in names]
        sent_at = start + SERVICE_S
        answered_at = sent_at + SERVICE_S
        await at(
            sent_at if instant == "sent" else answered_at, leaving.reply.abandon, turns=turns(start)
        )
        assert await vector_in(first) == vector_of(names[0])
        assert await vector_in(staying) == vector_of(names[2])
        assert house.now == answered_at
        ended = await house.end_of(leaving)
        return (
            "asked for"
            if any(names[1] in call for call in house.sent())
            else f"not: {ended.outcome}"
        )

    winners = winners_of(race, seed, EmbeddingHouse, rounds=ROUNDS, apart_s=APART_S)
    assert len(winners) > 1 or instant == "answered", winners


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_is_cancelled_as_it_ends_ends_once_and_the_store_says_how(seed: int):
    async def race(house: JobHouse, start: float) -> str:
        job_id = f"job_{start:g}"
        await house.accept(job(job_id, service_s=1.0))
        record = await house.record(job_id)
        cancelled = await (
            await at(
                start + 1.0,
                lambda: asyncio.ensure_future(house.jobs.cancel(record)),
                turns=turns(start),
            )
        )
        (end,) = await house.ended(job_id)
        assert (end.state == "cancelled") == cancelled
        assert (await house.record(job_id)).state == end.state
        await asyncio.sleep(5.0)
        assert [event.state for event in house.events.of(JobEnded) if event.job_id == job_id] == [
            end.state
        ]
        return end.state

    winners = winners_of(race, seed, JobHouse, rounds=ROUNDS, apart_s=APART_S)
    assert winners == {"completed", "cancelled"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_cancelled_at_its_last_line_has_written_each_once(seed: int):
    async def race(house: BatchHouse, start: float) -> str:
        batch_id = f"batch_{start:g}"
        await house.started(jsonl(*lines(2)), batch_id)
        await asyncio.sleep(0.3)
        done_at = max(call.opened_at for call in house.ollama.calls) + 2.0
        cancel_at = done_at + 0.2 * (turns(start) % 3)
        await (
            await at(
                cancel_at,
                lambda: asyncio.ensure_future(house.batches.cancel(batch_id)),
                turns=turns(start),
            )
        )
        done, codes = await house.outcome(batch_id)
        assert sorted([*done, *codes]) == ["r1", "r2"]
        batch = await house.batch(batch_id)
        assert (batch.completed, batch.failed) == (len(done), len(codes))
        return batch.status

    winners = winners_of(race, seed, BatchHouse, rounds=ROUNDS // 2, apart_s=APART_S)
    assert winners == {"completed", "cancelled"}
