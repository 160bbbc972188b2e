"""One device with models of several engines: some are loaded on request, some stay in memory or
take none of the card, and an engine may be away while others answer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Input
from hearth.scheduling.reasons import reason_of
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

HOUR_S = 3600.0
NAMES = frozenset({"a", "b", "c", "v", "far"})
POLICIES = [policy.value for policy in PolicyName]


def house(more: str = "", resident: tuple[str, ...] = ("v",)) -> Shell:
    """One with the models `a`, `b` and `c` of an Ollama, `v` that stays on the card, and `far` that
    stays elsewhere.
    """
    shell = Shell(settings_of(more))
    listed(shell)
    for model in resident:
        shell.tell(inputs.Loaded(model=model))
    shell.log.clear()
    return shell


def listed(shell: Shell, whole_loads: frozenset[str] = frozenset()) -> None:
    shell.tell(
        inputs.ModelsListed(
            names=NAMES,
            staying=frozenset({"v", "far"}),
            off_card=frozenset({"far"}),
            whole_loads=whole_loads,
        )
    )


def tell(shell: Shell, *facts: Input) -> None:
    for fact in facts:
        shell.tell(fact)


def away(shell: Shell, *models: str) -> list[str]:
    return shell.tell(inputs.ModelsAway(models=frozenset(models)))


def swapped(shell: Shell) -> list[str]:
    """The loads and unloads so far."""
    return [words for _, words in shell.log if words.startswith(("load", "unload", "cut"))]


# What stays.


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_loaded_swaps_beside_what_stays(policy: str):
    shell = house(f"policy={policy}")
    first = shell.arrive("a")
    assert swapped(shell) == ["load a"]
    shell.loaded()
    shell.finish(first)
    shell.arrive("b")
    shell.at(HOUR_S).quiesce()
    assert swapped(shell) == ["load a", "unload a", "load b"]
    assert "v" in shell.device.residency.residents


@pytest.mark.parametrize(
    ("sizes", "evicted"),
    [
        ("vram_gb=24 v:10 a:6 b:6", []),  # all three fit
        ("vram_gb=24 v:10 a:8 b:8", ["unload a"]),
        ("vram_gb=24 a:8 b:8", []),  # what stays and is unknown is in nobody's way
        ("vram_gb=24 v:10 b:8", ["unload a"]),  # an unknown one comes and goes alone
        ("vram_gb=0 v:10", []),
    ],
)
def test_what_stays_takes_its_room_from_what_is_loaded(sizes: str, evicted: list[str]):
    shell = house(sizes, resident=("v", "far", "a"))
    shell.arrive("b")
    shell.quiesce()
    assert swapped(shell) == [*evicted, "load b"]


def test_the_reported_size_of_what_stays_is_its_room():
    shell = house("vram_gb=24 a:8 b:8", resident=("a",))
    shell.tell(inputs.Loaded(model="v", vram_mib=10 * 1024.0))
    shell.arrive("b")
    shell.quiesce()
    assert swapped(shell) == ["unload a", "load b"]


def test_what_would_need_the_room_of_what_stays_never_fits():
    shell = house("vram_gb=24 v:10 a:16 home_model=a")
    refused = shell.arrive("a")
    assert shell.ended[refused] == "fail 1 never_fits"
    shell.at(HOUR_S)
    assert swapped(shell) == []


def test_beside_what_other_programs_hold_the_largest_is_loaded_alone():
    shell = house("v:10 a:16 b:2", resident=("v", "b"))
    shell.tell(inputs.GpuSampled(capacity_mib=24 * 1024.0, foreign_mib=1024.0))
    shell.arrive("a")
    shell.quiesce()
    assert swapped(shell) == ["unload b", "load a"]


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_what_stays_waits_until_it_is_there(policy: str):
    shell = house(f"policy={policy} max_swap_wait_s=1", resident=("a",))
    waiting = shell.arrive("v")
    other = shell.arrive("b")
    shell.at(60.0)
    shell.swap()
    shell.finish(other)
    assert swapped(shell) == ["unload a", "load b"]
    shell.at(HOUR_S)
    shell.tell(inputs.Loaded(model="v"))
    assert {*shell.running} == {waiting}


def test_who_waits_for_what_stays_keeps_nobody_from_home():
    shell = house("home_model=a", resident=())
    shell.arrive("v")
    shell.at(HOUR_S).quiesce()
    assert swapped(shell) == ["load a"]


def test_no_order_of_the_owner_moves_what_stays():
    shell = house("home_model=v", resident=())
    for order in (
        inputs.ModelOrdered(model="v", comes=True),
        inputs.ModelPinned(model="v"),
        inputs.ModelOrdered(model="v", comes=False),
    ):
        shell.tell(order)
    assert not shell.gateway.ordered
    shell.tell(inputs.Loaded(model="v"))
    shell.tell(inputs.ModelOrdered(model="v", comes=False))
    shell.at(HOUR_S)
    assert swapped(shell) == []


def test_an_order_from_before_the_first_list_is_void_for_what_stays():
    shell = Shell(settings_of("home_model=a"))
    shell.tell(inputs.Switched(what="handing_over", on=True))
    shell.tell(inputs.ModelOrdered(model="v", comes=True))
    listed(shell)
    assert not shell.gateway.ordered


def test_what_stays_and_did_not_answer_is_asked_again_as_it_is():
    shell = house()
    first = shell.arrive("v")
    shell.fail(first, "first_byte_timeout")
    assert {*shell.running} == {first}
    assert swapped(shell) == []


def test_what_was_suspect_and_stays_from_now_on_serves():
    shell = house(resident=("a",))
    first = shell.arrive("a")
    second = shell.arrive("a")
    shell.fail(first, "first_byte_timeout")
    assert swapped(shell) == ["unload a"]
    shell.unload_failed()
    shell.tell(inputs.ModelsListed(names=NAMES, staying=frozenset({"a"})))
    assert {*shell.running} & {first, second}
    shell.at(HOUR_S)
    assert swapped(shell) == ["unload a"]


def test_what_would_not_go_and_stays_from_now_on_serves():
    shell = house(resident=("a",))
    shell.arrive("b")
    assert shell.unloading == ["a"]
    shell.tell(inputs.ModelsListed(names=NAMES, staying=frozenset({"a"})))
    first = shell.arrive("a")
    shell.unload_failed()
    assert first in shell.running
    assert swapped(shell) == ["unload a", "load b"]


def test_what_stays_and_is_no_longer_listed_is_still_not_unloaded():
    shell = house()
    shell.tell(inputs.ModelsListed(names=frozenset({"a"})))
    shell.arrive("a")
    assert swapped(shell) == ["load a"]


# Off the card.


@pytest.mark.parametrize("sizes", ["", "vram_gb=24 a:20", "vram_gb=24 far:99 a:20", "vram_gb=24"])
def test_what_is_off_the_card_is_in_nobodys_way(sizes: str):
    shell = house(sizes, resident=("far",))
    first = shell.arrive("far")
    second = shell.arrive("a")
    shell.loaded()
    assert {*shell.running} == {first, second}
    assert swapped(shell) == ["load a"]


def test_what_is_loaded_off_the_card_evicts_nothing():
    shell = house(resident=("a",))
    shell.tell(inputs.ModelsListed(names=NAMES, off_card=frozenset({"c"})))
    busy = shell.internal("a")
    shell.arrive("c")
    shell.loaded()
    assert swapped(shell) == ["load c"]
    assert busy in shell.running
    shell.arrive("b")
    shell.quiesce()
    assert swapped(shell) == ["load c", "unload a", "load b"]


# Loads that cannot be cut.


@pytest.mark.parametrize(("whole_loads", "cuts"), [(frozenset(), True), (frozenset({"b"}), False)])
def test_only_a_load_that_can_be_cut_is(whole_loads: frozenset[str], cuts: bool):
    shell = house("home_model=a", resident=("v",))
    listed(shell, whole_loads)
    shell.arrive("b")
    shell.internal("a", Priority.CRITICAL)
    assert bool(shell.cutting) is cuts


# An engine that is away.


def waits(more: str = "") -> SchedulerSettings:
    """Those of a gateway whose items wait 60 s for a model server."""
    return replace(settings_of(more), wait_when_down_s=60.0)


def shell_of(settings: SchedulerSettings, *resident: str) -> Shell:
    shell = Shell(settings)
    listed(shell)
    for model in resident:
        shell.tell(inputs.Loaded(model=model))
    shell.log.clear()
    return shell


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_models_of_the_engine_that_is_away_wait(policy: str):
    shell = shell_of(waits(f"policy={policy}"), "a")
    away(shell, "v", "far")
    gone = shell.at(10.0).arrive("v")
    served = shell.arrive("a")
    other = shell.arrive("b")
    assert {*shell.running} == {served}
    shell.quiesce(bound=8)
    assert swapped(shell) == ["unload a", "load b"]
    assert shell.ended == {served: "finished", other: "finished", gone: "fail 1 backend_down"}
    assert shell.now == 70.0


@pytest.mark.parametrize(
    ("arrived_at", "away_at", "fails_at"), [(0.0, 30.0, 90.0), (30.0, 0.0, 90.0), (5.0, 5.0, 65.0)]
)
def test_what_waits_for_it_is_given_up_when_it_has_waited(
    arrived_at: float, away_at: float, fails_at: float
):
    shell = shell_of(waits())
    for at in sorted({arrived_at, away_at}):
        shell.at(at)
        if at == away_at:
            away(shell, "v")
        if at == arrived_at:
            shell.arrive("v")
    shell.at(fails_at + 1)
    assert shell.log == [(fails_at, "fail 1 backend_down")]


def test_each_waits_from_its_own_arrival_among_the_work_of_others():
    shell = shell_of(waits(), "a")
    away(shell, "v")
    for number in range(4):
        shell.at(number * 20.0).arrive("v")
        shell.finish(shell.arrive("a"))
    shell.at(HOUR_S)
    failed = [(at, words) for at, words in shell.log if words.startswith("fail")]
    assert failed == [
        (60.0 + 20.0 * number, f"fail {1 + 2 * number} backend_down") for number in range(4)
    ]


def test_a_request_that_was_running_there_waits_and_goes_on_when_it_is_back():
    shell = shell_of(waits(), "v", "a")
    first = shell.arrive("v")
    away(shell, "v")
    assert "v" in shell.device.residency.residents
    for _ in range(4):
        shell.fail(first, "backend_gone")
        assert not shell.running
        assert "v" not in shell.device.residency.residents
        away(shell)
        shell.tell(inputs.Loaded(model="v"))
        assert {*shell.running} == {first}
        away(shell, "v")


@pytest.mark.parametrize("in_order", [True, False])
def test_its_models_leave_whichever_report_comes_first(in_order: bool):
    shell = shell_of(waits(), "a", "v")
    facts = (inputs.ModelsAway(models=frozenset({"v"})), inputs.Unloaded(model="v"))
    tell(shell, *(facts if in_order else facts[::-1]))
    assert {*shell.device.residency.residents} == {"a"}
    back = (inputs.ModelsAway(models=frozenset()), inputs.Loaded(model="v"))
    waiting = shell.arrive("v")
    assert not shell.running
    tell(shell, *(back if in_order else back[::-1]))
    assert {*shell.running} == {waiting}


def test_the_memory_of_what_is_away_is_not_waited_for():
    shell = shell_of(waits("vram_gb=24 a:20 v:10"), "v")
    first = shell.arrive("v")
    away(shell, "v")
    shell.fail(first, "backend_gone")
    shell.arrive("a")
    assert swapped(shell) == ["load a"]


def test_nor_is_that_of_a_load_that_ended_when_it_was_away():
    shell = shell_of(waits("vram_gb=24 a:20 b:20"), "v")
    shell.arrive("a")
    away(shell, "a")
    shell.loaded()
    shell.arrive("b")
    assert swapped(shell) == ["load a", "load b"]


def test_what_is_away_is_no_home_and_the_pin_gives_way_to_one():
    shell = shell_of(waits("home_model=a"))
    shell.tell(inputs.ModelPinned(model="b"))
    shell.loaded()
    away(shell, "b")
    shell.at(HOUR_S)
    assert swapped(shell) == ["load b", "load a"]
    shell.loaded()
    away(shell, "a")
    shell.at(2 * HOUR_S).quiesce()
    assert swapped(shell)[2:] == ["load b"]


def test_an_order_for_what_is_away_waits_for_it_and_keeps_nobody_from_home():
    shell = shell_of(waits("home_model=a"))
    away(shell, "b")
    shell.tell(inputs.ModelOrdered(model="b", comes=True))
    shell.at(HOUR_S).quiesce()
    assert swapped(shell) == ["load a"]
    away(shell)
    shell.swap()
    assert swapped(shell) == ["load a", "unload a", "load b"]


def test_whoever_may_have_another_model_has_it():
    shell = shell_of(waits(), "v")
    first = shell.arrive("v/a")
    assert {*shell.running} == {first}
    away(shell, "v")
    shell.fail(first, "backend_gone")
    second = shell.arrive("v/a")
    shell.loaded()
    assert {*shell.running} == {first}
    shell.finish(first)
    assert {*shell.running} == {second}


def test_where_all_that_may_serve_are_away_the_last_of_them_counts():
    shell = shell_of(waits())
    away(shell, "v")
    shell.at(10.0)
    away(shell, "v", "far")
    only = shell.arrive("v/far")
    shell.at(69.0)
    away(shell, "far")
    assert only not in shell.ended
    shell.tell(inputs.Loaded(model="v"))
    assert {*shell.running} == {only}


def test_who_takes_any_model_goes_elsewhere_and_waits_where_there_is_none():
    shell = shell_of(waits("home_model=a"), "v")
    away(shell, "a", "b", "c")
    elsewhere = shell.arrive(None)
    assert {*shell.running} == {elsewhere}
    shell.finish(elsewhere)
    away(shell, "a", "b", "c", "v")
    waiting = shell.at(5.0).arrive(None)
    shell.at(64.0)
    assert waiting not in shell.ended
    shell.at(65.0)
    assert shell.ended[waiting] == "fail 2 backend_down"


def test_who_takes_any_model_is_served_by_none_that_is_elsewhere():
    shell = shell_of(waits("home_model=a"), "far")
    away(shell, "a", "b", "c")
    waiting = shell.arrive(None)
    assert not shell.forecasts.answers_for(replace(newcomer("a"), model=None))
    assert not shell.running
    shell.at(60.0)
    assert shell.ended[waiting] == "fail 1 backend_down"


@pytest.mark.parametrize(("gone", "why"), [("far", "no_model"), ("v", "backend_down")])
def test_without_a_home_they_wait_for_an_engine_that_may_bring_a_model(gone: str, why: str):
    shell = shell_of(waits())
    away(shell, gone)
    waiting = shell.arrive(None)
    shell.at(60.0)
    assert shell.ended[waiting] == f"fail 1 {why}"


def test_what_failed_before_it_went_is_forgotten_when_it_is_back():
    shell = shell_of(waits(), "v")
    first = shell.arrive("a")
    shell.load_failed()
    assert not shell.loading
    away(shell, "a", "b", "c")
    away(shell)
    shell.loaded()
    assert {*shell.running} == {first}


def test_a_load_that_it_goes_away_under_ends_by_its_own_report():
    shell = shell_of(waits(), "v")
    first = shell.arrive("a")
    away(shell, "a", "b", "c")
    assert shell.loading
    shell.load_failed()
    shell.at(30.0)
    assert swapped(shell) == ["load a"]
    away(shell)
    shell.loaded()
    assert {*shell.running} == {first}


def test_an_unload_that_it_goes_away_under_keeps_nobody_waiting():
    shell = shell_of(waits(), "a")
    shell.arrive("b")
    assert shell.unloading
    away(shell, "a", "b")
    third = shell.arrive("c")
    shell.unload_failed()
    shell.loaded()
    assert {*shell.running} == {third}
    assert swapped(shell) == ["unload a", "load c"]


def test_a_cut_that_it_goes_away_under_keeps_nobody_waiting():
    shell = shell_of(waits())
    shell.arrive("b")
    inner = shell.internal("a", Priority.CRITICAL)
    assert shell.cutting
    away(shell, "b")
    shell.tell(inputs.LoadAborted(model=shell.cutting.pop(), clean=False, gone=False))
    shell.loaded()
    assert {*shell.running} == {inner}


def test_the_reason_is_the_engine_since_it_is_away():
    shell = shell_of(waits(), "a")
    shell.at(3.0)
    away(shell, "v")
    shell.at(5.0).arrive("v")
    shell.arrive("b")
    entries = shell.gateway.waiting.all_entries()
    reasons = [reason_of(shell.device, entry, shell.now) for entry in entries]
    assert [reason["kind"] for reason in reasons] == ["backend_down", "swap"]
    assert reasons[0]["since"] == 3.0


def test_nobody_is_promised_a_start_on_what_is_away():
    shell = shell_of(waits(), "a")
    away(shell, "v")
    for _ in range(150):
        shell.arrive("v")
    busy = shell.arrive("a")
    next_one = shell.arrive("a")
    found = shell.forecasts.forecast(shell.now, newcomer("v"))
    assert {*found.starts} == {next_one}
    assert not shell.forecasts.answers_for(newcomer("v"))
    assert shell.forecasts.answers_for(newcomer("a"))
    found = shell.forecasts.forecast(shell.now, newcomer("a"))
    assert {*found.starts} == {next_one, newcomer("a").sequence}
    assert busy in shell.running


def newcomer(model: str) -> QueueItem:
    return QueueItem(
        sequence=Sequence(9999),
        request_id=RequestId("new"),
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        caller="test",
        model=model,
        arrived_at=0.0,
    )


def test_while_nothing_answers_all_wait_as_before():
    shell = shell_of(waits(), "a")
    shell.at(10.0)
    away(shell, "v")
    shell.at(20.0).tell(inputs.BackendState(up=False))
    shell.arrive("v")
    shell.arrive("a")
    away(shell, "a", "v")  # the other one comes back while this one does not
    shell.at(30.0).tell(inputs.BackendState(up=True))
    shell.at(HOUR_S)
    assert [words for _, words in shell.log] == ["fail 1 backend_down", "fail 2 backend_down"]
    assert [at for at, _ in shell.log] == [80.0, 80.0]


def test_another_set_of_engines_begins_with_none_away():
    shell = shell_of(waits(), "v")
    away(shell, "v")
    shell.tell(inputs.ServerReplaced(learned=None))
    shell.tell(inputs.Loaded(model="v"))
    first = shell.arrive("v")
    assert {*shell.running} == {first}
