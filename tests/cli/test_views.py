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
TEXTS = st.sampled_from(["", "x", HOSTILE, "[red]"])
FIELDS = st.sampled_from(
    ["pending", "next_items", "sequence", "waited_s", "caller", "loaded_model", "last_swap_ms", "current_swap", "backend", "up", "readings"]
)
NUMBERS = st.integers() | st.floats() | st.just(10**400)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)
SECTIONS = ("running", "internal_queue", "external_queue", "stats_24h", "mode", "gpu", "backend", "config", "latency", "orders", "cloud")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(view: RenderableType, columns: int = 140) -> list[str]:
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": str(columns)}).print(view)
    assert "\x1b" not in stream.getvalue()
    return [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]


def busy(**changed: object) -> dict[str, Any]:
    return {**recorded("status_busy"), **changed}


def drawn(**changed: object) -> str:
    return "\n".join(lines(view("status", busy(**changed))))


def test_a_pipe_gets_plain_text_as_wide_as_columns_says_and_a_terminal_colours(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, environ, coloured in ((Terminal(), {}, True), (Terminal(), {"NO_COLOR": ""}, True), (io.StringIO(), {}, False)):
        console_for(stream, environ=environ).print(Text("red", style="bold red"))
        assert ("\x1b[" in stream.getvalue()) is coloured
    silenced = Terminal()
    console_for(silenced, environ={"NO_COLOR": "1"}).print(Text("[red]x[/red] :smile:", style="bold red"))
    assert silenced.getvalue() == "[red]x[/red] :smile:\n"
    widths = [console_for(io.StringIO(), environ={"COLUMNS": columns}).width for columns in ("", "60", "wide", "0")]
    assert widths == [120, 60, 120, 120]


@for_each("name", ["\x1b[2Jx", "x\ry", "x\ny", "\u202ex", "\x07", "\x9b2J"])
def test_a_name_cannot_steer_the_terminal(name):
    assert printable(name).isprintable()
    assert len(printable(name)) == len(name)
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


def test_the_status_shows_what_runs_who_waits_the_gpu_and_the_backend(hearth, busy):
    result = hearth("status", "--url", busy.url)
    assert result.exit_code == 0, result.output
    said = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "runs 42 continue qwen2.5-coder:14b 3.4 s",
        "waits (internal) 44 router qwen2.5:32b-instruct-q6_K parse_task 0.4 s",
        "waits (external) 41 open-webui llama3.1:8b 2 min",
        "waits (external) 43 n8n any 12 s",
        "... and 3 more external",
        "GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K",
        "1 swap this hour, the last took 11 s; 12 % of the busy time spent on swaps",
        "backend Ollama 0.33.0 at http://127.0.0.1:11434 up",
        "mode active",
        "24 hours 150 internal and 30 external completed, 2 interrupted",
    ):
        assert line in said


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
SWAP = {"from_model": "old", "to_model": "new", "elapsed_ms": 5}
LOADING = [{"model": "old", "phase": "ready"}, {"model": "new", "phase": "loading"}]
ORDERS = {"draining": True, "paused": ["external"], "pinned": "llama3.1:8b", "loads": ["a:1b"], "unloads": ["b:1b"], "since": {}}


def hour(lane: str, model: str | None, requests: int, typical_s: float | None) -> dict[str, object]:
    figures = None if typical_s is None else {"p50": typical_s, "p95": 10 * typical_s, "p99": 20 * typical_s}
    return {"lane": lane, "model": model, "requests": requests, "queue_wait_s": figures, "first_byte_s": None, "total_s": figures}


@for_each(
    ("changed", "words"),
    [
        ({"running": []}, "idle"),
        ({"running": [{"sequence": 7, "priority": "critical", "waited_s": 9.0, "running_s": 0}]}, "runs 7 any critical 0.0 s"),
        ({"running": [{"sequence": 1, "caller": HOSTILE, "model": "[red]m[/red]"}]}, "runs 1 \ufffd[2Jx [red]m[/red] -"),
        ({"external_queue": {"pending": 1}}, "... and 1 more external"),
        ({"backend": busy()["backend"] | {"up": False}}, "DOWN"),
        ({"backend": busy()["backend"] | {"emulator": True}}, "ANSWERS ARE MADE UP"),
        ({"backend": busy()["backend"] | {"emulator": True}}, "\nbackend emulator "),
        ({"gpu": {"loaded_model": "old", "current_swap": SWAP}}, "GPU loading new\n"),
        ({"gpu": {"loaded_model": "old", "residents": LOADING}}, "GPU loading new\n"),
        ({"gpu": busy()["gpu"] | {"last_swap_ms": None, "swaps_this_hour": 0}}, "0 swaps this hour; 12 %"),
        ({"gpu": {"loaded_model": "llama3.1:8b", "is_home": True}}, "llama3.1:8b loaded (home)"),
        ({"gpu": {"loaded_model": None}}, "no model loaded"),
        ({"gpu": {"offloaded_models": ["big:70b"]}}, "slow: big:70b does not fit and runs partly on the CPU"),
        ({"config": {"problems": ["a.yaml:7: x: unknown key"]}}, "config refused, the old one is in force: a.yaml:7: x: unknown key"),
        ({"config": {"restart_pending": ["server.port", "ollama.url"]}}, "config waits for a restart: server.port, ollama.url"),
        (
            {"orders": ORDERS},
            "command draining: new requests are refused\ncommand paused: external requests wait\ncommand pinned: llama",
        ),
        ({"orders": ORDERS}, "command to load: a:1b\ncommand to unload: b:1b\n"),
        (
            {"gpu": CARD},
            "device RTX 3090, 9.0 of 24.0 GiB used (0.8 by other programs), 61 °C, 250 W, 87 % busy, throttled: hardware thermal\n",
        ),
        (
            {"gpu": CARD | {"foreign_mib": None, "power_w": None, "throttle_reasons": None}},
            "RTX 3090, 9.0 of 24.0 GiB used, 61 °C, 87 % busy\n",
        ),
        ({"gpu": CARD | {"foreign_mib": 0.0}}, "9.0 of 24.0 GiB used, 61 °C"),
        (
            {"gpu": CARD | {"memory_used_mib": None, "temperature_c": None, "throttle_reasons": []}},
            "RTX 3090, memory unknown, 250 W, 87 % busy\n",
        ),
        ({"gpu": CARD | {"readings": "unknown"}}, "device unknown\n"),
        ({"gpu": CARD | {"readings": "lost"}}, "RTX 3090 no longer answers\n"),
        (
            {"latency": {"last_hour": [hour("external", None, 12, 0.8), hour("external", "coder:14b", 12, 5.0)]}},
            "last hour external: 12 requests; waits 0.8 s (95 %: 8.0 s), 0.8 s in total (95 %: 8.0 s)",
        ),
        ({"latency": {"last_hour": [hour("internal", None, 1, 2.0)]}}, "internal: 1 request; waits 2.0 s (95 %: 20 s)"),
    ],
)
def test_the_status_says(changed, words):
    assert words in drawn(**changed)


@for_each(
    ("changed", "absent"),
    [
        ({"running": [], "internal_queue": {"pending": 0, "next_items": []}}, "internal)"),
        ({"running": [{"sequence": 7, "caller": "left"}, {"sequence": 8, "caller": "right"}]}, "continue"),
        ({"orders": {"draining": False, "paused": [], "pinned": None, "loads": [], "unloads": [], "since": {}}}, "order"),
        ({}, "ANSWERS ARE MADE UP"),
        ({"gpu": {"loaded_model": "old", "current_swap": SWAP}}, "old"),
        ({"config": {"generation": 3}}, "config"),
        ({"gpu": CARD | {"readings": "off"}}, "RTX 3090"),
        ({"gpu": CARD | {"readings": 7}}, "RTX 3090"),
        ({"latency": {"last_hour": [hour("external", "coder:14b", 12, 5.0)]}}, "last hour"),
    ],
)
def test_the_status_does_not_say(changed, absent):
    assert absent not in drawn(**changed)


def test_a_narrow_status_shows_whole_models_and_no_tasks():
    shown = lines(view("status", busy()), columns=60)
    assert not any("task" in line for line in shown)
    assert sum(re.match(r"waits .*qwen2\.5:32b-instruct-q6_K ", line) is not None for line in shown) == 1


def test_the_screen_of_top_has_counts_requests_the_gpu_and_the_callers():
    shown = lines(top_view(busy(), rows=20))
    assert shown[:4] == [
        "1 running 1 internal and 5 external waiting 24 h: 0 failed, 0 refused",
        "# caller model task prompt waited runs / starts in",
        "answers 42 continue qwen2.5-coder:14b 120 0.2 s 3.4 s",
        "critical 44 router qwen2.5:32b-instruct-q6_K parse_task 120 0.4 s -",
    ]
    assert "... and 3 more" in shown
    assert "GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K" in shown
    assert "slots qwen2.5-coder:14b 1 of 1 busy, 0 wait" in shown
    assert "callers continue 3/10 a minute, 45/100 an hour" in shown


def test_top_shows_expected_starts_interruptions_claude_and_alerts_where_there_are_any():
    answer = busy(draining=True, alerts={"active": [{"type": "swap_failed", "subject": "m"}]})
    answer["cloud"] = {"state": "ready", "running": [{}], "spent_today_usd": 1.5, "limit_today_usd": 5}
    answer["external_queue"]["next_items"][0].update(interrupt_count=2, estimated_start_s=125.0, estimate_is_rough=True)
    answer["stats_24h"] |= {"internal_failed": 1, "external_expired": 2}
    answer["running"][0] |= {"first_byte": False, "caller": HOSTILE}
    answer["rate_limits"] = {f"caller-{number}": {"minute": "1/10", "hour": "2/100"} for number in range(9)}
    answer["backend"]["emulator"] = True
    shown = lines(top_view(answer, rows=20))
    assert "ANSWERS ARE MADE UP" in shown[1]
    counts = next(line for line in shown if "running" in line)
    assert "24 h: 3 failed" in counts
    assert counts.endswith("DRAINING")
    assert any(line.startswith("reads 42 ") for line in shown)
    assert "interrupted x2 41 open-webui llama3.1:8b 120 2 min ~2 min" in shown
    assert "Claude ready, 1 running, 1.50 of 5.00 USD today" in shown
    assert "alerts swap_failed m" in shown
    assert "caller-7 1/10 a minute" in " ".join(shown)
    assert "caller-8" not in " ".join(shown)
    assert lines(top_view(busy(orders={"draining": True}), rows=20))[0].endswith("DRAINING")


def test_a_screen_with_less_room_has_fewer_columns_and_rows_and_whole_numbers():
    assert lines(top_view(busy(), rows=20), columns=80)[1] == "# caller model waited runs / starts in"
    low = lines(top_view(busy(), rows=3))
    assert "... and 4 more" in low
    assert not any("n8n" in line for line in low)
    answer = busy()
    answer["running"][0]["caller"] = "a-caller-with-a-very-long-name"
    narrow = lines(top_view(answer, rows=20), columns=60)
    assert any(re.fullmatch(r"answers 42 a-\S*… qwen\S*… 0\.2 s 3\.4 s", line) for line in narrow)


@for_each(
    ("answer", "line", "shown"),
    [
        ({}, "nothing runs or waits", True),
        ({"running": True, "gpu": [], "rate_limits": {"x": 1}, "alerts": {"active": [1]}}, "nothing runs or waits", True),
        ({"cloud": {"state": "off"}}, "Claude", False),
        ({"cloud": {"state": "off", "spent_today_usd": 1.5, "limit_today_usd": 5}}, "Claude off, 0 running, 1.50 of 5.00 USD today", True),
        ({"external_queue": {"pending": True}}, "... and 1 more", False),
    ],
)
def test_top_of_little_says_so(answer, line, shown):
    assert any(each.startswith(line) for each in lines(top_view(answer, rows=20))) is shown


def test_the_last_screen_stays_with_the_reason_above_it_while_the_gateway_is_away():
    stream = Terminal()
    watch([busy(), "no gateway at http://x: refused", busy()], console_for(stream, environ={"TERM": "xterm"}))
    screens = stream.getvalue().split("\x1b[H")
    away = [screen for screen in screens if "trying again" in screen]
    assert away
    assert all("continue" in screen for screen in away)
    assert "trying again" not in screens[-1]


def test_the_screen_is_cut_to_the_height_of_the_terminal():
    terminal = Terminal()
    console = console_for(terminal, environ={})
    console.size = ConsoleDimensions(width=140, height=30)
    watch([{"running": [{"running_s": 3.0}] * 30}], console)
    assert "... and 20 more" in terminal.getvalue()


def item(**changes: Any) -> dict[str, Any]:
    known = {
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
    return known | changes


def log_of(*items: Any, columns: int = 140) -> list[str]:
    return lines(view("log", {"items": list(items)}), columns=columns)


def test_every_phase_of_a_logged_request_is_a_column_and_rows_keep_their_order():
    head, *rows = log_of(*(item(caller=name) for name in ("third", "second", "first")))
    assert head == "ended caller model task outcome queue swap first byte backend total tokens"
    assert rows[0].endswith("third llama3.1:8b - completed 2.5 s 1.5 s 0.25 s 42 s 44 s 12+?")
    assert [row.split()[2] for row in rows] == ["third", "second", "first"]


@for_each(
    ("changes", "says"),
    [
        ({"outcome": "failed", "reason": "backend_gone"}, " failed (backend_gone) "),
        ({"interrupt_count": 2}, " completed +2 interrupted "),
        ({"outcome": "cancelled", "reason": "cancelled"}, " cancelled 2.5 s "),
        ({"caller": HOSTILE}, " \ufffd[2Jx "),
    ],
)
def test_a_logged_request_says_how_it_ended(changes, says):
    assert says in log_of(item(**changes))[1]


@for_each("value", [None, "text", True, [], 1e300, 10**400, -1e14])
def test_odd_fields_are_drawn_all_the_same(value):
    assert len(log_of(dict.fromkeys(item(), value), columns=9000)) == 2


def test_a_narrow_log_has_fewer_columns_and_breaks_only_a_model_that_fits_nowhere():
    head, row = log_of(item(model="qwen2.5:32b-instruct-q6_K", caller="n8n", task_type="generate_digest"), columns=80)
    assert head == "ended caller model outcome queue total"
    assert row.endswith("n8n qwen2.5:32b-instruct-q6_K completed 2.5 s 44 s")
    head, *rows = log_of(item(model="m" * 60), columns=60)
    assert head == "ended caller model outcome total"
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d open-webui m+ completed 44 s", rows[0])
    assert "".join(row.removesuffix("completed 44 s").split()[-1] for row in rows) == "m" * 60


@for_each("found", [None, {}, [], ["x", 3]])
def test_nothing_to_list_is_said_in_words(found):
    assert lines(view("log", {"items": found})) == ["no finished request matches"]
    assert lines(view("models", {"models": found}))[0].startswith("no models are known: none is installed, or the model server is down")


DISK = {"name": "a:8b", "installed": True, "resident": False, "phase": None, "home": False, "running": 0, "waiting": 0, "parallel": 1}
GONE = DISK | {"name": "b:8b", "installed": False}
CODER = {"name": "coder:14b", "installed": True, "resident": True, "phase": "loading", "parallel": 1}
HOME = DISK | {"name": "qwen2.5:32b", "resident": True, "phase": "ready", "home": True, "running": 1, "waiting": 3, "parallel": 2}
HOME |= {"vram_mib": 20480.0, "size_mib": 25600.0, "offloaded": True}


def test_the_models_begin_with_what_is_in_memory():
    assert lines(view("models", {"models": [DISK, GONE, CODER, HOME]})) == [
        "model state running waiting on the GPU size",
        "coder:14b loading 0 of 1 - - -",
        "qwen2.5:32b home in memory, partly on the CPU 1 of 2 3 20.0 GiB 25.0 GiB",
        "a:8b on the disk - - - -",
        "b:8b not installed - - - -",
    ]
    name = "qwen2.5:32b-instruct-q6_K"
    for columns, head in ((80, "model state running waiting on the GPU"), (60, "model state running")):
        shown = lines(view("models", {"models": [{**HOME, "name": name}, DISK]}), columns=columns)
        assert (shown[0], f"{name} home" in shown[1]) == (head, True)
    odd = {"name": HOSTILE, "resident": True, "vram_mib": "much", "running": True}
    assert lines(view("models", {"models": [odd]}))[1] == "\ufffd[2Jx in memory 0 of 0 - - -"
