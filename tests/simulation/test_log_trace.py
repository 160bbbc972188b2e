"""Last week's log as a workload: what is taken from a row, what has to be guessed, and what is left
out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hearth.config.settings import (
    GatewayConfig,
    GpuSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
    Window,
)
from hearth.simulation.logged import UNKNOWN_SERVICE_S, workload_from_log
from hearth.simulation.workloads import Workload
from hearth.types import Lane, Priority, Usage
from tests.support.fields import Fields

BEGAN = datetime(2030, 1, 7, 12, 0, tzinfo=UTC).timestamp()
NO_HOME = GpuSettings(home_model="")


def config(**more: Any) -> GatewayConfig:
    scheduling = SchedulingSettings(
        active_hours=(Window(start_minute=0, end_minute=0),), time_zone="UTC"
    )
    return GatewayConfig(settings=Settings(**{"scheduling": scheduling, "gpu": NO_HOME, **more}))


def row(number: int, **changes: Any) -> Fields:
    known = {
        "epoch": 1,
        "sequence": number,
        "request_id": f"req_{number}",
        "caller": "n8n",
        "lane": "external",
        "model": "a:latest",
    }
    timed = {
        "accepted_wall_s": BEGAN + number,
        "ended_wall_s": BEGAN + number + 5.0,
        "first_byte_s": 0.5,
        "backend_s": 2.5,
        "total_s": 5.0,
    }
    ended = {
        "prompt_tokens": 100,
        "output_tokens": 80,
        "outcome": "completed",
        "task_type": None,
        "chain_id": None,
    }
    return {**known, **timed, **ended, **changes}


def swap(origin: str, target: str, seconds: float, **changes: Any) -> Fields:
    known = {
        "ended_wall_s": BEGAN,
        "from_models": [origin] if origin else [],
        "to_model": target,
        "swap_s": seconds,
        "failed": False,
    }
    return {**known, **changes}


def traced(*items: Any, swaps: tuple[Any, ...] = (), **settings: Any) -> tuple[Workload, int]:
    return workload_from_log(items, swaps, config(**settings))


def house(*items: Any, swaps: tuple[Any, ...] = (), **settings: Any) -> Workload:
    return traced(*items, swaps=swaps, **settings)[0]


def test_a_request_comes_when_it_came_and_takes_as_long_as_it_took():
    jobs = house(row(8, caller="webui"), row(5)).jobs
    assert [(job.id, job.at, job.caller) for job in jobs] == [(0, 0.0, "n8n"), (1, 3.0, "webui")]
    assert (jobs[0].service_s, jobs[0].first_byte_s, jobs[0].lane, jobs[0].prompt_tokens) == (
        2.5,
        0.5,
        Lane.EXTERNAL,
        100,
    )
    assert jobs[0].usage == Usage(prompt_tokens=100, output_tokens=80, prompt_s=0.5, decode_s=2.0)
    for untimed in ("output_tokens", "first_byte_s"):
        usage = house(row(1, **{untimed: None})).jobs[0].usage
        assert (usage.prompt_tokens, usage.prompt_s, usage.decode_s) == (100, None, None)
    rows = [
        row(0, epoch=epoch, sequence=sequence, caller=f"{epoch}.{sequence}")
        for epoch, sequence in ((2, 1), (1, 9), (1, 8))
    ]
    assert [job.caller for job in house(*rows).jobs] == ["1.8", "1.9", "2.1"]
    bands = house(
        row(1, lane="internal", task_type="reply"),
        row(2, lane="internal"),
        priority_map={"reply": Priority.CRITICAL},
    ).jobs
    assert [job.priority for job in bands] == [Priority.CRITICAL, Priority.NORMAL]


def test_turns_of_a_conversation_take_what_they_would_have_taken_cold():
    def turn(number: int, first_byte_s: float, **changes: Any) -> Fields:
        known = {"conversation": "c", "prompt_tokens": 1000 + number}
        timed = {"first_byte_s": first_byte_s, "backend_s": first_byte_s + 2.0}
        return row(number, **{**known, **timed, **changes})

    jobs = house(
        turn(0, 4.0),
        turn(1, 0.1),  # was cached
        turn(2, 5.0),  # was not
        turn(3, 0.1, epoch=2, prompt_tokens=100),  # too short to tell anything
        turn(4, 0.2, conversation=None),
        turn(5, 0.2, model="b"),
    ).jobs
    assert [job.conversation for job in jobs] == ["1.c", "1.c", "1.c", "2.c", "", "1.c"]
    assert [round(job.first_byte_s, 3) for job in jobs] == [4.0, 4.004, 5.0, 0.4, 0.2, 0.2]
    assert [round(job.service_s - job.first_byte_s, 6) for job in jobs] == [2.0] * 6
    assert [round(job.usage.prompt_s or 0.0, 3) for job in jobs] == [4.0, 4.004, 5.0, 0.4, 0.2, 0.2]


UNANSWERED = {"backend_s": None, "first_byte_s": None}


@pytest.mark.parametrize(
    ("others", "changes", "told"),
    [
        # who left leaves again and would have got what is usual, of its model, else of any
        (
            [
                row(1, backend_s=2.0),
                row(2, backend_s=4.0),
                row(4, outcome="failed", backend_s=90.0),
            ],
            {**UNANSWERED, "outcome": "cancelled", "total_s": 1.5},
            (3.0, 1.5, None),
        ),
        (
            [row(1, model="b", backend_s=4.0)],
            {**UNANSWERED, "outcome": "cancelled"},
            (4.0, 5.0, None),
        ),
        ([], {**UNANSWERED, "outcome": "cancelled"}, (UNKNOWN_SERVICE_S, 5.0, None)),
        # in the middle of a long answer
        ([row(1, backend_s=4.0)], {"outcome": "cancelled", "backend_s": 9.0}, (9.0, 5.0, None)),
        # given up for its age again
        ([row(1)], {**UNANSWERED, "outcome": "expired", "total_s": 30.0}, (2.5, None, 30.0)),
    ],
)
def test_who_had_no_answer_would_have_got_what_is_usual(
    others: list[Any], changes: Fields, told: tuple[float | None, ...]
):
    job = next(
        job for job in house(*others, row(3, caller="x", **changes)).jobs if job.caller == "x"
    )
    assert (job.service_s, job.cancel_after_s, job.max_wait_s) == told


def test_what_no_model_of_the_gpu_worked_on_is_left_out_and_counted():
    found = traced(
        row(1),
        row(2, outcome="failed", **UNANSWERED),
        row(3, outcome="failed"),
        "no row",
        row(4, lane="x"),
    )
    assert (len(found[0].jobs), found[1]) == (2, 3)
    paid = (
        row(2, model="claude-haiku-5-5"),
        row(3, model="claude-haiku-5-5", outcome="cancelled"),
        row(4, model="opus", cost_usd=0.02),
    )
    assert traced(row(1), *paid) == (house(row(1)), 3)
    assert (traced(), house().jobs) == ((house(), 0), ())
    assert (
        len(house(row(1, colour="green"), swaps=(swap("", "a:latest", 3.0, weather="rain"),)).jobs)
        == 1
    )


def test_a_swap_costs_the_median_of_its_direction_without_failed_ones():
    seen = (("a", "b", 5), ("a", "b", 7), ("a", "b", 60), ("b", "a", 2), ("", "a", 3))
    swaps = (*(swap(*each) for each in seen), swap("b", "a", 600, failed=True))
    gpu = GpuSettings(home_model="", swap_cost_prior_s=11.0)
    found = house(row(1, model="a"), row(2, model="b"), row(3, model="c"), swaps=swaps, gpu=gpu)
    assert [
        found.swap_s(way, name)
        for way, name in ((("a",), "b"), (("b",), "a"), ((), "a"), ((), "c"))
    ] == [7, 2, 3, 11.0]


def test_memory_is_what_the_owner_says_else_what_the_model_took_last():
    gpu = GpuSettings(home_model="a:latest", vram_gb=24.0, parallel=2)
    swaps = (
        swap("", "a", 3, vram_mib=10_240.0),
        swap("", "a", 3, vram_mib=5_000.0),
        swap("", "b:1", 3, vram_mib=4_096.0),
    )
    found = house(
        row(1, model="a"),
        row(2, model="b:1"),
        swaps=swaps,
        gpu=gpu,
        models={"b:1": ModelSettings(vram_gb=7.0, parallel=3)},
    )
    assert found.vram_gb == 24.0
    assert {name: (model.vram_gb, model.parallel) for name, model in found.models.items()} == {
        "a": (10.0, 2),
        "b:1": (7.0, 3),
    }
    gpu = gpu.replace(home_model="a:latest")
    known, unknown = (house(row(1, model=name), gpu=gpu) for name in ("a:latest", "b:latest"))
    assert [(each.home, each.resident) for each in (known, unknown)] == [
        ("a:latest", ("a:latest",)),
        ("", ()),
    ]


def test_active_hours_begin_and_end_as_the_owner_set_them():
    hours = SchedulingSettings(
        active_hours=(Window(start_minute=6 * 60, end_minute=22 * 60),), time_zone="UTC"
    )
    assert house(row(0), row(20 * 3600), scheduling=hours).modes == (
        (10 * 3600.0, False),
        (18 * 3600.0, True),
    )
    assert house(row(12 * 3600), scheduling=hours).modes == ((0.0, False),)


def test_a_request_of_an_alias_is_for_those_of_its_models_that_the_log_knows():
    aliases = {"coder": ("b:latest", "a:latest", "c:latest")}
    rows = [row(1, alias="coder"), row(2, model="b:latest"), row(3, alias="gone")]
    workload, _ = workload_from_log(rows, [], config(aliases=aliases))
    assert [(job.model, job.alias, job.choices) for job in workload.jobs] == [
        ("a:latest", "coder", ("b:latest", "a:latest")),
        ("b:latest", "", ()),
        ("a:latest", "", ()),
    ]


def test_an_answer_takes_as_long_on_another_model_as_that_writes():
    slow = {"model": "b:latest", "backend_s": 8.5}
    workload, _ = workload_from_log([row(1), row(2, **slow)], [], config())
    assert workload.pace == {"a:latest": 2.0 / 80, "b:latest": 8.0 / 80}
    other = workload.on_model(workload.jobs[0], "b:latest")
    assert (other.service_s, other.first_byte_s) == (10.0, 2.0)
