"""Reading traces: what the fields mean, and what a bad line is told."""

from __future__ import annotations

import json

import pytest

from hearth.errors import ConfigError
from hearth.simulation.traces import parse_trace, read_trace
from hearth.types import Lane, Priority, Usage
from tests.support.cases import for_each

HEADER = {
    "models": {"a": {"vram_gb": 13, "parallel": 2, "prompt_tps": 1000, "tps": 50}, "b": {}},
    "swap_s": {"a": {"b": 7.4}, "b": {"a": 2.0}, "": {"a": 2.0, "b": 7.4}},
    "gpu": {"vram_gb": 24},
    "resident": ["a"],
}
GOOD = {"id": 0, "t": 1.5, "model": "a", "lane": "internal", "priority": "critical", "service_s": 0.3}


def text(*requests: object, header: object = HEADER) -> str:
    return "\n".join(json.dumps(line) for line in (header, *requests))


def problems(*requests: object, header: object = HEADER) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text(*requests, header=header), source="t.jsonl")
    return caught.value.problems


def test_a_request_is_read_field_by_field():
    job = parse_trace(text(GOOD), source="t").jobs[0]
    assert (job.id, job.at, job.model, job.lane, job.priority, job.service_s) == (0, 1.5, "a", Lane.INTERNAL, Priority.CRITICAL, 0.3)


def test_the_header_tells_of_models_swaps_memory_and_residents():
    house = parse_trace(text(GOOD), source="t")
    assert (house.models["a"].vram_gb, house.models["a"].parallel, house.models["b"].vram_gb) == (13, 2, None)
    assert house.swap_s(("a",), "b") == 7.4
    assert (house.vram_gb, house.resident) == (24, ("a",))


def test_tokens_stand_for_service_time_at_the_models_rates():
    job = parse_trace(text({"id": 0, "model": "a", "prompt_tokens": 500, "output_tokens": 100}), source="t").jobs[0]
    assert (job.service_s, job.first_byte_s) == (2.5, 2.5)
    assert (job.usage.prompt_s, job.usage.decode_s) == (0.5, 2.0)


def test_a_streamed_answer_begins_when_its_prompt_is_read():
    job = parse_trace(text({"id": 0, "model": "a", "prompt_tokens": 500, "output_tokens": 100, "stream": True}), source="t").jobs[0]
    assert (job.first_byte_s, job.streaming) == (0.5, True)


def test_an_answer_that_is_not_streamed_comes_as_a_whole():
    assert parse_trace(text(GOOD), source="t").jobs[0].first_byte_s == 0.3


def test_a_request_without_a_model_runs_anywhere():
    assert parse_trace(text({"id": 0, "model": None, "service_s": 1}), source="t").jobs[0].model is None


def test_blank_lines_do_not_shift_line_numbers():
    with pytest.raises(ConfigError, match="t:4: model"):
        parse_trace(text(GOOD) + '\n\n{"id": 1, "model": "zz", "service_s": 1}', source="t")


def test_a_request_may_tell_its_first_byte_its_limit_and_what_its_answer_reports():
    told = {"id": 0, "model": "a", "service_s": 3, "first_byte_s": 1, "max_tokens": 64, "reports": {"output_tokens": 40, "decode_s": 2}}
    job = parse_trace(text(told), source="t").jobs[0]
    assert (job.first_byte_s, job.max_tokens, job.usage) == (1, 64, Usage(output_tokens=40, decode_s=2))


def test_a_request_may_wait_for_several_others():
    job = parse_trace(text(GOOD, {**GOOD, "id": 1}, {**GOOD, "id": 2, "after": 0, "also_after": [1]}), source="t").jobs[2]
    assert (job.after, job.also_after) == (0, (1,))


def test_the_header_may_tell_of_active_hours_and_of_how_long_unloading_takes():
    house = parse_trace(text(GOOD, header={**HEADER, "unload_s": {"a": 0.5}, "hours": [{"t": 60, "active": False}]}), source="t")
    assert (house.unload_s, house.modes) == ({"a": 0.5}, ((60, False),))


@for_each(
    ("request_line", "expected"),
    [
        ({"id": 0, "model": "zz", "service_s": 1}, 't.jsonl:2: model: "zz" is not in the `models` of the header'),
        ({"id": 0, "model": "a"}, "t.jsonl:2: give either `service_s`, or `prompt_tokens` and `output_tokens`"),
        ({"id": 0, "model": "a", "service_s": 1, "output_tokens": 3}, "t.jsonl:2: give either"),
        ({"id": 0, "model": "b", "output_tokens": 3}, "t.jsonl:2: tokens need a model"),
        ({"id": 0, "model": "a", "service_s": -1}, "t.jsonl:2: service_s: "),
        ({"id": 0, "model": "a", "service_s": "1"}, "t.jsonl:2: service_s: "),
        ({"id": 0, "model": "a", "service_s": 1, "lane": "fast"}, "t.jsonl:2: lane: "),
        ({"id": 0, "model": "a", "service_s": 1, "priority": 0}, "t.jsonl:2: priority: "),
        ({"id": 0, "model": "a", "service_s": 1, "servce": 1}, "t.jsonl:2: servce: unknown field; leave it out"),
        ({"id": 0, "service_s": 1}, "t.jsonl:2: model: is missing; add it"),
        ({"id": 0, "model": "a", "service_s": 1, "first_byte_s": 2}, "t.jsonl:2: first_byte_s: is more than `service_s`"),
        ({"id": 0, "model": "a", "service_s": 1, "t": -1}, "t.jsonl:2: t: "),
        ({"id": 0, "model": "a", "service_s": 1, "after": 0}, "t.jsonl:2: after: no request above has the id 0"),
        ({"id": 0, "model": "a", "service_s": 1, "after": 5}, "t.jsonl:2: after: no request above has the id 5"),
        ({"model": "a", "service_s": 1}, "t.jsonl:2: id: "),
        (["not", "an", "object"], "t.jsonl:2: "),
    ],
)
def test_a_bad_request_is_named_with_its_line(request_line, expected):
    found = problems(request_line)
    assert len(found) == 1
    assert found[0].startswith(expected)


@for_each(
    ("header", "expected"),
    [
        ({}, "t.jsonl:1: models: "),
        ({**HEADER, "resident": ["zz"]}, 't.jsonl:1: "zz" is not in `models`'),
        ({**HEADER, "home": "zz"}, 't.jsonl:1: "zz" is not in `models`'),
        ({**HEADER, "unload_s": {"zz": 1}}, 't.jsonl:1: "zz" is not in `models`'),
        ({**HEADER, "hours": [{"t": 1}]}, "t.jsonl:1: hours.0.active: is missing; add it"),
        ({**HEADER, "swap_s": {"b": {"a": -2}}}, "t.jsonl:1: swap_s.b.a: "),
        ({**HEADER, "home": "b", "swap_s": {"b": {"a": 1}}}, 't.jsonl:1: swap_s: nothing tells what loading "b" costs'),
        ({**HEADER, "swap_s": {}}, 't.jsonl:1: swap_s: nothing tells what loading "a" costs'),
        ({**HEADER, "swap_s": {}, "resident": []}, 't.jsonl:1: swap_s: nothing tells what loading "a" costs'),
        ({**HEADER, "models": {"a": {"parallel": 0}}}, "t.jsonl:1: models.a.parallel: "),
    ],
)
def test_a_bad_header_is_named(header, expected):
    assert problems(GOOD, header=header)[0].startswith(expected)


def test_every_problem_is_told_at_once():
    assert len(problems({"id": 0, "model": "zz", "service_s": 1}, {"id": 0, "model": "a"}, {"id": 0, "model": "a", "service_s": 1})) == 4


def test_an_identity_that_is_taken_is_named_with_the_line_that_took_it():
    assert problems(GOOD, GOOD) == ("t.jsonl:3: id: 0 is taken by line 2; give each request a number of its own",)


def test_who_waits_for_several_others_has_to_wait_for_one():
    assert problems(GOOD, {**GOOD, "id": 1, "also_after": [0]}) == ("t.jsonl:3: also_after: name one of them in `after`",)


def test_what_is_not_json_is_named_with_its_line():
    with pytest.raises(ConfigError, match="t:2: Invalid JSON"):
        parse_trace(text() + "\n{nope", source="t")


def test_an_empty_file_is_told_what_is_missing():
    with pytest.raises(ConfigError, match="header"):
        parse_trace("\n\n", source="t")


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="t:2: "):
        parse_trace(text() + '\n{"id": 0, "model": "a", "service_s": Infinity}', source="t")


def test_a_single_resident_model_needs_no_swap_costs():
    house = parse_trace(text({**GOOD}, header={"models": {"a": {}}, "resident": ["a"]}), source="t")
    assert house.jobs


def test_a_file_that_is_not_there_or_is_not_text_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_trace(tmp_path / "bad.jsonl")
