"""`hearth models`: a table, or the gateway's own answer."""

from __future__ import annotations

import json

import pytest
from click.testing import Result

PAGE = "/llm/models"
HOME = {
    "name": "qwen2.5:32b",
    "installed": True,
    "resident": True,
    "phase": "ready",
    "home": True,
    "running": 1,
    "waiting": 3,
    "parallel": 2,
    "vram_mib": 20480.0,
    "size_mib": 25600.0,
    "offloaded": True,
}
CODER = {"name": "coder:14b", "installed": True, "resident": True, "phase": "loading", "home": False, "parallel": 1, "offloaded": False}
DISK = {"name": "a:8b", "installed": True, "resident": False, "phase": None, "home": False, "running": 0, "waiting": 0, "parallel": 1}
GONE = {**DISK, "name": "b:8b", "installed": False}


def lines(result: Result) -> list[str]:
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_the_table_has_what_is_in_memory_first(hearth, busy):
    busy.put(PAGE, {"models": [DISK, GONE, CODER, HOME]})
    result = hearth("models", "--url", busy.url)
    assert result.exit_code == 0, result.output
    assert lines(result) == [
        "model state running waiting on the GPU size",
        "coder:14b loading 0 of 1 - - -",
        "qwen2.5:32b home in memory, partly on the CPU 1 of 2 3 20.0 GiB 25.0 GiB",
        "a:8b on the disk - - - -",
        "b:8b not installed - - - -",
    ]


def test_json_is_the_gateways_own_answer(hearth, busy):
    busy.put(PAGE, {"models": [HOME]})
    assert json.loads(hearth("models", "--json", "--url", busy.url).stdout) == {"models": [HOME]}


@pytest.mark.parametrize("answer", [{}, {"models": None}, {"models": []}, {"models": ["x"]}])
def test_no_models_is_said_in_words(hearth, busy, answer):
    busy.put(PAGE, answer)
    assert lines(hearth("models", "--url", busy.url)) == [
        "no models are known: none is installed, or the model server is down (see hearth status)"
    ]


def test_odd_fields_are_drawn_as_dashes_and_names_cannot_move_the_cursor(hearth, busy):
    busy.put(PAGE, {"models": [{"name": "x\x1b[2J", "resident": True, "vram_mib": "much", "running": True}]})
    result = hearth("models", "--url", busy.url)
    assert result.exit_code == 0
    assert lines(result)[1] == "x\ufffd[2J in memory 0 of 0 - - -"


@pytest.mark.parametrize(
    ("columns", "head"), [("80", "model state running waiting on the GPU"), ("60", "model state running"), ("20", "model state running")]
)
def test_a_narrow_terminal_has_fewer_columns(hearth, busy, columns, head):
    name = "qwen2.5:32b-instruct-q6_K"
    busy.put(PAGE, {"models": [{**HOME, "name": name}, DISK]})
    shown = lines(hearth("models", "--url", busy.url, COLUMNS=columns))
    assert (shown[0] == head) is (columns != "20")
    assert (f"{name} home" in shown[1]) is (columns != "20")
