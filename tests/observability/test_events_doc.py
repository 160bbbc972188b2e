"""The documentation of an event is its docstring, and names every field of its own."""

from __future__ import annotations

import re
from dataclasses import fields

from docs_build.vocabulary_page import events_page, metrics_page
from hearth.events import Event, ItemEvent, JobEvent
from hearth.observability.metric_families import FAMILIES
from tests.observability.samples import all_kinds


def own_fields(kind: type[Event]) -> set[str]:
    base = next(known for known in (ItemEvent, JobEvent, Event) if issubclass(kind, known))
    return {field.name for field in fields(kind)} - {field.name for field in fields(base)}


def test_a_docstring_says_when_an_event_happens_and_names_its_own_fields_and_no_other():
    for kind in all_kinds():
        when, _, said = (" ".join((kind.__doc__ or "").split())).partition(" Fields: ")
        assert when.endswith("."), kind
        if said:
            assert set(re.findall(r"`([a-z_]+)`", said)) - {"reason"} | ({"reason"} & own_fields(kind)) == own_fields(kind), kind


def test_the_pages_list_every_event_and_every_metric_once():
    assert sorted(re.findall(r"^\| `(\w+)` \|", events_page(), re.MULTILINE)) == sorted(kind.NAME for kind in all_kinds())
    assert re.findall(r"^\| `(\w+)` \|", metrics_page(), re.MULTILINE) == list(FAMILIES)
