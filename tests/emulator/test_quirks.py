"""The known bugs of a real Ollama, switched on one at a time and seen over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hearth.emulator import Quirk, QuirkName, parse_quirk
from hearth.errors import ConfigError
from tests.emulator.callers import FOREVER_TOKENS, MESSAGES, SLOW, STREAMS, cancel, leave_in_mid_stream, loaded_names, model, started
from tests.emulator.captures import dechunk, masked, read_capture
from tests.emulator.waiting import until
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "emulator.md"
ENDS = (b'"done":true', b'finish_reason":"', b"[DONE]", b"response.completed", b"message_stop", b"message_delta")


def quirks(*texts: str) -> dict[str, Any]:
    return {"quirks": frozenset(map(parse_quirk, texts))}


def test_a_quirk_is_read_with_and_without_a_value() -> None:
    assert parse_quirk("slot-leak") == Quirk(name=QuirkName.SLOT_LEAK)
    assert parse_quirk("slot-leak").setting == 1.0
    assert parse_quirk("slot-leak=0.1").setting == 0.1
    assert parse_quirk("endless-load=2").setting == 2
    assert parse_quirk("endless-load=qwen2.5-coder:14b").setting == "qwen2.5-coder:14b"
    assert str(parse_quirk("stuck-unload=3")) == "stuck-unload=3"


def test_every_quirk_is_documented_and_works_without_a_value() -> None:
    documented = DOCUMENTATION.read_text()
    assert [name for name in QuirkName if f"| `{name}` |" not in documented] == []
    assert [name for name in QuirkName if parse_quirk(name).setting is None] == []
    assert parse_quirk("dead-runner").setting == 3


def test_an_unknown_quirk_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown quirk 'leak'; known are eviction-wedge, slot-leak, .*stuck-unload"):
        parse_quirk("leak=1")


@for_each(
    "text",
    [
        "eviction-wedge=maybe",
        "slot-leak=0",
        "slot-leak=1.1",
        "slot-leak=",
        "dead-runner=0",
        "no-done=x",
        "busy-503=-1",
        "endless-load=0",
        "cpu-offload=0.5",
        "ignores-disconnect=1",
        "stuck-unload=nan",
    ],
)
def test_a_value_that_a_quirk_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"quirk {text.partition('=')[0]}: cannot be"):
        parse_quirk(text)


async def test_a_quirk_that_is_given_twice_is_refused(start_emulator) -> None:
    with pytest.raises(ConfigError, match=r"given twice: slot-leak, slot-leak=0\.5"):
        await start_emulator([model("a")], **quirks("slot-leak", "slot-leak=0.5"))


@pytest.mark.parametrize(("texts", "wedged"), [((), True), (("eviction-wedge",), True), (("eviction-wedge=off",), False)])
async def test_the_eviction_wedge_is_there_unless_it_is_switched_off(texts, wedged, start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a", **SLOW), model("b"), num_parallel=2, **quirks(*texts))
    long = caller.begin("a", tokens=FOREVER_TOKENS)
    await until(lambda: emulator.in_flight)
    waiting = caller.begin("b")
    await until(lambda: len(emulator.requests) == 2)
    await caller.generate("a", keep_alive=-1)

    await cancel(long)
    await until(lambda: not emulator.in_flight)
    if wedged:
        assert [one["name"] for one in await caller.ps()] == ["a:latest"]
        assert not waiting.done()
        await caller.post("/api/generate", model="a", keep_alive=0)

    assert (await waiting)["done"] is True


async def test_leaving_in_mid_stream_leaks_the_slot_until_unload_and_reload_while_everything_looks_healthy(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a", **SLOW), **quirks("slot-leak"))
    await leave_in_mid_stream(emulator, caller)
    assert emulator.leaked_slots == {"a:latest": 1}

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(caller.generate("a"), 0.1)
    assert [one["name"] for one in await caller.ps()] == ["a:latest"]
    async with session.get(caller.url + "/api/tags") as tags:
        assert tags.status == 200
    await caller.post("/api/generate", model="a", keep_alive=0)
    await until(lambda: not emulator.resident)

    assert (await caller.generate("a"))["done"] is True
    assert emulator.leaked_slots == {}
    assert loaded_names(emulator) == ["a", "a"]


@pytest.mark.parametrize(("texts", "leaked"), [((), {}), (("slot-leak=0.000001",), {}), (("slot-leak",), {"a:latest": 1})])
async def test_a_slot_leaks_by_the_odds_and_leaves_the_other_slot(texts, leaked, start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a", **SLOW), num_parallel=1 + len(leaked), **quirks(*texts))
    await leave_in_mid_stream(emulator, caller)

    await asyncio.gather(caller.generate("a"), caller.generate("a"))

    assert emulator.leaked_slots == leaked


async def test_leaving_an_answer_that_does_not_stream_leaks_nothing(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a", **SLOW), **quirks("slot-leak"))
    call = caller.begin("a", tokens=FOREVER_TOKENS)
    await until(lambda: emulator.in_flight)
    await cancel(call)
    await until(lambda: not emulator.in_flight)

    assert (await caller.generate("a"))["done"] is True


async def test_a_dead_runner_stays_listed_and_the_next_request_reloads_it_without_a_word(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), **quirks("dead-runner=2"))
    await caller.generate("a")
    await caller.generate("a")
    assert [one["name"] for one in await caller.ps()] == ["a:latest"]
    assert loaded_names(emulator) == ["a"]

    assert (await caller.generate("a"))["done"] is True

    assert loaded_names(emulator) == ["a", "a"]


async def test_a_stream_that_runs_when_the_runner_dies_ends_with_the_recorded_error(start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a", **SLOW), num_parallel=2, **quirks("dead-runner=1"))
    async with await caller.begin_stream() as response:
        await caller.generate("a")
        lines = (await response.read()).splitlines()

    recorded = read_capture("midstream_kill_generate").response.partition(b"\r\n\r\n")[2]
    assert lines[-1] == dechunk(recorded)[-1].strip()


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_without_done_ends_cleanly_without_the_end_of_its_dialect(path, start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a"), **quirks("no-done=2"))
    _, whole = await caller.stream(path)
    status, cut = await caller.stream(path)

    assert status == 200
    assert any(end in whole for end in ENDS)
    assert not any(end in cut for end in ENDS)
    assert b'"error":"' not in cut


async def test_an_answer_without_done_has_the_keys_of_the_recorded_one(start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a"), **quirks("no-done"))

    answer = await caller.post("/api/chat", model="a", messages=MESSAGES, options={"num_predict": 5})

    recorded = json.loads(read_capture("token_repeat_abort_nostream").response.partition(b"\r\n\r\n")[2])
    assert answer.pop("status") == 200
    assert list(answer) == list(recorded)
    assert answer["done"] is False


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_openai_stream_whose_runner_dies_ends_with_an_empty_chunk_of_no_model(path, start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), **quirks("empty-error-chunk=2"))
    _, whole = await caller.stream(path)
    status, cut = await caller.stream(path)

    last = json.loads(cut.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert status == 200
    assert whole.endswith(b"data: [DONE]\n\n")
    assert last["model"] == ""
    assert last["choices"][0].get("delta", {}).get("content", last["choices"][0].get("text")) == ""
    recorded = dechunk(read_capture("midstream_kill_oai_chat").response.partition(b"\r\n\r\n")[2])[-1]
    assert path == "/v1/completions" or masked(cut).endswith(masked(recorded))
    assert emulator.resident == ("a:latest",)
    assert (await caller.generate("a"))["done"] is True
    assert loaded_names(emulator) == ["a", "a"]


@pytest.mark.parametrize(("path", "end"), [("/v1/responses", b"response.completed"), ("/v1/messages", b"message_stop")])
async def test_other_v1_streams_whose_runner_dies_just_stop(path, end, start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a"), **quirks("empty-error-chunk"))

    status, cut = await caller.stream(path)

    assert status == 200
    assert b"delta" in cut
    assert end not in cut


async def test_native_streams_do_not_die_of_the_v1_quirk(start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a"), **quirks("empty-error-chunk"))

    assert b'"done":true' in (await caller.stream("/api/chat"))[1]


@pytest.mark.parametrize("text", ["endless-load", "endless-load=1", "endless-load=a", "endless-load=a:latest"])
async def test_an_endless_load_holds_up_every_other_until_its_caller_leaves(text, start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), model("b"), **quirks(text))
    hanging = caller.begin("a")
    await until(lambda: emulator.requests)
    waiting = caller.begin("b")
    await asyncio.wait({hanging, waiting}, timeout=0.05)
    assert not hanging.done()
    assert not waiting.done()
    assert await caller.ps() == []

    await cancel(hanging)

    if text == "endless-load":
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        await cancel(waiting)
    else:
        assert (await waiting)["done"] is True


async def test_every_second_request_is_refused_as_recorded_while_control_routes_answer(start_emulator, session) -> None:
    _, caller = await started(start_emulator, session, model("a"), **quirks("busy-503"))

    answers = [await caller.generate("a") for _ in range(4)]

    recorded = json.loads(read_capture("busy_503_generate_nostream").response.partition(b"\r\n\r\n")[2])
    assert [answer["status"] for answer in answers] == [200, 503, 200, 503]
    assert answers[1]["error"] == recorded["error"]
    assert len(await caller.ps()) == 1


async def test_a_model_larger_than_the_card_runs_as_many_times_slower(start_emulator, session) -> None:
    facts = {"size_gib": 26.0, "vram_gib": 28.0, "decode_tokens_per_s": 1000.0}
    _, caller = await started(start_emulator, session, model("a", **facts), **quirks("cpu-offload"))

    assert (await caller.generate("a", tokens=20))["eval_duration"] >= 7 * 19 * 1_000_000


@pytest.mark.parametrize("vram_gib", [24.0, 0.0])
async def test_a_model_that_fits_or_a_machine_without_a_card_is_not_slowed_down(vram_gib, start_emulator, session) -> None:
    facts = model("a", decode_tokens_per_s=1000.0)
    _, caller = await started(start_emulator, session, facts, vram_gib=vram_gib, **quirks("cpu-offload=3000"))

    assert (await caller.generate("a", tokens=20))["eval_duration"] < 30e9, "it would be a minute"


@pytest.mark.parametrize(("texts", "tokens_per_s", "held_s"), [((), 0.01, 0.0), (("ignores-disconnect",), 30.0, 0.1)])
async def test_leaving_during_prompt_evaluation_frees_the_slot_at_once_or_only_at_its_end(
    texts, tokens_per_s, held_s, start_emulator, session
) -> None:
    slow_prompt = model("a", prompt_tokens_per_s=tokens_per_s)
    emulator, caller = await started(start_emulator, session, slow_prompt, **quirks(*texts))
    await caller.post("/api/generate", model="a")
    began_at = time.monotonic()
    call = caller.begin("a")
    await until(lambda: emulator.in_flight)
    await cancel(call)

    await until(lambda: not emulator.in_flight)

    assert time.monotonic() - began_at > held_s


async def test_a_prompt_that_nobody_waits_for_ends_with_the_unload(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a", prompt_tokens_per_s=0.1), **quirks("ignores-disconnect"))
    await caller.post("/api/generate", model="a")
    call = caller.begin("a")
    await until(lambda: emulator.in_flight)
    await cancel(call)
    await caller.ps()
    assert emulator.in_flight == {"a:latest": 1}

    await caller.post("/api/generate", model="a", keep_alive=0)

    await until(lambda: not emulator.resident)
    assert emulator.in_flight == {}


async def test_a_model_that_cannot_go_stays_listed_and_holds_up_the_next_until_it_is_let_go(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), model("b"), **quirks("stuck-unload"))
    await caller.generate("a")
    answer = await caller.post("/api/generate", model="a", keep_alive=0)
    waiting = caller.begin("b")
    await asyncio.wait({waiting}, timeout=0.05)
    assert answer["done_reason"] == "unload"
    assert [one["name"] for one in await caller.ps()] == ["a:latest"]
    assert not waiting.done()

    emulator.let_go()

    assert (await waiting)["done"] is True
    assert emulator.resident == ("b:latest",)


async def test_a_model_that_cannot_go_for_some_seconds_goes_after_them(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), **quirks("stuck-unload=0.05"))
    await caller.generate("a")
    began_at = time.monotonic()
    await caller.post("/api/generate", model="a", keep_alive=0)

    await until(lambda: not emulator.resident)

    assert time.monotonic() - began_at >= 0.05


async def test_a_model_that_cannot_go_still_serves_and_stays_if_it_is_asked_to(start_emulator, session) -> None:
    emulator, caller = await started(start_emulator, session, model("a"), **quirks("stuck-unload"))
    await caller.generate("a", keep_alive=0)

    assert (await caller.generate("a", keep_alive=-1))["done"] is True

    emulator.let_go()
    assert emulator.resident == ("a:latest",)


async def test_an_emulator_with_a_leak_an_orphan_and_a_stuck_model_stops(start_emulator, session) -> None:
    settings = quirks("slot-leak", "ignores-disconnect", "stuck-unload")
    emulator, caller = await started(start_emulator, session, model("a", prompt_tokens_per_s=100.0, **SLOW), num_parallel=2, **settings)
    await leave_in_mid_stream(emulator, caller)
    call = caller.begin("a", options={"stop": ["x"]})
    await until(lambda: emulator.in_flight)
    await cancel(call)
    await caller.post("/api/generate", model="a", keep_alive=0)

    async with asyncio.timeout(WITHIN_S):
        await emulator.stop()
