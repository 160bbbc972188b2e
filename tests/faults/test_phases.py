"""The table of faults is true, and every fault that can hit at any time does so at rest, with a
full queue, and in mid-stream.

Whatever it is: everything that was accepted ends once, what completed has its whole text, nothing
is an internal fault, no task, timer, call or slot is left, and ten seconds after the last of it has
ended a new request is served. `House` judges the first four.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hearth.config.settings import GatewayConfig
from hearth.errors import HearthError, QueueFull
from hearth.execution.request import Ticket
from tests.faults.table import PARTS
from tests.support.cases import for_each
from tests.support.fake_gpu import FakeModel
from tests.support.fake_ollama import CallFault, LoadFault, UnloadFault
from tests.support.fields import Fields
from tests.support.house import ALWAYS_PREEMPT, FULL_TEXT, House, body_of, settings_with, text_of
from tests.support.virtual_time import hold_up, in_virtual_time, sleep_until

DEPTH = 4
RECOVERED_WITHIN_S = 10.0
SETTINGS: dict[str, Fields] = {
    "queue": {"max_external_depth": DEPTH},
    "ollama": {"first_byte_timeout_s": 3.0, "idle_timeout_s": 3.0},
    "backend": {"wait_when_down_s": 60.0},
    "gpu": {"swap_timeout_s": 8.0},
    "scheduling": ALWAYS_PREEMPT,
}
Fault = Callable[[House], object]


def later(delay_s: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, act)


def calls(*faults: CallFault | None) -> Fault:
    return lambda house: house.ollama.next_calls(*faults)


def killed(house: House) -> None:
    house.ollama.go_down()
    later(5.0, house.ollama.come_up)


def reloaded_badly_and_well(house: House) -> None:
    for depth in (DEPTH, 1, DEPTH):
        house.gateway.reload(
            GatewayConfig(
                settings=settings_with(**{**SETTINGS, "queue": {"max_external_depth": depth}})
            )
        )


def loads(fault: LoadFault, house: House) -> None:
    house.ollama.next_loads(fault)


def all_leave(house: House) -> None:
    house.worker.cancel_caller("test")


LOADS = [fault for fault in LoadFault if fault is not LoadFault.LATE]
"""Ollama itself ends a late load before the next one; the fake takes both for a broken rule."""
FAULTS: dict[str, Fault] = {
    **{f"call {fault.value}": calls(fault) for fault in CallFault},
    **{f"two calls {fault.value}": calls(fault, fault) for fault in CallFault},
    **{f"load {fault.value}": partial(loads, fault) for fault in LOADS},
    "unload stuck": lambda house: house.ollama.next_unloads(UnloadFault.STUCK),
    "model server killed and back": killed,
    "loop stands still": lambda house: hold_up(30.0),
    "reload": reloaded_badly_and_well,
    "all callers leave": all_leave,
    "the house needs the card": lambda house: [
        house.internal("b", caller="house") for _ in range(2)
    ],
    "the owner makes room": lambda house: house.worker.preempt_external(),
}


def at_rest(house: House) -> list[Ticket]:
    return []


def queue_full(house: House) -> list[Ticket]:
    tickets = [
        house.submit("ab"[number % 2], stream=bool(number % 3), service_s=2.0, chunks=8)
        for number in range(DEPTH + 1)
    ]
    with pytest.raises(QueueFull):
        house.submit("a")
    return tickets


def mid_stream(house: House) -> list[Ticket]:
    return [
        house.submit("a", stream=True, service_s=10.0, chunks=40),
        house.submit("b", stream=True, service_s=2.0, chunks=8),
    ]


MOST_TOLD = {"call": 1, "two": 2, "load": 2, "model": 1, "all": DEPTH + 1}
"""By the first word of a fault: how many may get an error for it.

Everybody else gets the whole text.
"""
UNNOTICED = {
    *(
        f"{calls} {fault.value}"
        for calls in ("call", "two calls")
        for fault in (CallFault.REFUSE, CallFault.SILENT, CallFault.SLOW)
    ),
    *(
        "call gone_before_head",
        "load fail",
        "load lie",
        "unload stuck",
        "loop stands still",
        "reload",
    ),
    *("the house needs the card", "the owner makes room"),
}
PHASES = {"at rest": at_rest, "queue full": queue_full, "mid-stream": mid_stream}


def test_the_table_is_complete_and_everything_that_it_names_exists():
    rows = [row for rows in PARTS.values() for row in rows]
    tests = Path(__file__).parents[1]
    assert [row.key for row in rows] == [f"F-{number:02}" for number in range(1, 120)]
    assert [row.key for row in rows if not (row.fault and row.expected)] == []
    assert [
        folder
        for row in rows
        for folder in row.folders
        if not any((tests / folder).glob("test_*.py"))
    ] == []
    assert {fault for row in rows for fault in row.phases} == set(FAULTS)


@pytest.mark.parametrize("phase", PHASES)
@for_each("fault", FAULTS)
@in_virtual_time
async def test_nothing_is_lost_doubled_or_left_over_and_the_house_recovers(fault: str, phase: str):
    models = [FakeModel(name=name, load_s=1.0, unload_s=0.5) for name in "ab"]
    async with House(*models, resident="a", settings=settings_with(**SETTINGS)) as house:
        tickets = PHASES[phase](house)
        await sleep_until(1.3)
        FAULTS[fault](house)
        answers = [ended(ticket) for ticket in tickets]
        if phase != "queue full":
            answers += [
                ended(house.submit(model, caller="next", stream=True, chunks=8)) for model in "ba"
            ]
        texts = await asyncio.gather(*answers)
        assert all(text is None or text.endswith((" w7", " w39")) for text in texts)
        assert texts.count(None) <= (
            0 if fault in UNNOTICED else MOST_TOLD[fault.partition(" ")[0]]
        )
        # what comes late has come
        await asyncio.sleep(house.gateway.config.settings.gpu.swap_timeout_s)
        require_over(house)
        calm_at = house.now
        assert await house.answer("a", caller="after") == FULL_TEXT
        assert house.now - calm_at <= RECOVERED_WITHIN_S


async def ended(ticket: Ticket) -> str | None:
    """The whole text, or None for an error that tells its caller what happened."""
    (body,) = await asyncio.gather(body_of(ticket), return_exceptions=True)
    if isinstance(body, bytes):
        return None if b'"error"' in body else text_of(body)
    assert isinstance(body, HearthError)
    assert body.status != 500
    return None


def require_over(house: House) -> None:
    """What was scripted has happened; the second of two may have found nobody to hit."""
    ollama = house.ollama
    left = (*ollama._load_faults, *ollama._unload_faults, *list(ollama._call_faults)[1:])
    assert not left
    ollama._call_faults.clear()
