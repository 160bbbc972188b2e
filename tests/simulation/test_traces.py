"""Reading and writing traces: what the fields mean, and what a bad line is told."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from hearth.errors import ConfigError
from hearth.simulation.agents import AGENTS
from hearth.simulation.spilling import SPILLING
from hearth.simulation.traces import parse_trace, read_trace, trace_text
from hearth.simulation.voice import VOICES
from hearth.simulation.workloads import WORKLOADS
from hearth.simulation.yielding import YIELDING
from hearth.types import JsonDict, Lane, Priority, Usage
from tests.support.workloads import Mix, random_workload

HEADER = {
    "models": {
        "a": {"vram_gb": 13, "parallel": 2, "prompt_tps": 1000, "tps": 50},
        "b": {},
        "ears": {"s_per_audio_s": 0.05},
        "brush": {"s_per_megapixel": 4},
    },
    "swap_s": {"a": {"b": 7.4}, "b": {"a": 2.0}, "": {"a": 2.0, "b": 7.4, "ears": 1, "brush": 3}},
    "gpu": {"vram_gb": 24},
    "resident": ["a"],
}
GOOD = {
    "id": 0,
    "t": 1.5,
    "model": "a",
    "lane": "internal",
    "priority": "critical",
    "service_s": 0.3,
}


def text(*requests: object, header: object = HEADER) -> str:
    return "\n".join(json.dumps(line) for line in (header, *requests))


def problems(*requests: object, header: object = HEADER) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text(*requests, header=header), source="t.jsonl")
    return caught.value.problems


TOKENS = {"id": 0, "model": "a", "prompt_tokens": 500, "output_tokens": 100}
TIMED = Usage(prompt_tokens=500, output_tokens=100, prompt_s=0.5, decode_s=2.0)
REPORTS = {"output_tokens": 40, "decode_s": 2}


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (
            GOOD,
            {
                "id": 0,
                "at": 1.5,
                "model": "a",
                "lane": Lane.INTERNAL,
                "priority": Priority.CRITICAL,
                "service_s": 0.3,
            },
        ),
        (GOOD, {"first_byte_s": 0.3}),  # what is not streamed comes as a whole
        (TOKENS, {"service_s": 2.5, "first_byte_s": 2.5, "usage": TIMED}),  # at the model's rates
        # begins when its prompt is read
        ({**TOKENS, "stream": True}, {"first_byte_s": 0.5, "streaming": True}),
        ({"id": 0, "model": None, "service_s": 1}, {"model": None}),
        (
            {"id": 0, "model": "ears", "kind": "audio", "audio_s": 8},
            {"kind": "audio", "audio_s": 8, "service_s": 0.4, "first_byte_s": 0.4},
        ),
        (
            {
                "id": 0,
                "model": "ears",
                "kind": "speech",
                "audio_s": 8,
                "stream": True,
                "first_byte_s": 0.1,
            },
            {"kind": "speech", "service_s": 0.4, "first_byte_s": 0.1},
        ),
        # what is measured counts more than what the model usually takes
        (
            {"id": 0, "model": "ears", "kind": "audio", "audio_s": 8, "service_s": 3},
            {"audio_s": 8, "service_s": 3},
        ),
        (
            {"id": 0, "model": "brush", "kind": "image", "megapixels": 0.5},
            {"kind": "image", "service_s": 2, "first_byte_s": 2},
        ),
        (
            {
                "id": 0,
                "model": "a",
                "service_s": 3,
                "first_byte_s": 1,
                "max_tokens": 64,
                "reports": REPORTS,
            },
            {"first_byte_s": 1, "max_tokens": 64, "usage": Usage(output_tokens=40, decode_s=2)},
        ),
    ],
)
def test_a_request_is_read_field_by_field(request_line: object, expected: JsonDict):
    job = parse_trace(text(request_line), source="t").jobs[0]
    assert {name: getattr(job, name) for name in expected} == expected


def test_the_header_tells_of_models_swaps_memory_residents_and_hours():
    header = {**HEADER, "unload_s": {"a": 0.5}, "hours": [{"t": 60, "active": False}]}
    house = parse_trace(text(GOOD, header=header), source="t")
    assert (house.models["a"].vram_gb, house.models["a"].parallel, house.models["b"].vram_gb) == (
        13,
        2,
        None,
    )
    assert (house.swap_s(("a",), "b"), house.vram_gb, house.resident) == (7.4, 24, ("a",))
    assert (house.unload_s, house.modes) == ({"a": 0.5}, ((60, False),))
    job = parse_trace(
        text(GOOD, {**GOOD, "id": 1}, {**GOOD, "id": 2, "after": 0, "also_after": [1]}), source="t"
    ).jobs[2]
    assert (job.after, job.also_after) == (0, (1,))


def test_a_workload_survives_being_written_and_read_with_odd_names():
    drawn = [random_workload(Random(seed), Mix()) for seed in range(40)]
    limited = [
        replace(each, jobs=tuple(replace(job, max_wait_s=9.0, max_tokens=7) for job in each.jobs))
        for each in drawn
    ]
    shipped = (
        build() for build in {**WORKLOADS, **AGENTS, **SPILLING, **YIELDING, **VOICES}.values()
    )
    for workload in (*shipped, *drawn, *limited):
        assert parse_trace(trace_text(workload), source="t") == workload
    odd = replace(
        drawn[1],
        jobs=tuple(replace(job, caller="a\u2028b\u0085c\nd\ud800") for job in drawn[1].jobs),
    )
    assert (
        parse_trace(trace_text(odd).replace("\\ud800", "x"), source="t").jobs[0].caller
        == "a\u2028b\u0085c\ndx"
    )


A = {"id": 0, "model": "a", "service_s": 1}


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ({**A, "model": "zz"}, 'model: "zz" is not in the `models` of the header'),
        (
            {"id": 0, "model": "a"},
            "give either `service_s`, or `prompt_tokens` and `output_tokens`",
        ),
        ({**A, "output_tokens": 3}, "give either"),
        ({"id": 0, "model": "b", "output_tokens": 3}, "tokens need a model"),
        ({**A, "service_s": -1}, "service_s: "),
        ({**A, "kind": "video"}, "kind: "),
        ({**A, "audio_s": 3}, "audio_s: is of a `kind` audio or speech"),
        ({**A, "kind": "audio", "megapixels": 1}, "megapixels: is of a `kind` image"),
        (
            {"id": 0, "model": "a", "kind": "audio", "audio_s": 3},
            "give either `service_s`, or `audio",
        ),
        ({"id": 0, "model": "ears", "kind": "speech"}, "give either `service_s`, or `audio_s`"),
        (
            {"id": 0, "model": "a", "kind": "image", "megapixels": 1},
            "give either `service_s`, or `m",
        ),
        ({"id": 0, "model": "ears", "kind": "audio", "audio_s": -1}, "audio_s: "),
        ({**A, "service_s": "1"}, "service_s: "),
        ({**A, "lane": "fast"}, "lane: "),
        ({**A, "priority": 0}, "priority: "),
        ({**A, "servce": 1}, "servce: unknown field; leave it out"),
        ({"id": 0, "service_s": 1}, "model: is missing; add it"),
        ({**A, "first_byte_s": 2}, "first_byte_s: is more than `service_s`"),
        ({**A, "t": -1}, "t: "),
        ({**A, "after": 0}, "after: no request above has the id 0"),
        ({**A, "after": 5}, "after: no request above has the id 5"),
        ({"model": "a", "service_s": 1}, "id: "),
        (["not", "an", "object"], ""),
    ],
)
def test_a_bad_request_is_named_with_its_line(request_line, expected):
    found = problems(request_line)
    assert (len(found), found[0].startswith(f"t.jsonl:2: {expected}")) == (1, True), found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"models": {}}, "models: "),
        ({"resident": ["zz"]}, '"zz" is not in `models`'),
        ({"home": "zz"}, '"zz" is not in `models`'),
        ({"unload_s": {"zz": 1}}, '"zz" is not in `models`'),
        ({"hours": [{"t": 1}]}, "hours.0.active: is missing; add it"),
        ({"swap_s": {"b": {"a": -2}}}, "swap_s.b.a: "),
        ({"home": "b", "swap_s": {"b": {"a": 1}}}, 'swap_s: nothing tells what loading "b" costs'),
        ({"swap_s": {}}, 'swap_s: nothing tells what loading "a" costs'),
        ({"swap_s": {}, "resident": []}, 'swap_s: nothing tells what loading "a" costs'),
        ({"models": {"a": {"parallel": 0}}}, "models.a.parallel: "),
    ],
)
def test_a_bad_header_is_named(changes, expected):
    assert problems(GOOD, header={**HEADER, **changes})[0].startswith(f"t.jsonl:1: {expected}")
    assert problems(GOOD, header={})[0].startswith("t.jsonl:1: models: ")


def test_every_problem_is_told_at_once_also_contradicting_requests():
    assert len(problems({**A, "model": "zz"}, {"id": 0, "model": "a"}, A)) == 4
    assert problems(GOOD, GOOD) == (
        "t.jsonl:3: id: 0 is taken by line 2; give each request a number of its own",
    )
    assert problems(GOOD, {**GOOD, "id": 1, "also_after": [0]}) == (
        "t.jsonl:3: also_after: name one of them in `after`",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (text() + "\n{nope", "t:2: Invalid JSON"),
        ("\n\n", "header"),
        (text() + '\n{"id": 0, "model": "a", "service_s": Infinity}', "t:2: "),
        # blank lines shift no numbers
        (text(GOOD) + '\n\n{"id": 1, "model": "zz", "service_s": 1}', "t:4: model"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(content: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        parse_trace(content, source="t")


def test_one_resident_needs_no_swap_costs_and_an_unreadable_file_is_an_error(tmp_path):
    assert parse_trace(text(GOOD, header={"models": {"a": {}}, "resident": ["a"]}), source="t").jobs
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_trace(tmp_path / "bad.jsonl")
