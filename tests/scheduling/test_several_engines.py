"""One device with models of several engines: some are loaded on request, some stay in memory or
take none of the card, and an engine may be away while others answer.
"""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName
from hearth.scheduling import inputs
from hearth.types import Priority
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
