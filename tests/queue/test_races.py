"""Two things happen in the same tick: whichever comes first wins, and there is exactly one winner.

Each race runs many times on one loop that shuffles whatever is ready together, so that every order
comes up; the winners at the end of a test show that it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from hearth.events import ItemInterrupted
from hearth.execution.request import Ticket
from hearth.types import Outcome
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallRecord, Ending
from tests.support.house import (
    ALWAYS_PREEMPT,
    FULL_TEXT,
    House,
    bodies_of,
    body_of,
    settings_with,
    settle,
    text_of,
)
from tests.support.virtual_time import AtOnce, run_virtual, sleep_until

T = TypeVar("T")

ROUNDS = 60 if EXAMPLES == 1 else 500
SEEDS = (1, 2, 3)
PROMPT = settings_with(scheduling=ALWAYS_PREEMPT)
"""Estimates, which learn from round to round, keep nothing from being stopped."""


def one_model() -> House:
    return House(settings=PROMPT)


def winners_of(
    race: Callable[[Any, float], Awaitable[str]],
    seed: int,
    made: Callable[[], House] = one_model,
    *,
    rounds: int = ROUNDS,
    apart_s: float = 10.0,
) -> set[str]:
    """Run a race so many times, each from an idle house; what it returns names the winner."""

    async def scenario() -> set[str]:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        async with made() as house:
            winners = set[str]()
            for number in range(rounds):
                start = apart_s * (number + 1)
                await sleep_until(start)
                winners.add(await race(house, start))
                await settle(4)
                assert len(house.worker.scheduler.gateway.entries) == 0
            return winners

    return run_virtual(scenario, seed=seed)


async def at(instant: float, act: Callable[[], T], *, turns: int | None = None) -> T:
    """What `act` returns, called so many turns of the loop after a timer of its own, else 0 to 3
    from round to round.

    With 0 it is as early as anything that this instant brings. A decision is taken in the turn that
    brings its fact, so an order that takes more turns can only come up where this one waits too.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def step(left: int) -> None:
        if left:
            loop.call_soon(step, left - 1)
        else:
            done.set_result(act())

    loop.call_at(instant, step, round(instant / 10.0) % 4 if turns is None else turns)
    return await done


def calls_since(house: House, start: float) -> list[CallRecord]:
    return [call for call in house.ollama.calls if call.opened_at >= start]


def was_interrupted(house: House, ticket: Ticket) -> bool:
    return any(event.sequence == ticket.sequence for event in house.events.of(ItemInterrupted))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stream", [False, True])
def test_completion_and_preemption_in_one_tick_have_one_winner(seed: int, stream: bool):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", stream=stream, service_s=1.0, first_byte_s=1.0)
        internal = await at(start + 1.0, lambda: house.internal("a"))
        bodies = await asyncio.gather(body_of(external), body_of(internal))
        assert list(map(text_of, bodies)) == [FULL_TEXT] * 2
        preempted = was_interrupted(house, external)
        assert len(calls_since(house, start)) == 2 + preempted
        return "preempted" if preempted else "completed"

    assert winners_of(race, seed) == {"completed", "preempted"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["id", "caller"])
def test_completion_and_cancel_in_one_tick_have_one_winner(seed: int, stream: bool, by: str):
    async def race(house: House, start: float) -> str:
        running, waiting = (
            house.submit("a", stream=stream, caller="me", request_id=name)
            for name in ("req_1", "req_2")
        )
        if by == "id":
            await sleep_until(start + 1.0)
            said, _ = [house.cancel(ticket) for ticket in (running, waiting)]
            assert house.cancel(running) is said
        else:
            cancelled = await at(start + 1.0, lambda: house.worker.cancel_caller("me"))
            said = cancelled == ["req_1", "req_2"]
            assert said or cancelled == ["req_2"]
            assert house.worker.cancel_caller("me") == []
        ended = await house.end_of(running)
        assert (ended.outcome is Outcome.CANCELLED) == said
        assert (await house.end_of(waiting)).outcome is Outcome.CANCELLED
        assert {call.ended_at for call in calls_since(house, start)} == {start + 1.0}
        return str(ended.outcome)

    assert winners_of(race, seed) == {"completed", "cancelled"}


@pytest.mark.parametrize(
    ("first", "winners"), [("preempted", {"interrupted", "not"}), ("cancelled", {"not"})]
)
@pytest.mark.parametrize("by", ["id", "caller"])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_preemption_and_cancel_in_one_tick_in_either_order_end_the_item_once(
    seed: int, by: str, first: str, winners: set[str]
):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", caller="me", service_s=5.0)
        cancel = (
            (lambda: house.cancel(external))
            if by == "id"
            else (lambda: house.worker.cancel_caller("me"))
        )
        urgent: list[Ticket] = []
        preempt = lambda: urgent.append(house.internal("a"))  # noqa: E731
        orders: list[Callable[[], object]] = (
            [preempt, cancel] if first == "preempted" else [cancel, preempt]
        )
        await asyncio.gather(
            at(start + 1.0, orders[0], turns=0),
            at(start + 1.0, orders[1], turns=1 + round(start / 10.0) % 4),
        )
        await body_of(urgent[0])
        assert house.now == start + 2.0
        assert (await house.end_of(external)).outcome is Outcome.CANCELLED
        await asyncio.sleep(1.0)
        assert len(calls_since(house, start)) == 2
        return "interrupted" if was_interrupted(house, external) else "not"

    assert winners_of(race, seed) == winners


@pytest.mark.parametrize("seed", SEEDS)
def test_a_byte_a_preemption_and_a_cancel_in_one_tick_leave_nothing(seed: int):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", stream=True, service_s=5.0, first_byte_s=1.0)
        internal, _ = await at(start + 1.0, lambda: (house.internal("a"), house.cancel(external)))
        await body_of(internal)
        assert house.now == start + 2.0
        stopped = calls_since(house, start)[0]
        assert (stopped.ending, stopped.ended_at) == (Ending.CLOSED, start + 1.0)
        return "silent" if stopped.first_byte_at is None else "streaming"

    assert winners_of(race, seed) == {"streaming", "silent"}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_item_that_leaves_as_its_place_comes_free_makes_way_for_the_next(seed: int):
    async def race(house: House, start: float) -> str:
        running, leaving, staying = (house.submit("a") for _ in range(3))
        await at(start + 1.0, lambda: house.cancel(leaving))
        await asyncio.gather(body_of(running), body_of(staying))
        assert house.now == start + 2.0
        assert [call.ending for call in calls_since(house, start)].count(Ending.COMPLETED) == 2
        return str((await house.end_of(leaving)).attempts)

    assert winners_of(race, seed) == {"0", "1"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ran_s", [0.0, 1.0])
def test_internal_work_during_a_start_or_a_return_starts_once_and_first(seed: int, ran_s: float):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", service_s=2.0)
        await sleep_until(start + ran_s)
        urgent = [house.internal("a")]
        await asyncio.sleep(0)
        urgent.append(house.internal("a"))
        await bodies_of([*urgent, external])
        assert house.now == start + ran_s + 4.0
        return str((await house.end_of(external)).interrupt_count)

    assert winners_of(race, seed) == {"1"}
