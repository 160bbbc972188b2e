"""What is drawn for the answers of a gateway, whatever they may be."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import ConsoleDimensions, RenderableType
from rich.text import Text

from hearth.cli.client import duration, printable
from hearth.cli.views import console_for, top_view, view, watch
from hearth.cli.waits import waits_for
from hearth.types import JsonDict
from tests.cli.stub_gateway import recorded
from tests.support.fields import Fields

HOSTILE = "\x1b[2Jx"
FIELDS = (
    "pending",
    "next_items",
    "sequence",
    "waited_s",
    "caller",
    "loaded_model",
    "last_swap_ms",
    "current_swap",
    "backend",
    "up",
)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, "", "x", HOSTILE, "[red]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*FIELDS, "readings"]), inner, max_size=4)
    ),
    max_leaves=8,
)
SECTIONS = (
    "running",
    "internal_queue",
    "external_queue",
    "stats_24h",
    "mode",
    "gpu",
    "backend",
    "config",
    "latency",
    "orders",
    "cloud",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(drawn: RenderableType, columns: int = 140) -> list[str]:
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": str(columns)}).print(drawn)
    assert "\x1b" not in stream.getvalue()
    return [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]


def busy(**changed: object) -> Fields:
    return {**recorded("status_busy"), **changed}


@pytest.fixture
def no_environ(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("kind", "silence", "coloured"),
    [(Terminal, "", True), (Terminal, "1", False), (io.StringIO, "", False)],
)
@pytest.mark.usefixtures("no_environ")
def test_a_pipe_gets_plain_text_and_a_terminal_colours(kind, silence, coloured):
    stream = kind()
    text = Text("[red]x[/red] :smile:", style="bold red")
    console_for(stream, environ={"NO_COLOR": silence}).print(text)
    assert ("\x1b[" in stream.getvalue()) is coloured
    assert coloured or stream.getvalue() == "[red]x[/red] :smile:\n"


@pytest.mark.parametrize(("columns", "width"), [("", 120), ("60", 60), ("wide", 120), ("0", 120)])
@pytest.mark.usefixtures("no_environ")
def test_a_pipe_is_as_wide_as_columns_says(columns, width):
    assert console_for(io.StringIO(), environ={"COLUMNS": columns}).width == width


@pytest.mark.parametrize("name", ["\x1b[2Jx", "x\ry", "x\ny", "\u202ex", "\x07", "\x9b2J"])
def test_a_name_cannot_steer_the_terminal(name):
    assert (printable(name).isprintable(), len(printable(name))) == (True, len(name))
    assert (
        printable("qwen2.5:32b-instruct-q6_K Küche 日本") == "qwen2.5:32b-instruct-q6_K Küche 日本"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3599, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
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
}
CARD |= {
    "utilisation_pct": 87.0,
    "temperature_c": 61.4,
    "power_w": 250.5,
    "throttle_reasons": ["hardware_thermal"],
}
UNKNOWN_CARD = CARD | {"memory_used_mib": None, "temperature_c": None, "throttle_reasons": []}
LOADING = [
    {"model": "old", "phase": "ready", "warm_conversations": 2, "warm_tokens": 61_000},
    {"model": "new", "phase": "loading"},
]


def hour(lane: str, model: str | None, requests: int, typical_s: float) -> JsonDict:
    figures = {"p50": typical_s, "p95": 10 * typical_s, "p99": 20 * typical_s}
    phases = {"queue_wait_s": figures, "first_byte_s": None, "total_s": figures}
    return {"last_hour": [{"lane": lane, "model": model, "requests": requests, **phases}]}


FULL = busy(
    running=[
        {
            "sequence": 7,
            "priority": "critical",
            "waited_s": 9,
            "running_s": 0,
            "caller": HOSTILE,
            "model": "[red]m[/red]",
        }
    ],
    backend=busy()["backend"] | {"emulator": True, "instead_of": "http://127.0.0.1:11434"},
    orders={
        "draining": True,
        "paused": ["external"],
        "pinned": "p:8b",
        "loads": ["a:1b"],
        "unloads": ["b:1b"],
        "since": {},
    },
    gpu=CARD
    | {
        "residents": LOADING,
        "offloaded_models": ["big:70b"],
        "loaded_model": "old",
        "last_swap_ms": None,
    },
    stats_24h={"internal_failed": 1, "external_expired": 2},
    latency=hour("external", None, 12, 0.8),
    config={
        "problems": ["a.yaml:7: x: unknown key"],
        "restart_pending": ["server.port", "ollama.url"],
    },
    rate_limits={f"caller-{number}": {"minute": "1/10", "hour": "2/100"} for number in range(9)},
    cloud={"state": "ready", "running": [{}], "spent_today_usd": 1.5, "limit_today_usd": 5},
    alerts={
        "active": [
            {"type": "swap_failed", "severity": "critical", "subject": "m"},
            {"type": "gpu_hot", "severity": "warning", "subject": ""},
        ]
    },
)
FULL["external_queue"]["next_items"][0].update(
    interrupt_count=2, estimated_start_s=125.0, start_bound_s=300.0, estimate_is_rough=True
)
LEASE = {"mib": None, "reason": "Doom", "caller": "gamer", "until": None, "granted": False}
LONG_CALLER = busy(running=[busy()["running"][0] | {"caller": "a-caller-with-a-very-long-name"}])
EMULATOR = """\
│ ANSWERS ARE MADE UP: the emulator is used instead of Ollama. │
│ start Ollama at http://127.0.0.1:11434: Hearth then uses it │"""
BUSY_FACTS = """\
GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K
1 swap this hour, the last took 11 s; 12 % of the busy time spent on swaps
backend Ollama 0.33.0 at http://127.0.0.1:11434 up
mode active
24 hours 150 internal and 30 external completed, 2 interrupted"""
FULL_FACTS = """\
GPU loading new
0 swaps this hour; 0 % of the busy time spent on swaps
slow: big:70b does not fit and runs partly on the CPU
device RTX 3090, 9.0 of 24.0 GiB used (0.8 by other programs), 61 °C, 250 W, 87 % busy, \
throttled: hardware thermal
backend emulator 0.33.0 at http://127.0.0.1:11434 up
mode active
command draining: new requests are refused
command paused: external requests wait
command pinned: p:8b
command to load: a:1b
command to unload: b:1b
24 hours 0 internal and 0 external completed, 0 interrupted
1 internal failed, 2 expired
last hour external: 12 requests; waits 0.8 s (95 %: 8.0 s), 0.8 s in total (95 %: 8.0 s)
config refused, the old one is in force: a.yaml:7: x: unknown key
config waits for a restart: server.port, ollama.url"""
WAITING = """\
waits (internal) 44 router qwen2.5:32b-instruct-q6_K parse_task 0.4 s 1 3.4 s (9.0 s) \
a swap to the model (11 s)
waits (external) 41 open-webui llama3.1:8b 2 min {start}
waits (external) 43 n8n any 12 s - the end of the pause
... and 3 more external"""
BUSY_START = "2 42 s a slot of the model (1 of 1 busy)"
FULL_START = "2 ~2 min (5 min) a slot of the model (1 of 1 busy)"
HEADINGS = "# caller model task for place starts in waits for"
BUSY_STATUS = (
    f"{HEADINGS}\nruns 42 continue qwen2.5-coder:14b 3.4 s\n{WAITING.format(start=BUSY_START)}"
    f"\n{BUSY_FACTS}"
)
ACTIVE = "critical: swap_failed m\nwarning: gpu_hot"
FULL_STATUS = (
    f"{EMULATOR}\n{ACTIVE}\n{HEADINGS}\nruns 7 \ufffd[2Jx [red]m[/red] critical "
    f"0.0 s\n{WAITING.format(start=FULL_START)}\n{FULL_FACTS}"
)
BUSY_TOP = f"""\
1 running 1 internal and 5 external waiting 24 h: 0 failed, 0 refused
# caller model task prompt waited runs / starts in
answers 42 continue qwen2.5-coder:14b 120 0.2 s 3.4 s
critical 44 router qwen2.5:32b-instruct-q6_K parse_task 120 0.4 s 3.4 s (9.0 s)
external 41 open-webui llama3.1:8b 120 2 min 42 s
external 43 n8n any 120 12 s -
... and 3 more
{BUSY_FACTS}
slots qwen2.5-coder:14b 1 of 1 busy, 0 wait
callers continue 3/10 a minute, 45/100 an hour"""
FULL_TOP = f"""\
{EMULATOR}
{ACTIVE}
1 running 1 internal and 5 external waiting 24 h: 3 failed, 0 refused DRAINING
# caller model task prompt waited runs / starts in
reads 7 \ufffd[2Jx [red]m[/red] critical - 9.0 s 0.0 s
critical 44 router qwen2.5:32b-instruct-q6_K parse_task 120 0.4 s 3.4 s (9.0 s)
interrupted x2 41 open-webui llama3.1:8b 120 2 min ~2 min (5 min)
... and 4 more
{FULL_FACTS}
slots old 0 of 0 busy, 0 wait, 2 warm conversations of 61,000 tokens; new 0 of 0 busy, 0 wait
callers {"; ".join(f"caller-{number} 1/10 a minute, 2/100 an hour" for number in range(8))}
Claude ready, 1 running, 1.50 of 5.00 USD today"""


@pytest.mark.parametrize(
    ("answer", "rows", "status", "top"),
    [
        (busy(), 20, BUSY_STATUS, BUSY_TOP),
        (busy(config={"generation": 3}), 20, BUSY_STATUS, BUSY_TOP),
        (FULL, 3, FULL_STATUS, FULL_TOP),
    ],
)
def test_all_that_runs_waits_and_is_in_force_is_shown(answer, rows, status, top):
    assert [
        line for line in lines(view("status", answer), 400) if line[0] not in "╭╰"
    ] == status.splitlines()
    assert [
        line for line in lines(top_view(answer, rows=rows), 400) if line[0] not in "╭╰"
    ] == top.splitlines()


@pytest.mark.parametrize(
    ("changed", "shown", "absent"),
    [
        ({"running": [], "internal_queue": {"pending": 0, "next_items": []}}, "idle", "internal)"),
        ({"running": [{"sequence": 1}, {"sequence": 2}]}, "runs 2 any -", "continue"),
        ({"external_queue": {"pending": 1}}, "... and 1 more external", "... and 3"),
        ({"backend": busy()["backend"] | {"up": False}}, "DOWN", " up"),
        (
            {
                "gpu": {
                    "loaded_model": "old",
                    "current_swap": {"from_model": "old", "to_model": "new"},
                }
            },
            "GPU loading new",
            "old",
        ),
        (
            {"gpu": {"loaded_model": "llama3.1:8b", "is_home": True}},
            "llama3.1:8b loaded (home)",
            "home is",
        ),
        ({"gpu": {"loaded_model": None}}, "no model loaded", "device"),
        (
            {"gpu": CARD | {"foreign_mib": 0.0, "power_w": None, "throttle_reasons": None}},
            "GiB used, 61 °C, 87 % busy\n",
            "throttled",
        ),
        ({"gpu": UNKNOWN_CARD}, "RTX 3090, memory unknown, 250 W, 87 % busy\n", "throttled"),
        (
            {"gpu": CARD | {"unified_memory": True}},
            "device RTX 3090, 9.0 of 24.0 GiB of unified memory used (0.8 by other programs)",
            "offload",
        ),
        ({"gpu": CARD | {"readings": "unknown"}}, "device unknown\n", "RTX"),
        ({"gpu": CARD | {"readings": "lost"}}, "RTX 3090 no longer answers\n", "GiB"),
        ({"gpu": CARD | {"readings": "off"}}, "GPU no model loaded", "RTX 3090"),
        *(
            ({"leases": {"held": [LEASE | changes], "to": "a game"}}, line, "still in the way")
            for changes, line in (
                ({}, "yielded all memory being freed for Doom since - until it ends"),
                (
                    {"granted": True, "reason": ""},
                    "all memory yielded to gamer since - until it ends",
                ),
                (
                    {"reason": "", "caller": ""},
                    "all memory being freed for a game since - until it",
                ),
                (
                    {"mib": 8192, "until": 0.0},
                    "8.0 GiB being freed for Doom since - until 01-01 ",
                ),
                ({"reason": "\x1b[2Jx"}, "being freed for \ufffd[2Jx since"),
            )
        ),
        (
            {"leases": {"held": [LEASE], "in_the_way": ["a:1", "b:1"], "waiting": 3}},
            "still in the way: a:1, b:1\n3 requests waiting for that memory",
            "is held",
        ),
        (
            {"hold": {"model": "small", "caller": "voice", "ends_in_s": 4.0}},
            "small is held for voice, for up to 4.0 s",
            "turn of",
        ),
        (
            {"turn": {"model": "big", "turn_s": 60.0, "ends_in_s": None}},
            "turn of external requests on big, once it is loaded",
            "is held",
        ),
        (
            {"turn": {"model": "big", "turn_s": 60.0, "ends_in_s": 42.0}},
            "on big, for up to 42 s",
            "is held",
        ),
        (
            {
                "shares": [
                    {"caller": "webui", "user": "ann", "share_pct": 62.5},
                    {"caller": "n8n", "user": None, "share_pct": 37.5},
                ]
            },
            "GPU seconds: webui/ann 62 %, n8n 38 %",
            "is held",
        ),
        (
            {"latency": hour("internal", None, 1, 2.0)},
            "internal: 1 request; waits 2.0 s (95 %: 20 s)",
            "requests",
        ),
        ({"latency": hour("external", "coder:14b", 12, 5.0)}, "mode active", "last hour"),
        (
            {
                "alerts": {
                    "targets": [
                        {"name": "discord", "state": "stopped", "problem": "it was deleted"},
                        {"name": "ntfy", "state": "ready", "problem": None},
                    ]
                }
            },
            "alerts to discord: stopped: it was deleted",
            "ntfy",
        ),
        (
            {
                "alerts": {
                    "active": [
                        *(
                            {"type": "swap_failed", "severity": "critical", "subject": f"m{each}"}
                            for each in range(9)
                        ),
                        *(
                            {"type": "wrong_keys", "severity": "warning", "subject": f"p{each}"}
                            for each in range(7)
                        ),
                    ]
                }
            },
            "\n".join(
                (
                    "critical: swap_failed m8",
                    *(f"warning: wrong_keys p{each}" for each in range(5)),
                    "... and 2 more alerts",
                )
            ),
            "p5",
        ),
    ],
)
def test_the_status_shows_nothing_that_is_not_there(changed, shown, absent):
    drawn = "\n".join(lines(view("status", busy(**changed))))
    assert (shown in drawn, absent in drawn) == (True, False), drawn


@pytest.mark.parametrize(
    ("answer", "columns", "shown", "absent"),
    [
        (busy(), 80, "# caller model waited runs / starts in", "parse_task"),
        (LONG_CALLER, 60, "# 42, caller a-caller-with-a-very-long-name,", "…"),
        (busy(draining=True), 140, "0 refused DRAINING", "command"),
        ({"cloud": {"state": "off"}}, 140, "nothing runs or waits", "Claude"),
        (
            {"cloud": {"state": "off", "spent_today_usd": 1.5, "limit_today_usd": 5}},
            140,
            "Claude off, 0 running, 1.50 of 5.00 USD",
            "alerts",
        ),
        ({"external_queue": {"pending": True}}, 140, "0 running", "more"),
        (
            {"running": True, "gpu": [], "rate_limits": {"x": 1}, "alerts": {"active": [1]}},
            140,
            "nothing runs or waits",
            "callers",
        ),
    ],
)
def test_top_shows_nothing_that_is_missing_and_fewer_columns_in_less_room(
    answer, columns, shown, absent
):
    drawn = "\n".join(lines(top_view(answer, rows=20), columns=columns))
    assert (shown in drawn, absent in drawn) == (True, False), drawn


def test_the_last_screen_stays_with_the_reason_while_the_gateway_is_away():
    stream = Terminal()
    watch(
        [busy(), "no gateway at http://x: refused", busy()],
        console_for(stream, environ={"TERM": "xterm"}),
    )
    screens = stream.getvalue().split("\x1b[H")
    away = [screen for screen in screens if "trying again" in screen]
    assert away
    assert all("continue" in screen for screen in away)
    assert "trying again" not in screens[-1]
    console = console_for(stream, environ={})
    console.size = ConsoleDimensions(width=140, height=30)
    watch([{"running": [{"running_s": 3.0}] * 30}], console)
    assert "... and 20 more" in stream.getvalue()


ITEM: Fields = {
    "sequence": 7,
    "caller": "open-webui",
    "model": "llama3.1:8b",
    "task_type": None,
    "outcome": "completed",
    "reason": "",
}
ITEM |= {
    "ended_wall_s": 1_767_571_200.0,
    "queue_s": 2.5,
    "swap_s": 1.5,
    "first_byte_s": 0.25,
    "backend_s": 42.0,
    "total_s": 44.5,
}
ITEM |= {"prompt_tokens": 12, "output_tokens": None, "interrupt_count": 0}
WHOLE = "ended caller model task outcome queue swap waited for first byte backend total tokens"
LONG = "qwen2.5:32b-instruct-q6_K"
ODD: tuple[object, ...] = (None, "text", True, [], 1e300, 10**400, -1e14)
EMPTY: tuple[object, ...] = (None, {}, [], ["x", 3])


@pytest.mark.parametrize(
    ("changes", "columns", "head", "row"),
    [
        (
            {},
            140,
            WHOLE,
            (
                r"\d\d-\d\d \d\d:\d\d:\d\d open-webui llama3.1:8b - completed 2.5 s 1.5 s 0.25 "
                r"s 42 s 44 s 12\+\?"
            ),
        ),
        (
            {"outcome": "failed", "reason": "backend_gone"},
            140,
            WHOLE,
            r".* failed \(backend_gone\) .*",
        ),
        (
            {"waited_for": {"slot": 1.0, "load": 12.25, "swap": 0.002}},
            160,
            WHOLE,
            r".* 1.5 s load 12 s, slot 1.0 s 0.25 s .*",
        ),
        ({"interrupt_count": 2}, 140, WHOLE, r".* completed \+2 interrupted .*"),
        ({"outcome": "cancelled", "reason": "cancelled"}, 140, WHOLE, r".* cancelled 2.5 s .*"),
        ({"caller": HOSTILE}, 140, WHOLE, ".* \ufffd\\[2Jx .*"),
        (
            {"model": LONG, "caller": "n8n"},
            80,
            "ended caller model outcome queue total",
            f".* n8n {LONG} completed 2.5 s 44 s",
        ),
        *((dict.fromkeys(ITEM, odd), 9000, WHOLE, ".*") for odd in ODD),
    ],
)
def test_a_logged_request_is_a_row_and_a_narrow_log_has_fewer_columns(changes, columns, head, row):
    first, *rows = lines(view("log", {"items": [ITEM | changes]}), columns=columns)
    assert (first, re.fullmatch(row, rows[0]) is not None) == (head, True)
    assert "".join(rows).count("m") >= str(changes.get("model")).count("m")


def test_the_log_names_engines_where_there_are_several():
    rows = [ITEM | {"engine": engine} for engine in ("main", "box", "")]
    first, *_ = lines(view("log", {"items": rows}), columns=9000)
    assert first == WHOLE.replace("model", "model engine")
    first, *_ = lines(view("log", {"items": rows[:1]}), columns=9000)
    assert first == WHOLE


def test_rows_that_no_table_can_hold_are_written_in_lines_with_every_column():
    logged = lines(view("log", {"items": [ITEM | {"model": "m" * 60}]}), columns=60)
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d", logged[0])
    assert "".join(logged).count("m") >= 60
    assert "first byte 0.25 s, backend 42 s, total 44 s, tokens 12+?" in " ".join(logged)
    models = [HOME | {"name": LONG}, DISK | {"waiting": 3}]
    assert lines(view("models", {"models": models}), columns=40) == [
        LONG,
        "home; state in memory,",
        "partly on the CPU; running 1 of 2;",
        "waiting 3; on the GPU 20.0 GiB;",
        "size 25.0 GiB",
        "a:8b",
        "state on the disk, waiting 3",
    ]
    status = " ".join(lines(view("status", busy()), columns=40))
    assert f"waits (internal) # 44, caller router, model {LONG}, task parse_task," in status
    assert "place 1, starts in 3.4 s (9.0 s), waits for a swap to the model (11 s)" in status


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ({"kind": "swap", "model": "m", "cost_s": 28.4}, "a swap to the model (28 s)"),
        ({"kind": "swap", "model": "home", "cost_s": None}, "a swap to home (-)"),
        (
            {"kind": "load", "model": "m", "cost_s": 30, "elapsed_s": 2},
            "the model to load (28 s left)",
        ),
        ({"kind": "load", "model": "m", "cost_s": 5.7, "elapsed_s": 28}, "the model to load"),
        (
            {"kind": "slot", "model": "m", "busy": 2, "parallel": 2},
            "a slot of the model (2 of 2 busy)",
        ),
        (
            {"kind": "announced", "task": "brief", "ends_in_s": 9},
            "the announced brief, due in 9.0 s",
        ),
        (
            {"kind": "held", "model": "o", "caller": "a", "ends_in_s": 9},
            "o, held for a for up to 9.0 s",
        ),
        ({"kind": "others_turn", "model": "o", "ends_in_s": 9}, "the turn of o to end in 9.0 s"),
        ({"kind": "others_turn", "model": "o"}, "the turn of o to end"),
        ({"kind": "lease"}, "another program, which has the GPU"),
        ({"kind": "pinned", "model": "o"}, "memory: o is pinned"),
        ({"kind": "backend_down"}, "the model server to answer"),
        ({"kind": "turn"}, "its turn"),
        ({"kind": "of a later version"}, ""),
        ({"kind": "swap", "model": "{x}\x1b"}, "a swap to {x}\ufffd (-)"),
        ({}, ""),
    ],
)
def test_what_a_request_waits_for_is_said_in_words(why, says):
    assert waits_for({"model": "m", "waits_for": why}) == says


DISK = {
    "name": "a:8b",
    "installed": True,
    "resident": False,
    "phase": None,
    "home": False,
    "running": 0,
    "waiting": 0,
    "parallel": 1,
}
GONE = DISK | {"name": "b:8b", "installed": False}
CODER = {
    "name": "coder:14b",
    "installed": True,
    "resident": True,
    "phase": "loading",
    "parallel": 1,
}
HOME = DISK | {
    "name": "qwen2.5:32b",
    "resident": True,
    "phase": "ready",
    "home": True,
    "running": 1,
    "waiting": 3,
    "parallel": 2,
}
HOME |= {"vram_mib": 20480.0, "size_mib": 25600.0, "offloaded": True}


def test_a_model_of_other_machines_has_no_size_here():
    far = HOME | {"name": "far", "home": False, "engine": "cluster", "remote": True}
    assert lines(view("models", {"models": [far, DISK | {"engine": "cards"}]})) == [
        "model engine state running waiting on the GPU size",
        "far cluster on other machines 1 of 2 3 - -",
        "a:8b cards on the disk - - - -",
    ]


def test_models_begin_with_those_in_memory_and_an_empty_list_is_said():
    assert lines(view("models", {"models": [DISK, GONE, CODER, HOME]})) == [
        "model state running waiting on the GPU size",
        "coder:14b loading 0 of 1 - - -",
        "qwen2.5:32b home in memory, partly on the CPU 1 of 2 3 20.0 GiB 25.0 GiB",
        "a:8b on the disk - - - -",
        "b:8b not installed - - - -",
    ]
    for columns, head in (
        (80, "model state running waiting on the GPU"),
        (60, "model state running"),
    ):
        shown = lines(view("models", {"models": [HOME | {"name": LONG}, DISK]}), columns=columns)
        assert (shown[0], f"{LONG} home" in shown[1]) == (head, True)
    odd = {"name": HOSTILE, "resident": True, "vram_mib": "much", "running": True}
    asleep = {"name": "b", "resident": False, "asleep": "offload", "installed": True}
    assert "asleep (offload)" in lines(view("models", {"models": [asleep]}))[1]
    assert lines(view("models", {"models": [odd]}))[1] == "\ufffd[2Jx in memory 0 of 0 - - -"
    for found in EMPTY:
        assert lines(view("log", {"items": found})) == ["no finished request matches"]
        assert lines(view("models", {"models": found}))[0].startswith(
            "no models are known: none is installed, or the model server is down"
        )


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"streaming": True}, "reads 1"),
        ({"streaming": True, "first_byte": True}, "answers 1"),
        ({"streaming": False}, "works 1"),
        ({"streaming": False, "kind": "embed"}, "embeds 1"),
    ],
)
def test_top_says_what_is_done_for_a_request_as_far_as_that_is_known(item, says):
    running = {"sequence": 1, "running_s": 3.0, **item}
    drawn = lines(top_view({"running": [running]}, rows=5))
    assert any(line.startswith(says) for line in drawn), drawn


JOB_ROW = {
    "id": "job_ebc9ca7ec8abc04e8bcf8b174f9f1c72",
    "state": "failed",
    "reason": "backend_gone",
    "caller": "open-webui",
    "model": LONG,
    "task_type": "cover_letter",
    "accepted_wall_s": 1_767_571_200.0,
    "position": 3,
    "estimated_start_s": 125.0,
}
KEY_ROW = {
    "name": "home-assistant",
    "lane": "internal",
    "admin": True,
    "may_lease": True,
    "models": [LONG, "llama3.1:8b"],
    "sha256": "b7d4e48a" * 8,
}
DRAWN = {
    "status": view("status", FULL),
    "idle": view("status", busy(running=[], internal_queue={}, external_queue={})),
    "top": top_view(FULL, rows=5),
    "models": view("models", {"models": [HOME | {"name": LONG}, CODER, GONE | {"waiting": 3}]}),
    "log": view("log", {"items": [ITEM | {"model": LONG, "interrupt_count": 2}]}),
    "jobs": view("jobs", {"jobs": [JOB_ROW]}),
    "job": view("job", JOB_ROW),
    "keys": view("keys", {"keys": [KEY_ROW]}),
}


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("what", DRAWN)
def test_no_word_is_cut_and_no_number_loses_its_unit_in_any_width(what, columns):
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": str(columns)}).print(DRAWN[what])
    drawn = stream.getvalue()
    assert max(map(cell_len, drawn.splitlines())) <= columns
    whole = {word.strip(",;") for word in " ".join(lines(DRAWN[what], 1000)).split()}
    shown = {word.strip(",;") for word in drawn.split() if word[0] not in "╭╰"}
    assert shown - whole == set()
    assert re.findall(r"\d\s*\n\s*(?:s|min|h|%|GiB|W|°C|USD)\b", drawn) == []
