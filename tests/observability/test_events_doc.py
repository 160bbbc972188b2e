"""docs/events.md names every event and every field, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from hearth.events import Event, ItemEvent, JobEvent, name_of
from hearth.observability.log_writer import level_of
from tests.observability.samples import all_kinds, sample

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
ROWS = {cells[0].strip("` "): cells for cells in (line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `"))}


def own_fields(kind: type[Event]) -> set[str]:
    base = next(known for known in (ItemEvent, JobEvent, Event) if issubclass(kind, known))
    return {field.name for field in fields(kind)} - {field.name for field in fields(base)}


def test_the_page_lists_exactly_the_events_that_exist():
    assert set(ROWS) == {name_of(kind) for kind in all_kinds()}


@pytest.mark.parametrize("kind", all_kinds(), ids=name_of)
def test_the_row_of_an_event_names_its_own_fields_and_no_other(kind: type[Event]):
    named = set(re.findall(r"`([a-z_]+)`", ROWS[name_of(kind)][2]))
    assert own_fields(kind) == named


@pytest.mark.parametrize("kind", all_kinds(), ids=name_of)
def test_the_row_of_an_event_says_when_it_happens_and_at_which_level(kind: type[Event]):
    _, when, _, level = ROWS[name_of(kind)]
    assert when.endswith(".")
    levels = set(re.findall(r"\b(debug|info|warning|error)\b", level))
    assert {10: "debug", 20: "info", 30: "warning", 40: "error"}[level_of(sample(kind))] in levels


def test_the_fields_that_all_items_share_are_named_once():
    shared = PAGE.split("## Items")[1].split("| event |")[0]
    assert {field.name for field in fields(ItemEvent)} - {"at"} <= set(re.findall(r"`([a-z_]+)`", shared))
    assert "Every event has `at`" in PAGE
