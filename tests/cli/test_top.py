"""`hearth top`: what a screen shows, and what becomes of it when the gateway goes away."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import ConsoleDimensions

from hearth.cli.gateway_client import GatewayClient, read_address
from hearth.cli.lazy import GatewayUnreachable
from hearth.cli.looking import looking
from hearth.cli.views import console_for, top_view, watch
from tests.cli.stub_gateway import recorded
from tests.cli.test_console import Terminal


def drawn(answer: dict[str, Any], *, rows: int = 20, problem: str = "", columns: int = 140) -> list[str]:
    stream = io.StringIO()
    console_for(stream, environ={"COLUMNS": str(columns)}).print(top_view(answer, rows=rows, problem=problem))
    return [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]


def test_the_screen_has_counts_requests_the_gpu_and_the_callers():
    lines = drawn(recorded("status_busy"))
    assert lines[0] == "1 running 1 internal and 5 external waiting 24 h: 0 failed, 0 refused"
    assert lines[1] == "# caller model task prompt waited runs / starts in"
    assert lines[2] == "answers 42 continue qwen2.5-coder:14b 120 0.2 s 3.4 s"
    assert lines[3] == "critical 44 router qwen2.5:32b-instruct-q6_K parse_task 120 0.4 s -"
    assert "... and 3 more" in lines
    assert "GPU qwen2.5-coder:14b, nomic-embed-text loaded; home is qwen2.5:32b-instruct-q6_K" in lines
    assert "slots qwen2.5-coder:14b 1 of 1 busy, 0 wait" in lines
    assert "callers continue 3/10 a minute, 45/100 an hour" in lines


def test_expected_starts_interruptions_claude_and_alerts_are_shown_where_there_are_any():
    answer = recorded("status_busy")
    first = answer["external_queue"]["next_items"][0]
    first.update(interrupt_count=2, estimated_start_s=125.0, estimate_is_rough=True)
    answer["cloud"] = {"state": "ready", "running": [{}], "spent_today_usd": 1.5, "limit_today_usd": 5}
    answer["alerts"] = {"active": [{"type": "swap_failed", "subject": "m"}]}
    answer["draining"] = True
    answer["stats_24h"] |= {"internal_failed": 1, "external_expired": 2}
    answer["running"][0]["first_byte"] = False
    answer["rate_limits"] = {f"caller-{number}": {"minute": "1/10", "hour": "2/100"} for number in range(9)}
    lines = drawn(answer)
    assert "interrupted x2 41 open-webui llama3.1:8b 120 2 min ~2 min" in lines
    assert "Claude ready, 1 running, 1.50 of 5.00 USD today" in lines
    assert "alerts swap_failed m" in lines
    assert "24 h: 3 failed" in lines[0]
    assert lines[0].endswith("DRAINING")
    assert lines[2].startswith("reads 42 continue")
    assert "caller-7 1/10 a minute" in " ".join(lines)
    assert "caller-8" not in " ".join(lines)


def test_a_drain_that_the_owner_ordered_and_a_pause_are_shown():
    lines = drawn(recorded("status_busy") | {"orders": {"draining": True, "paused": ["external"]}})
    assert lines[0].endswith("DRAINING")
    assert "order paused: requests of other programs wait" in lines


def test_a_narrow_terminal_shows_fewer_columns_and_whole_numbers():
    lines = drawn(recorded("status_busy"), columns=80)
    assert lines[1] == "# caller model waited runs / starts in"
    assert "critical 44 router qwen2.5:32b-instruct-q6_K 0.4 s -" in lines


def test_names_are_cut_where_there_is_no_room_and_numbers_are_not():
    answer = recorded("status_busy")
    answer["running"][0]["caller"] = "a-caller-with-a-very-long-name"
    lines = drawn(answer, columns=60)
    assert any(re.fullmatch(r"answers 42 a-\S*… qwen\S*… 0\.2 s 3\.4 s", line) for line in lines)


def test_a_low_terminal_shows_fewer_requests_and_says_how_many_are_missing():
    lines = drawn(recorded("status_busy"), rows=3)
    assert "... and 4 more" in lines
    assert not any("n8n" in line for line in lines)


def test_where_only_one_runs_nobody_is_missing():
    lines = drawn({"running": [{"caller": "n8n", "running_s": 3.0}]})
    assert not any("nobody" in line or "more" in line for line in lines)


def test_the_screen_is_cut_to_the_height_of_the_terminal():
    terminal = Terminal()
    console = console_for(terminal, environ={})
    console.size = ConsoleDimensions(width=140, height=30)
    watch(lambda: {"running": [{"running_s": 3.0}] * 30}, console, go_on=lambda: False)
    assert "... and 20 more" in terminal.getvalue()


@pytest.mark.parametrize(
    "answer", [{}, {"running": 3, "gpu": [], "rate_limits": {"x": 1}, "cloud": {"state": "off"}, "alerts": {"active": [1]}}]
)
def test_an_odd_answer_is_drawn_as_far_as_it_goes(answer):
    lines = drawn(answer)
    assert "nothing runs and nobody waits" in lines
    assert not any(line.startswith("Claude") for line in lines)


def test_money_that_was_spent_today_is_shown_though_claude_is_off():
    lines = drawn({"cloud": {"state": "off", "spent_today_usd": 1.5, "limit_today_usd": 5}})
    assert any(line.startswith("Claude") and "1.50 of 5.00 USD today" in line for line in lines)


def test_the_emulator_is_announced_in_a_box():
    answer = recorded("status_busy")
    answer["backend"]["emulator"] = True
    assert "ANSWERS ARE MADE UP" in drawn(answer)[1]


def test_names_cannot_move_the_cursor():
    answer = recorded("status_busy")
    answer["running"][0]["caller"] = "\x1b[2Jx"
    assert not any("\x1b" in line for line in drawn(answer))


def test_the_last_screen_stays_with_the_reason_above_it_while_the_gateway_is_away():
    looks: list[dict[str, Any] | str] = [recorded("status_busy"), "no gateway at http://x: refused", recorded("status_busy")]
    given = iter(looks)
    stream = Terminal()
    left = iter([True, True, False])
    watch(lambda: next(given), console_for(stream, environ={"TERM": "xterm"}), go_on=lambda: next(left))
    screens = stream.getvalue().split("\x1b[H")
    told = [screen for screen in screens if "trying again" in screen]
    assert told
    assert all("continue" in screen for screen in told)
    assert "trying again" not in screens[-1]


def test_a_gateway_that_never_answered_is_an_error_and_one_that_went_away_is_a_reason(busy):
    look = looking(GatewayClient(address=read_address("http://127.0.0.1:1")))
    with pytest.raises(GatewayUnreachable):
        look()
    look = looking(GatewayClient(address=read_address(busy.url)))
    assert look() == recorded("status_busy")
    busy.put("/llm/queue/status", ["no"], 500)
    found = look()
    assert isinstance(found, str)
    assert "no gateway at" in found


def test_a_pipe_is_told_which_command_it_wants(hearth, busy):
    result = hearth("top", "--url", busy.url)
    assert result.exit_code == 1
    assert "hearth status --json --watch" in result.stderr
