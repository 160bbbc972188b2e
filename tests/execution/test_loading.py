"""Swaps, also those that fail, never end or only say that they are done, and the way back to the
home model, under any of its names.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hearth.config.scheduler_settings import CostAwareSettings
from hearth.config.settings import GatewayConfig, ModelSettings
from hearth.dialects.capabilities import needs_of
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import HearthError, LoadError, ModelNotFound, NotCapable, SwapTimedOut
from hearth.events import (
    HomeModelMissing,
    InternalFault,
    ResidencyDrifted,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.execution.gpu_tracker import CardUse
from hearth.job_types import Job
from hearth.jobs.queue import item_of
from hearth.types import (
    BackendCall,
    GpuReading,
    Lane,
    LoadOptions,
    Outcome,
    Priority,
)
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import FakeModel, FakeOllama, LoadFault, UnloadFault
from tests.support.fields import Fields
from tests.support.house import (
    FULL_TEXT,
    House,
    bodies_of,
    body_of,
    heard,
    in_house,
    settings_with,
    text_of,
)
from tests.support.virtual_time import hold_up, in_virtual_time, sleep_until

SHORT_SWAPS = settings_with(gpu={"swap_timeout_s": 10.0})
COST_AWARE = settings_with(
    scheduling={"policy": "cost_aware", "cost_aware": CostAwareSettings(max_wait_s=4.0)}
)
HOME_S = 30.0
HOME = settings_with(gpu={"home_model": "h", "restore_home_delay_s": HOME_S})


def done_to(house: House) -> list[str]:
    """Every load and unload that the model server was asked for."""
    return [
        f"{record.kind} {record.model}"
        for record in house.ollama.control
        if record.kind in {"load", "unload"}
    ]


def swapped_to(house: House) -> list[str]:
    return [event.to_model for event in house.events.of(SwapCompleted)]


def pinned_to(num_ctx: int, *models: str) -> dict[str, ModelSettings]:
    return dict.fromkeys(models, ModelSettings(num_ctx=num_ctx))


@in_house("a", FakeModel(name="b", vram_mib=6000.0, size_mib=9000.0), resident="a")
async def test_a_swap_unloads_first_and_is_reported_with_its_time_and_cpu_share(house: House):
    ticket = house.submit("b")
    await body_of(ticket)
    assert (house.now, done_to(house)) == (0.5 + 2.0 + 1.0, ["unload a:latest", "load b:latest"])
    ended = await house.end_of(ticket)
    assert (ended.queue_s, ended.swap_s, ended.backend_s) == (2.5, 2.5, 1.0)
    (shown,) = [model for model in await house.gateway.models() if model["vram_mib"]]
    assert (shown["name"], shown["vram_mib"]) == ("b:latest", 6000.0), (
        "what was loaded has been looked at"
    )
    await house.answer("a")
    started = house.events.of(SwapStarted)[0]
    completed = house.events.of(SwapCompleted)
    assert (started.from_models, started.to_model, started.why) == (
        ("a:latest",),
        "b:latest",
        "waiting",
    )
    assert (completed[0].from_models, completed[0].to_model, completed[0].swap_s) == (
        ("a:latest",),
        "b:latest",
        2.5,
    )
    assert [(event.vram_mib, event.offloaded) for event in completed] == [
        (6000.0, True),
        (8192.0, False),
    ]


@in_virtual_time
async def test_a_swap_takes_until_the_last_of_those_that_make_room_is_gone():
    slow = FakeModel(name="b", unload_s=3.0)
    large = FakeModel(name="c", vram_mib=16_384.0)
    needs = {
        name: ModelSettings(vram_gb=need) for name, need in (("a", 8.0), ("b", 8.0), ("c", 16.0))
    }
    settings = settings_with(gpu={"vram_gb": 20.0}).replace(models=needs)
    async with House(
        "a", slow, large, resident="a b", settings=settings, capacity_mib=20_480.0
    ) as house:
        await house.answer("c")
        (completed,) = house.events.of(SwapCompleted)
        assert (completed.swap_s, sorted(completed.from_models)) == (5.0, ["a:latest", "b:latest"])


def phases_of(swap: SwapCompleted) -> tuple[float, ...]:
    return swap.cooldown_s, swap.drain_s, swap.unload_s, swap.load_s


@in_house("a", "b", resident="a", settings=COST_AWARE)
async def test_a_swap_says_how_long_it_was_put_off_and_drained_and_what_it_took(house: House):
    """It is put off for 4 s, and `a` runs from 3.5 s to 5.5 s."""
    waiting = house.submit("b")
    await sleep_until(3.5)
    await bodies_of([house.submit("a", service_s=2.0), waiting])
    (swap,) = house.events.of(SwapCompleted)
    assert phases_of(swap) == (3.5, 2.0, 0.5, 2.0)
    assert swap.swap_s == 2.5


@in_house("a", "b", "c", resident="a")
async def test_a_swap_that_waits_for_another_counts_nothing_of_that_as_its_own(house: House):
    """It waits while `b` answers, and then for its caller to come back."""
    await bodies_of([house.submit("b", caller="one"), house.submit("c", caller="two")])
    to_b, to_c = house.events.of(SwapCompleted)
    assert phases_of(to_b) == (0.0, 0.0, 0.5, 2.0)
    assert phases_of(to_c) == pytest.approx((0.15, 1.0, 0.5, 2.0))


@in_house("a", "b", resident="a")
async def test_a_swap_drains_only_from_when_somebody_waits_for_it(house: House):
    running = house.submit("a", service_s=10.0)
    house.cancel(house.submit("b"))
    await sleep_until(8.0)
    await bodies_of([running, house.submit("b")])
    (swap,) = house.events.of(SwapCompleted)
    assert phases_of(swap) == (0.0, 2.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("faults", "error", "says", "retry_after_s", "failed"),
    [
        ([LoadFault.FAIL] * 2, LoadError, "signal: killed", 30.0, ["swap_failed"] * 2),
        ([LoadFault.LIE] * 2, LoadError, "does not list it", 30.0, ["swap_failed"] * 2),
        ([LoadFault.NOT_FOUND], ModelNotFound, "", None, ["model_not_found"]),
        ([LoadFault.NEVER], SwapTimedOut, "gpu.swap_timeout_s", 30.0, ["swap_timeout"]),
        ([LoadFault.LATE], SwapTimedOut, "gpu.swap_timeout_s", 30.0, ["swap_timeout"]),
    ],
)
@in_house("a", "b", settings=SHORT_SWAPS)
async def test_a_load_that_fails_lies_or_does_not_end_is_an_error_for_all_who_wait(
    house: House,
    faults: list[LoadFault],
    error: type[HearthError],
    says: str,
    retry_after_s: float | None,
    failed: list[str],
):
    house.ollama.next_loads(*faults)
    failures = [
        failure
        for _, failure in await asyncio.gather(*(heard(house.submit("a")) for _ in range(3)))
    ]
    assert len(set(map(id, failures))) == 3
    for failure in failures:
        assert isinstance(failure, error)
        assert (failure.status, failure.retry_after_s) == (
            503 if retry_after_s else 404,
            retry_after_s,
        )
        assert says in failure.for_owner().message
    swaps = house.events.of(SwapFailed)
    assert [event.reason for event in swaps] == failed
    assert (house.now, swaps[0].swap_s) == (10.0, 10.0) or error is not SwapTimedOut
    assert (house.events.of(SwapCompleted), house.ollama.calls) == ([], [])
    gpu = house.gpu_status
    assert (gpu["loaded_model"], gpu["current_swap"], gpu["residents"]) == (None, None, [])
    await sleep_until(16.0)
    assert await house.answer("b") == FULL_TEXT


@in_house("a", "b", settings=SHORT_SWAPS)
async def test_an_endless_load_holds_up_for_its_timeout_and_is_used_if_it_ends(house: House):
    house.ollama.next_loads(LoadFault.NEVER)
    stuck = house.submit("a")
    other = house.submit("b")
    assert text_of(await body_of(other)) == FULL_TEXT
    assert (house.now, (await house.end_of(stuck)).outcome) == (10.0 + 2.0 + 1.0, Outcome.FAILED)
    house.ollama.next_loads(LoadFault.LATE)
    assert isinstance((await heard(house.submit("a")))[1], SwapTimedOut)
    loads = len(done_to(house))
    await sleep_until(house.now + 6.0)
    assert await house.answer("a") == FULL_TEXT
    assert len(done_to(house)) == loads


async def seen_on_the_card(house: House, grown_mib: Callable[[float], float]) -> None:
    while True:
        house.gateway.worker.tracker.record_reading(
            GpuReading(used_mib=grown_mib(house.now)), CardUse()
        )
        await asyncio.sleep(1.0)


async def seen_in_main_memory(house: House, grown_mib: Callable[[float], float]) -> None:
    house.ollama.process_mib = grown_mib


@pytest.mark.parametrize("seen", [seen_on_the_card, seen_in_main_memory])
@pytest.mark.parametrize(
    ("load_s", "grows_s", "ends_at", "says"),
    [
        (34.0, 40.0, 34.0, ""),
        (60.0, 20.0, 30.0, "no progress for 10 s"),
        (200.0, 200.0, 100.0, "10 times the 10 s"),
    ],
)
@in_virtual_time
async def test_a_load_is_given_up_without_progress_or_after_ten_times_as_long(
    seen: Callable[[House, Callable[[float], float]], Coroutine[Any, Any, None]],
    load_s: float,
    grows_s: float,
    ends_at: float,
    says: str,
):
    """Memory grows for a while, after 9 GiB were given back. A load without progress has 10 s."""
    async with House(FakeModel(name="a", load_s=load_s), settings=SHORT_SWAPS) as house:
        watching = asyncio.ensure_future(
            seen(house, lambda now: 100.0 * min(now, grows_s) + (9000.0 if now < 0.5 else 0.0))
        )
        said, error = await heard(house.submit("a", service_s=0.0))
        watching.cancel()
        assert house.now == ends_at
        await house.ollama.settled()
        if not says:
            assert text_of(said) == FULL_TEXT
            return
        assert isinstance(error, SwapTimedOut)
        assert says in error.message
        assert ("no progress" in error.message) is (ends_at < 100.0), "progress was seen to the end"
        assert f"within {ends_at:g} s" in error.message
        assert "gpu.swap_timeout_s" in error.remedy


@in_house(FakeModel(name="a", load_s=8.0), "b", settings=SHORT_SWAPS)
async def test_a_load_has_twice_as_long_as_the_longest_of_its_model_so_far(house: House):
    await house.answer("a")
    house.ollama.gpu.models["a:latest"] = FakeModel(name="a:latest", load_s=15.0)
    await house.answer("b")
    assert await house.answer("a") == FULL_TEXT
    await house.answer("b")
    house.ollama.next_loads(LoadFault.NEVER)
    began_at = house.now
    _, error = await heard(house.submit("a"))
    assert isinstance(error, SwapTimedOut)
    assert house.now - began_at == 0.5 + 2 * (15.0 + 0.5)
    assert "31 s" in error.message
    assert "gpu.swap_timeout_s" in error.remedy


@pytest.mark.parametrize("held_at", [1.0, 4.9, 5.0, 9.5])
@in_house(FakeModel(name="a", load_s=98.0), settings=SHORT_SWAPS)
async def test_while_the_machine_is_frozen_a_load_has_no_time_to_lose(house: House, held_at: float):
    """Its ten seconds are over in the 90 that neither Hearth nor the model server saw."""
    ticket = house.submit("a")
    await sleep_until(held_at)
    hold_up(90.0)
    assert text_of(await body_of(ticket)) == FULL_TEXT


@in_house("a", "b", settings=SHORT_SWAPS)
async def test_a_load_that_never_ends_is_given_up_after_a_freeze_too(house: House):
    house.ollama.next_loads(LoadFault.NEVER)
    ticket = house.submit("a")
    await sleep_until(4.0)
    hold_up(90.0)
    _, error = await heard(ticket)
    assert isinstance(error, SwapTimedOut)
    assert "within 10 s" in error.message
    assert house.now <= 90.0 + 10.0 + 1.0


@pytest.mark.parametrize(("stuck", "served"), [(1, True), (2, False)])
@in_house("a", "b", resident="a")
async def test_a_model_that_will_not_leave_is_told_again_before_others_lose(house, stuck, served):
    house.ollama.next_unloads(*[UnloadFault.STUCK] * stuck)
    said, error = await heard(house.submit("b"))
    failed = house.events.of(SwapFailed)
    assert {(event.from_models, event.to_model) for event in failed} == {(("a:latest",), "")}
    assert done_to(house) == ["unload a:latest"] * 2 + ["load b:latest"] * served
    if served:
        assert (text_of(said), error) == (FULL_TEXT, None)
    else:
        assert isinstance(error, LoadError)
        assert (error.status, error.retry_after_s, house.ollama.calls) == (503, 30.0, [])


@in_house("a", "b", resident="a", settings=settings_with(backend={"check_interval_s": 0.25}))
async def test_a_model_that_is_deleted_keeps_no_other_from_coming(house: House):
    house.ollama.delete("a:latest")
    assert await house.answer("b") == FULL_TEXT
    assert (done_to(house), house.events.of(SwapFailed)) == (
        ["unload a:latest", "load b:latest"],
        [],
    )
    house.ollama.install("a:latest")
    await sleep_until(10.0)
    busy = house.submit("b")
    late = house.submit("a")
    house.ollama.delete("a:latest")
    assert isinstance((await heard(late))[1], ModelNotFound)
    await body_of(busy)
    await sleep_until(300.0)
    assert len(done_to(house)) == 2


@in_virtual_time
async def test_a_model_is_loaded_with_its_pinned_context_and_a_job_asks_for_it():
    settings = settings_with().replace(models=pinned_to(8192, "b"))
    async with House("b", settings=settings) as house:
        await house.answer("b")
        pinned = house.worker.watch.load_options("b")
        assert [record.options for record in house.ollama.control] == [pinned]
    assert pinned == LoadOptions(num_ctx=8192)
    named: Fields = {
        "caller": "me",
        "lane": Lane.EXTERNAL,
        "priority": Priority.NORMAL,
        "path": "/api/generate",
        "model": "a",
    }
    call = item_of(
        Job(job_id="job_1", request=b'{"model": "a", "prompt": "?"}', **named), "b:latest", pinned
    ).call
    assert isinstance(call, BackendCall)
    assert json.loads(call.body) == {"model": "a", "prompt": "?", "options": {"num_ctx": 8192}}


class Defective(FakeOllama):
    """Its adapter has a defect: a load raises what no port may raise."""

    async def load(self, model: str, options: LoadOptions) -> None:
        raise ZeroDivisionError


@in_house("a", "b", resident="b", ollama=Defective, expect_faults=True)
async def test_a_defect_in_a_load_is_reported_and_ends_the_swap(house: House):
    assert (await heard(house.submit("a")))[1] is not None
    assert {(fault.where, fault.detail) for fault in house.events.of(InternalFault)} == {
        ("swapper", "ZeroDivisionError")
    }


# Home.


@in_house("h", "a", resident="a", settings=HOME)
async def test_the_home_model_comes_back_after_the_delay_and_once(house: House):
    await house.answer("a")
    await sleep_until(500.0)
    assert [record.at for record in house.ollama.control if record.kind == "load"] == [
        1.0 + HOME_S + 0.5
    ]
    (started,) = house.events.of(SwapStarted)
    assert (started.why, started.to_model, house.gpu_status["is_home"]) == (
        "home",
        "h:latest",
        True,
    )


@pytest.mark.parametrize("after_s", [0.0, 0.25, 0.5, 1.0, 2.4])
@in_house("h", "a", resident="a", settings=HOME)
async def test_an_arrival_at_any_instant_of_a_restore_is_served(house: House, after_s: float):
    await sleep_until(HOME_S + after_s)
    assert await house.answer("a") == FULL_TEXT
    assert house.now <= HOME_S + 2.5 + 2.5 + 1.0


@in_house("h", "a", resident="a", settings=HOME)
async def test_a_home_model_not_installed_empties_nothing_and_comes_once_pulled(house: House):
    house.ollama.delete("h:latest")
    await sleep_until(10.0)
    await house.answer("a")
    await sleep_until(4 * 3600.0)
    assert (done_to(house), [event.model for event in house.events.of(HomeModelMissing)]) == (
        [],
        ["h:latest"],
    )
    assert house.gateway.warnings() == ["home model h is not installed: ollama pull h"]
    house.ollama.install("h:latest")
    await sleep_until(4 * 3600.0 + 60.0)
    assert (house.gpu_status["is_home"], house.gateway.warnings()) == (True, [])


@in_house("h", "a", "p", resident="a", settings=HOME)
async def test_a_deleted_pinned_model_empties_nothing_and_home_stands_in(house: House):
    await house.gateway.orders.pin("p")
    await sleep_until(10.0)
    house.ollama.delete("p:latest")
    await house.answer("a")
    await sleep_until(3600.0)
    assert [each for each in done_to(house) if each.startswith("load")] == [
        "load p:latest",
        "load a:latest",
        "load h:latest",
    ]
    assert house.gateway.warnings() == [
        "pinned model p:latest is not installed: ollama pull p:latest"
    ]


# Models under several names and spellings: each is one model, whoever uses which of them.


def twin(name: str) -> FakeModel:
    """One model under several names."""
    return FakeModel(name=name, digest="one")


class OneRunner(FakeOllama):
    """All that is installed was made from the same weights: what is in memory serves for the
    others, under its own name.
    """

    async def load(self, model: str, options: LoadOptions) -> None:
        if any(
            self.gpu.place(other) is Place.LOADED for other in self.gpu.models if other != model
        ):
            self._note("load", model, options)
            return
        await super().load(model, options)

    async def unload(self, model: str) -> None:
        await super().unload(model)
        for orphan in self._deleted:
            self.gpu.drop(orphan)


@pytest.mark.parametrize(
    ("models", "home", "later", "name"),
    [
        *((("a",), spelling, None, "a:latest") for spelling in ("A", "A:Latest", "library/a")),
        (tuple(map(twin, "xyz")), "z", None, "y:latest"),
        (("b",), "A", "a:latest", "a:latest"),
    ],
)
@in_virtual_time
async def test_a_home_model_under_any_name_or_installed_later_comes_home_once(
    models: tuple[str | FakeModel, ...], home: str, later: str | None, name: str
):
    gpu = {"home_model": home, "restore_home_delay_s": 2.0}
    async with House(
        *models,
        settings=settings_with(gpu=gpu).replace(models={"y": ModelSettings(parallel=2)}),
    ) as house:
        if later is not None:
            house.ollama.install(later)
        await sleep_until(100.0)
        assert (swapped_to(house), house.events.of(ResidencyDrifted)) == ([name], [])
        assert (house.gpu_status["is_home"], house.gpu_status["home_model"]) == (True, name)
        assert [model["name"] for model in await house.gateway.models() if model["home"]] == [name]


@in_house(
    FakeModel(name="a", parallel=2),
    resident="a",
    settings=settings_with().replace(models={"A": ModelSettings(parallel=2)}),
)
async def test_what_is_set_for_a_model_counts_in_every_spelling_also_after_a_reload(house: House):
    await asyncio.gather(*(body_of(house.submit("a", service_s=4.0)) for _ in range(2)))
    assert house.now == 4.0
    assert house.gateway.reload(
        GatewayConfig(settings=settings_with(gpu={"home_model": "A", "restore_home_delay_s": 2.0}))
    )
    await sleep_until(100.0)
    assert (swapped_to(house), house.gpu_status["is_home"]) == ([], True)


@in_house(twin("b"), settings=settings_with(backend={"check_interval_s": 1.0}))
async def test_a_copy_under_another_name_changes_nothing_for_those_who_wait(house: House):
    tickets = [house.submit("b", service_s=3.0) for _ in range(3)]
    await sleep_until(1.0)
    house.ollama.gpu.models["a:latest"] = twin("a:latest")
    await bodies_of(tickets)
    assert (swapped_to(house), house.events.of(ResidencyDrifted)) == (["b:latest"], [])


@pytest.mark.parametrize("vram_gb", [24.0, 0.0])
@in_virtual_time
async def test_models_made_from_the_same_weights_are_served_one_after_the_other(vram_gb: float):
    settings = settings_with(gpu={"vram_gb": vram_gb}).replace(
        models=dict.fromkeys("ab", ModelSettings(vram_gb=8.0))
    )
    async with House("a", "b", settings=settings, ollama=OneRunner, capacity_mib=math.inf) as house:
        for model in "abab":
            assert await house.answer(model) == FULL_TEXT
        assert swapped_to(house) == ["a:latest", "b:latest", "a:latest", "b:latest"]
        assert len(house.events.of(SwapFailed)) == 1
    # a single lie says nothing of shared weights
    async with House("a", "b", settings=settings, capacity_mib=math.inf) as house:
        house.ollama.next_loads(LoadFault.LIE)
        for model in "ab":
            await house.answer(model)
        assert house.gpu_status["resident_models"] == ["a:latest", "b:latest"] or not vram_gb


@in_house("a", "b", resident="a", ollama=OneRunner)
async def test_weights_under_a_deleted_name_are_made_to_go_by_another_name(house: House):
    house.ollama.delete("a:latest")
    assert await house.answer("b") == FULL_TEXT
    assert done_to(house) == [
        "unload a:latest",
        "load b:latest",
        "unload b:latest",
        "load b:latest",
    ]
    assert house.events.of(SwapFailed) == []


CLOUD = FakeModel(name="b:cloud", remote_host="https://ollama.com:443")


@pytest.mark.parametrize("spelling", ["b:cloud", "B:Cloud", "library/b:cloud"])
@in_house("a", CLOUD, resident="a")
async def test_a_model_that_runs_elsewhere_is_refused_and_nothing_is_unloaded(
    house: House, spelling: str
):
    with pytest.raises(
        ModelNotFound, match=r"runs at https://ollama\.com:443, not on this machine"
    ):
        await house.gateway.resolve(spelling)
    assert [model["name"] for model in await house.gateway.models()] == ["a:latest"]
    assert house.gateway.models_elsewhere == {"b:cloud"}
    assert swapped_to(house) == []


ABLE = FakeModel(name="b", capabilities=frozenset({"completion"}))
OFFERING = needs_of(INFERENCE_ROUTES["/api/chat"], {"tools": [{"type": "function"}]}, "B")
ANY = needs_of(INFERENCE_ROUTES["/api/chat"], {}, "a")


class Older(FakeOllama):
    """Its list says nothing of what models can do."""

    def __init__(self, *models: FakeModel, **options: Any) -> None:
        super().__init__(*models, **options)
        self.lists_capabilities = False


async def check_offering(house: House) -> None:
    with pytest.raises(
        NotCapable, match=r"^registry\.ollama\.ai/library/b:latest does not support tools$"
    ):
        await house.gateway.check_capable(OFFERING)


@in_house("a", ABLE, resident="a")
async def test_what_a_model_cannot_do_is_known_from_the_list(house: House):
    await check_offering(house)
    assert house.ollama.shown == []


@in_house("a", ABLE, resident="a", ollama=Older)
async def test_what_the_list_does_not_say_is_asked_once_or_again_later(house: House):
    for _ in range(2):
        await check_offering(house)
        await house.gateway.check_capable(ANY)  # of this one nothing is said
        assert house.ollama.shown == ["b:latest", "a:latest"]
    await sleep_until(house.now + 61.0)
    await check_offering(house)
    await house.gateway.check_capable(ANY)
    assert house.ollama.shown == ["b:latest", "a:latest", "a:latest"]
    house.ollama.go_down()
    await sleep_until(house.now + 61.0)
    await house.gateway.check_capable(ANY)
    assert len(house.ollama.shown) == 3
    house.ollama.come_up()


@in_house("a")
async def test_many_names_that_nobody_knows_ask_the_model_server_once_a_second(house: House):
    resolve = house.gateway.resolve
    for second in range(1, 4):
        await sleep_until(float(second))
        before = house.ollama.listed
        found = await asyncio.gather(
            *(resolve(f"unknown:{number}") for number in range(50)), return_exceptions=True
        )
        assert {type(each) for each in found} == {ModelNotFound}
        assert house.ollama.listed - before == 1
    house.ollama.install("unknown:7")
    await sleep_until(4.0)
    assert await resolve("unknown:7") == "unknown:7"


@in_house("Mixed:7b", "a")
async def test_names_are_resolved_as_in_ollama_and_asked_again_before_unknown(house: House):
    resolve = house.gateway.resolve
    assert [await resolve(name) for name in ("mixed:7B", "A", "library/a")] == [
        "Mixed:7b",
        "a:latest",
        "a:latest",
    ]
    with pytest.raises(ModelNotFound, match="'new' not found"):
        await resolve("new")
    house.ollama.install("new:latest")
    # as after a pull through Hearth; one past it is seen within a second
    house.gateway.list_may_differ()
    assert await resolve("new") == "new:latest"
    house.ollama.go_down()
    await sleep_until(house.now + 1.0)
    assert await resolve("newer") == "newer:latest"
    house.ollama.come_up()
