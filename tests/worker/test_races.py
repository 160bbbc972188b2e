"""Two things happen in the same tick: whichever comes first wins, and there is exactly one winner.

Each race runs many times on one loop that shuffles whatever is ready together, so that every order comes up; the counts at the end of
a test show that it did.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hearth.events import ItemInterrupted
from hearth.execution.request import Ticket
from hearth.types import Outcome
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallRecord, Ending
from tests.support.virtual_time import run_virtual, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, settings_with, settle, text_of

T = TypeVar("T")

ROUNDS = 60 if EXAMPLES == 1 else 500
SEEDS = (1, 2, 3)
PROMPT = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0})
"""Estimates, which learn from round to round, keep nothing from being stopped."""


def rounds_of(race: Callable[[House, float], Awaitable[str]], seed: int) -> Counter[str]:
    """Run a race `ROUNDS` times, each from an idle house; what it returns names the winner."""

    async def scenario() -> Counter[str]:
        async with House("a", resident=("a",), settings=PROMPT) as house:
            winners = Counter[str]()
            for number in range(ROUNDS):
                start = 10.0 * (number + 1)
                await sleep_until(start)
                winners[await race(house, start)] += 1
                await settle(4)
                assert len(house.worker.scheduler.state.entries) == 0
            return winners

    return run_virtual(scenario, seed=seed)


@for_each("seed", SEEDS)
@for_each("stream", [False, True])
def test_completion_and_preemption_in_one_tick_have_one_winner(seed: int, stream: bool):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", stream=stream, service_s=1.0, first_byte_s=1.0)
        internal = await at(start + 1.0, lambda: house.internal("a"), turns=turns_of(start))
        bodies = await asyncio.gather(body_of(external), body_of(internal))
        assert list(map(text_of, bodies)) == [FULL_TEXT] * 2
        ended = house.events.of(ItemInterrupted)
        was_interrupted = any(event.sequence == external.sequence for event in ended)
        calls = [call for call in house.ollama.calls if call.opened_at >= start]
        assert len(calls) == 2 + was_interrupted
        return "preempted" if was_interrupted else "completed"

    winners = rounds_of(race, seed)
    assert min(winners["completed"], winners["preempted"]) > 0


@for_each("seed", SEEDS)
@for_each("stream", [False, True])
def test_completion_and_cancel_in_one_tick_have_one_winner(seed: int, stream: bool):
    async def race(house: House, start: float) -> str:
        ticket = house.submit("a", stream=stream)
        await sleep_until(start + 1.0)
        said = house.worker.cancel(ticket.sequence)
        ended = await house.end_of(ticket)
        assert (ended.outcome is Outcome.CANCELLED) == said
        assert last_call(house).ended_at == start + 1.0
        assert house.worker.cancel(ticket.sequence) is said
        return str(ended.outcome)

    assert set(rounds_of(race, seed)) == {"completed", "cancelled"}


@for_each("seed", SEEDS)
@for_each("stream", [False, True])
def test_completion_and_the_cancel_of_all_that_a_caller_has_in_one_tick_have_one_winner_each(seed: int, stream: bool):
    async def race(house: House, start: float) -> str:
        running, waiting = (house.submit("a", stream=stream, caller="me", request_id=name) for name in ("req_1", "req_2"))
        said = await at(start + 1.0, lambda: house.worker.cancel_caller("me"), turns=turns_of(start))
        assert said in (["req_2"], ["req_1", "req_2"])
        assert house.worker.cancel_caller("me") == []
        ended = await house.end_of(running)
        assert (ended.outcome is Outcome.CANCELLED) == ("req_1" in said)
        assert (await house.end_of(waiting)).outcome is Outcome.CANCELLED
        assert {call.ended_at for call in house.ollama.calls if call.opened_at >= start} == {start + 1.0}
        return str(ended.outcome)

    assert set(rounds_of(race, seed)) == {"completed", "cancelled"}


@for_each("first", ["preempted", "cancelled"])
@for_each("by", ["id", "caller"])
@for_each("seed", SEEDS[:2])
def test_preemption_and_cancel_in_one_tick_in_either_order_end_the_item_once(seed: int, by: str, first: str):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", caller="me", service_s=5.0)
        cancel = (lambda: house.worker.cancel(external.sequence)) if by == "id" else (lambda: house.worker.cancel_caller("me"))
        urgent: list[Ticket] = []
        preempt = lambda: urgent.append(house.internal("a"))  # noqa: E731
        orders: list[Callable[[], object]] = [preempt, cancel] if first == "preempted" else [cancel, preempt]

        async def act(order: Callable[[], object], turns: int) -> None:
            await at(start + 1.0, order, turns=turns)

        await asyncio.gather(act(orders[0], 0), act(orders[1], 1 + turns_of(start)))
        await body_of(urgent[0])
        assert house.now == start + 2.0
        assert (await house.end_of(external)).outcome is Outcome.CANCELLED
        await asyncio.sleep(1.0)
        assert len([call for call in house.ollama.calls if call.opened_at >= start]) == 2
        interrupted = any(event.sequence == external.sequence for event in house.events.of(ItemInterrupted))
        return "interrupted" if interrupted else "not"

    winners = rounds_of(race, seed)
    assert set(winners) == ({"interrupted", "not"} if first == "preempted" else {"not"})


@for_each("seed", SEEDS)
def test_a_first_byte_a_preemption_and_a_cancel_in_one_tick_leave_nothing_running(seed: int):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", stream=True, service_s=5.0, first_byte_s=1.0)
        act = lambda: (house.internal("a"), house.worker.cancel(external.sequence))  # noqa: E731
        internal, _ = await at(start + 1.0, act, turns=turns_of(start))
        await body_of(internal)
        assert house.now == start + 2.0
        stopped = next(call for call in house.ollama.calls if call.opened_at == start)
        assert (stopped.ending, stopped.ended_at) == (Ending.CLOSED, start + 1.0)
        return "streaming" if stopped.first_byte_at is not None else "silent"

    assert set(rounds_of(race, seed)) == {"streaming", "silent"}


@for_each("seed", SEEDS)
def test_an_item_that_leaves_as_its_place_comes_free_makes_way_for_the_next(seed: int):
    async def race(house: House, start: float) -> str:
        running, leaving, staying = (house.submit("a") for _ in range(3))
        await at(start + 1.0, lambda: house.worker.cancel(leaving.sequence), turns=turns_of(start))
        await asyncio.gather(body_of(running), body_of(staying))
        assert house.now == start + 2.0
        sent = [call for call in house.ollama.calls if call.opened_at >= start]
        assert sum(call.ending is Ending.COMPLETED for call in sent) == 2
        return str((await house.end_of(leaving)).attempts)

    assert set(rounds_of(race, seed)) == {"0", "1"}


@for_each("seed", SEEDS)
def test_internal_work_that_comes_while_external_work_is_put_back_starts_once_and_first(seed: int):
    async def race(house: House, start: float) -> str:
        external = house.submit("a", service_s=2.0)
        await sleep_until(start + 1.0)
        urgent = [house.internal("a")]
        await asyncio.sleep(0)
        urgent.append(house.internal("a"))
        await asyncio.gather(*map(body_of, [*urgent, external]))
        assert house.now == start + 5.0
        assert (await house.end_of(external)).interrupt_count == 1
        return "done"

    assert rounds_of(race, seed)["done"] == ROUNDS


async def at(instant: float, act: Callable[[], T], *, turns: int) -> T:
    """What `act` returns, called so many turns of the loop after a timer of its own: with 0 as early as anything that this instant brings.

    A decision is taken in the turn that brings its fact, so an order that takes more turns can only come up where this one waits too.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def step(left: int) -> None:
        if left:
            loop.call_soon(step, left - 1)
        else:
            done.set_result(act())

    loop.call_at(instant, step, turns)
    return await done


def turns_of(start: float) -> int:
    """0 to 3, from round to round."""
    return round(start / 10.0) % 4


def last_call(house: House) -> CallRecord:
    return house.ollama.calls[-1]
