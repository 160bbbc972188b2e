"""How long an answer to a recording may take, and what is learned of it."""

from __future__ import annotations

import pytest

from hearth.errors import BackendTimeout
from hearth.events import ItemDispatched
from hearth.execution.request import Submission
from hearth.types import WorkKind
from tests.support.house import House, body_of, heard, in_house, new_item, settings_with
from tests.support.virtual_time import sleep_until

SHORT = settings_with(ollama={"answer_timeout_s": 5.0})


def recording(audio_s: float, service_s: float) -> Submission:
    new = new_item("a", service_s=service_s)
    new.item.kind = "transcribe"
    new.item.audio_s = audio_s
    return new


@pytest.mark.parametrize(
    ("audio_s", "service_s", "is_late"),
    [(10.0, 29.0, False), (10.0, 31.0, True), (60.0, 119.0, False), (60.0, 121.0, True)],
)
@in_house(settings=SHORT)
async def test_it_may_take_twice_its_length_and_thirty_seconds_at_least(
    house: House, audio_s: float, service_s: float, is_late: bool
):
    ticket = house.worker.submit(recording(audio_s, service_s))
    error = (await heard(ticket))[1]
    assert isinstance(error, BackendTimeout) == is_late
    await sleep_until(house.now + 600.0)


def streamed(kind: WorkKind, audio_s: float, first_byte_s: float, service_s: float) -> Submission:
    new = new_item("a", stream=True, first_byte_s=first_byte_s, service_s=service_s)
    new.item.kind = kind
    new.item.audio_s = audio_s
    return new


@pytest.mark.parametrize(
    ("kind", "audio_s", "first_byte_s", "service_s", "is_late"),
    [
        ("image", 0.0, 299.0, 299.5, False),
        ("image", 0.0, 301.0, 301.5, True),
        ("image", 0.0, 1.0, 600.0, False),
        ("transcribe", 100.0, 199.0, 199.5, False),
        ("transcribe", 100.0, 201.0, 201.5, True),
        ("transcribe", 400.0, 1.0, 1000.0, False),
        ("generate", 0.0, 61.0, 61.5, True),
        ("generate", 0.0, 1.0, 600.0, True),
    ],
)
@in_house()
async def test_a_stream_of_such_work_may_be_as_long_silent_as_its_answer_may_take(
    house: House,
    kind: WorkKind,
    audio_s: float,
    first_byte_s: float,
    service_s: float,
    is_late: bool,
):
    ticket = house.worker.submit(streamed(kind, audio_s, first_byte_s, service_s))
    error = (await heard(ticket))[1]
    assert isinstance(error, BackendTimeout) == is_late
    await sleep_until(house.now + 2000.0)


@in_house()
async def test_the_wait_behind_recordings_follows_from_their_length(house: House):
    for _ in range(3):
        await body_of(house.worker.submit(recording(100.0, 10.0)))
    running = house.worker.submit(recording(300.0, 30.0))
    waiting = house.worker.submit(recording(10.0, 1.0))
    assert waiting.estimated_wait_s == pytest.approx(30.0, abs=1.0)
    await body_of(running)
    await body_of(waiting)
    assert len(house.events.of(ItemDispatched)) == 5
