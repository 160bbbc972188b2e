"""A request's place in line, its models, its rate, and what is asked before its body is read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth.admission.admit import Adds, Admission, AdmissionRules, Admitted, check_model
from hearth.admission.auth import Identity
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import BodyRoom, RateLimiter
from hearth.config.settings import CallerLimits, GatewayConfig, RateLimitSettings, Settings
from hearth.engines.ollama.traits import OllamaTraits
from hearth.errors import (
    BadRequest,
    CallerGone,
    Draining,
    Forbidden,
    NoRoomForBodies,
    QueueFull,
    RateLimited,
)
from hearth.queue.admission import QueueAdmission
from hearth.types import Lane, Priority
from tests.support.stopped_clock import StoppedClock
from tests.support.virtual_time import LoopClock, in_virtual_time, loop_s

ALIASES = {"coder": ("big:1b", "small:1b")}
CONFIG = GatewayConfig(
    settings=Settings(priority_map={"reply": Priority.CRITICAL, "digest": Priority.BACKGROUND})
)
LONGEST = "aZ0_.:-" + "x" * 57


def identity(**changes: Any) -> Identity:
    base = {
        "caller": "c",
        "lane": Lane.EXTERNAL,
        "max_priority": Priority.CRITICAL,
        "models": (),
        "admin": False,
        "authenticated": True,
    }
    return Identity(**{**base, **changes})


EXTERNAL = identity()
INTERNAL = identity(lane=Lane.INTERNAL)
LOCAL = identity(authenticated=False)
LOW = identity(lane=Lane.INTERNAL, max_priority=Priority.BACKGROUND)
ASSISTANT = identity(lane=Lane.INTERNAL, priority=Priority.CRITICAL)


NO_HEADERS = RequestHeaders.of([])


class Queue(QueueAdmission):
    """A queue that takes what the test lets it take, and remembers who was asked for."""

    def __init__(self) -> None:
        self.is_full = False
        self.asked: list[tuple[Lane, str]] = []

    def check_depth(
        self, lane: Lane, caller: str, _user: str = "", _model: str | None = None
    ) -> None:
        self.asked.append((lane, caller))
        if self.is_full:
            raise QueueFull("full")


class Hall:
    """What requests are admitted by."""

    def __init__(self, clock: Any = None, **limits: Any) -> None:
        self.clock = clock or StoppedClock(monotonic_s=100.0)
        self.queue = Queue()
        self.claude_serves = False
        self.limiter = RateLimiter(RateLimitSettings(default=CallerLimits(**limits)))
        self.rules = AdmissionRules(
            limiter=self.limiter,
            queue=self.queue,
            clock=self.clock,
            config=lambda: CONFIG,
            claude_serves=lambda _: self.claude_serves,
            canonical=OllamaTraits.canonical,
            models_of=lambda model: ALIASES.get(model, ()),
        )

    def admission(
        self, who: Identity, adds: Adds = "call", headers: RequestHeaders = NO_HEADERS
    ) -> Admission:
        return Admission(self.rules, who, headers, adds)


@pytest.mark.parametrize(
    ("who", "task_type", "hint", "lane", "priority"),
    [
        (INTERNAL, "reply", "", Lane.INTERNAL, Priority.CRITICAL),
        (ASSISTANT, "", "", Lane.INTERNAL, Priority.CRITICAL),
        (ASSISTANT, "", "background", Lane.INTERNAL, Priority.BACKGROUND),
        (ASSISTANT, "digest", "", Lane.INTERNAL, Priority.BACKGROUND),
        (INTERNAL, "digest", "", Lane.INTERNAL, Priority.BACKGROUND),
        (INTERNAL, LONGEST, "", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "", Lane.INTERNAL, Priority.NORMAL),
        (LOW, "reply", "", Lane.INTERNAL, Priority.BACKGROUND),  # the ceiling of the key
        (LOW, "", "", Lane.INTERNAL, Priority.BACKGROUND),
        # its task type is only recorded
        (EXTERNAL, "reply", "critical", Lane.EXTERNAL, Priority.NORMAL),
        (LOCAL, "", "", Lane.EXTERNAL, Priority.NORMAL),
        (LOCAL, "reply", "", Lane.INTERNAL, Priority.CRITICAL),
        (INTERNAL, "", "background", Lane.INTERNAL, Priority.BACKGROUND),  # a hint only lowers
        (INTERNAL, "reply", "Normal", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "critical", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "9", Lane.INTERNAL, Priority.NORMAL),
    ],
)
def test_the_key_decides_the_lane_and_the_task_type_the_priority(
    who, task_type, hint, lane, priority
):
    hall = Hall()
    expected = Admitted(lane=lane, priority=priority, task_type=task_type or None)
    headers = RequestHeaders.of(
        [(b"x-task-type", task_type.encode()), (b"x-priority", hint.encode())]
    )
    assert hall.admission(who, headers=headers).admit(None) == expected
    other = RequestHeaders.of(
        [(b"x-task-type", b"other" if task_type else b""), (b"x-priority", hint.encode())]
    )
    # that of a body goes before the header
    assert hall.admission(who, headers=other).admit(None, task_type=task_type) == expected


@pytest.mark.parametrize(
    "task_type", ["x" * 65, "two words", "new\nline", "\x1b[31m", "ünlaut", "reply\n"]
)
def test_a_task_type_that_could_disturb_a_log_is_refused(task_type):
    with pytest.raises(BadRequest):
        Hall().admission(INTERNAL).admit(None, task_type=task_type)


def test_a_key_with_models_may_use_those_and_what_their_wildcards_match():
    few = ("llama3.1:8b", "qwen*")
    for models, model in (((), "anything"), ((), None), (few, "llama3.1:8b"), (few, "qwen2.5:32b")):
        check_model(identity(models=models), model, OllamaTraits.canonical)
    for model, text in (
        ("llama3.1:70b", r"llama3\.1:70b"),
        ("QWEN2.5:32b", "QWEN"),
        (None, "name one"),
    ):
        with pytest.raises(Forbidden, match=text):
            check_model(identity(models=few), model, OllamaTraits.canonical)


@pytest.mark.parametrize(
    ("who", "task_type", "per_minute", "admitted"),
    [
        (EXTERNAL, None, 2, 2),
        (EXTERNAL, None, None, 120),
        # without keys nobody is limited until the owner says so
        (LOCAL, None, None, 5000),
        (LOCAL, None, 0, 0),
        (LOCAL, "reply", 0, 5000),
        (INTERNAL, None, 2, 5000),
    ],
)
def test_an_external_caller_has_a_rate_and_a_forbidden_model_costs_nothing(
    who, task_type, per_minute, admitted
):
    hall = Hall(requests_per_minute=per_minute)
    with pytest.raises(Forbidden):
        hall.admission(identity(models=("a",))).admit("b")
    admission = hall.admission(who, "prompt")
    for _ in range(admitted):
        admission.admit("m", task_type=task_type)
    if admitted < 5000:
        hall.clock.advance(10.0)
        with pytest.raises(RateLimited) as refused:
            admission.admit("m", task_type=task_type)
        assert refused.value.retry_after_s == (pytest.approx(50.0) if admitted else 3600.0)
        assert (
            f"may make {admitted} requests in any minute, and has reached that limit; try again in"
            f" {'50 s' if admitted else '60 min'}"
        ) in refused.value.message
        assert refused.value.remedy == "rate_limits.default.requests_per_minute"


def test_what_is_asked_before_the_body_counts_nothing():
    hall = Hall(requests_per_minute=1)
    admission = hall.admission(EXTERNAL)
    for _ in range(3):
        admission.check_ahead()
    admission.admit("m")
    with pytest.raises(RateLimited):
        admission.check_ahead()


@pytest.mark.parametrize("wants_to_wait", [True, False])
@in_virtual_time
async def test_requests_over_a_limit_wait_one_after_the_other_where_the_owner_wants_it(
    wants_to_wait,
):
    hall = Hall(
        requests_per_minute=2, when_exceeded="wait" if wants_to_wait else None, clock=LoopClock()
    )
    came = list[tuple[int, float]]()

    async def ask(number: int) -> None:
        admission = hall.admission(EXTERNAL)
        try:
            await admission.wait_for_turn(asyncio.get_running_loop().create_future())
            admission.check_ahead()
            await asyncio.sleep(1)  # its body comes
            admission.admit("m")
            came.append((number, loop_s()))
        except RateLimited:
            came.append((-number, loop_s()))
        finally:
            admission.end_turn()

    await asyncio.gather(*map(ask, range(1, 6)))
    if wants_to_wait:
        assert came == [(1, 1.0), (2, 2.0), (3, 62.0), (4, 63.0), (5, 123.0)]
    else:
        assert sum(number > 0 for number, _ in came) == 2


@in_virtual_time
async def test_who_waits_for_a_limit_may_disconnect_and_is_refused_where_it_takes_too_long():
    hall = Hall(
        requests_per_minute=100, requests_per_hour=1, when_exceeded="wait", clock=LoopClock()
    )
    gone = asyncio.get_running_loop().create_future()
    hall.admission(EXTERNAL).admit("m")
    late = hall.admission(EXTERNAL)
    await late.wait_for_turn(gone)
    with pytest.raises(RateLimited, match="try again in 60 min"):
        late.check_ahead()
    behind = hall.admission(EXTERNAL)
    gone.set_result(None)
    with pytest.raises(CallerGone):
        await behind.wait_for_turn(gone)
    behind.end_turn()
    late.end_turn()
    await hall.admission(INTERNAL).wait_for_turn(gone)
    assert loop_s() == 0.0


def test_an_embedding_is_counted_apart_and_once_it_is_known_to_be_a_call():
    hall = Hall(requests_per_minute=0, embeddings_per_minute=1)
    admission = hall.admission(EXTERNAL, "embedding")
    for _ in range(3):
        admission.check_ahead()
        admission.admit("m")
    admission.count()
    for refused in (admission.check_ahead, lambda: admission.admit("m"), admission.count):
        with pytest.raises(RateLimited):
            refused()


@pytest.mark.parametrize(
    ("adds", "who", "asked"),
    [
        ("call", EXTERNAL, True),
        ("call", LOCAL, True),
        ("prompt", EXTERNAL, True),
        ("prompt", LOCAL, False),  # its body may say that it is internal
        ("embedding", EXTERNAL, False),  # it may need no room of its own
        ("job", EXTERNAL, False),
        ("other", EXTERNAL, False),
    ],
)
def test_a_full_queue_refuses_what_it_is_to_take_before_the_body(
    adds: Adds, who: Identity, asked: bool
):
    hall = Hall()
    hall.queue.is_full = True
    admission = hall.admission(who, adds)
    if asked:
        with pytest.raises(QueueFull):
            admission.check_ahead()
    else:
        admission.check_ahead()
    assert hall.queue.asked == [(admission.lane, "c")] * asked
    hall.claude_serves = True
    admission.check_ahead()


@pytest.mark.parametrize(
    ("adds", "refused"), [("call", True), ("embedding", True), ("job", False), ("other", False)]
)
def test_a_drain_refuses_calls_and_no_durable_work(adds: Adds, refused: bool):
    hall = Hall()
    hall.queue.draining = True
    if refused:
        with pytest.raises(Draining):
            hall.admission(EXTERNAL, adds).admit("m")
    else:
        hall.admission(EXTERNAL, adds).admit("m")


@pytest.mark.parametrize("adds", ["call", "job"])
def test_bodies_that_take_long_to_read_are_limited_by_that(adds: Adds):
    hall = Hall()
    admission = hall.admission(EXTERNAL, adds)
    admission.count_reading(1000.0)
    with pytest.raises(RateLimited, match="of CPU in any minute"):
        admission.check_ahead()
    hall.admission(INTERNAL, adds).check_ahead()


def test_a_body_that_was_read_in_vain_counts_as_a_request():
    hall = Hall(requests_per_minute=1)
    for _ in range(2):
        hall.admission(EXTERNAL, "embedding").count_refused()
    hall.admission(INTERNAL).count_refused()
    assert hall.limiter.get_all_usage(100.0).keys() == {"c"}
    with pytest.raises(RateLimited):
        hall.admission(EXTERNAL).check_ahead()


def test_a_caller_may_hold_half_of_the_free_room_the_house_has_the_last_quarter():
    room = BodyRoom()

    def fill(lane: Lane, caller: str, most: int) -> None:
        room.take(lane, caller, most, 256)
        with pytest.raises(NoRoomForBodies):
            room.take(lane, caller, 1, 256)

    fill(Lane.EXTERNAL, "greedy", 96)
    fill(Lane.EXTERNAL, "second", 48)
    fill(Lane.INTERNAL, "house", 112)
    room.take(Lane.EXTERNAL, "greedy", -96, 1)  # a smaller limit refuses nothing that is given back
    room.take(Lane.INTERNAL, "house", -112, 256)
    fill(Lane.EXTERNAL, "greedy", 72)
