"""The known bugs of a real Ollama, switched on one at a time and seen over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.emulator import Emulator, Quirk, QuirkName, parse_quirk
from hearth.errors import ConfigError
from tests.emulator.callers import (
    FOREVER_TOKENS,
    MESSAGES,
    SLOW,
    STREAMS,
    Caller,
    cancel,
    leave_in_mid_stream,
    loaded_names,
    model,
    started,
)
from tests.emulator.captures import dechunk, masked, read_capture
from tests.emulator.waiting import until
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "emulator.md"
ENDS = (b'"done":true', b'finish_reason":"', b"[DONE]", b"response.completed", b"message_stop", b"message_delta")
Show = Callable[..., Awaitable[tuple[Emulator, Caller]]]


@pytest.fixture
def show(start_emulator, session) -> Show:
    """Starts an emulator with quirks, of the models `a` (with other facts) and `b`."""

    async def start(*quirks: str, parallel: int = 1, card_gib: float = 24.0, **facts: Any) -> tuple[Emulator, Caller]:
        settings = {"quirks": frozenset(map(parse_quirk, quirks)), "num_parallel": parallel, "vram_gib": card_gib}
        return await started(start_emulator, session, model("a", **facts), model("b"), **settings)

    return start


def recorded(name: str) -> bytes:
    return read_capture(name).response.partition(b"\r\n\r\n")[2]


async def listed(caller: Caller) -> list[str]:
    return [one["name"] for one in await caller.ps()]


async def leave_while_it_runs(emulator: Emulator, caller: Caller, **body: Any) -> None:
    call = caller.begin("a", **body)
    await until(lambda: emulator.in_flight)
    await cancel(call)


@for_each(
    ("text", "setting"),
    [
        ("slot-leak", 1.0),
        ("slot-leak=0.1", 0.1),
        ("dead-runner", 3),
        ("endless-load=2", 2),
        ("endless-load=qwen2.5-coder:14b", "qwen2.5-coder:14b"),
        ("stuck-unload=3", 3.0),
    ],
)
def test_a_quirk_is_read_with_and_without_a_value(text, setting) -> None:
    quirk = parse_quirk(text)
    assert (quirk.setting, str(quirk)) == (setting, text)
    assert quirk == Quirk(name=QuirkName(text.partition("=")[0]), value=text.partition("=")[2] or None)


def test_every_quirk_is_documented_and_works_without_a_value() -> None:
    documented = DOCUMENTATION.read_text()
    assert [name for name in QuirkName if f"| `{name}` |" not in documented or parse_quirk(name).setting is None] == []


REFUSED = ["eviction-wedge=maybe", "slot-leak=0", "slot-leak=1.1", "slot-leak=", "dead-runner=0", "no-done=x", "busy-503=-1"]
REFUSED += ["endless-load=0", "cpu-offload=0.5", "ignores-disconnect=1", "stuck-unload=nan", "dead-runner=1.5", "dead-runner=inf"]


@for_each("text", REFUSED)
def test_a_value_that_a_quirk_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"quirk {text.partition('=')[0]}: cannot be"):
        parse_quirk(text)


async def test_an_unknown_quirk_and_one_that_is_given_twice_are_refused(show) -> None:
    with pytest.raises(ConfigError, match=r"unknown quirk 'leak'; known are eviction-wedge, slot-leak, .*stuck-unload"):
        parse_quirk("leak=1")
    with pytest.raises(ConfigError, match=r"given twice: slot-leak, slot-leak=0\.5"):
        await show("slot-leak", "slot-leak=0.5")


@pytest.mark.parametrize(("texts", "wedged"), [((), True), (("eviction-wedge",), True), (("eviction-wedge=off",), False)])
async def test_the_eviction_wedge_is_there_unless_it_is_switched_off(texts, wedged, show) -> None:
    emulator, caller = await show(*texts, parallel=2, **SLOW)
    long = caller.begin("a", tokens=FOREVER_TOKENS)
    await until(lambda: emulator.in_flight)
    waiting = caller.begin("b")
    await until(lambda: len(emulator.requests) == 2)
    await caller.generate("a", keep_alive=-1)
    await cancel(long)
    await until(lambda: not emulator.in_flight)
    if wedged:
        assert (await listed(caller), waiting.done()) == (["a:latest"], False)
        await caller.post("/api/generate", model="a", keep_alive=0)
    assert (await waiting)["done"] is True


async def test_leaving_in_mid_stream_leaks_the_slot_until_unload_and_reload_while_everything_looks_healthy(show) -> None:
    emulator, caller = await show("slot-leak", **SLOW)
    await leave_in_mid_stream(emulator, caller)
    assert emulator.leaked_slots == {"a:latest": 1}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(caller.generate("a"), 0.1)
    assert await listed(caller) == ["a:latest"]
    async with caller.session.get(caller.url + "/api/tags") as tags:
        assert tags.status == 200
    await caller.post("/api/generate", model="a", keep_alive=0)
    await until(lambda: not emulator.resident)
    assert (await caller.generate("a"))["done"] is True
    assert (emulator.leaked_slots, loaded_names(emulator)) == ({}, ["a", "a"])


@pytest.mark.parametrize(("texts", "leaked"), [((), {}), (("slot-leak=0.000001",), {}), (("slot-leak",), {"a:latest": 1})])
async def test_a_slot_leaks_by_the_odds_and_leaves_the_other_slot(texts, leaked, show) -> None:
    emulator, caller = await show(*texts, parallel=1 + len(leaked), **SLOW)
    await leave_in_mid_stream(emulator, caller)
    await asyncio.gather(caller.generate("a"), caller.generate("a"))
    assert emulator.leaked_slots == leaked


async def test_leaving_an_answer_that_does_not_stream_leaks_nothing(show) -> None:
    emulator, caller = await show("slot-leak", **SLOW)
    await leave_while_it_runs(emulator, caller, tokens=FOREVER_TOKENS)
    await until(lambda: not emulator.in_flight)
    assert (await caller.generate("a"))["done"] is True


async def test_a_dead_runner_stays_listed_and_the_next_request_reloads_it_without_a_word(show) -> None:
    emulator, caller = await show("dead-runner=2")
    for loads in (["a"], ["a"], ["a", "a"]):
        assert (await caller.generate("a"))["done"] is True
        assert (await listed(caller), loaded_names(emulator)) == (["a:latest"], loads)


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_without_done_ends_cleanly_without_the_end_of_its_dialect(path, show) -> None:
    _, caller = await show("no-done=2")
    _, whole = await caller.stream(path)
    status, cut = await caller.stream(path)
    assert status == 200
    assert any(end in whole for end in ENDS)
    assert not any(end in cut for end in (*ENDS, b'"error":"'))


async def test_an_answer_without_done_has_the_keys_of_the_recorded_one(show) -> None:
    _, caller = await show("no-done")
    answer = await caller.post("/api/chat", model="a", messages=MESSAGES, options={"num_predict": 5})
    assert answer.pop("status") == 200
    assert list(answer) == list(json.loads(recorded("token_repeat_abort_nostream")))
    assert answer["done"] is False


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_openai_stream_whose_runner_dies_ends_with_an_empty_chunk_of_no_model(path, show) -> None:
    emulator, caller = await show("empty-error-chunk=2")
    _, whole = await caller.stream(path)
    status, cut = await caller.stream(path)
    last = json.loads(cut.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert (status, last["model"]) == (200, "")
    assert whole.endswith(b"data: [DONE]\n\n")
    assert last["choices"][0].get("delta", {}).get("content", last["choices"][0].get("text")) == ""
    assert path == "/v1/completions" or masked(cut).endswith(masked(dechunk(recorded("midstream_kill_oai_chat"))[-1]))
    assert emulator.resident == ("a:latest",)
    assert (await caller.generate("a"))["done"] is True
    assert loaded_names(emulator) == ["a", "a"]


@pytest.mark.parametrize("text", ["endless-load", "endless-load=1", "endless-load=a", "endless-load=a:latest"])
async def test_an_endless_load_holds_up_every_other_until_its_caller_leaves(text, show) -> None:
    emulator, caller = await show(text)
    hanging = caller.begin("a")
    await until(lambda: emulator.requests)
    waiting = caller.begin("b")
    done, _ = await asyncio.wait({hanging, waiting}, timeout=0.05)
    assert (done, await listed(caller)) == (set(), [])
    await cancel(hanging)
    if text == "endless-load":
        assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
        await cancel(waiting)
    else:
        assert (await waiting)["done"] is True


async def test_every_second_request_is_refused_as_recorded_while_control_routes_answer(show) -> None:
    _, caller = await show("busy-503")
    answers = [await caller.generate("a") for _ in range(4)]
    assert [answer["status"] for answer in answers] == [200, 503, 200, 503]
    assert answers[1]["error"] == json.loads(recorded("busy_503_generate_nostream"))["error"]
    assert len(await caller.ps()) == 1


@pytest.mark.parametrize(
    ("text", "card_gib", "facts"),
    [("cpu-offload", 24.0, {"size_gib": 26.0, "vram_gib": 28.0}), ("cpu-offload=3000", 24.0, {}), ("cpu-offload=3000", 0.0, {})],
)
async def test_a_model_larger_than_the_card_runs_as_many_times_slower_and_no_other(text, card_gib, facts, show) -> None:
    _, caller = await show(text, card_gib=card_gib, decode_tokens_per_s=1000.0, **facts)
    took_ns = (await caller.generate("a", tokens=20))["eval_duration"]
    assert took_ns >= 7 * 19 * 1_000_000 if facts else took_ns < 30e9, "it would be a minute"


@pytest.mark.parametrize(("texts", "tokens_per_s", "held_s"), [((), 0.01, 0.0), (("ignores-disconnect",), 30.0, 0.1)])
async def test_leaving_during_prompt_evaluation_frees_the_slot_at_once_or_only_at_its_end(texts, tokens_per_s, held_s, show) -> None:
    emulator, caller = await show(*texts, prompt_tokens_per_s=tokens_per_s)
    await caller.post("/api/generate", model="a")
    began_at = time.monotonic()
    await leave_while_it_runs(emulator, caller)
    await until(lambda: not emulator.in_flight)
    assert time.monotonic() - began_at > held_s


async def test_a_prompt_that_nobody_waits_for_ends_with_the_unload(show) -> None:
    emulator, caller = await show("ignores-disconnect", prompt_tokens_per_s=0.1)
    await caller.post("/api/generate", model="a")
    await leave_while_it_runs(emulator, caller)
    await caller.ps()
    assert emulator.in_flight == {"a:latest": 1}
    await caller.post("/api/generate", model="a", keep_alive=0)
    await until(lambda: not emulator.resident)
    assert emulator.in_flight == {}


async def test_a_model_that_cannot_go_stays_listed_and_holds_up_the_next_until_it_is_let_go(show) -> None:
    emulator, caller = await show("stuck-unload")
    await caller.generate("a")
    answer = await caller.post("/api/generate", model="a", keep_alive=0)
    waiting = caller.begin("b")
    await asyncio.wait({waiting}, timeout=0.05)
    assert (answer["done_reason"], await listed(caller), waiting.done()) == ("unload", ["a:latest"], False)
    emulator.let_go()
    assert (await waiting)["done"] is True
    assert emulator.resident == ("b:latest",)


async def test_a_model_that_cannot_go_still_serves_and_stays_if_it_is_asked_to(show) -> None:
    emulator, caller = await show("stuck-unload")
    await caller.generate("a", keep_alive=0)
    assert (await caller.generate("a", keep_alive=-1))["done"] is True
    emulator.let_go()
    assert emulator.resident == ("a:latest",)


async def test_an_emulator_with_a_leak_an_orphan_and_a_stuck_model_stops(show) -> None:
    emulator, caller = await show("slot-leak", "ignores-disconnect", "stuck-unload", parallel=2, prompt_tokens_per_s=100.0, **SLOW)
    await leave_in_mid_stream(emulator, caller)
    await leave_while_it_runs(emulator, caller, options={"stop": ["x"]})
    await caller.post("/api/generate", model="a", keep_alive=0)
    async with asyncio.timeout(WITHIN_S):
        await emulator.stop()
