"""The known bugs of a real Ollama, switched on one at a time and seen over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hearth.emulator import Emulator
from hearth.emulator.quirks import KINDS, parse_quirk
from hearth.errors import ConfigError
from tests.emulator.callers import (
    MESSAGES,
    SLOW,
    Caller,
    cancel,
    leave_in_mid_stream,
    loaded_names,
    model,
    occupied,
)
from tests.emulator.captures import dechunk, masked, read_capture
from tests.support.patience import in_time, until
from tests.support.places import ROOT

DOCUMENTATION = ROOT / "docs" / "emulator.md"
Show = Callable[..., Awaitable[tuple[Emulator, Caller]]]


@pytest.fixture
def show(emulated) -> Show:
    """Starts an emulator with quirks, of the models `a` (with other facts) and `b`."""

    async def start(
        *quirks: str, parallel: int = 1, card_gib: float = 24.0, **facts: Any
    ) -> tuple[Emulator, Caller]:
        started: tuple[Emulator, Caller] = await emulated(
            model("a", **facts),
            model("b"),
            quirks=quirks,
            num_parallel=parallel,
            vram_gib=card_gib,
            marked=False,
        )
        return started

    return start


def recorded(name: str) -> bytes:
    return read_capture(name).response.partition(b"\r\n\r\n")[2]


async def listed(caller: Caller) -> list[str]:
    return [one["name"] for one in await caller.ps()]


async def leave_while_it_runs(emulator: Emulator, caller: Caller, **body: Any) -> None:
    call = caller.begin("a", **body)
    await until(lambda: emulator.in_flight)
    await cancel(call)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("slot-leak", 1.0),
        ("slot-leak=0.1", 0.1),
        ("dead-runner", 3),
        ("endless-load=2", 2),
        ("endless-load=qwen2.5-coder:14b", "qwen2.5-coder:14b"),
        ("stuck-unload=3", 3.0),
        *((f"eviction-wedge={value}", None) for value in ("maybe", "")),
        *((f"slot-leak={value}", None) for value in ("0", "1.1", "")),
        *((f"dead-runner={value}", None) for value in ("0", "1.5", "inf")),
        *(
            (text, None)
            for text in (
                "no-done=x",
                "busy-503=-1",
                "endless-load=0",
                "cpu-offload=0.5",
                "ignores-disconnect=1",
            )
        ),
        ("stuck-unload=nan", None),
    ],
)
def test_a_quirk_is_read_with_a_value_it_can_have_or_none(text, setting):
    name = text.partition("=")[0]
    if setting is not None:
        assert parse_quirk(text) == (name, setting)
        return
    with pytest.raises(ConfigError, match=f"quirk {name}: cannot be"):
        parse_quirk(text)


async def test_every_quirk_is_documented_and_unknown_or_repeated_ones_are_refused(show):
    assert re.findall(r"^\| `([a-z0-9-]+)`", DOCUMENTATION.read_text(), re.MULTILINE)[
        -len(KINDS) :
    ] == list(KINDS)
    assert [name for name in KINDS if parse_quirk(name)[0] != name] == []
    with pytest.raises(
        ConfigError,
        match=r"unknown quirk 'leak'; known are eviction-wedge, slot-leak, .*stuck-unload",
    ):
        parse_quirk("leak=1")
    with pytest.raises(ConfigError, match=r"given twice: slot-leak, slot-leak=0\.5"):
        await show("slot-leak", "slot-leak=0.5")


@pytest.mark.parametrize(
    ("texts", "wedged"), [((), True), (("eviction-wedge",), True), (("eviction-wedge=off",), False)]
)
async def test_the_eviction_wedge_is_there_unless_it_is_switched_off(texts, wedged, show):
    emulator, caller = await show(*texts, parallel=2, **SLOW)
    long, waiting = await occupied(emulator, caller, "b")
    await caller.generate("a", keep_alive=-1)
    await cancel(long)
    await until(lambda: not emulator.in_flight)
    if wedged:
        assert (await listed(caller), waiting.done()) == (["a:latest"], False)
        await caller.unload("a")
    assert (await waiting)["done"] is True


@pytest.mark.parametrize(
    ("texts", "leaked"),
    [((), {}), (("slot-leak=0.000001",), {}), (("slot-leak",), {"a:latest": 1})],
)
async def test_a_slot_leaks_by_the_odds_and_leaves_the_other_slot(texts, leaked, show):
    emulator, caller = await show(*texts, parallel=1 + len(leaked), **SLOW)
    (whole,) = await occupied(emulator, caller)
    await cancel(whole)
    await until(lambda: not emulator.in_flight)
    assert emulator.leaked_slots == {}
    await leave_in_mid_stream(emulator, caller)
    await asyncio.gather(caller.generate("a"), caller.generate("a"))
    assert emulator.leaked_slots == leaked


async def test_an_answer_without_done_has_the_keys_of_the_recorded_one(show):
    _, caller = await show("no-done")
    answer = await caller.post(
        "/api/chat", model="a", messages=MESSAGES, options={"num_predict": 5}
    )
    assert (answer.pop("status"), answer["done"]) == (200, False)
    assert list(answer) == list(json.loads(recorded("token_repeat_abort_nostream")))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_openai_stream_whose_runner_dies_ends_with_an_empty_chunk(path, show):
    emulator, caller = await show("empty-error-chunk=2")
    (_, whole), (status, cut) = await caller.stream(path), await caller.stream(path)
    last = json.loads(cut.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert (status, last["model"], whole.endswith(b"data: [DONE]\n\n")) == (200, "", True)
    assert last["choices"][0].get("delta", {}).get("content", last["choices"][0].get("text")) == ""
    assert path == "/v1/completions" or masked(cut).endswith(
        masked(dechunk(recorded("midstream_kill_oai_chat"))[-1])
    )
    assert emulator.resident == ("a:latest",)
    assert (await caller.generate("a"))["done"] is True
    assert loaded_names(emulator) == ["a", "a"]


@pytest.mark.parametrize(
    "text", ["endless-load", "endless-load=1", "endless-load=a", "endless-load=a:latest"]
)
async def test_an_endless_load_holds_up_every_other_until_its_caller_leaves(text, show):
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


@pytest.mark.parametrize(
    ("text", "card_gib", "facts"),
    [
        ("cpu-offload", 24.0, {"size_gib": 26.0, "vram_gib": 28.0}),
        ("cpu-offload=3000", 24.0, {}),
        ("cpu-offload=3000", 0.0, {}),
    ],
)
async def test_a_model_larger_than_the_card_runs_as_many_times_slower_and_no_other(
    text, card_gib, facts, show
):
    _, caller = await show(text, card_gib=card_gib, decode_tokens_per_s=1000.0, **facts)
    took_ns = (await caller.generate("a", tokens=20))["eval_duration"]
    assert took_ns >= 7 * 19 * 1_000_000 if facts else took_ns < 30e9, "it would be a minute"


@pytest.mark.parametrize(
    ("texts", "tokens_per_s", "held_s"), [((), 0.01, 0.0), (("ignores-disconnect",), 30.0, 0.1)]
)
async def test_leaving_during_prompt_evaluation_frees_the_slot_now_or_at_its_end(
    texts, tokens_per_s, held_s, show
):
    emulator, caller = await show(*texts, prompt_tokens_per_s=tokens_per_s)
    await caller.post("/api/generate", model="a")
    began_at = time.monotonic()
    await leave_while_it_runs(emulator, caller)
    await until(lambda: not emulator.in_flight)
    assert time.monotonic() - began_at > held_s


async def test_a_model_that_cannot_go_stays_listed_and_holds_up_the_next(show):
    emulator, caller = await show("stuck-unload")
    await caller.generate("a", keep_alive=0)
    assert (await caller.generate("a", keep_alive=-1))["done"] is True
    emulator.let_go()
    assert emulator.resident == ("a:latest",)
    answer, waiting = await caller.unload("a"), caller.begin("b")
    await asyncio.wait({waiting}, timeout=0.05)
    assert (answer["done_reason"], await listed(caller), waiting.done()) == (
        "unload",
        ["a:latest"],
        False,
    )
    emulator.let_go()
    assert (await waiting)["done"] is True
    assert emulator.resident == ("b:latest",)


async def test_an_emulator_with_a_leak_an_orphan_and_a_stuck_model_stops(show):
    emulator, caller = await show(
        "slot-leak",
        "ignores-disconnect",
        "stuck-unload",
        parallel=2,
        prompt_tokens_per_s=100.0,
        **SLOW,
    )
    await leave_in_mid_stream(emulator, caller)
    await leave_while_it_runs(emulator, caller, options={"stop": ["x"]})
    await caller.unload("a")
    async with in_time():
        await emulator.stop()
