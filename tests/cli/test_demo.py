"""The demo: its callers, what is told of them, and the whole of it in this process, much faster than for people."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hearth.cli.demo import demo_config, run_demo
from hearth.cli.demo_callers import CALLERS, HOME_MODEL, ROUND, VISITOR, ask_for_ever, demo_keys, key_of
from hearth.cli.demo_narrator import Narrator, Tally
from hearth.cli.views import console_for
from hearth.config.loading import exposure_problem
from hearth.emulator.models import default_profiles
from hearth.events import (
    Event,
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemProtected,
    ItemQueued,
    ItemResumed,
    ModeChanged,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.types import Lane, Outcome, RequestId, Sequence, Way
from tests.cli.stub_gateway import StubGateway
from tests.observability import samples
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S

CODER = "qwen2.5-coder:14b"


def item(kind: type[Any], who: str = "editor", **fields: Any) -> Any:
    known = {"lane": Lane.EXTERNAL, "caller": who, "model": CODER, "task_type": None, "at": 0.0}
    return kind(sequence=Sequence(1), request_id=RequestId("req_1"), **known | fields)


def ended(who: str = "editor", outcome: Outcome = Outcome.COMPLETED, *, queue_s: float = 0.0, backend_s: float = 1.0) -> ItemEnded:
    measured: dict[str, Any] = {"queue_s": queue_s, "backend_s": backend_s, "total_s": queue_s + backend_s}
    return replace(samples.ended(outcome, at=0.0), caller=who, **measured)


def interrupted(who: str = "editor", *, ran_s: float = 1.0) -> ItemInterrupted:
    found: ItemInterrupted = item(ItemInterrupted, who, attempt=1, interrupt_count=1, ran_s=ran_s)
    return found


QUEUED = item(ItemQueued, position=0)
ASSISTANT = item(ItemQueued, "assistant", lane=Lane.INTERNAL, position=0)
RESUMED = item(ItemResumed, attempt=2, how=Way.CONTINUE, again_tokens=120, verified_chars=0, catch_up_s=0.4)
SWAP = SwapStarted(at=0.0, from_models=(HOME_MODEL,), to_model=CODER, why="waiting")
SWAPPED = SwapCompleted(at=0.0, from_models=(HOME_MODEL,), to_model=CODER, swap_s=1.5, vram_mib=None, offloaded=False)
NOT_SWAPPED = SwapFailed(at=0.0, from_models=(HOME_MODEL,), to_model=CODER, swap_s=1.0, reason="swap_failed", detail="no room")


@for_each(
    ("events", "last"),
    [
        ([ModeChanged(at=100.0, active=True), replace(QUEUED, at=103.25, position=2)], f"3.2 s editor asks {CODER}, 2 ahead"),
        ([ASSISTANT, interrupted(ran_s=0.8)], "editor is interrupted after 0.8 s: assistant goes first"),
        ([ASSISTANT, item(ItemQueued, "chat", position=0), interrupted()], "assistant goes first"),
        ([item(ItemDispatched, attempt=2, waited_s=0.0)], "0.0 s editor runs again (try 2)"),
        ([item(ItemDispatched, attempt=1, waited_s=0.01)], ""),
        ([item(ItemDispatched, attempt=1, waited_s=2.0)], "0.0 s editor runs, after it waited 2.0 s"),
        ([RESUMED], "0.0 s editor continues where it stopped: 120 tokens read again in 0.4 s"),
        ([replace(RESUMED, how=Way.REPLAY)], "120 tokens repeated and compared in 0.4 s"),
        ([SWAP], f"0.0 s swap: {HOME_MODEL} is replaced by {CODER}"),
        ([SWAPPED], f"0.0 s {CODER} is loaded after 1.5 s (15 s on a real GPU)"),
        ([replace(SWAP, from_models=())], f"0.0 s load: {CODER}"),
        ([replace(SWAP, why="home")], f"nothing waits: loading the home model {CODER}"),
        ([NOT_SWAPPED], f"{CODER} could not be loaded: no room"),
        ([replace(NOT_SWAPPED, to_model="", detail="no answer")], f"{HOME_MODEL} could not be unloaded: no answer"),
        ([item(ItemProtected, interrupt_count=3)], "was interrupted 3 times, and will not be again"),
        ([ended(queue_s=2.0)], "has its answer after 3.0 s, of which it waited 2.0 s"),
        ([replace(ended(outcome=Outcome.FAILED), reason="swap_failed")], "failed: swap_failed"),
        ([replace(QUEUED, model="\x1b[2J", caller="\x07")], "\ufffd asks \ufffd[2J"),
    ],
)
def test_an_event_is_told_in_plain_words(events: list[Event], last: str):
    out = io.StringIO()
    narrator = Narrator(console_for(out, environ={"COLUMNS": "200"}), speed=10.0)
    for event in events:
        narrator.emit(event)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()] or [""]
    assert lines[-1].endswith(last) if last else lines == [""]


def test_at_real_speed_a_time_is_told_once_and_a_complaint_in_the_callers_words():
    out = io.StringIO()
    narrator = Narrator(console_for(out, environ={}), speed=1.0)
    narrator.emit(SWAPPED)
    narrator.complain("chat was answered 503: full")
    assert "is loaded after 1.5 s\n" in out.getvalue()
    assert "chat was answered 503: full" in out.getvalue()


def closing_table(*events: Event) -> list[str]:
    tally, out = Tally(), io.StringIO()
    for event in events:
        tally.emit(event)
    console = console_for(out, environ={"COLUMNS": "200"})
    console.print(tally.table(), tally.in_arrival_order(demo_config(1.0)))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_closing_table_averages_the_waits_of_ended_requests_and_counts_what_failed_and_what_swaps_took():
    outcomes = (Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)
    failed = [ended("notes", outcome, backend_s=0.0) for outcome in outcomes]
    waited = [ended("chat", queue_s=1.0, backend_s=5.0), ended("chat", queue_s=3.0, backend_s=0.0)]
    assert closing_table(*waited, *failed, interrupted("editor", ran_s=3.0), replace(SWAPPED, swap_s=2.0))[:-1] == [
        "caller requests failed mean wait interruptions",
        "chat 2 0 2.0 s 0",
        "editor 0 0 - 1",
        "notes 3 3 0.0 s 0",
        "",
        "1 swap took 2.0 s: 20 % of the GPU's working time",
    ]
    assert closing_table(QUEUED)[-2] == "0 swaps took 0.0 s: 0 % of the GPU's working time"


def test_the_last_line_is_what_the_same_requests_cost_in_order_of_arrival():
    asked = [replace(ended("chat", queue_s=1.0), at=float(at), model=model) for at, model in ((10, "a"), (11, "b"), (12, "a"), (13, "b"))]
    swaps = [replace(SWAPPED, from_models=(), to_model=name, swap_s=2.0) for name in ("a", "b")]
    assert closing_table(*asked, *swaps)[-1].startswith(
        "In order of arrival, the same 4 requests would have cost 4 swaps and 8.0 s of loading instead of 2 and 4.0 s, and a mean wait of "
    )


@contextmanager
def stub(status: int = 200) -> Iterator[StubGateway]:
    gateway = StubGateway()
    for visit in ROUND:
        gateway.put(visit.path, {"error": "the queue is full"}, status)
    with gateway.listening():
        yield gateway


async def test_every_caller_has_a_key_of_its_own_and_only_the_assistant_is_internal():
    complaints: list[str] = []
    with stub() as gateway:
        await ask_for_ever(gateway.url, pace=0.0, complain=complaints.append, rounds=2)
    used = Counter(request["authorization"].removeprefix("Bearer ") for request in gateway.seen)
    assert used == Counter(key_of(visit.caller) for visit in ROUND * 2)
    assert complaints == []
    keys = {key.name: key for key in demo_keys()}
    assert {name for name, key in keys.items() if key.lane is Lane.INTERNAL} == {"assistant"}
    assert {name for name, key in keys.items() if key.admin} == {VISITOR}
    assert all(hashlib.sha256(key_of(name).encode()).hexdigest() == key.sha256 for name, key in keys.items())
    assert {visit.body["model"] for visit in ROUND} <= {profile.name for profile in default_profiles()}


async def test_a_refusal_and_a_gateway_that_is_gone_are_complained_about_and_survived():
    complaints: list[str] = []
    with stub(status=503) as gateway:
        await ask_for_ever(gateway.url, pace=0.0, complain=complaints.append, rounds=1)
    assert all("was answered 503" in complaint and "the queue is full" in complaint for complaint in complaints)
    await ask_for_ever(gateway.url, pace=0.0, complain=complaints.append, rounds=1)
    assert len(complaints) == 2 * len(ROUND)
    assert all("lost its connection" in complaint for complaint in complaints[len(ROUND) :])


class Stage(io.StringIO):
    """Remembers what is printed, and lets a test wait until it matches a pattern."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self._seen = asyncio.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if re.search(self._awaited, self.getvalue(), re.DOTALL):
            self._seen.set()
        return written

    async def seen(self) -> None:
        await asyncio.wait_for(self._seen.wait(), WITHIN_S)


async def played(until: str, *, speed: float = 400.0) -> tuple[str, Tally]:
    stage = Stage(until)
    tally = await run_demo(console_for(stage, environ={"COLUMNS": "160"}), speed=speed, port=0, stopped=stage.seen)
    return stage.getvalue(), tally


async def test_a_round_shows_swaps_and_the_way_home_and_ends_with_what_arrival_order_would_have_cost():
    text, tally = await played("is replaced by.*loading the home model")  # where the first caller is late, it is also loaded at the start
    assert text.rindex("loading the home model") < text.index("mean wait")
    assert re.search(r"In order of arrival, the same \d+ requests would have cost \d+ swaps", text)
    assert "cancelled" not in text
    assert set(tally.completed) == set(CALLERS)
    assert tally.failed.total() == 0
    assert tally.swaps >= 4
    assert not any(load["offloaded"] for load in tally.loads)  # the dashboard would have an alert


async def test_an_internal_request_interrupts_a_stream_that_continues_later_where_it_stopped():
    text, tally = await played("continues where it stopped", speed=40.0)
    assert re.search(r"is interrupted after .*: assistant goes first", text)
    assert re.search(r"writer +is interrupted after .*writer +runs again.*writer +continues where it stopped", text, re.DOTALL)
    assert tally.interrupted["writer"] >= 1
    assert tally.failed.total() == 0


def test_a_taken_port_that_was_asked_for_ends_with_1_and_the_usual_one_is_replaced_by_a_free_one(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = hearth("demo", "--seconds", "1", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot listen on" in result.stderr
    with socket.socket() as usual:
        usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            usual.bind(("127.0.0.1", 8411))
            usual.listen()
        except OSError:
            """Somebody else has it: the same situation."""
        result = hearth("demo", "--seconds", "0.1", "--speed", "100")
    assert result.exit_code == 0, result.output
    assert ":8411" not in result.stdout
    assert "A home with one GPU" in result.stdout
    assert "of the GPU's working time" in result.stdout


def test_the_demos_configuration_has_active_hours_all_day_stays_on_loopback_warns_of_no_swap_and_keeps_the_pace():
    config = demo_config(1.0)
    assert all(config.is_active_hours(hour * 3600.0) for hour in range(24))
    assert exposure_problem(config.settings.server.host, has_keys=False) is None
    assert config.settings.gpu.alerts.swaps_per_hour_warning > 19 * 60  # as often as it swaps
    assert config.settings.rate_limits.of_caller("chat") == (120, 2000)
    assert demo_config(0.1).settings.rate_limits.of_caller("chat") == (1200, 20_000)
    assert demo_config(10.0).settings.gpu.restore_home_delay_s == 10 * config.settings.gpu.restore_home_delay_s
