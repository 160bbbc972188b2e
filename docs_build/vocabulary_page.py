"""Every event, metric and alert as tables, from the classes and families that the program uses."""

from __future__ import annotations

import logging
from dataclasses import fields

from docs_build.markdown import code, table
from hearth import events
from hearth.config.choices import AlertType
from hearth.events import Event, ItemEvent, JobEvent
from hearth.observability.metric_families import FAMILIES

_EVENTS = """# Events

An event is a fact in the past tense. The same value is the log line, the source of metrics, the
input of alerts and the update of the dashboard. This page is made from the classes in
`src/hearth/events/`.

In JSON logs an event is one object: `ts` (RFC 3339, UTC, milliseconds), `level`, `event` (the name
below), and its fields. Units are in the names: `_s` seconds, `_mib` MiB, `_tokens` tokens. An
unknown value is `null`. Prompts, answers, keys and URLs with secrets never appear. `item_ended`,
`job_ended`, `batch_ended` and `swap_completed` are warnings where they ended badly: failed,
expired, or a model partly on the CPU.

Some lines are in the log only. `log` is what a library logged, with `logger` and `message`, and for
an exception its type (`error`) and `frames`, never its text. `log_lines_dropped` counts lines that
the output was too slow for. Of refusals with the same `caller`, `status` and `reason`, ten a minute
get a line each; `more_requests_rejected` and `more_budget_exhausted` count the rest. """
_METRICS = """# Every metric

Made from the program. [Metrics](../metrics.md) explains the set-up and how to read the numbers. The
process's own metrics (`process_resident_memory_bytes` and the like) are those of the official
client library. """
_ALERTS = """# Every alert

Made from the program. [Alerts](../alerts.md) says where they go and how often. `alerts.mute` takes
these types. """
_GROUPS: tuple[tuple[str, str, type[Event]], ...] = (
    (
        "Requests",
        (
            "All of these also carry `sequence`, `request_id`, `lane`, `caller`, `model` and"
            " `task_type`."
        ),
        ItemEvent,
    ),
    ("Jobs", "All of these also carry `job_id`, `caller`, `task_type` and `model`.", JobEvent),
    ("The gateway, the model server and the GPU", "", Event),
)


def events_page() -> str:
    """The page of events."""
    kinds = [
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)
    ]
    parts = [_EVENTS]
    for title, text, base in _GROUPS:
        mine = [
            kind
            for kind in kinds
            if next(each for _, _, each in _GROUPS if issubclass(kind, each)) is base
            and kind is not base
        ]
        rows = [_row(kind, base) for kind in sorted(mine, key=lambda kind: kind.NAME)]
        parts.append(
            f"## {title}\n\n{text}\n\n{table(('event', 'when', 'fields', 'level'), rows)}\n"
        )
    return "\n".join(parts)


def _row(kind: type[Event], base: type[Event]) -> tuple[str, str, str, str]:
    when, _, said = (" ".join((kind.__doc__ or "").split())).partition(" Fields: ")
    own = [
        field.name
        for field in fields(kind)
        if field.name not in {each.name for each in fields(base)}
    ]
    return (
        code(kind.NAME),
        when,
        said or ", ".join(map(code, own)) or "none",
        logging.getLevelName(kind.LEVEL).lower(),
    )


def metrics_page() -> str:
    """The page of metrics."""
    rows = [
        (code(each.name), each.kind, ", ".join(map(code, each.labels)) or "-", each.help)
        for each in FAMILIES.values()
    ]
    return f"{_METRICS}\n{table(('metric', 'type', 'labels', 'meaning'), rows)}\n"


def alerts_page() -> str:
    """The page of alerts."""
    rows = [
        (code(each.value), each.severity.word, each.words, each.when, each.remedy)
        for each in AlertType
    ]
    return f"{_ALERTS}\n{table(('type', 'severity', 'title', 'sent when', 'what to do'), rows)}\n"
