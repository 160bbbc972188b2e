"""Several engines as one: which has a model, how names are spelled, what is listed."""

from __future__ import annotations

import pytest

from hearth.engines.table import MOST_FORMER, EngineTable, Row
from hearth.types import InstalledModel
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.staying_engine import StayingEngine


def fake(*names: str) -> FakeOllama:
    return FakeOllama(*(FakeModel(name=name) for name in names))


async def listing(table: EngineTable) -> list[str]:
    for name in table.rows:
        await table.refresh(name)
    return [model.name for model in table.installed]


async def test_one_engine_is_taken_as_it_is():
    ollama = fake("a:latest", "b:1")
    table = EngineTable.of_one(ollama)
    assert table.canonical("A") == "A:latest"
    assert await listing(table) == ["a:latest", "b:1"]
    assert table.installed is await ollama.installed()
    assert await table.resident("main") == await ollama.resident()
    for name in ("a", "A:latest", "unknown"):
        assert (table.wire_name(name), table.own_name(name)) == (name, name)
        assert table.of(name) is ollama


async def test_of_several_each_name_has_one_spelling_and_one_engine():
    ollama, server = fake("a:latest", "c:7b"), StayingEngine("B", "org/d")
    table = EngineTable([Row(name="cards", engine=ollama), Row(name="big", engine=server)])
    assert await listing(table) == ["a", "c:7b", "B", "org/d"]
    for written, own, engine in (
        ("a", "a", ollama),
        ("A:latest", "A:latest", ollama),
        ("registry.ollama.ai/library/a", "registry.ollama.ai/library/a", ollama),
        ("b:latest", "B", server),
        ("B", "B", server),
        ("org/D", "org/d", server),
        ("unknown", "unknown", ollama),
    ):
        assert (table.wire_name(written), table.of(written)) == (own, engine), written
    assert [table.own_name(name) for name in ("a", "b")] == ["a:latest", "B"]
    assert {table.canonical(name) for name in ("a", "a:latest", "library/a")} == {"a"}
    before = table.installed
    for name in table.rows:
        assert not await table.refresh(name)
    assert table.installed is before


async def test_a_name_that_two_list_is_of_the_row_that_the_owner_names_else_of_the_first():
    first, second = StayingEngine("m", "n"), StayingEngine("m", "n")
    rows = [Row(name="one", engine=first), Row(name="two", engine=second)]
    table = EngineTable(rows, assigned={"N:latest": "two"})
    assert await listing(table) == ["m", "n"]
    assert (table.of("m"), table.of("n")) == (first, second)
    digests = [model.digest for model in table.installed]
    assert digests == ["one m", "two n"], "what one engine writes, another cannot go on with"


@pytest.mark.parametrize("is_assigned", [True, False])
async def test_an_engine_may_know_a_model_by_another_name(*, is_assigned: bool):
    server = StayingEngine("org/Qwen3-Coder-30B")
    assigned = {"coder:30b": "big"} if is_assigned else {}
    upstream = {"coder:30b": "org/Qwen3-Coder-30B"}
    rows = [Row(name="big", engine=server)]
    table = EngineTable(rows, assigned=assigned, upstream=upstream)
    assert await listing(table) == ["coder:30b"]
    assert table.wire_name("coder:30b") == "org/Qwen3-Coder-30B"
    assert table.called(table.first, "org/Qwen3-Coder-30B") == "coder:30b"
    assert [model.name for model in await table.resident("big")] == ["coder:30b"]


async def test_the_owner_says_how_many_requests_a_row_serves_at_the_same_time():
    server = StayingEngine("m", slots=2)
    table = EngineTable([Row(name="big", engine=server, parallel=8)])
    await table.refresh("big")
    assert table.installed == (InstalledModel(name="m", digest="m", slots=8),)
    plain = EngineTable([Row(name="big", engine=server)])
    await plain.refresh("big")
    assert [model.slots for model in plain.installed] == [2]


async def test_what_is_on_the_card_is_of_those_that_are_there():
    down, off = StayingEngine("gone"), StayingEngine("far", on_card=False)
    there = StayingEngine("m")
    down.is_down = True
    rows = [Row(name=str(each), engine=each) for each in (there, down, off)]
    table = EngineTable(rows)
    assert [model.name for model in await table.resident_on_card()] == ["m"]
    assert table.processes.search("echo")


async def test_a_tag_is_taken_in_any_case():
    ollama, server = fake("a:latest"), StayingEngine("B")
    table = EngineTable([Row(name="cards", engine=ollama), Row(name="big", engine=server)])
    await listing(table)
    for written, own in (("A:LATEST", "a:latest"), ("b:Latest", "B")):
        assert table.canonical(written) == table.canonical(written.partition(":")[0])
        assert table.own_name(written) == own


async def test_a_name_that_one_row_is_asked_by_stays_that_of_another_row_s_model():
    first, second = StayingEngine("llama", "m"), StayingEngine("llama")
    rows = [Row(name="one", engine=first), Row(name="two", engine=second)]
    table = EngineTable(rows, assigned={"big": "two"}, upstream={"big": "llama"})
    assert await listing(table) == ["llama", "m", "big"]
    assert [table.of(name) for name in ("llama", "big")] == [first, second]
    assert [model.name for model in await table.resident("one")] == ["llama", "m"]
    assert [model.name for model in await table.resident("two")] == ["big"]
    assert [table.called(row, "llama") for row in rows] == ["llama", "big"]


@pytest.mark.parametrize("own", ["hermes", "hermes:latest", "library/Hermes"])
async def test_the_name_at_an_ollama_may_be_written_without_its_tag(own: str):
    ollama, server = fake("hermes:latest"), StayingEngine("B")
    ollama.appear("hermes:latest")
    rows = [Row(name="cards", engine=ollama), Row(name="big", engine=server)]
    table = EngineTable(rows, upstream={"chat": own})
    assert await listing(table) == ["chat", "B"]
    assert table.called(rows[0], "hermes:latest") == "chat"
    assert table.how_to_install("chat") == f"ollama pull {own}"
    assert [model.name for model in await table.resident("cards")] == ["chat"]
    only = EngineTable([rows[0]], upstream={"chat": own})
    assert await listing(only) == ["chat:latest"]


async def test_of_two_names_for_one_model_the_first_counts():
    server = StayingEngine("org/m")
    rows = [Row(name="big", engine=server), Row(name="cards", engine=fake("a:latest"))]
    table = EngineTable(rows, upstream={"b": "org/m", "a-second": "org/m"})
    assert await listing(table) == ["b", "a"]


async def test_what_is_no_longer_listed_is_still_of_the_engine_that_had_it():
    first, second = StayingEngine("a"), StayingEngine("B:latest", "c")
    table = EngineTable([Row(name="one", engine=first), Row(name="two", engine=second)])
    await listing(table)
    second.set_models("c")
    assert await listing(table) == ["a", "c"]
    assert (table.of("b"), table.own_name("b"), table.lists("b")) == (second, "B:latest", False)
    first.set_models("a", "b")
    assert await listing(table) == ["a", "b", "c"]
    assert (table.of("b"), table.own_name("b")) == (first, "b")
    first.set_models()
    await listing(table)
    assert (table.of("b"), table.of("a")) == (first, first)
    for number in range(2 * MOST_FORMER):
        first.set_models(f"m{number}")
        await table.refresh("one")
    assert table.of(f"m{number}") is first


@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("listed", ["m", "m:latest"])
async def test_one_engine_that_knows_no_tags_has_name_and_tagged_name_for_one(
    listed: str, parallel: int | None
):
    server = StayingEngine(listed, "other:7b")
    table = EngineTable([Row(name="main", engine=server, parallel=parallel)])
    assert table.canonical("m:latest") == "m:latest", "nothing is listed yet"
    await listing(table)
    for written in ("m", "m:latest", "M:Latest"):
        assert table.canonical(written).lower() == listed
        assert table.own_name(written).lower() == listed
        assert table.wire_name(written).lower() == listed
    for unknown in ("n", "n:latest"):
        assert table.canonical(unknown) == table.wire_name(unknown) == unknown


async def test_one_engine_with_another_name_for_a_model_takes_it_with_its_tag():
    rows = [Row(name="main", engine=StayingEngine("org/big"))]
    table = EngineTable(rows, upstream={"big": "org/big"})
    assert await listing(table) == ["big"]
    assert table.canonical("big:latest") == "big"
    assert table.wire_name("big:latest") == "org/big"
