"""A model server that keeps what it has: nothing is ever loaded, unloaded or cut for anybody."""

from __future__ import annotations

import pytest

from hearth.scheduling import inputs
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

HOUR_S = 3600.0


def shell(more: str = "") -> Shell:
    """One with the model `a`, and a home model that is not there."""
    house = Shell(settings_of(f"home_model=h {more}"), resident=("a",), judged=False, swaps=False)
    house.tell(inputs.ModelsListed(names=frozenset({"a", "b"})))
    return house


def swapped(house: Shell) -> list[str]:
    """The loads and unloads so far."""
    return [words for _, words in house.log if words.startswith(("load", "unload", "cut"))]


@pytest.mark.parametrize("policy", ["adaptive", "affinity", "time_slice", "cost_aware", "fifo"])
def test_what_waits_for_another_model_waits_for_that_to_be_there(policy: str):
    house = shell(f"policy={policy}")
    first = house.arrive("a")
    other = house.arrive("b")
    inner = house.internal("b")
    house.at(HOUR_S).finish(first)
    assert swapped(house) == []
    house.tell(inputs.Drifted(appeared=(inputs.Loaded(model="b"),), vanished=()))
    assert {*house.running} == {inner}
    house.finish(inner)
    assert {*house.running} == {other}
    assert swapped(house) == []


def test_neither_rest_nor_an_order_swaps_anything():
    house = shell()
    house.at(HOUR_S)
    house.tell(inputs.ModelOrdered(model="a", comes=False))
    house.tell(inputs.ModelOrdered(model="b", comes=True))
    house.tell(inputs.ModelPinned(model="b"))
    house.at(2 * HOUR_S)
    assert swapped(house) == []
    assert house.gateway.unwanted == []


def test_a_model_that_did_not_answer_is_asked_again_as_it_is():
    house = shell()
    first = house.arrive("a")
    house.fail(first, "first_byte_timeout")
    assert {*house.running} == {first}
    assert swapped(house) == []


def test_a_model_is_served_though_it_needs_more_than_the_card_has():
    house = shell("vram_gb=1 a:24")
    only = house.arrive("a")
    assert {*house.running} == {only}


def test_what_is_no_longer_listed_is_given_up():
    house = shell()
    gone = house.arrive("b")
    house.tell(inputs.ModelsListed(names=frozenset({"a"})))
    assert house.ended[gone] == "fail 1 not_installed"
