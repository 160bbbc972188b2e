"""Swaps that fail, never end, or only say that they are done: nobody runs on a model that is not there, and everybody is told."""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.settings import ModelSettings
from hearth.errors import HearthError, ModelNotFound, SwapFailed, SwapTimedOut
from hearth.events import InternalFault, SwapCompleted, SwapStarted
from hearth.events import SwapFailed as SwapFailedEvent
from hearth.types import LoadOptions, Outcome
from tests.support.cases import for_each
from tests.support.fake_ollama import FakeModel, FakeOllama, LoadFault, UnloadFault
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, settings_with, text_of

SHORT_SWAPS = settings_with(gpu={"swap_timeout_s": 10.0})


def kinds(house: House) -> list[str]:
    return [f"{record.kind} {record.model}" for record in house.ollama.control]


@in_house("a", "b", resident=("a",))
async def test_a_swap_unloads_first_and_loads_then_and_is_reported_with_its_time(house: House):
    await body_of(house.submit("b"))
    assert house.now == 0.5 + 2.0 + 1.0
    assert kinds(house) == ["unload a:latest", "load b:latest"]
    (started,), (completed,) = house.events.of(SwapStarted), house.events.of(SwapCompleted)
    assert (started.from_models, started.to_model, started.why) == (("a:latest",), "b:latest", "waiting")
    assert (completed.from_models, completed.to_model, completed.swap_s) == (("a:latest",), "b:latest", 2.5)


@in_virtual_time
async def test_a_swap_takes_until_the_last_of_those_that_make_room_is_gone():
    slow = FakeModel(name="b", unload_s=3.0)
    large = FakeModel(name="c", vram_mib=16_384.0)
    needs = {name: ModelSettings(vram_gb=need) for name, need in (("a", 8.0), ("b", 8.0), ("c", 16.0))}
    settings = settings_with(gpu={"vram_gb": 20.0}).replace(models=needs)
    house = House("a", slow, large, resident=("a", "b"), settings=settings, capacity_mib=20_480.0)
    async with house:
        await body_of(house.submit("c"))
        (completed,) = house.events.of(SwapCompleted)
        assert (completed.swap_s, sorted(completed.from_models)) == (5.0, ["a:latest", "b:latest"])


@for_each(
    ("faults", "error", "says", "status", "retry_after_s", "failed"),
    [
        ([LoadFault.FAIL] * 2, SwapFailed, "signal: killed", 503, 30.0, ["swap_failed"] * 2),
        ([LoadFault.LIE] * 2, SwapFailed, "does not list it", 503, 30.0, ["swap_failed"] * 2),
        ([LoadFault.NOT_FOUND], ModelNotFound, "", 404, None, ["model_not_found"]),
        ([LoadFault.NEVER], SwapTimedOut, "", 503, 30.0, ["swap_timeout"]),
        ([LoadFault.LATE], SwapTimedOut, "", 503, 30.0, ["swap_timeout"]),
    ],
)
@in_house("a", "b", settings=SHORT_SWAPS)
async def test_a_load_that_fails_lies_or_does_not_end_is_no_success_and_all_who_wait_have_an_error_of_their_own(
    house: House, faults: list[LoadFault], error: type[HearthError], says: str, status: int, retry_after_s: float | None, failed: list[str]
):
    house.ollama.next_loads(*faults)
    tickets = [house.submit("a") for _ in range(3)]
    failures = await asyncio.gather(*map(body_of, tickets), return_exceptions=True)
    assert len(set(map(id, failures))) == 3
    for failure in failures:
        assert isinstance(failure, error)
        assert (failure.status, failure.retry_after_s) == (status, retry_after_s)
        assert says in failure.message
    swaps = house.events.of(SwapFailedEvent)
    assert [event.reason for event in swaps] == failed
    assert (house.now, swaps[0].swap_s) == (10.0, 10.0) or error is not SwapTimedOut
    assert (house.events.of(SwapCompleted), house.ollama.calls) == ([], [])
    gpu = house.gpu_status
    assert (gpu["loaded_model"], gpu["current_swap"], gpu["residents"]) == (None, None, [])
    await sleep_until(16.0)
    assert text_of(await body_of(house.submit("b"))) == FULL_TEXT


@in_house("a", settings=SHORT_SWAPS)
async def test_a_model_that_is_there_after_our_timeout_is_found_and_used(house: House):
    house.ollama.next_loads(LoadFault.LATE)
    with pytest.raises(SwapTimedOut):
        await body_of(house.submit("a"))
    await sleep_until(16.0)
    assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
    assert (house.now, kinds(house)) == (17.0, ["load a:latest"])


@in_house("a", "b", settings=SHORT_SWAPS)
async def test_a_load_that_never_ends_holds_other_models_up_no_longer_than_its_timeout(house: House):
    house.ollama.next_loads(LoadFault.NEVER)
    stuck, other = house.submit("a"), house.submit("b")
    assert text_of(await body_of(other)) == FULL_TEXT
    assert house.now == 10.0 + 2.0 + 1.0
    assert (await house.end_of(stuck)).outcome is Outcome.FAILED


@in_house("a", "b", resident=("a",))
async def test_a_model_that_will_not_leave_is_told_again_before_anybody_loses_their_place(house: House):
    house.ollama.next_unloads(UnloadFault.STUCK)
    assert text_of(await body_of(house.submit("b"))) == FULL_TEXT
    assert kinds(house) == ["unload a:latest", "unload a:latest", "load b:latest"]
    (failed,) = house.events.of(SwapFailedEvent)
    assert (failed.from_models, failed.to_model) == (("a:latest",), "")


@in_house("a", "b", resident=("a",))
async def test_a_model_that_never_leaves_fails_those_who_need_another_with_a_time_to_come_back(house: House):
    house.ollama.next_unloads(*[UnloadFault.STUCK] * 2)
    with pytest.raises(SwapFailed) as refused:
        await body_of(house.submit("b"))
    assert (refused.value.status, refused.value.retry_after_s) == (503, 30.0)
    assert house.events.of(SwapCompleted) == []
    assert house.ollama.calls == []


@in_house("a", "b", resident=("a",))
async def test_a_model_that_was_deleted_while_it_was_in_memory_keeps_no_other_from_coming(house: House):
    house.ollama.delete("a:latest")
    assert text_of(await body_of(house.submit("b"))) == FULL_TEXT
    assert kinds(house) == ["unload a:latest", "load b:latest"]
    assert house.events.of(SwapFailedEvent) == []


@in_virtual_time
async def test_a_model_is_loaded_with_the_context_that_the_owner_pinned():
    models = {"a": ModelSettings(num_ctx=8192)}
    async with House("a", settings=settings_with().replace(models=models)) as house:
        await body_of(house.submit("a"))
        assert [record.options for record in house.ollama.control] == [LoadOptions(num_ctx=8192)]


@in_house(FakeModel(name="a", vram_mib=6000.0, size_mib=9000.0), FakeModel(name="b"))
async def test_a_model_that_is_partly_on_the_cpu_is_reported_so(house: House):
    await body_of(house.submit("a"))
    await body_of(house.submit("b"))
    assert [(event.vram_mib, event.offloaded) for event in house.events.of(SwapCompleted)] == [(6000.0, True), (8192.0, False)]


class Defective(FakeOllama):
    """Its adapter has a defect: a load raises what no port may raise."""

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        raise ZeroDivisionError


@in_house("a", "b", resident=("b",), ollama=Defective, expect_faults=True)
async def test_a_defect_in_a_load_is_reported_and_ends_the_swap(house: House):
    with pytest.raises(HearthError):
        await body_of(house.submit("a"))
    assert {(fault.where, fault.detail) for fault in house.events.of(InternalFault)} == {("swapper", "ZeroDivisionError")}
