"""The demo: its callers, what it prints of their requests, and the whole of it in this process,
faster than for people.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hearth import events
from hearth.admission.auth import digest_of
from hearth.cli.demo import ask_for_ever, run_demo
from hearth.cli.demo_homes import CALLERS, EMULATED, HOME_MODEL, ROUND, VISITOR, key_of
from hearth.cli.demo_narrator import Narrator
from hearth.cli.views import console_for
from hearth.config.loading import exposure_problem
from hearth.emulator.models import default_profiles
from hearth.events import Event, ItemEnded
from hearth.types import Lane, Outcome
from tests.cli.stub_gateway import StubGateway
from tests.observability import samples
from tests.support.fields import Fields
from tests.support.patience import within_limit

CODER = "qwen2.5-coder:14b"


KNOWN: Fields = {
    "at": 0.0,
    "caller": "editor",
    "model": CODER,
    "from_models": (HOME_MODEL,),
    "to_model": CODER,
    "why": "waiting",
    "swap_s": 1.5,
}


def event(name: str, **fields: Any) -> Any:
    kind: type[Event] = getattr(events, name)
    return samples.sample(
        kind,
        **{field: value for field, value in KNOWN.items() if field in kind.__dataclass_fields__}
        | fields,
    )


def ended(
    who: str = "editor",
    outcome: Outcome = Outcome.COMPLETED,
    *,
    queue_s: float = 0.0,
    backend_s: float = 1.0,
) -> ItemEnded:
    return samples.ended(
        outcome, caller=who, queue_s=queue_s, backend_s=backend_s, total_s=queue_s + backend_s
    )


QUEUED = event("ItemQueued", position=0)
ASSISTANT = event("ItemQueued", caller="assistant", lane=Lane.INTERNAL)
SWAPPED = event("SwapCompleted", offloaded=False)
INTERRUPTED = event("ItemInterrupted", ran_s=0.8)
RESUMED = event("ItemResumed", how="continued", again_tokens=120, catch_up_s=0.4)


def printed(*happened: Event, speed: float = 10.0, summed_up: bool = False) -> list[str]:
    out = io.StringIO()
    narrator = Narrator(console_for(out, environ={"COLUMNS": "200"}), speed=speed)
    for each in happened:
        narrator.emit(each)
    if summed_up:
        out.truncate(out.seek(0))
        narrator.sum_up(EMULATED.config(1.0))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("happened", "last"),
    [
        (
            [event("ModeChanged", at=100.0), replace(QUEUED, at=103.25, position=2)],
            f"3.2 s editor asks {CODER}, 2 ahead",
        ),
        (
            [ASSISTANT, replace(QUEUED, caller="chat"), INTERRUPTED],
            "editor is interrupted after 0.8 s: assistant goes first",
        ),
        ([event("ItemDispatched", attempt=2, waited_s=0.0)], "0.0 s editor runs again (try 2)"),
        ([event("ItemDispatched", attempt=1, waited_s=0.01)], ""),
        (
            [event("ItemDispatched", attempt=1, waited_s=2.0)],
            "0.0 s editor runs, after it waited 2.0 s",
        ),
        ([RESUMED], "0.0 s editor continues where it stopped: 120 tokens read again in 0.4 s"),
        ([replace(RESUMED, how="replayed")], "120 tokens repeated and compared in 0.4 s"),
        ([event("SwapStarted")], f"0.0 s swap: {HOME_MODEL} is replaced by {CODER}"),
        ([SWAPPED], f"0.0 s {CODER} is loaded after 1.5 s (15 s on a real GPU)"),
        ([event("SwapStarted", from_models=())], f"0.0 s load: {CODER}"),
        ([event("SwapStarted", why="home")], f"nothing waits: loading the home model {CODER}"),
        ([event("SwapFailed", detail="no room")], f"{CODER} could not be loaded: no room"),
        (
            [event("SwapFailed", to_model="", detail="no answer")],
            f"{HOME_MODEL} could not be unloaded: no answer",
        ),
        (
            [event("ItemProtected", interrupt_count=3)],
            "was interrupted 3 times, and will not be again",
        ),
        ([ended(queue_s=2.0)], "has its answer after 3.0 s, of which it waited 2.0 s"),
        ([replace(ended(outcome=Outcome.FAILED), reason="swap_failed")], "failed: swap_failed"),
        ([replace(QUEUED, model="\x1b[2J", caller="\x07")], "\ufffd asks \ufffd[2J"),
    ],
)
def test_an_event_is_printed_in_plain_words(happened: list[Event], last: str):
    assert "".join(printed(*happened)[-1:]).endswith(last) if last else printed(*happened) == []


def test_the_closing_table_counts_failures_waits_swaps_and_arrival_order():
    failed = [
        ended("notes", outcome, backend_s=0.0)
        for outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)
    ]
    waited = [ended("chat", queue_s=1.0, backend_s=5.0), ended("chat", queue_s=3.0, backend_s=0.0)]
    assert printed(
        *waited,
        *failed,
        replace(INTERRUPTED, ran_s=3.0),
        replace(SWAPPED, swap_s=2.0),
        summed_up=True,
    )[1:-1] == [
        "caller requests failed mean wait interruptions",
        "chat 2 0 2.0 s 0",
        "editor 0 0 - 1",
        "notes 3 3 0.0 s 0",
        "",
        "1 swap took 2.0 s: 20 % of the GPU's working time",
    ]
    assert "0 swaps took 0.0 s: 0 % of the GPU's working time" in printed(QUEUED, summed_up=True)
    asked = [
        replace(ended("chat", queue_s=1.0), at=float(at), model=model)
        for at, model in ((10, "a"), (11, "b"), (12, "a"), (13, "b"))
    ]
    swaps = [replace(SWAPPED, from_models=(), to_model=name, swap_s=2.0) for name in ("a", "b")]
    assert printed(*asked, *swaps, speed=1.0)[-1].endswith("b is loaded after 2.0 s")
    assert printed(*asked, *swaps, summed_up=True)[-1].startswith(
        "In order of arrival, the same 4 requests would have cost 4 swaps and 8.0 s "
        "of loading instead of 2 and 4.0 s, and a mean wait of "
    )


async def test_every_caller_asks_with_its_key_and_a_refusal_is_a_line():
    out = io.StringIO()
    gateway = StubGateway()
    complain = Narrator(console_for(out, environ={"COLUMNS": "200"}), speed=1.0).complain
    for status in (200, 503):
        for _, _, path, _ in ROUND:
            gateway.put(path, {"error": "the queue is full"}, status)
        with gateway.listening():
            await ask_for_ever(gateway.url, pace=0.0, complain=complain, rounds=1)
    used = Counter(request["authorization"].removeprefix("Bearer ") for request in gateway.seen)
    assert used == Counter(key_of(caller) for _, caller, _, _ in ROUND * 2)
    assert {body["model"] for *_, body in ROUND} <= {profile.name for profile in default_profiles()}
    await ask_for_ever(gateway.url, pace=0.0, complain=complain, rounds=1)
    complaints = out.getvalue().splitlines()
    assert ["the queue is full" in each for each in complaints] == [True] * len(ROUND) + [
        False
    ] * len(ROUND)
    assert ["lost its connection" in each for each in complaints] == [False] * len(ROUND) + [
        True
    ] * len(ROUND)


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
        await within_limit(self._seen.wait())


async def test_a_round_shows_an_interruption_swaps_and_the_cost_of_arrival_order():
    stage = Stage("continues where it stopped.*is replaced by.*loading the home model")
    found = await run_demo(
        console_for(stage, environ={"COLUMNS": "160"}), speed=40.0, port=0, stopped=stage.seen
    )
    text = stage.getvalue()
    assert re.search(r"is interrupted after .*: assistant goes first", text)
    # on a busy machine it may be another than the writer
    assert re.search(
        r"(\w+) +is interrupted after .*\1 +runs again.*\1 +continues where it stopped",
        text,
        re.DOTALL,
    )
    assert text.rindex("loading the home model") < text.index("mean wait")
    assert re.search(r"In order of arrival, the same \d+ requests would have cost \d+ swaps", text)
    assert {(each.caller, each.outcome) for each in found.requests} == {
        (caller, Outcome.COMPLETED) for caller in CALLERS
    }
    assert len(found.swaps) >= 4
    assert not any(each.offloaded for each in found.swaps)  # the dashboard would have an alert


def test_a_taken_port_ends_with_1_and_the_usual_one_is_replaced(hearth):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = hearth("demo", "--seconds", "1", "--port", str(taken.getsockname()[1]))
    assert (result.exit_code, "cannot listen on" in result.stderr) == (1, True)
    with socket.socket() as usual:
        usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            usual.bind(("127.0.0.1", 8411))
            usual.listen()
        except OSError:
            """Somebody else has it: the same situation."""
        result = hearth("demo", "--seconds", "0.1", "--speed", "100")
    assert (result.exit_code, ":8411" in result.stdout, "cancelled" in result.stdout) == (
        0,
        False,
        False,
    )
    assert "A home with one GPU" in result.stdout
    assert "of the GPU's working time" in result.stdout


def test_the_configuration_is_active_all_day_and_stays_on_loopback():
    config = EMULATED.config(1.0)
    assert all(config.is_active_hours(hour * 3600.0) for hour in range(24))
    assert exposure_problem(config.settings.server.host, has_keys=False) is None
    assert config.settings.gpu.alerts.swaps_per_hour_warning is None  # it swaps all the time
    assert config.settings.rate_limits.of_caller("chat") == (120, 2000)
    assert EMULATED.config(0.1).settings.rate_limits.of_caller("chat") == (1200, 20_000)
    assert (
        EMULATED.config(10.0).settings.gpu.restore_home_delay_s
        == 10 * config.settings.gpu.restore_home_delay_s
    )
    keys = {key.name: (key.lane, key.admin, key.sha256) for key in config.settings.auth.keys}
    assert keys == {
        name: (
            Lane.INTERNAL if name == "assistant" else Lane.EXTERNAL,
            name == VISITOR,
            digest_of(key_of(name)),
        )
        for name in (*CALLERS, VISITOR)
    }
