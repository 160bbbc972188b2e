"""What is drawn for the answers of a gateway, whatever they may be."""

from __future__ import annotations

import io
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import ConsoleDimensions, RenderableType
from rich.text import Text

from hearth.cli.client import printable
from hearth.cli.views import console_for, duration, top_view, view, watch
from tests.cli.stub_gateway import recorded
from tests.support.cases import for_each

HOSTILE = "\x1b[2Jx"
FIELDS = ("pending", "next_items", "sequence", "waited_s", "caller", "loaded_model", "last_swap_ms", "current_swap", "backend", "up")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([10**400, "", "x", HOSTILE, "[red]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS, "readings"]), inner, max_size=4),
    max_leaves=8,
)
SECTIONS = ("running", "internal_queue", "external_queue", "stats_24h", "mode", "gpu", "backend", "config", "latency", "orders", "cloud")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(drawn: RenderableType, columns: int = 140) -> list[str]:
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": str(columns)}).print(drawn)
    assert "\x1b" not in stream.getvalue()
    return [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]


def busy(**changed: object) -> dict[str, Any]:
    return {**recorded("status_busy"), **changed}


def test_a_pipe_gets_plain_text_as_wide_as_columns_says_and_a_terminal_colours(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, silence, coloured in ((Terminal(), "", True), (Terminal(), "1", False), (io.StringIO(), "", False)):
        console_for(stream, environ={"NO_COLOR": silence}).print(Text("[red]x[/red] :smile:", style="bold red"))
        assert ("\x1b[" in stream.getvalue()) is coloured
        assert coloured or stream.getvalue() == "[red]x[/red] :smile:\n"
    widths = [console_for(io.StringIO(), environ={"COLUMNS": columns}).width for columns in ("", "60", "wide", "0")]
    assert widths == [120, 60, 120, 120]


@for_each("name", ["\x1b[2Jx", "x\ry", "x\ny", "\u202ex", "\x07", "\x9b2J"])
def test_a_name_cannot_steer_the_terminal(name):
    assert (printable(name).isprintable(), len(printable(name))) == (True, len(name))
    assert printable("qwen2.5:32b-instruct-q6_K Küche 日本") == "qwen2.5:32b-instruct-q6_K Küche 日本"


@for_each(
    ("seconds", "words"),
    [(None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (89, "89 s"), (90, "2 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words


@given(st.dictionaries(st.sampled_from(SECTIONS), JSON_VALUES))
def test_an_odd_answer_is_drawn_without_an_error(answer):
    assert lines(view("status", answer))
    assert lines(top_view(answer, rows=5))


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
UNKNOWN_CARD = CARD | {"memory_used_mib": None, "temperature_c": None, "throttle_reasons": []}
SWAP = {"from_model": "old", "to_model": "new", "elapsed_ms": 5}
LOADING = [{"model": "old", "phase": "ready"}, {"model": "new", "phase": "loading"}]
ORDERS = {"draining": True, "paused": ["external"], "pinned": "llama3.1:8b", "loads": ["a:1b"], "unloads": ["b:1b"], "since": {}}
EMULATED = busy()["backend"] | {"emulator": True}


def hour(lane: str, model: str | None, requests: int, typical_s: float | None) -> dict[str, object]:
    figures = None if typical_s is None else {"p50": typical_s, "p95": 10 * typical_s, "p99": 20 * typical_s}
    return {
        "latency": {
            "last_hour": [
                {"lane": lane, "model": model, "requests": requests, "queue_wait_s": figures, "first_byte_s": None, "total_s": figures}
            ]
        }
    }


@for_each(
    ("changed", "shown", "absent"),
    [
        ({}, ["runs 42 continue qwen2.5-coder:14b 3.4 s"], ["ANSWERS ARE MADE UP", "last hour"]),
        ({}, ["waits (internal) 44 router qwen2.5:32b-instruct-q6_K parse_task 0.4 s"], []),
        ({}, ["waits (external) 41 open-webui llama3.1:8b 2 min", "waits (external) 43 n8n any 12 s", "... and 3 more external"], []),
        ({}, ["GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K"], []),
        ({}, ["1 swap this hour, the last took 11 s; 12 % of the busy time spent on swaps"], []),
        ({}, ["backend Ollama 0.33.0 at http://127.0.0.1:11434 up", "mode active"], []),
        ({}, ["24 hours 150 internal and 30 external completed, 2 interrupted"], []),
        ({"running": [], "internal_queue": {"pending": 0, "next_items": []}}, ["idle"], ["internal)"]),
        (
            {"running": [{"sequence": 7, "priority": "critical", "waited_s": 9.0, "running_s": 0}]},
            ["runs 7 any critical 0.0 s"],
            ["continue"],
        ),
        ({"running": [{"sequence": 1, "caller": HOSTILE, "model": "[red]m[/red]"}]}, ["runs 1 \ufffd[2Jx [red]m[/red] -"], []),
        ({"external_queue": {"pending": 1}}, ["... and 1 more external"], []),
        ({"backend": busy()["backend"] | {"up": False}}, ["DOWN"], []),
        ({"backend": EMULATED}, ["ANSWERS ARE MADE UP", "or the emulator was chosen", "\nbackend emulator "], []),
        ({"gpu": {"loaded_model": "old", "current_swap": SWAP}}, ["GPU loading new\n"], ["old"]),
        ({"gpu": {"loaded_model": "old", "residents": LOADING}}, ["GPU loading new\n"], []),
        ({"gpu": busy()["gpu"] | {"last_swap_ms": None, "swaps_this_hour": 0}}, ["0 swaps this hour; 12 %"], []),
        ({"gpu": {"loaded_model": "llama3.1:8b", "is_home": True}}, ["llama3.1:8b loaded (home)"], []),
        ({"gpu": {"loaded_model": None}}, ["no model loaded"], []),
        ({"gpu": {"offloaded_models": ["big:70b"]}}, ["slow: big:70b does not fit and runs partly on the CPU"], []),
        ({"config": {"problems": ["a.yaml:7: x: unknown key"]}}, ["config refused, the old one is in force: a.yaml:7: x: unknown key"], []),
        ({"config": {"restart_pending": ["server.port", "ollama.url"]}}, ["config waits for a restart: server.port, ollama.url"], []),
        ({"config": {"generation": 3}}, [], ["config"]),
        ({"orders": ORDERS}, ["command draining: new requests are refused\ncommand paused: external requests wait\n"], []),
        ({"orders": ORDERS}, ["command pinned: llama3.1:8b\ncommand to load: a:1b\ncommand to unload: b:1b\n"], []),
        ({"orders": {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": []}}, [], ["command"]),
        (
            {"gpu": CARD},
            ["device RTX 3090, 9.0 of 24.0 GiB used (0.8 by other programs), 61 °C, 250 W, 87 % busy, throttled: hardware ther"],
            [],
        ),
        ({"gpu": CARD | {"foreign_mib": 0.0, "power_w": None, "throttle_reasons": None}}, ["24.0 GiB used, 61 °C, 87 % busy\n"], []),
        ({"gpu": UNKNOWN_CARD}, ["RTX 3090, memory unknown, 250 W, 87 % busy\n"], []),
        ({"gpu": CARD | {"readings": "unknown"}}, ["device unknown\n"], []),
        ({"gpu": CARD | {"readings": "lost"}}, ["RTX 3090 no longer answers\n"], []),
        ({"gpu": CARD | {"readings": "off"}}, [], ["RTX 3090"]),
        (hour("external", None, 12, 0.8), ["last hour external: 12 requests; waits 0.8 s (95 %: 8.0 s), 0.8 s in total (95 %: 8.0 s)"], []),
        (hour("internal", None, 1, 2.0), ["internal: 1 request; waits 2.0 s (95 %: 20 s)"], []),
        (hour("external", "coder:14b", 12, 5.0), [], ["last hour"]),
    ],
)
def test_the_status_shows_what_runs_who_waits_the_gpu_the_backend_and_nothing_that_is_not_there(changed, shown, absent):
    drawn = "\n".join(lines(view("status", busy(**changed))))
    assert [words for words in shown if words not in drawn] == []
    assert [words for words in absent if words in drawn] == []


LONG_CALLER = busy(running=[busy()["running"][0] | {"caller": "a-caller-with-a-very-long-name"}])


@for_each(
    ("answer", "rows", "columns", "shown", "absent"),
    [
        (busy(), 20, 140, ["1 running 1 internal and 5 external waiting 24 h: 0 failed, 0 refused"], ["DRAINING"]),
        (busy(), 20, 140, ["# caller model task prompt waited runs / starts in"], []),
        (busy(), 20, 140, ["answers 42 continue qwen2.5-coder:14b 120 0.2 s 3.4 s"], []),
        (busy(), 20, 140, ["critical 44 router qwen2.5:32b-instruct-q6_K parse_task 120 0.4 s -", "... and 3 more"], []),
        (busy(), 20, 140, ["slots qwen2.5-coder:14b 1 of 1 busy, 0 wait", "callers continue 3/10 a minute, 45/100 an hour"], []),
        (busy(), 3, 140, ["... and 4 more"], ["n8n"]),
        (busy(), 20, 80, ["# caller model waited runs / starts in"], []),
        (LONG_CALLER, 20, 60, ["… 0.2 s 3.4 s"], []),  # whole numbers
        (busy(draining=True), 20, 140, ["0 refused DRAINING"], []),
        (busy(orders={"draining": True}), 20, 140, ["0 refused DRAINING"], []),
        (busy(stats_24h={"internal_failed": 1, "external_expired": 2}), 20, 140, ["24 h: 3 failed"], []),
        (busy(backend=EMULATED), 20, 140, ["ANSWERS ARE MADE UP"], []),
        (
            busy(running=[{"sequence": 42, "running_s": 1, "first_byte": False, "caller": HOSTILE}]),
            20,
            140,
            ["reads 42 \ufffd[2Jx any"],
            [],
        ),
        (busy(alerts={"active": [{"type": "swap_failed", "subject": "m"}]}), 20, 140, ["alerts swap_failed m"], []),
        (
            busy(rate_limits={f"c{n}": {"minute": "1/9", "hour": "2/9"} for n in range(9)}),
            20,
            140,
            ["c7 1/9 a minute, 2/9 an hour"],
            ["c8"],
        ),
        (
            {"cloud": {"state": "ready", "running": [{}], "spent_today_usd": 1.5, "limit_today_usd": 5}},
            9,
            140,
            ["1 running, 1.50 of 5.00"],
            [],
        ),
        ({"cloud": {"state": "off"}}, 9, 140, ["nothing runs or waits"], ["Claude"]),
        (
            {"cloud": {"state": "off", "spent_today_usd": 1.5, "limit_today_usd": 5}},
            9,
            140,
            ["Claude off, 0 running, 1.50 of 5.00 USD"],
            [],
        ),
        ({"external_queue": {"pending": True}}, 9, 140, [], ["more"]),
        ({"running": True, "gpu": [], "rate_limits": {"x": 1}, "alerts": {"active": [1]}}, 9, 140, ["nothing runs or waits"], []),
        (
            {"external_queue": {"pending": 1, "next_items": [{"interrupt_count": 2, "estimated_start_s": 125, "estimate_is_rough": True}]}},
            9,
            140,
            ["interrupted x2 any - ", " ~2 min"],
            [],
        ),
    ],
)
def test_the_screen_of_top_has_counts_requests_the_gpu_and_the_callers(answer, rows, columns, shown, absent):
    drawn = "\n".join(lines(top_view(answer, rows=rows), columns=columns))
    assert [words for words in shown if words not in drawn] == []
    assert [words for words in absent if words in drawn] == []


def test_a_narrow_status_shows_whole_models_and_no_tasks():
    shown = lines(view("status", busy()), columns=60)
    assert not any("task" in line for line in shown)
    assert sum(re.match(r"waits .*qwen2\.5:32b-instruct-q6_K ", line) is not None for line in shown) == 1


def test_the_last_screen_stays_with_the_reason_above_it_while_the_gateway_is_away_and_is_cut_to_the_height_of_the_terminal():
    stream = Terminal()
    watch([busy(), "no gateway at http://x: refused", busy()], console_for(stream, environ={"TERM": "xterm"}))
    screens = stream.getvalue().split("\x1b[H")
    away = [screen for screen in screens if "trying again" in screen]
    assert away
    assert all("continue" in screen for screen in away)
    assert "trying again" not in screens[-1]
    console = console_for(stream, environ={})
    console.size = ConsoleDimensions(width=140, height=30)
    watch([{"running": [{"running_s": 3.0}] * 30}], console)
    assert "... and 20 more" in stream.getvalue()


ITEM: dict[str, Any] = {
    "sequence": 7,
    "caller": "open-webui",
    "model": "llama3.1:8b",
    "task_type": None,
    "outcome": "completed",
    "reason": "",
    "ended_wall_s": 1_767_571_200.0,
    "queue_s": 2.5,
    "swap_s": 1.5,
    "first_byte_s": 0.25,
    "backend_s": 42.0,
    "total_s": 44.5,
    "prompt_tokens": 12,
    "output_tokens": None,
    "interrupt_count": 0,
}
WHOLE, LONG = "ended caller model task outcome queue swap first byte backend total tokens", "qwen2.5:32b-instruct-q6_K"
ODD: tuple[object, ...] = (None, "text", True, [], 1e300, 10**400, -1e14)
EMPTY: tuple[object, ...] = (None, {}, [], ["x", 3])


@for_each(
    ("changes", "columns", "head", "row"),
    [
        ({}, 140, WHOLE, r"\d\d-\d\d \d\d:\d\d:\d\d open-webui llama3.1:8b - completed 2.5 s 1.5 s 0.25 s 42 s 44 s 12\+\?"),
        ({"outcome": "failed", "reason": "backend_gone"}, 140, WHOLE, r".* failed \(backend_gone\) .*"),
        ({"interrupt_count": 2}, 140, WHOLE, r".* completed \+2 interrupted .*"),
        ({"outcome": "cancelled", "reason": "cancelled"}, 140, WHOLE, r".* cancelled 2.5 s .*"),
        ({"caller": HOSTILE}, 140, WHOLE, ".* \ufffd\\[2Jx .*"),
        ({"model": LONG, "caller": "n8n"}, 80, "ended caller model outcome queue total", f".* n8n {LONG} completed 2.5 s 44 s"),
        ({"model": "m" * 60}, 60, "ended caller model outcome total", r".* open-webui m+ completed 44 s"),  # broken: it fits nowhere
        *((dict.fromkeys(ITEM, odd), 9000, WHOLE, ".*") for odd in ODD),
    ],
)
def test_a_logged_request_is_a_row_that_says_how_it_ended_and_a_narrow_log_has_fewer_columns(changes, columns, head, row):
    first, *rows = lines(view("log", {"items": [ITEM | changes]}), columns=columns)
    assert (first, re.fullmatch(row, rows[0]) is not None) == (head, True)
    assert "".join(rows).count("m") >= str(changes.get("model")).count("m")


DISK = {"name": "a:8b", "installed": True, "resident": False, "phase": None, "home": False, "running": 0, "waiting": 0, "parallel": 1}
GONE = DISK | {"name": "b:8b", "installed": False}
CODER = {"name": "coder:14b", "installed": True, "resident": True, "phase": "loading", "parallel": 1}
HOME = DISK | {"name": "qwen2.5:32b", "resident": True, "phase": "ready", "home": True, "running": 1, "waiting": 3, "parallel": 2}
HOME |= {"vram_mib": 20480.0, "size_mib": 25600.0, "offloaded": True}


def test_the_models_begin_with_what_is_in_memory_and_nothing_to_list_is_said_in_words():
    assert lines(view("models", {"models": [DISK, GONE, CODER, HOME]})) == [
        "model state running waiting on the GPU size",
        "coder:14b loading 0 of 1 - - -",
        "qwen2.5:32b home in memory, partly on the CPU 1 of 2 3 20.0 GiB 25.0 GiB",
        "a:8b on the disk - - - -",
        "b:8b not installed - - - -",
    ]
    for columns, head in ((80, "model state running waiting on the GPU"), (60, "model state running")):
        shown = lines(view("models", {"models": [HOME | {"name": LONG}, DISK]}), columns=columns)
        assert (shown[0], f"{LONG} home" in shown[1]) == (head, True)
    odd = {"name": HOSTILE, "resident": True, "vram_mib": "much", "running": True}
    assert lines(view("models", {"models": [odd]}))[1] == "\ufffd[2Jx in memory 0 of 0 - - -"
    for found in EMPTY:
        assert lines(view("log", {"items": found})) == ["no finished request matches"]
        assert lines(view("models", {"models": found}))[0].startswith("no models are known: none is installed, or the model server is down")
