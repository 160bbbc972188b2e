"""Drawing the status page from whatever a gateway may answer."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st

from hearth.cli.looking import read_status
from hearth.cli.views import console_for, duration, status_view
from tests.cli.stub_gateway import recorded
from tests.support.cases import for_each

TEXTS = st.sampled_from(["", "x", "\x1b[2J", "[red]"])
FIELDS = st.sampled_from(
    ["pending", "next_items", "sequence", "waited_s", "caller", "loaded_model", "last_swap_ms", "current_swap", "backend", "up", "readings"]
)
NUMBERS = st.integers() | st.floats() | st.just(10**400)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)
SECTIONS = ("running", "internal_queue", "external_queue", "stats_24h", "mode", "gpu", "backend", "config", "latency", "orders")


def drawn(answer: dict[str, object]) -> str:
    stream = io.StringIO()
    console_for(stream, environ={}).print(status_view(answer))
    return stream.getvalue()


def busy(**changed: object) -> dict[str, object]:
    return {**recorded("status_busy"), **changed}


def backend(**changed: object) -> dict[str, object]:
    return {**recorded("status_busy")["backend"], **changed}


@given(st.dictionaries(st.sampled_from(SECTIONS), JSON_VALUES))
def test_an_odd_answer_is_drawn_without_an_error(answer):
    assert drawn(answer)


def test_an_idle_gateway_says_so():
    text = drawn(busy(running=[], internal_queue={"pending": 0, "next_items": []}))
    assert "idle" in text
    assert "internal)" not in text


def test_the_owners_orders_in_force_are_shown():
    orders = {"draining": True, "paused": ["external"], "pinned": "llama3.1:8b", "loads": ["a:1b"], "unloads": ["b:1b"], "since": {}}
    text = drawn(busy(orders=orders))
    for said in ("draining: new requests", "paused: requests of other", "pinned: llama3.1:8b", "to load: a:1b", "to unload: b:1b"):
        assert said in text
    assert "order" not in drawn(busy(orders={"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}))


def test_several_running_requests_are_all_shown():
    text = drawn(busy(running=[{"sequence": 7, "caller": "left"}, {"sequence": 8, "caller": "right"}]))
    assert "left" in text
    assert "right" in text
    assert "continue" not in text


def test_a_request_without_a_task_shows_its_priority_and_one_that_has_just_begun_how_long_it_runs():
    text = drawn(busy(running=[{"sequence": 7, "priority": "critical", "waited_s": 9.0, "running_s": 0}], external_queue={"pending": 1}))
    assert re.search(r"critical +0\.0 s", text)
    assert "... and 1 more external" in text


def test_the_emulator_is_announced_in_a_box():
    text = drawn(busy(backend=backend(emulator=True)))
    assert "ANSWERS ARE MADE UP" in text
    assert re.search(r"backend +emulator ", text)
    assert "ANSWERS ARE MADE UP" not in drawn(busy())


def test_a_backend_that_is_down_is_shouted():
    assert "DOWN" in drawn(busy(backend=backend(up=False)))


def test_a_swap_under_way_is_shown_instead_of_the_old_model():
    text = drawn(busy(gpu={"loaded_model": "old", "current_swap": {"from_model": "old", "to_model": "new", "elapsed_ms": 5}}))
    assert "loading new" in text
    assert "old" not in text


def test_nothing_is_said_of_a_last_swap_where_there_was_none():
    text = drawn(busy(gpu={**recorded("status_busy")["gpu"], "last_swap_ms": None, "swaps_this_hour": 0}))
    assert "0 swaps this hour; 12 %" in text


def test_a_load_into_free_memory_is_shown_as_well():
    text = drawn(busy(gpu={"loaded_model": "old", "residents": [{"model": "old", "phase": "ready"}, {"model": "new", "phase": "loading"}]}))
    assert "loading new" in text


def test_a_refused_edit_of_the_configuration_is_shown():
    text = drawn(busy(config={"generation": 3, "problems": ["llm_gateway.yaml:7: queue.max: unknown key"]}))
    assert "refused, the old one stays: llm_gateway.yaml:7: queue.max: unknown key" in text


def test_keys_that_wait_for_a_restart_are_named():
    text = drawn(busy(config={"generation": 3, "problems": [], "restart_pending": ["server.port", "ollama.url"]}))
    assert "waits for a restart: server.port, ollama.url" in text
    assert "waits for a restart" not in drawn(busy(config={"generation": 3}))


def test_the_home_model_is_marked():
    assert "llama3.1:8b loaded (home)" in drawn(busy(gpu={"loaded_model": "llama3.1:8b", "is_home": True}))


def test_an_empty_gpu_is_said():
    assert "no model loaded" in drawn(busy(gpu={"loaded_model": None}))


CARD = {
    "readings": "ok",
    "device": "RTX 3090",
    "memory_used_mib": 9216.0,
    "memory_total_mib": 24576.0,
    "foreign_mib": 819.2,
    "utilisation_pct": 87.0,
    "temperature_c": 61.4,
    "power_w": 250.5,
    "throttle_reasons": ["hardware_thermal"],
}


@for_each(
    ("changed", "words"),
    [
        ({}, "RTX 3090, 9.0 of 24.0 GiB used (0.8 by other programs), 61 °C, 250 W, 87 % busy, held down: hardware thermal"),
        ({"foreign_mib": None, "power_w": None, "throttle_reasons": None}, "RTX 3090, 9.0 of 24.0 GiB used, 61 °C, 87 % busy\n"),
        ({"foreign_mib": 0.0}, "9.0 of 24.0 GiB used, 61 °C"),
        ({"memory_used_mib": None, "temperature_c": None, "throttle_reasons": []}, "RTX 3090, memory unknown, 250 W, 87 % busy\n"),
        ({"readings": "unknown"}, "card      unknown\n"),
        ({"readings": "lost"}, "RTX 3090 does not answer any more\n"),
    ],
)
def test_what_the_card_says_has_a_line(changed, words):
    assert words in re.sub(r" +\n", "\n", drawn(busy(gpu=CARD | changed)))


@for_each("readings", ["off", "", 7])
def test_a_card_that_nobody_reads_has_none(readings):
    assert "RTX 3090" not in drawn(busy(gpu=CARD | {"readings": readings}))


def test_a_model_that_runs_on_the_cpu_is_pointed_out():
    assert "slow: big:70b does not fit and runs on the CPU in part" in drawn(busy(gpu={"offloaded_models": ["big:70b"]}))


def test_a_callers_name_cannot_steer_the_terminal():
    text = drawn(busy(running=[{"sequence": 1, "caller": "\x1b[2Jevil", "model": "[red]m[/red]"}]))
    assert "\x1b" not in text
    assert "[red]m[/red]" in text


def in_last_hour(lane: str, model: str | None, requests: int, typical_s: float | None) -> dict[str, object]:
    figures = None if typical_s is None else {"p50": typical_s, "p95": 10 * typical_s, "p99": 20 * typical_s}
    return {"lane": lane, "model": model, "requests": requests, "queue_wait_s": figures, "first_byte_s": None, "total_s": figures}


def test_the_last_hour_has_a_line_for_each_lane_with_what_is_typical_and_what_is_rare():
    rows = [in_last_hour("external", None, 12, 0.8), in_last_hour("external", "coder:14b", 12, 5.0), in_last_hour("internal", None, 1, 2.0)]
    text = drawn(busy(latency={"last_hour": rows}))
    assert "external: 12 requests; waits 0.8 s (95 %: 8.0 s), in all 0.8 s (95 %: 8.0 s)" in text
    assert "internal: 1 request; waits 2.0 s (95 %: 20 s), in all 2.0 s (95 %: 20 s)" in text
    assert text.count("last hour") == 2


@for_each("latency", [None, {}, {"last_hour": "x"}, {"last_hour": [1, {"model": None, "queue_wait_s": 3}]}])
def test_an_hour_of_which_nothing_is_known_is_no_error(latency):
    assert "waits" not in drawn(busy(running=[], latency=latency, internal_queue={}, external_queue={}))


def test_truth_values_are_not_numbers():
    assert read_status({"internal_queue": {"pending": True}}).lanes[0].pending == 0


@for_each(
    ("seconds", "words"),
    [(None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (89, "89 s"), (90, "2 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_a_narrow_terminal_shows_whole_models_and_no_tasks():
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": "60"}).print(status_view(busy()))
    assert "task" not in stream.getvalue()
    assert len(re.findall(r"^waits .*qwen2\.5:32b-instruct-q6_K ", stream.getvalue(), re.MULTILINE)) == 1
