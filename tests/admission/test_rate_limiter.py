"""The rate limiter against its promises, and against a list that keeps every admission for ever."""

from __future__ import annotations

import random
import tracemalloc
from types import MappingProxyType

import pytest

from hearth.admission.limits import MINUTE_S, CallerUsage, RateLimiter
from hearth.config.settings import CallerLimits, RateLimitSettings
from hearth.types import HOUR_S
from tests.support.examples import EXAMPLES

# dyadic, so that instants in these tests are exact and the window edges are hit exactly
EPS_S = 2.0**-20


def limits(
    minute: int | None = 10, hour: int | None = 100, **callers: CallerLimits
) -> RateLimitSettings:
    return RateLimitSettings(
        default=CallerLimits(requests_per_minute=minute, requests_per_hour=hour),
        callers=MappingProxyType(dict(callers)),
    )


def admitted(limiter: RateLimiter, caller: str, count: int, now: float) -> int:
    return sum(limiter.check(caller, now) for _ in range(count))


def test_an_override_replaces_only_what_it_names():
    limiter = RateLimiter(limits(minute=1, hour=7, vip=CallerLimits(requests_per_minute=3)))
    assert admitted(limiter, "vip", 5, 0.0) == 3
    assert limiter.get_usage("vip", 0.0) == CallerUsage(
        minute=3, minute_limit=3, hour=3, hour_limit=7
    )
    shipped = RateLimiter(limits(minute=None, hour=None)).get_usage("a", 0.0)
    assert shipped == CallerUsage(minute=0, minute_limit=120, hour=0, hour_limit=2000)


def test_a_limit_of_zero_refuses_always_and_advises_one_hour():
    limiter = RateLimiter(limits(minute=0))
    assert admitted(limiter, "a", 1, 0.0) == admitted(limiter, "a", 1, 1e9) == 0
    assert limiter.retry_after_s("a", 1e9) == HOUR_S


@pytest.mark.parametrize("span_s", [MINUTE_S, HOUR_S])
def test_a_nanosecond_decides_and_waiting_for_retry_after_is_enough(span_s: float):
    rng = random.Random(7)
    one = limits(minute=1, hour=1) if span_s == HOUR_S else limits(minute=1)
    for _ in range(2000):
        limiter = RateLimiter(one)
        start = rng.choice((0.0, 0.1, 1e3, 1e7)) + rng.random() * 100
        limiter.check("a", start)
        now = start + rng.random() * 0.99 * span_s
        assert limiter.check("a", now + limiter.retry_after_s("a", now))
    for shift_s in (-1e-9, 1e-9):
        limiter = RateLimiter(one)
        limiter.check("a", 12345.678901)
        assert limiter.check("a", 12345.678901 + span_s + shift_s) is (shift_s > 0)


def test_usage_slides_with_time_and_reading_it_records_nothing():
    limiter = RateLimiter(limits())
    admitted(limiter, "a", 3, 0.0)
    admitted(limiter, "a", 2, 30.0)
    for now, minute, hour in ((30.0, 5, 5), (60.0, 2, 5), (60.0, 2, 5), (HOUR_S, 0, 2)):
        usage = limiter.get_usage("a", now)
        assert limiter.get_all_usage(now) == {"a": usage}
        assert (usage.minute, usage.hour) == (minute, hour)
        assert limiter.get_usage("nobody", now).hour == 0
    assert limiter.get_all_usage(HOUR_S + 30.0) == {}


def test_new_limits_apply_at_the_next_request_and_keep_the_counters():
    limiter = RateLimiter(limits(minute=5))
    assert admitted(limiter, "a", 6, 0.0) == 5
    limiter.update_limits(limits(minute=7))
    assert admitted(limiter, "a", 5, 1.0) == 2
    limiter.update_limits(limits(minute=2))
    assert limiter.retry_after_s("a", 2.0) == 59.0
    assert limiter.get_usage("a", 2.0) == CallerUsage(
        minute=7, minute_limit=2, hour=7, hour_limit=100
    )


def test_a_rebuild_replaces_counters_and_the_future_blocks_one_window_at_most():
    limiter = RateLimiter(limits(minute=2, hour=3))
    for _ in range(2):
        limiter.rebuild_from_records(
            [("a", -30.0), ("a", -3599.0), ("b", -3600.0), ("a", 1e12)], 0.0
        )
        assert limiter.get_all_usage(0.0) == {
            "a": CallerUsage(minute=2, minute_limit=2, hour=3, hour_limit=3)
        }
    assert limiter.retry_after_s("a", 0.0) == 30.0
    assert limiter.get_usage("a", MINUTE_S).minute == 0


def test_callers_are_evicted_by_last_admission_even_after_a_rebuild():
    limiter = RateLimiter(limits())
    limiter.rebuild_from_records(
        [("late", 900.0), ("early", 100.0), ("early", 500.0), ("late", 50.0)], 1000.0
    )
    assert list(limiter.get_all_usage(500.0 + HOUR_S - EPS_S)) == ["early", "late"]
    assert list(limiter.get_all_usage(500.0 + HOUR_S)) == ["late"]


def test_an_instant_before_an_earlier_one_is_taken_as_the_earlier_one():
    limiter = RateLimiter(limits(minute=1))
    limiter.check("a", 100.0)
    assert not limiter.check("a", 10.0)
    assert limiter.retry_after_s("a", 10.0) == 60.0
    assert limiter.check("a", 160.0)


def test_hostile_names_and_floods_take_no_memory_beyond_an_hour():
    limiter = RateLimiter(limits(minute=1, hour=1))
    for number in range(5000):
        limiter.check(f"name-{number}", number * 10.0)
    assert len(limiter.get_all_usage(49_990.0)) == 360
    limiter = RateLimiter(limits(minute=10, hour=10))
    admitted(limiter, "a", 20, 0.0)
    tracemalloc.start()
    try:
        admitted(limiter, "a", 5000, 1.0)
        assert tracemalloc.get_traced_memory()[0] < 5000
    finally:
        tracemalloc.stop()


class History:
    """A random one of two callers, told to the limiter and to a list that keeps every admission for
    ever.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = float(rng.randrange(-4000, 4000))
        self.stamps: dict[str, list[float]] = {"a": [], "b": []}
        self.limiter = RateLimiter(self.drawn_limits())

    def drawn_limits(self) -> RateLimitSettings:
        self.per_minute, self.per_hour = self.rng.randrange(1, 4), self.rng.randrange(1, 6)
        return limits(self.per_minute, self.per_hour)

    def play(self) -> None:
        for _ in range(self.rng.randrange(4, 16)):
            self.pass_time()
            if self.rng.random() < 0.08:
                self.limiter.update_limits(self.drawn_limits())
            if self.rng.random() < 0.03:
                records = [
                    (caller, stamp) for caller, stamps in self.stamps.items() for stamp in stamps
                ]
                self.rng.shuffle(records)
                self.limiter.rebuild_from_records(records, self.now)
            self.ask(self.rng.choice("aab"))

    def pass_time(self) -> None:
        draw = self.rng.random()
        known = self.stamps["a"] or self.stamps["b"]
        if draw < 0.5 and known:
            edge = (
                self.rng.choice(known)
                + self.rng.choice((MINUTE_S, MINUTE_S, HOUR_S))
                + self.rng.choice((-EPS_S, 0.0, EPS_S))
            )
            self.now = max(self.now, edge)
        elif draw < 0.85:
            self.now += self.rng.randrange(0, 40 * 1024) / 1024
        elif draw < 0.95:
            self.now += self.rng.randrange(0, 4000)

    def counted(self, caller: str, now: float, span_s: float) -> int:
        return sum(now - span_s < stamp <= now for stamp in self.stamps[caller])

    def admits(self, caller: str, now: float) -> bool:
        return (
            self.counted(caller, now, MINUTE_S) < self.per_minute
            and self.counted(caller, now, HOUR_S) < self.per_hour
        )

    def ask(self, caller: str) -> None:
        expected = self.admits(caller, self.now)
        wait_s = self.limiter.retry_after_s(caller, self.now)
        assert self.limiter.check(caller, self.now) is expected
        if expected:
            assert wait_s == 0.0
            self.stamps[caller].append(self.now)
        else:
            assert self.admits(caller, self.now + wait_s)
            assert not self.admits(caller, self.now + wait_s - EPS_S / 2)


def test_random_histories_agree_with_counting_every_admission():
    rng = random.Random(0)
    for _ in range(1500 * EXAMPLES):
        history = History(rng)
        history.play()
        usage = history.limiter.get_usage("a", history.now)
        now = history.now
        assert (usage.minute, usage.hour) == (
            history.counted("a", now, MINUTE_S),
            history.counted("a", now, HOUR_S),
        )


def test_a_user_gets_half_of_its_keys_limits_and_all_users_together_the_whole():
    limiter = RateLimiter(limits(minute=4, hour=100))
    ann = [limiter.check("webui", 0.0, user="ann") for _ in range(3)]
    assert ann == [True, True, False]
    assert limiter.retry_after_s("webui", 10.0, user="ann") == 50.0
    text, _ = limiter.refusal("webui", 10.0, user="ann")
    assert "ann has made half of the requests that webui may make" in text
    assert limiter.check("other", 10.0, user="ann"), "the same name below another key"
    assert [limiter.check("webui", 10.0, user=user) for user in ("bob", "bob", "eve")] == [
        True,
        True,
        False,
    ]
    text, setting = limiter.refusal("webui", 10.0, user="eve")
    assert "webui may make 4 requests in any minute" in text
    assert setting.endswith("requests_per_minute")
    assert limiter.get_usage("webui", 10.0).minute == 4
    assert limiter.check("webui", 60.0, user="ann")


def test_a_limit_of_one_is_one_for_a_user_too_and_none_is_none():
    limiter = RateLimiter(limits(minute=1, hour=1))
    assert [limiter.check("webui", 0.0, user="ann") for _ in range(2)] == [True, False]
    assert not RateLimiter(limits(minute=0, hour=0)).check("webui", 0.0, user="ann")
