"""`hearth simulate`: where its requests come from, and what it writes and draws; `tests/simulation/test_command` has what scripts read."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from rich.console import Console

from hearth.cli.client import GatewayClient
from hearth.cli.simulate import PAGE_ROWS, SILENT_S, RunProgress, _instant, rows
from hearth.config.settings import PolicyName
from hearth.simulation.workloads import WORKLOADS
from tests.cli.stub_gateway import StubGateway
from tests.simulation.test_log_trace import BEGAN, swap
from tests.simulation.test_log_trace import row as item
from tests.support.cases import for_each

FIRST, SECOND = list(WORKLOADS)[:2]


class LogGateway(StubGateway):
    """Answers `/llm/log` as a gateway with these rows does: those that ended by `until`, the latest first, at most `limit`."""

    def keep(self, *items: dict[str, Any], swaps: tuple[dict[str, Any], ...] = ()) -> None:
        self.put("/llm/swaps?since=7d&limit=1000", {"swaps": list(swaps)})
        latest_first = sorted(items, key=lambda row: row["ended_wall_s"], reverse=True)
        self.put("/llm/log?since=7d&limit=1000", {"items": latest_first[:PAGE_ROWS]})
        for row in {row["ended_wall_s"]: row for row in latest_first[PAGE_ROWS - 5 :]}.values():
            asked = urlencode({"since": "7d", "limit": PAGE_ROWS, "until": _instant(row)})
            earlier = [each for each in latest_first if each["ended_wall_s"] <= row["ended_wall_s"]]
            self.put(f"/llm/log?{asked}", {"items": earlier[:PAGE_ROWS]})


@pytest.fixture
def gateway():
    stub = LogGateway()
    with stub.listening():
        yield stub


def runs_of(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    runs: list[dict[str, Any]] = json.loads(result.stdout)
    return runs


ONE_PLACE = "give one of --trace FILE, --workload NAME and --from-log"


@for_each(
    ("args", "code", "says"),
    [
        ((), 2, ONE_PLACE),
        (("--workload", FIRST, "--from-log"), 2, ONE_PLACE),
        (("--trace", "t", "--workload", FIRST), 2, ONE_PLACE),
        (("--workload", "nonsense"), 2, FIRST),
        (("--workload", "all", "--save", "out"), 2, "--save"),
        (("--workload", FIRST, "--plot", "none/p.png"), 1, "cannot be written"),
        (("--from-log", "--url", "http://127.0.0.1:9"), 3, "no gateway at"),
    ],
)
def test_what_cannot_be_simulated_ends_in_words(hearth, tmp_path, args, code, says):
    result = hearth("simulate", *args)
    assert result.exit_code == code
    assert says in result.stderr
    assert not (tmp_path / "out").exists()


@for_each(
    ("items", "code", "says"),
    [
        ((), 1, "since 7d"),
        ((item(0), item(1, outcome="failed", backend_s=None)), 0, "1 of 2 logged requests are left out"),
        (None, 1, "there is no request log"),
    ],
)
def test_a_log_with_little_or_nothing_in_it_is_said_in_words(hearth, gateway, items, code, says):
    gateway.keep(*(items or ()))
    if items is None:
        gateway.put("/llm/log?since=7d&limit=1000", {"error": "there is no request log: storage.enabled is off"}, 404)
    result = hearth("simulate", "--from-log", "--url", gateway.url)
    assert result.exit_code == code
    assert says in result.stderr


def test_workloads_that_ship_are_simulated_by_name_and_named_in_the_answer(hearth):
    runs = runs_of(hearth("simulate", "--workload", SECOND, "--workload", FIRST, "--policy", "fifo", "--json", "-"))
    assert [(run["workload"], run["policy"]) for run in runs] == [(SECOND, "fifo"), (FIRST, "fifo")]


def test_several_workloads_are_a_table_each(hearth):
    for names, expected in (((FIRST, SECOND), [FIRST, SECOND]), ((FIRST, "all"), list(WORKLOADS))):
        asked = [argument for name in names for argument in ("--workload", name)]
        lines = hearth("simulate", *asked, "--policy", "affinity", COLUMNS="160").stdout.splitlines()
        assert [line.strip() for line in lines if line.strip() in WORKLOADS] == expected
        assert sum(line.startswith("affinity ") for line in lines) == len(expected)


@pytest.mark.parametrize("columns", ["80", "50"])
def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(hearth, columns):
    result = hearth("simulate", "--workload", "house_day", "--policy", "fifo", COLUMNS=columns)
    lines = result.stdout.splitlines()
    assert lines[0].strip() == "house_day"
    assert "swaps" in result.stdout
    assert "interrupted" not in result.stdout
    assert "…" not in result.stdout
    assert columns == "50" or len(lines) == len(("title", "units", "heads", "fifo"))


def test_what_is_simulated_can_be_saved_and_is_the_same_when_it_is_read(hearth, tmp_path):
    saved = tmp_path / "day.jsonl"
    first = runs_of(hearth("simulate", "--workload", SECOND, "--policy", "affinity", "--json", "-", "--save", str(saved)))
    again = runs_of(hearth("simulate", "--trace", str(saved), "--policy", "affinity", "--json", "-"))
    assert [run | {"workload": SECOND} for run in again] == first


def test_a_picture_of_several_workloads_shows_them_all(hearth, tmp_path):
    both, one = ["--workload", FIRST, "--workload", SECOND], ["--workload", FIRST]
    for name, options in (("both", both), ("one", one)):
        assert hearth("simulate", *options, "--policy", "affinity", "--plot", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / "both").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "both").read_bytes() != (tmp_path / "one").read_bytes()


def test_without_matplotlib_the_command_says_what_to_install_before_it_simulates(hearth, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = hearth("simulate", "--workload", FIRST, "--plot", str(tmp_path / "p.png"), "--save", str(tmp_path / "t.jsonl"))
    assert result.exit_code == 1
    assert ".venv/bin/pip install matplotlib" in result.stderr
    assert list(tmp_path.glob("*.jsonl")) == []


def test_the_log_of_a_gateway_is_replayed_under_another_policy(hearth, gateway):
    swaps = (swap("a:latest", "b:latest", 6.0, vram_mib=9000.0),)
    gateway.keep(item(0), item(1, model="b:latest"), item(2, accepted_wall_s=BEGAN + 1), swaps=swaps)
    result = hearth("simulate", "--from-log", "--url", gateway.url, "--policy", "fifo", "--json", "-", HEARTH_KEY="hearth_k")
    (run,) = runs_of(result)
    assert [request["arrived"] for request in run["requests"]] == [0.0, 1.0, 1.0]
    assert [swap["to"] for swap in run["swaps"]][:2] == ["a:latest", "b:latest"]
    assert gateway.seen[0]["authorization"] == "Bearer hearth_k"


def test_a_long_log_is_read_page_by_page_and_no_row_twice(hearth, gateway):
    count = 2 * PAGE_ROWS + 17
    gateway.keep(*(item(number, ended_wall_s=BEGAN + number // 3) for number in range(count)))
    (run,) = runs_of(hearth("simulate", "--from-log", "--url", gateway.url, "--policy", "fifo", "--json", "-"))
    assert len(run["requests"]) == count
    assert [urlsplit(each["path"]).path for each in gateway.seen].count("/llm/log") == 3


def test_a_thousand_rows_of_one_instant_do_not_make_it_ask_for_ever(gateway):
    gateway.keep(*(item(number, ended_wall_s=BEGAN) for number in range(PAGE_ROWS)))
    client = GatewayClient(gateway.url)
    assert len(list(rows(client, "/llm/log", "items", "7d"))) == PAGE_ROWS
    assert ["until" in parse_qs(urlsplit(each["path"]).query) for each in gateway.seen] == [False, True]


def test_the_example_that_ships_is_a_good_trace(hearth):
    example = Path(__file__).parents[2] / "examples" / "two_models.jsonl"
    assert len(runs_of(hearth("simulate", "--trace", str(example), "--json", "-"))) == len(PolicyName)


class Ticking:
    """A clock that goes on by `step_s` at each look."""

    def __init__(self, step_s: float) -> None:
        self._now, self._step_s = 0.0, step_s

    def monotonic(self) -> float:
        self._now += self._step_s
        return self._now

    def wall(self) -> float:
        return self._now


@for_each(("step_s", "terminal", "drawn"), [(SILENT_S / 10, True, False), (2 * SILENT_S, True, True), (2 * SILENT_S, False, False)])
def test_a_bar_is_drawn_on_a_terminal_from_the_first_second_on(step_s, terminal, drawn):
    out = StringIO()
    progress = RunProgress(Console(file=out, force_terminal=terminal, width=80), Ticking(step_s), 100)
    progress.show(50)
    progress.end_run(60)
    progress.close()
    assert ("simulating" in out.getvalue()) is drawn
