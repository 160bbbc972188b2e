"""A model server that lost the card and does not know it: seen by how slow it answers, mended, and
else told to the owner; and what is slow for other reasons is left alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest

from hearth.alerts.rules import RULES, Alert
from hearth.config.settings import AlertType, ModelSettings
from hearth.errors import BackendTimeout
from hearth.events import (
    ItemEnded,
    ModelFastAgain,
    ModelSlow,
    ModelStaysSlow,
    ModelUnresponsive,
    SwapStarted,
)
from hearth.execution.card_health import (
    ALARM_S,
    COMMAND_TIMEOUT_S,
    FOREIGN_MIB,
    MIN_TOKENS,
    NEW_NORMAL,
    SLOW_FACTOR,
)
from hearth.execution.gpu_tracker import CardUse
from hearth.scheduling.estimates import FEW_RUNS
from hearth.types import MIB, BackendCall, GpuReading
from tests.support.fake_ollama import FakeModel, FakeOllama, Service, service_asked_for
from tests.support.house import (
    House,
    bodies_of,
    body_of,
    heard,
    new_item,
    settings_with,
    settle,
    within,
)
from tests.support.staying_engine import StayingOllama
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until

CPU = 20.0
"""So many times slower; measured: 5 to 30."""
COMMAND = ("systemctl", "restart", "ollama")
WRITE_BUFFER_BYTES = 2048
Remedy = Literal["reload", "restart", "nothing"]


class LossyHouse(House):
    """A house whose model server loses the card, and lists its models on it all the same.

    Args:
        mended_by: what gives it the card back. problem: how the owner's command fails. stays: its
        models are there for as long as it runs.
    """

    def __init__(
        self,
        *,
        mended_by: Remedy = "nothing",
        command: Sequence[str] = COMMAND,
        problem: str = "",
        factor: float = CPU,
        stays: bool = False,
        answer_timeout_s: float = 0.0,
        vram_gb: float | None = 24.0,
        expect_faults: bool = False,
    ) -> None:
        super().__init__(
            FakeModel(name="a", parallel=2),
            resident="a",
            clock=LoopClock(),
            settings=settings_with(
                gpu={"restart_command": tuple(command), "vram_gb": vram_gb, "parallel": 2},
                ollama={"answer_timeout_s": answer_timeout_s or None},
                server={"write_buffer_mib": WRITE_BUFFER_BYTES / MIB},
            ).replace(models={"a": ModelSettings(vram_gb=8.0)}),
            service=self._serve,
            command=self._run,
            ollama=StayingOllama if stays else FakeOllama,
            expect_faults=expect_faults,
        )
        self.words = 44
        self.prompt_tokens: int | None = None
        self.ran: list[tuple[str, ...]] = []
        self.during_command: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self._mended_by = mended_by
        self._problem = problem
        self._factor = factor
        self._lost_at_load: int | None = None

    def lose(self, *, slept_s: float = 0.0) -> None:
        self._lost_at_load = self._loads
        self.clock.slept_s += slept_s

    def mend(self) -> None:
        self._lost_at_load = None

    @property
    def usual_tps(self) -> float:
        usual = self.worker.runtime.forecasts.usual_tokens_per_s("a:latest")
        assert usual is not None
        return usual

    async def learn(self) -> None:
        """Enough answers to know how fast the model is."""
        for _ in range(FEW_RUNS):
            await self.answer("a")

    async def answers(self, count: int) -> None:
        for _ in range(count):
            await self.answer("a")

    @property
    def remedies(self) -> list[str]:
        return [event.remedy for event in self.events.of(ModelSlow)]

    @property
    def alerts(self) -> list[Alert]:
        """About a model that is slow, in their order."""
        return [
            alert
            for event in self.events.all
            if type(event) in RULES
            for alert in RULES[type(event)](event)
            if alert.type is AlertType.MODEL_SLOW
        ]

    @property
    def _loads(self) -> int:
        return sum(record.kind == "load" for record in self.ollama.control)

    def _serve(self, call: BackendCall) -> Service:
        if self._mended_by == "reload" and self._lost_at_load not in {None, self._loads}:
            self.mend()
        factor = 1.0 if self._lost_at_load is None else self._factor
        words = tuple(f" w{number}" for number in range(self.words))
        asked = service_asked_for(call)
        return Service(
            # the first comes with the prompt
            service_s=0.1 + 1e-6 + factor * (self.words - 1) / 40.0,
            first_byte_s=0.1,
            words=words,
            prompt_tokens=self.prompt_tokens or asked.prompt_tokens,
        )

    async def _run(self, command: Sequence[str], timeout_s: float) -> str:
        assert timeout_s == COMMAND_TIMEOUT_S
        self.ran.append(tuple(command))
        if self.during_command is not None:
            await self.during_command()
            return self._problem
        self.ollama.go_down()
        await asyncio.sleep(2.0)
        self.ollama.come_up()
        if self._mended_by == "restart":
            self.mend()
        return self._problem


def open_house(**wanted: Any) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[LossyHouse]:
        async with LossyHouse(**wanted) as house:
            await house.learn()
            yield house

    return opened


@pytest.mark.parametrize(("slept_s", "noticed_after"), [(0.0, 2), (3600.0, 1)])
@within(open_house(mended_by="reload"))
async def test_a_lost_card_is_noticed_within_two_answers_and_mended_by_a_reload(
    house: LossyHouse, slept_s: float, noticed_after: int
):
    house.lose(slept_s=slept_s)
    for number in (1, 2):
        await house.answer("a")
        assert bool(house.remedies) is (number >= noticed_after)
    await house.answers(2)
    assert house.remedies == ["reload"]
    (noticed,) = house.events.of(ModelSlow)
    assert noticed.tokens_per_s * SLOW_FACTOR < noticed.usual_tokens_per_s
    (again,) = house.events.of(ModelFastAgain)
    assert again.slow_s < ALARM_S
    assert house.ran == []
    assert [alert.resolved for alert in house.alerts] == [True]
    assert house.events.of(ModelUnresponsive) == []


@within(open_house(mended_by="restart"))
async def test_where_a_reload_does_not_help_the_owners_command_runs_once(house: LossyHouse):
    house.lose()
    await house.answers(5)
    assert house.remedies == ["reload", "restart"]
    assert house.ran == [COMMAND]
    (again,) = house.events.of(ModelFastAgain)
    assert again.slow_s < ALARM_S
    assert house.events.of(ModelStaysSlow) == []


@pytest.mark.parametrize(
    ("command", "problem", "says"),
    [
        ((), "", "it was loaded again."),
        (COMMAND, "", "it was loaded again, and gpu.restart_command was run."),
        (COMMAND, "ended with 1", "it was loaded again, and gpu.restart_command ended with 1."),
    ],
)
@in_virtual_time
async def test_where_nothing_helps_the_owner_is_told_once_and_in_time(
    command: tuple[str, ...], problem: str, says: str
):
    async with open_house(command=command, problem=problem)() as house:
        house.lose()
        await house.answers(8)
        (told,) = house.events.of(ModelStaysSlow)
        assert told.slow_s <= ALARM_S
        assert len(house.ran) == bool(command)
        house.mend()
        await house.answers(2)
        first, last = house.alerts
        assert first.lasting
        assert says in first.text
        assert last.resolved


@within(open_house(factor=600.0))
async def test_an_answer_that_takes_for_ever_is_told_of_after_a_minute(house: LossyHouse):
    house.words = 16
    house.lose(slept_s=3600.0)
    first = house.submit("a", stream=True)
    await body_of(first)
    noticed_at = house.now
    second = house.submit("a", stream=True)
    await sleep_until(noticed_at + ALARM_S + 1.0)
    (told,) = house.events.of(ModelStaysSlow)
    assert told.slow_s <= ALARM_S + 1.0
    await body_of(second)


@within(open_house(mended_by="reload", factor=100.0))
async def test_answers_that_are_given_up_count_as_slow(house: LossyHouse):
    """As a whole they are cut off long before the CPU has written them."""
    house.lose()
    for _ in range(2):
        _, error = await heard(house.submit("a", max_tokens=44))
        assert isinstance(error, BackendTimeout)
    assert house.remedies == ["reload"]
    assert await house.answer("a", max_tokens=44)
    (again,) = house.events.of(ModelFastAgain)
    assert again.slow_s < ALARM_S
    (noticed,) = house.events.of(ModelSlow)
    assert noticed.tokens_per_s < 2.0


@in_virtual_time
async def test_answers_that_the_owner_has_cut_off_early_say_nothing():
    async with LossyHouse(answer_timeout_s=5.0) as house:
        await house.learn()
        house.words = 2000
        for _ in range(3):
            _, error = await heard(house.submit("a"))
            assert isinstance(error, BackendTimeout)
        assert house.remedies == []


@within(open_house(factor=1000.0))
async def test_answers_that_may_be_of_any_length_say_nothing_when_they_are_given_up(
    house: LossyHouse,
):
    """Models go round in circles, and the callers try again."""
    house.lose()
    for _ in range(3):
        _, error = await heard(house.submit("a"))
        assert isinstance(error, BackendTimeout)
    assert house.remedies == []


@within(open_house())
async def test_nobody_is_told_where_nobody_asks_for_the_model_any_more(house: LossyHouse):
    house.lose()
    await house.answers(2)
    await sleep_until(house.now + 3600.0)
    assert house.remedies == ["reload"]
    assert house.events.of(ModelStaysSlow) == []


async def beside(house: LossyHouse) -> None:
    house.lose()
    for _ in range(4):
        await bodies_of([house.submit("a"), house.submit("a")])


async def short(house: LossyHouse) -> None:
    house.words = MIN_TOKENS - 1
    house.lose()
    await house.answers(4)


def reading(
    *, foreign_mib: float = 0.0, **said: Any
) -> Callable[[LossyHouse], Coroutine[Any, Any, None]]:
    async def story(house: LossyHouse) -> None:
        tracker = house.worker.tracker
        use = CardUse(foreign_mib=foreign_mib)
        tracker.record_reading(GpuReading(used_mib=9000.0, total_mib=24_000.0, **said), use)
        house.lose()
        await house.answers(4)

    return story


async def once(house: LossyHouse) -> None:
    for _ in range(3):
        house.lose()
        await house.answer("a")
        house.mend()
        await house.answers(2)


async def on_a_lease(house: LossyHouse) -> None:
    house.gateway.leases.take(reason="a game", source="games", mib=1024.0, lease_id="game")
    house.lose()
    await house.answers(4)


async def after_answers_of_one_word(house: LossyHouse) -> None:
    house.words = 1
    await house.answers(4)
    house.words = 44
    await house.answers(4)


async def of_a_slow_reader(house: LossyHouse) -> None:
    house.lose()
    for _ in range(4):
        ticket = house.submit("a", stream=True)
        await asyncio.sleep(15.0)
        await body_of(ticket)


def with_fields(**fields: Any) -> Callable[[LossyHouse], Coroutine[Any, Any, None]]:
    async def story(house: LossyHouse) -> None:
        house.lose()
        for _ in range(4):
            asked = new_item("a")
            assert isinstance(asked.call, BackendCall)
            body = json.dumps({**json.loads(asked.call.body), **fields}).encode()
            await body_of(house.worker.submit(replace(asked, call=replace(asked.call, body=body))))

    return story


@pytest.mark.parametrize(
    "story",
    [
        beside,
        short,
        once,
        after_answers_of_one_word,
        of_a_slow_reader,
        with_fields(options={"num_gpu": 0}),
        with_fields(options={"num_ctx": 131_072}),
        with_fields(format={"type": "object"}),
        reading(throttle_reasons=("power_cap", "thermal")),
        reading(foreign_mib=FOREIGN_MIB + 1.0),
        on_a_lease,
    ],
)
@within(open_house())
async def test_what_is_slow_for_another_reason_is_left_alone(
    house: LossyHouse, story: Callable[[LossyHouse], Coroutine[Any, Any, None]]
):
    swaps = len(house.events.of(SwapStarted))
    await story(house)
    assert house.remedies == []
    assert house.ran == []
    assert len(house.events.of(SwapStarted)) == swaps


@pytest.mark.parametrize(
    ("context_tokens", "factor", "remedies"),
    [(100_000, 15.0, 0), (4_000, 15.0, 1), (8_000, 15.0, 1)],
)
@in_virtual_time
async def test_a_long_context_is_no_lost_card(context_tokens: int, factor: float, remedies: int):
    async with open_house(factor=factor)() as house:
        house.lose()
        house.prompt_tokens = context_tokens
        await house.answers(2)
        assert len(house.remedies) == remedies
        house.mend()
        await house.answers(2)


@within(open_house())
async def test_a_request_that_names_the_context_of_its_model_is_judged(house: LossyHouse):
    await with_fields(options={"num_ctx": FakeModel(name="a").context_tokens})(house)
    assert house.remedies == ["reload", "restart"]
    house.mend()
    await house.answers(2)


@in_virtual_time
async def test_a_lost_card_is_noticed_where_all_contexts_are_long():
    async with LossyHouse() as house:
        house.prompt_tokens = 100_000
        await house.learn()
        await house.answers(1)
        house.lose()
        await house.answers(2)
        assert house.remedies == ["reload"]
        house.mend()
        await house.answers(2)


@pytest.mark.parametrize("vram_gb", [None, 0.0])
@in_virtual_time
async def test_a_model_without_a_card_has_none_to_lose(vram_gb: float | None):
    async with open_house(vram_gb=vram_gb)() as house:
        house.lose()
        await house.answers(4)
        assert house.remedies == []


@within(open_house())
async def test_another_model_of_the_same_name_has_a_speed_of_its_own(house: LossyHouse):
    await house.answer("a")
    house.ollama.pulled += 1
    await house.worker.watch.refresh_installed("main")
    house.lose()
    await house.answers(NEW_NORMAL + 5)
    assert house.remedies == []
    slow_tps = house.usual_tps
    house.mend()
    await house.answers(15)
    assert house.usual_tps > SLOW_FACTOR * slow_tps
    house.lose()
    await house.answers(2)
    assert house.remedies == ["reload"]
    house.mend()
    await house.answers(2)


@within(open_house(vram_gb=None))
async def test_a_card_that_cannot_be_read_any_more_was_there(house: LossyHouse):
    tracker = house.worker.tracker
    tracker.record_reading(GpuReading(used_mib=9000.0, total_mib=24_000.0), CardUse())
    tracker.record_no_reading()
    house.lose(slept_s=3600.0)
    await house.answers(2)
    assert house.remedies[:1] == ["reload"]
    house.mend()
    await house.answers(2)


@within(open_house(problem="ended with 1"))
async def test_a_model_that_is_fast_again_before_the_command_fails_is_no_alert(house: LossyHouse):
    house.lose()
    await house.answers(2)
    restarted = asyncio.Event()
    house.during_command = restarted.wait
    await house.answer("a")
    await settle()
    assert len(house.ran) == 1
    house.mend()
    await house.answer("a")
    restarted.set()
    await settle()
    assert len(house.events.of(ModelFastAgain)) == 1
    assert house.events.of(ModelStaysSlow) == []


@within(open_house(expect_faults=True))
async def test_a_command_that_breaks_hearths_own_task_is_not_run_again(house: LossyHouse):
    async def breaks() -> None:
        raise PermissionError

    house.during_command = breaks
    house.lose()
    await house.answers(3)
    await sleep_until(house.now + 3600.0)
    await house.answers(2)
    assert house.ran == [COMMAND]
    house.mend()
    await house.answers(1)


@in_virtual_time
async def test_a_model_that_was_always_that_slow_is_not_judged():
    async with LossyHouse() as house:
        house.lose()
        await house.answers(FEW_RUNS + 3)
        assert house.remedies == []


@within(open_house())
async def test_how_slow_it_is_is_learned_only_once_the_owner_knows(house: LossyHouse):
    before = house.usual_tps
    house.lose()
    await house.answers(8)
    assert len(house.events.of(ModelStaysSlow)) == 1
    assert house.usual_tps == before
    await house.answers(NEW_NORMAL + 15)
    assert house.usual_tps < before / SLOW_FACTOR
    assert house.remedies == ["reload", "restart"]
    assert all(event.reason == "" for event in house.events.of(ItemEnded))


@pytest.mark.parametrize("command", [(), COMMAND])
@in_virtual_time
async def test_a_model_that_is_not_loaded_on_request_is_not_reloaded(command: tuple[str, ...]):
    async with LossyHouse(command=command, stays=True) as house:
        await house.learn()
        house.lose()
        await house.answers(2 + 2 * bool(command))
        assert house.remedies == ["restart"] * bool(command)
        assert len(house.ran) == bool(command)
        (told,) = house.events.of(ModelStaysSlow)
        assert told.tried == ("gpu.restart_command was run",) * bool(command)
        assert house.events.of(SwapStarted) == []
