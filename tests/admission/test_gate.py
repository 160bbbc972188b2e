"""A request's place in line, its models and its rate."""

from __future__ import annotations

import pytest

from hearth.admission.auth import Admission, BodyRoom, Identity, admission_of, admit, check_model
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import RateLimiter
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import CallerLimits, RateLimitSettings, Settings
from hearth.errors import BadRequest, Forbidden, NoRoomForBodies, RateLimited
from hearth.types import Lane, Priority
from tests.support.cases import for_each

CONFIG = GatewayConfig(settings=Settings(priority_map={"reply": Priority.CRITICAL, "digest": Priority.BACKGROUND}))


def identity(**changes) -> Identity:
    base = {"caller": "c", "lane": Lane.EXTERNAL, "max_priority": Priority.CRITICAL, "models": (), "admin": False, "authenticated": True}
    return Identity(**{**base, **changes})


def headers(**fields: str) -> RequestHeaders:
    return RequestHeaders.of(tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()))


INTERNAL = identity(lane=Lane.INTERNAL)
LOCAL = identity(authenticated=False)


def test_an_internal_key_gets_the_band_of_its_task_type():
    assert admission_of(INTERNAL, headers(x_task_type="reply"), CONFIG).priority is Priority.CRITICAL
    assert admission_of(INTERNAL, headers(x_task_type="digest"), CONFIG).priority is Priority.BACKGROUND
    assert admission_of(INTERNAL, headers(x_task_type="unlisted"), CONFIG).priority is Priority.NORMAL
    assert admission_of(INTERNAL, headers(), CONFIG) == Admission(lane=Lane.INTERNAL, priority=Priority.NORMAL, task_type=None)


def test_no_task_type_rises_above_the_ceiling_of_the_key():
    low = identity(lane=Lane.INTERNAL, max_priority=Priority.BACKGROUND)
    assert admission_of(low, headers(x_task_type="reply"), CONFIG).priority is Priority.BACKGROUND
    assert admission_of(low, headers(), CONFIG).priority is Priority.BACKGROUND


def test_an_external_key_stays_external_and_its_task_type_is_only_recorded():
    expected = Admission(lane=Lane.EXTERNAL, priority=Priority.NORMAL, task_type="reply")
    assert admission_of(identity(), headers(x_task_type="reply"), CONFIG) == expected


def test_the_local_caller_claims_the_internal_lane_by_naming_a_task_type():
    assert admission_of(LOCAL, headers(), CONFIG).lane is Lane.EXTERNAL
    claimed = admission_of(LOCAL, headers(x_task_type="reply"), CONFIG)
    assert claimed == Admission(lane=Lane.INTERNAL, priority=Priority.CRITICAL, task_type="reply")


@for_each(
    ("hint", "expected"),
    [
        ("background", Priority.BACKGROUND),
        ("Normal", Priority.NORMAL),
        ("critical", Priority.NORMAL),
        ("9", Priority.NORMAL),
        ("", Priority.NORMAL),
    ],
)
def test_a_priority_hint_only_lowers(hint, expected):
    assert admission_of(INTERNAL, headers(x_priority=hint), CONFIG).priority is expected


def test_a_priority_hint_never_leaves_the_external_lane():
    assert admission_of(identity(), headers(x_priority="critical"), CONFIG).lane is Lane.EXTERNAL


def test_the_task_type_of_a_body_goes_before_the_header():
    assert admission_of(INTERNAL, headers(x_task_type="reply"), CONFIG, task_type="digest").task_type == "digest"


@for_each("task_type", ["x" * 65, "two words", "new\nline", "\x1b[31m", "ünlaut"])
def test_a_task_type_that_could_disturb_a_log_is_refused(task_type):
    with pytest.raises(BadRequest):
        admission_of(INTERNAL, headers(), CONFIG, task_type=task_type)


def test_a_task_type_has_64_characters_at_most():
    longest = "aZ0_.:-" + "x" * 57
    assert admission_of(INTERNAL, headers(), CONFIG, task_type=longest).task_type == longest


def test_a_key_without_models_may_use_all_of_them():
    check_model(identity(), "anything")
    check_model(identity(), None)


def test_a_key_with_models_may_use_those_and_what_their_wildcards_match():
    limited = identity(models=("llama3.1:8b", "qwen*"))
    check_model(limited, "llama3.1:8b")
    check_model(limited, "qwen2.5:32b")
    with pytest.raises(Forbidden, match=r"llama3\.1:70b"):
        check_model(limited, "llama3.1:70b")
    with pytest.raises(Forbidden):
        check_model(limited, "QWEN2.5:32b")
    with pytest.raises(Forbidden, match="name one"):
        check_model(limited, None)


def limiter(per_minute: int = 2) -> RateLimiter:
    return RateLimiter(RateLimitSettings(default=CallerLimits(requests_per_minute=per_minute, requests_per_hour=100)))


def admission(lane: Lane) -> Admission:
    return Admission(lane=lane, priority=Priority.NORMAL, task_type=None)


def test_an_external_caller_over_its_limit_hears_when_to_come_back():
    limits = limiter()
    for _ in range(2):
        admit(identity(), "m", admission(Lane.EXTERNAL), limits, 100.0)
    with pytest.raises(RateLimited) as refused:
        admit(identity(), "m", admission(Lane.EXTERNAL), limits, 110.0)
    assert refused.value.retry_after_s == pytest.approx(50.0)
    assert "may make 2 requests in any minute (rate_limits.default.requests_per_minute)" in refused.value.message
    admit(identity(), "m", admission(Lane.EXTERNAL), limits, 160.0)


def test_without_keys_nobody_is_limited_until_the_owner_says_so_and_with_keys_no_person_meets_the_limit():
    shipped = RateLimiter(RateLimitSettings())
    for _ in range(5000):
        admit(LOCAL, "m", admission(Lane.EXTERNAL), shipped, 100.0)
    for _ in range(120):
        admit(identity(), "m", admission(Lane.EXTERNAL), shipped, 100.0)
    for who, limits in ((identity(), shipped), (LOCAL, RateLimiter(RateLimitSettings(default=CallerLimits(requests_per_minute=0))))):
        with pytest.raises(RateLimited):
            admit(who, "m", admission(Lane.EXTERNAL), limits, 100.0)


def test_internal_work_is_not_rate_limited():
    limits = limiter()
    for _ in range(10):
        admit(INTERNAL, "m", admission(Lane.INTERNAL), limits, 100.0)


def test_a_request_for_a_forbidden_model_costs_nothing_of_the_limit():
    limits = limiter(per_minute=1)
    with pytest.raises(Forbidden):
        admit(identity(models=("a",)), "b", admission(Lane.EXTERNAL), limits, 100.0)
    admit(identity(models=("a",)), "a", admission(Lane.EXTERNAL), limits, 100.0)


def test_one_caller_may_hold_as_much_as_it_leaves_free_and_the_house_has_the_last_quarter():
    room = BodyRoom()
    room.take(Lane.EXTERNAL, "greedy", 96, 256)
    with pytest.raises(NoRoomForBodies):
        room.take(Lane.EXTERNAL, "greedy", 1, 256)
    room.take(Lane.EXTERNAL, "second", 48, 256)
    with pytest.raises(NoRoomForBodies):
        room.take(Lane.EXTERNAL, "second", 1, 256)
    room.take(Lane.INTERNAL, "house", 112, 256)
    with pytest.raises(NoRoomForBodies):
        room.take(Lane.INTERNAL, "house", 1, 256)
    room.give_back(Lane.EXTERNAL, "greedy", 96)
    room.give_back(Lane.INTERNAL, "house", 112)
    room.take(Lane.EXTERNAL, "greedy", 72, 256)
    assert room.held_bytes == 48 + 72
