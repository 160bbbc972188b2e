"""What a log line says: every event, hostile text, secrets, levels."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields

from hearth.events import BatchEnded, Event, JobEnded, SwapCompleted
from hearth.observability.log_lines import MAX_FIELD_CHARS, LogLine, clean, escape, level_of, line_of, to_json, to_text
from hearth.types import Outcome
from tests.observability.samples import all_kinds, ended, rejected, sample
from tests.support.cases import for_each

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z

HOSTILE = [
    *('x\n{"level":"error","event":"forged"}', "x\r\nforged", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\u2028b\u2029c"),
    *("\u202egnp.exe", "\ud800 lone", "\x00\x08\x7f", 'a" b=c "', "x" * 100_000),
]


@for_each("text", ["word", *HOSTILE])
@for_each("kind", all_kinds())
def test_every_kind_of_event_is_one_line_with_every_field_in_either_format_whatever_text_it_holds(kind: type[Event], text: str):
    line = line_of(sample(kind, text=text), NOON)
    as_json, as_text = to_json(line), to_text(line, colour=False)
    loaded = json.loads(as_json)
    assert list(loaded)[:3] == ["ts", "level", "event"]
    assert (loaded["ts"], loaded["event"]) == ("2026-01-01T12:00:00.000Z", kind.NAME)
    assert set(loaded) - {"ts", "level", "event"} == {field.name for field in fields(kind)} - {"at"}
    assert (as_json.isascii(), as_json.isprintable(), as_text.isprintable()) == (True, True, True)
    assert kind.NAME.replace("_", " ") in as_text
    assert len(as_json) < 10_000


def test_a_value_cannot_pretend_to_be_another_pair():
    line = to_text(line_of(rejected(caller='x  status=200 path="/"'), NOON), colour=False)
    assert 'caller="x  status=200 path=\\"/\\""' in line
    assert "  status=429" in line


def test_long_texts_and_lists_are_cut_and_say_so():
    assert (len(clean("y" * 5000)), clean("y" * 5000)[-1]) == (MAX_FIELD_CHARS, "…")
    line = LogLine(wall_at=NOON, level=logging.INFO, event="e", fields={"problems": tuple(str(n) for n in range(50))})
    assert json.loads(to_json(line))["problems"][-1] == "… and 30 more"


@for_each(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.DEF-123", "abc.DEF-123"),
        ("bearer   hunter2", "hunter2"),
        ("invalid key sk-ant-api03-AAAA_BBBB", "AAAA_BBBB"),
        ("POST https://discord.com/api/webhooks/123456/tokenTOKEN failed", "tokenTOKEN"),
        ("https://discordapp.com/api/v10/webhooks/1/zzz?wait=true", "zzz"),
        ("https://user:hunter2@example.org/x", "hunter2"),
        ('{"api_key": "hunter2"}', "hunter2"),
        ("x-api-key: hunter2", "hunter2"),
        ("password=hunter2&x=1", "hunter2"),
        ("z" * (MAX_FIELD_CHARS - 8) + " Bearer hunter2", "hunter2"),
        ("z" * 1990 + " sk-ant-api03-AAAA_BBBB", "AAAA"),
    ],
)
def test_credentials_that_slip_into_a_text_are_masked(text: str, secret: str):
    line = line_of(rejected(caller=text), NOON)
    assert secret not in to_json(line)
    assert secret not in to_text(line, colour=False)


@for_each("text", ["qwen2.5:32b-instruct-q6_K", "open webui", "the token limit was reached", "task-runner", "/api/chat?x=1"])
def test_ordinary_text_is_left_as_it_is(text: str):
    assert escape(clean(text)) == text


LEVELS = {
    logging.DEBUG: "embeddings_flushed item_dispatched item_promoted item_queued item_streaming job_queued job_started",
    logging.WARNING: (
        "alert_failed backend_went_down budget_exhausted budget_threshold_reached clock_doubted cloud_went_down config_rejected "
        "connections_crowded disk_ran_low embeddings_parted emulator_started gpu_lost gpu_overheated home_model_missing item_diverged "
        "item_lost item_protected item_resent job_requeued keys_tried loop_lagged model_offloaded owner_warned request_rejected "
        "residency_drifted storage_failed swap_completed swap_failed telemetry_failed webhook_failed"
    ),
    logging.ERROR: "internal_fault",
}


def test_levels_follow_what_an_owner_should_look_at():
    for level, names in LEVELS.items():
        assert " ".join(sorted(kind.NAME for kind in all_kinds() if level_of(sample(kind)) == level)) == names


ENDS = [
    *((ended(outcome), outcome in {Outcome.FAILED, Outcome.EXPIRED}) for outcome in Outcome),
    *((sample(JobEnded, state=state), state == "failed") for state in ("completed", "cancelled", "failed")),
    *((sample(BatchEnded, state=state), state in {"failed", "expired"}) for state in ("completed", "cancelled", "failed", "expired")),
    *((sample(SwapCompleted, offloaded=offloaded), offloaded) for offloaded in (True, False)),
]


@for_each(("event", "is_bad"), ENDS)
def test_an_end_warns_only_where_it_is_bad(event: Event, is_bad: bool):
    assert level_of(event) == (logging.WARNING if is_bad else logging.INFO)


def test_the_canonical_line_reads_well_and_colour_wraps_the_same_text():
    assert " ✗ log" in to_text(LogLine(wall_at=NOON, level=logging.CRITICAL, event="log", fields={}), colour=False)
    text = to_text(line_of(ended(), NOON), colour=False)
    assert text[13:].startswith(
        "· item ended           sequence=1  request_id=req_1  lane=external  caller=webui  model=home:32b  outcome=completed"
    )
    assert "queue_s=0.25  swap_s=0  first_byte_s=0.5" in text
    assert "task_type" not in text
    assert "reason" not in text
    line = line_of(ended(Outcome.FAILED), NOON)
    coloured = to_text(line, colour=True)
    assert "\x1b[33m!" in coloured
    assert coloured.endswith("\x1b[0m")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == to_text(line, colour=False)


def test_numbers_stay_numbers_and_non_finite_ones_stay_valid_json():
    loaded = json.loads(to_json(line_of(ended(queue_s=float("inf"), swap_s=float("nan"), total_s=1.00000049), NOON)))
    assert (loaded["queue_s"], loaded["swap_s"], loaded["total_s"]) == ("inf", "nan", 1.0)
    assert (loaded["attempts"], loaded["task_type"], loaded["lane"]) == (1, None, "external")
