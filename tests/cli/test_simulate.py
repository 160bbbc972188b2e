"""`hearth simulate`: where its requests come from, and what it writes and draws."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from io import StringIO
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from rich.console import Console

from hearth.cli.client import GatewayClient
from hearth.cli.simulate import PAGE_ROWS, SILENT_S, _instant, progress_bar, rows
from hearth.config.settings import PolicyName
from hearth.simulation.workloads import WORKLOADS
from tests.cli.stub_gateway import StubGateway
from tests.simulation.test_log_trace import BEGAN, swap
from tests.simulation.test_log_trace import row as item
from tests.simulation.test_measures import TRACE
from tests.support.fields import Fields
from tests.support.places import ROOT

FIRST, SECOND = list(WORKLOADS)[:2]
BOTH = ("--workload", SECOND, "--workload", FIRST)
ONE_PLACE = "give one of --trace FILE, --workload NAME (`hearth simulate --list`"


class LogGateway(StubGateway):
    """Answers `/llm/log` as a gateway with these rows does: those that ended by `until`, latest
    first, at most `limit` after `skip`.
    """

    def keep(self, *items: Fields, swaps: tuple[Fields, ...] = ()) -> None:
        self.put("/llm/swaps?since=7d&limit=1000", {"swaps": list(swaps)})
        latest_first = sorted(items, key=lambda row: row["ended_wall_s"], reverse=True)
        self.put("/llm/log?since=7d&limit=1000", {"items": latest_first[:PAGE_ROWS]})
        for row in {row["ended_wall_s"]: row for row in latest_first[PAGE_ROWS - 5 :]}.values():
            asked = urlencode({"since": "7d", "limit": PAGE_ROWS, "until": _instant(row)})
            earlier = [each for each in latest_first if each["ended_wall_s"] <= row["ended_wall_s"]]
            self.put(f"/llm/log?{asked}", {"items": earlier[:PAGE_ROWS]})
            for skip in range(PAGE_ROWS, len(earlier) + PAGE_ROWS, PAGE_ROWS):
                self.put(
                    f"/llm/log?{asked}&skip={skip}", {"items": earlier[skip : skip + PAGE_ROWS]}
                )


@pytest.fixture
def gateway():
    stub = LogGateway()
    with stub.listening():
        yield stub


def runs_of(result: Any) -> list[Fields]:
    assert result.exit_code == 0, result.output
    runs: list[Fields] = json.loads(result.stdout)
    return runs


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, ONE_PLACE),
        (("--workload", FIRST, "--from-log"), 2, ONE_PLACE),
        (("--trace", "t", "--workload", FIRST), 2, ONE_PLACE),
        (("--scoreboard", "--workload", FIRST), 2, ONE_PLACE),
        (("--workload", "tow_heavy"), 2, "Did you mean two_heavy or "),
        (("--workload", "xyzzy"), 2, "'xyzzy' is no workload. `hearth simulate --list` prints"),
        (("--workload", "all", "--save", "out"), 2, "--save"),
        (("--workload", FIRST, "--plot", "none/p.png"), 1, "cannot be written"),
        (("--from-log", "--url", "http://127.0.0.1:9"), 3, "no gateway at"),
        (
            ("--workload", FIRST, "--plot", "p.png", "--save", "out"),
            1,
            "-m pip install 'matplotlib<4,>=3.11'`",
        ),
    ],
)
def test_what_cannot_be_simulated_ends_in_words_before_anything_is_written(
    hearth, tmp_path, monkeypatch, args, code, says
):
    if "pip" in says:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = hearth("simulate", *args)
    assert (result.exit_code, says in result.stderr, (tmp_path / "out").exists()) == (
        code,
        True,
        False,
    )


def test_where_answers_are_spoken_the_time_to_the_first_word_is_shown(hearth):
    name = "voice_home_too_large_alone"
    options = ("simulate", "--workload", name, "--workload", FIRST, "--policy", "adaptive")
    spoken, silent = runs_of(hearth(*options, "--json", "-"))
    assert spoken["first_word"] == pytest.approx(
        {"mean_wait_s": 10.9, "p95_wait_s": 11.5, "max_wait_s": 11.7}, abs=0.1
    )
    assert "first_word" not in silent
    tables = hearth(*options).stdout
    assert (tables.count("first word"), "10.9 / 11.5 / 11.7" in tables) == (1, True)


def test_the_names_of_workloads_are_listed_where_they_are_asked_for_alone(hearth):
    listed = hearth("simulate", "--list").stdout.split()
    assert {FIRST, "two_agents", "many_8_110_2", "home_visits_20_45_3"} < {*listed}
    help_text = hearth("simulate", "--help").stdout
    assert (FIRST in help_text, len(hearth("simulate", "--workload", "x").stderr) < 250) == (
        False,
        True,
    )


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--trace", "bad.jsonl"), 2, "bad.jsonl:5: "),
        (("--trace", "none"), 2, "none: cannot be read"),
        (("--trace", "day.jsonl", "--policy", "luck"), 2, "'luck'"),
        (("--trace", "day.jsonl", "--config", "bad.yaml"), 2, "nonsense"),
        (("--trace", "day.jsonl", "--json", "none/o.json"), 1, "none"),
        (
            ("--trace", "day.jsonl", "--policy", "affinity", "--policy", "fifo", "--json", "-"),
            0,
            ["affinity", "fifo"],
        ),
        (("--trace", "day.jsonl", "--json", "-"), 0, list(PolicyName)),
    ],
)
def test_a_trace_is_run_under_the_policies_in_order_or_refused_in_words(
    hearth, tmp_path, options, code, says
):
    for name, text in (
        ("day.jsonl", TRACE),
        ("bad.jsonl", TRACE + '{"id": 10}\n'),
        ("bad.yaml", "nonsense: 1\n"),
    ):
        (tmp_path / name).write_text(text)
    result = hearth("simulate", *options)
    assert (result.exit_code, "Traceback" in result.output) == (code, False)
    assert (
        says in result.stderr
        if code
        else [run["policy"] for run in json.loads(result.stdout)] == says
    )


def test_the_rules_of_a_configuration_apply(hearth, tmp_path):
    requests = [
        {"id": number, "model": model, "service_s": 1} for number, model in enumerate("aba")
    ]
    (tmp_path / "day.jsonl").write_text(
        "\n".join([TRACE.splitlines()[0], *map(json.dumps, requests)])
    )
    (tmp_path / "c.yaml").write_text("scheduling:\n  max_swap_wait_s: 0\n  residency_factor: 0\n")
    asked = ("simulate", "--trace", "day.jsonl", "--policy", "affinity", "--json", "-")
    assert [
        len(runs_of(hearth(*asked, *more))[0]["swaps"]) for more in ((), ("--config", "c.yaml"))
    ] == [1, 2]


@pytest.mark.parametrize(
    ("items", "code", "says"),
    [
        ((), 1, "since 7d"),
        (
            (item(0), item(1, outcome="failed", backend_s=None)),
            0,
            "1 of 2 logged requests are left out",
        ),
        (None, 1, "there is no request log"),
    ],
)
def test_a_log_with_little_or_nothing_in_it_is_said_in_words(hearth, gateway, items, code, says):
    gateway.keep(*(items or ()))
    if items is None:
        gateway.put(
            "/llm/log?since=7d&limit=1000",
            {"error": "there is no request log: storage.enabled is off"},
            404,
        )
    result = hearth("simulate", "--from-log", "--url", gateway.url)
    assert (result.exit_code, says in result.stderr) == (code, True)


@pytest.mark.parametrize(
    ("names", "expected"), [((FIRST, SECOND), [FIRST, SECOND]), ((FIRST, "all"), list(WORKLOADS))]
)
def test_several_workloads_are_a_table_each(hearth, names, expected):
    asked = [argument for name in names for argument in ("--workload", name)]
    lines = hearth("simulate", *asked, "--policy", "affinity", COLUMNS="160").stdout.splitlines()
    assert [line.strip() for line in lines if line.strip() in WORKLOADS] == expected
    assert sum(line.startswith("affinity ") for line in lines) == len(expected)


def test_workloads_are_named_and_a_saved_one_is_the_same_when_read(hearth, tmp_path):
    runs = runs_of(hearth("simulate", *BOTH, "--policy", "fifo", "--json", "-"))
    assert [(run["workload"], run["policy"]) for run in runs] == [(SECOND, "fifo"), (FIRST, "fifo")]
    saved = str(tmp_path / "day.jsonl")
    first = runs_of(
        hearth(
            "simulate", "--workload", SECOND, "--policy", "affinity", "--json", "-", "--save", saved
        )
    )
    again = runs_of(hearth("simulate", "--trace", saved, "--policy", "affinity", "--json", "-"))
    assert [run | {"workload": SECOND} for run in again] == first
    example = ROOT / "examples" / "two_models.jsonl"
    assert len(runs_of(hearth("simulate", "--trace", str(example), "--json", "-"))) == len(
        PolicyName
    )


def test_a_picture_of_several_workloads_shows_them_all(hearth, tmp_path):
    for name, options in (("both", BOTH), ("one", BOTH[:2])):
        assert (
            hearth(
                "simulate", *options, "--policy", "affinity", "--plot", str(tmp_path / name)
            ).exit_code
            == 0
        )
    assert (tmp_path / "both").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "both").read_bytes() != (tmp_path / "one").read_bytes()


def test_a_gateways_log_is_replayed_under_another_policy_and_no_row_twice(hearth, gateway):
    swaps = (swap("a:latest", "b:latest", 6.0, vram_mib=9000.0),)
    gateway.keep(
        item(0), item(1, model="b:latest"), item(2, accepted_wall_s=BEGAN + 1), swaps=swaps
    )
    asked = ("simulate", "--from-log", "--url", gateway.url, "--policy", "fifo", "--json", "-")
    (run,) = runs_of(hearth(*asked, HEARTH_KEY="hearth_k"))
    assert [request["arrived"] for request in run["requests"]] == [0.0, 1.0, 1.0]
    assert [swap["to"] for swap in run["swaps"]][:2] == ["a:latest", "b:latest"]
    assert gateway.seen[0]["authorization"] == "Bearer hearth_k"
    gateway.seen.clear()
    count = 2 * PAGE_ROWS + 17
    gateway.keep(*(item(number, ended_wall_s=BEGAN + number // 3) for number in range(count)))
    (run,) = runs_of(hearth(*asked))
    assert len(run["requests"]) == count
    assert [urlsplit(each["path"]).path for each in gateway.seen].count("/llm/log") == 3


@pytest.mark.parametrize(
    ("rows", "config", "tried"),
    [
        ([item(0), item(1)], "", ["adaptive"]),
        ([item(0, conversation="c")], "", ["adaptive", "adaptive, not warm"]),
        (
            [item(0, conversation="c"), item(1, caller="webui")],
            "{scheduling: {warm_conversations: false}, queue: {sharing: fair}}",
            ["adaptive", "adaptive, warm", "adaptive, fifo"],
        ),
    ],
)
def test_a_log_shows_what_warmth_and_shares_would_have_changed(
    hearth, gateway, tmp_path, rows, config, tried
):
    gateway.keep(*rows)
    asked = ["simulate", "--from-log", "--url", gateway.url, "--policy", "adaptive", "--json", "-"]
    if config:
        (tmp_path / "hearth.yaml").write_text(config)
        asked += ["--config", str(tmp_path / "hearth.yaml")]
    runs = runs_of(hearth(*asked, HEARTH_KEY="hearth_k"))
    assert [run["policy"] for run in runs] == tried


def test_callers_who_compete_are_shown_one_by_one_with_and_without_shares(hearth, gateway):
    gateway.keep(
        *(item(number, accepted_wall_s=BEGAN, user="ann") for number in range(8)),
        item(8, accepted_wall_s=BEGAN + 0.5, user="bob"),
    )
    asked = ["simulate", "--from-log", "--url", gateway.url, "--policy", "adaptive"]
    lines = hearth(*asked, COLUMNS="160").stdout.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("caller"))
    callers = [line.split()[:2] for line in lines[heading + 1 :] if line]
    assert [count for _, count in callers] == ["8", "1"]
    assert [name.rpartition("/")[2] for name, _ in callers] == ["ann", "bob"]
    fifo, fair = runs_of(hearth(*asked, "--json", "-"))
    bobs = [
        next(each for name, each in run["callers"].items() if "bob" in name) for run in (fifo, fair)
    ]
    assert (fifo["policy"], fair["policy"]) == ("adaptive", "adaptive, fair")
    assert bobs[1]["max_wait_s"] < bobs[0]["max_wait_s"] / 2


@pytest.mark.parametrize(("of_one_instant", "pages"), [(PAGE_ROWS, 5), (2 * PAGE_ROWS + 17, 6)])
def test_rows_of_one_instant_that_outnumber_a_page_are_all_listed(gateway, of_one_instant, pages):
    instants = [BEGAN + 1.0] * of_one_instant + [BEGAN] * PAGE_ROWS
    gateway.keep(*(item(number, ended_wall_s=instant) for number, instant in enumerate(instants)))
    found: list[Any] = list(rows(GatewayClient(gateway.url), "/llm/log", "items", "7d"))
    assert sorted(row["sequence"] for row in found) == list(range(len(instants)))
    assert len(gateway.seen) == pages


@pytest.mark.parametrize("ended_wall_s", [BEGAN, BEGAN + 2.4e-7, BEGAN + 0.1, 1e300, "soon", None])
def test_a_page_ends_no_earlier_than_its_last_row_to_the_microsecond(ended_wall_s):
    told = _instant({"ended_wall_s": ended_wall_s})
    if not isinstance(ended_wall_s, float) or ended_wall_s > 2 * BEGAN:
        assert told is None
    else:
        assert told is not None
        assert 0.0 <= datetime.fromisoformat(told).timestamp() - ended_wall_s < 1e-5


@pytest.mark.parametrize(
    ("step_s", "terminal", "drawn"),
    [(SILENT_S / 10, True, False), (2 * SILENT_S, True, True), (2 * SILENT_S, False, False)],
)
def test_a_bar_is_drawn_on_a_terminal_from_the_first_second_on(step_s, terminal, drawn):
    out = StringIO()
    with progress_bar(
        Console(file=out, force_terminal=terminal, width=80),
        SimpleNamespace(monotonic=count(0.0, step_s).__next__),
        100,
    ) as show:
        show(0, 50)
        show(50, 1)
    assert ("simulating" in out.getvalue(), "51%" in out.getvalue()) == (drawn, drawn)
    assert drawn or out.getvalue() == ""


def test_aliases_are_tried_beside_requests_by_name(hearth):
    asked = ("--alias", "any=coder,writer", "--alias-caller", "coding", "--policy", "adaptive")
    found = runs_of(hearth("simulate", "--workload", "agents", *asked, "--json", "-"))
    assert [(run["policy"], len(run["swaps"]) < 41) for run in found] == [
        ("adaptive", False),
        ("adaptive, aliases on arrival", True),
        ("adaptive, aliases", True),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--alias", "any"), "write NAME=MODEL,MODEL, each name once"),
        (("--alias", "any=a", "--alias", "any=b"), "write NAME=MODEL,MODEL, each name once"),
        (("--alias", "any=a,a"), "name each model once"),
        (("--alias", "any=a", "--alias", "other=a"), "name each model once"),
        (("--alias", "any=nothing"), "nothing is known of nothing, only of writer, coder, helper"),
        (("--alias-caller", "coding"), "--alias-caller needs --alias"),
        (("--alias", "any=coder", "--alias-caller", "me"), "--alias-caller: nobody is called me"),
    ],
)
def test_an_alias_that_means_nothing_is_refused(hearth, options, says):
    result = hearth("simulate", "--workload", "agents", *options)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_log_shows_what_an_alias_would_have_changed(hearth, gateway):
    rows = [item(number, model=("a:1b", "b:1b")[number % 2]) for number in range(6)]
    gateway.keep(*rows, swaps=(swap("", "a:1b", 5.0), swap("", "b:1b", 5.0)))
    asked = ("--alias", "any=a:1b,b:1b", "--policy", "adaptive")
    found = runs_of(hearth("simulate", "--from-log", "--url", gateway.url, *asked, "--json", "-"))
    swaps = {run["policy"]: len(run["swaps"]) for run in found}
    assert swaps["adaptive, aliases"] < swaps["adaptive"]


def test_models_that_can_sleep_are_also_tried_stopped_and_by_age(hearth):
    asked = ("simulate", "--workload", "four_asleep", "--policy", "adaptive")
    by_use, stopped, by_age = runs_of(hearth(*asked, "--json", "-"))
    assert [run["policy"] for run in (stopped, by_age)] == ["adaptive, stopped", "adaptive, by age"]
    assert {swap.get("level") for swap in by_use["swaps"]} == {"offload", "discard", None}
    assert {each["level"] for each in by_use["sleeps"]} == {"offload", "discard"}
    assert "sleeps" not in stopped
