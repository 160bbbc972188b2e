"""One target: every answer has its consequence, one post at a time, at the pace allowed, and nothing kept for ever. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hearth.alerts.channels import COMPOSERS, DEFAULT_WAIT_S, MAX_WAIT_S, Answer, Outcome, Post, outcome_of
from hearth.alerts.delivery import CAPACITY, DIGEST_ABOVE, GATHER_S, MAX_ATTEMPTS, Target
from hearth.alerts.rules import Alert, Severity
from hearth.events import AlertFailed, AlertSent, InternalFault
from tests.alerts.samples import alert, down, message, up
from tests.support.cases import for_each
from tests.support.fake_webhooks import OK, REPLIES, MemoryPoster, Reply, Webhooks, limited
from tests.support.virtual_time import WALL_AT_START, LoopClock, in_virtual_time
from tests.worker.house import Recorder

SECRET = "canary-1a2b3c"
URL = f"https://discord.example/api/webhooks/1/{SECRET}"
OTHER_URL = "https://discord.example/api/webhooks/2/x"
STALL = Reply(stall=True)
MEANINGS: dict[str, tuple[Outcome, float]] = {
    "204": (Outcome.DELIVERED, 0.0),
    "200": (Outcome.DELIVERED, 0.0),
    "200 with the bucket empty": (Outcome.DELIVERED, 1.5),
    "302": (Outcome.REFUSED, 0.0),
    "400": (Outcome.REFUSED, 0.0),
    "401": (Outcome.GONE, 0.0),
    "404": (Outcome.GONE, 0.0),
    "429 json": (Outcome.WAIT, 0.3),
    "429 json with Via": (Outcome.WAIT, 0.3),
    "429 header": (Outcome.WAIT, 7.0),
    "429 header with Via": (Outcome.WAIT, 7.0),
    "429 bare": (Outcome.WAIT, DEFAULT_WAIT_S),
    "429 bare with Via": (Outcome.WAIT, DEFAULT_WAIT_S),
    "500": (Outcome.RETRY, 0.0),
    "502 html": (Outcome.RETRY, 0.0),
    "503 with a date": (Outcome.RETRY, 60.0),
}
OTHER_STATUSES = {
    403: Outcome.GONE,
    410: Outcome.GONE,
    408: Outcome.RETRY,
    425: Outcome.RETRY,
    413: Outcome.REFUSED,
    304: Outcome.REFUSED,
}
NO_ADVICE = [
    *(b"", b"<html>", b"[]", b"null", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"retry_after": null}', b'{"retry_after": -1}'),
    *(b'{"retry_after": "soon"}', b'{"retry_after": NaN}', b'{"retry_after": true}', b'{"retry_after": 1e999}', b"1" * 400),
]


@for_each("name", REPLIES)
def test_what_an_answer_means(name):
    reply = REPLIES[name]
    answer = Answer(status=reply.status, headers={name.lower(): value for name, value in reply.headers.items()}, body=reply.body)
    assert outcome_of(answer, WALL_AT_START) == MEANINGS[name]


def test_what_the_other_statuses_mean_and_none_at_all():
    assert {status: outcome_of(Answer(status=status), 0.0)[0] for status in OTHER_STATUSES} == OTHER_STATUSES
    assert outcome_of(Answer(failure="dns"), 0.0) == (Outcome.RETRY, 0.0)


@for_each("header", ["", "soon", "-3", "nan", "Mon, 05 Jan 1970 00:00:00 GMT", "99999 99999"])
def test_a_429_that_says_nothing_usable_waits_the_default(header):
    answers = [Answer(status=429, headers={"retry-after": header}, body=body) for body in NO_ADVICE]
    assert [outcome_of(answer, WALL_AT_START) for answer in answers] == [(Outcome.WAIT, DEFAULT_WAIT_S)] * len(NO_ADVICE)


def test_the_longest_advice_holds_but_no_answer_silences_a_target_for_more_than_an_hour():
    answer = Answer(status=429, headers={"retry-after": "3", "x-ratelimit-reset-after": "4.5"}, body=b'{"retry_after": 2.25}')
    assert outcome_of(answer, 0.0)[1] == 4.5
    for asked in (b"90000", b"1e308"):
        assert outcome_of(replace(answer, body=b'{"retry_after": %b}' % asked), 0.0)[1] == MAX_WAIT_S


@dataclass
class Bench:
    """A target at work, and what came of it."""

    target: Target
    webhooks: Webhooks
    events: Recorder

    def put(self, *subjects: str, **more: Any) -> None:
        for subject in subjects:
            self.target.put(alert(subject, text=f"about {subject}", at=asyncio.get_running_loop().time(), **more))

    def put_all(self, *alerts: Alert) -> None:
        for each in alerts:
            self.target.put(each)

    @property
    def times(self) -> list[float]:
        """When posts came, in seconds from the start."""
        return [round(each.at, 3) for each in self.webhooks.seen]

    @property
    def failures(self) -> list[tuple[str, int, bool]]:
        return [(each.reason, each.attempts, each.stopped) for each in self.events.of(AlertFailed)]

    def status(self, name: str) -> Any:
        return self.target.status()[name]


@asynccontextmanager
async def bench(*replies: Reply, default: Reply = OK, latency_s: float = 0.0) -> AsyncIterator[Bench]:
    webhooks, events = Webhooks(*replies, default=default), Recorder()
    poster = MemoryPoster(webhooks, latency_s=latency_s)
    target = Target("discord", compose=COMPOSERS["discord"], poster=poster, clock=LoopClock(), events=events)
    target.point_at(URL)
    target.start()
    yield Bench(target, webhooks, events)
    await target.aclose(2.0)
    assert webhooks.most_in_flight <= 1
    assert webhooks.refused == []
    assert SECRET not in repr((events.all, target.status()))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_an_alert_arrives_once_after_a_moment_and_is_told():
    async with bench() as it:
        it.put("webui")
        await asyncio.sleep(60)
        assert it.times == [GATHER_S]
        assert it.webhooks.texts() == ["Hearth: Queue full: about webui"]
        (sent,) = it.events.of(AlertSent)
        assert (sent.target, sent.types, sent.alerts, sent.attempts) == ("discord", ("queue_full",), 1, 1)
        expected = {"name": "discord", "host": "discord.example", "state": "ready", "sent": 1, "failed": 0, "dropped": 0}
        assert it.target.status() == {**expected, "waiting": 0, "last": "http_204", "retry_in_s": None}


@in_virtual_time
async def test_few_alerts_are_a_message_each_and_many_are_one():
    async with bench() as it:
        it.put(*(f"c{number}" for number in range(DIGEST_ABOVE)))
        await asyncio.sleep(60)
        assert it.webhooks.texts() == [f"Hearth: Queue full: about c{number}" for number in range(DIGEST_ABOVE)]
        it.put(*(f"d{number}" for number in range(DIGEST_ABOVE + 1)))
        await asyncio.sleep(60)
        assert it.webhooks.texts()[DIGEST_ABOVE:] == [
            "Hearth: 4 alerts: " + "\n".join(f"Queue full: about d{number}" for number in range(DIGEST_ABOVE + 1))
        ]


@in_virtual_time
async def test_one_key_waits_once_and_says_how_often_it_came_and_an_end_takes_the_place_of_its_beginning():
    async with bench() as it:
        for suppressed in (0, 2, 0):
            it.put("a", suppressed=suppressed)
        it.put_all(down(), up())
        await asyncio.sleep(60)
        assert it.webhooks.texts() == [
            "Hearth: Queue full: about a 4 more like this since the last message.",
            "Hearth: Over: Model server down: it is up",
        ]


@in_virtual_time
async def test_where_there_is_no_room_the_oldest_of_the_least_bad_goes_and_the_next_message_says_how_many():
    async with bench() as it:
        it.put("first bad", severity=Severity.ERROR)
        it.put(*(f"c{number}" for number in range(CAPACITY - 2)))
        it.put("harmless", severity=Severity.INFO)
        it.put(*(f"more {number}" for number in range(10)), severity=Severity.ERROR)
        assert (it.status("waiting"), it.target.dropped) == (CAPACITY, 10)
        await asyncio.sleep(60)
        it.put("z")
        await asyncio.sleep(60)
        digest, last = it.webhooks.texts()
        assert digest.index("about first bad") < digest.index("about more 0") < digest.index("about c9\n")
        assert not any(f"about {lost}\n" in digest for lost in ("harmless", *(f"c{number}" for number in range(9))))
        assert digest.endswith("Dropped, since it could not be sent in time: 10 more.")
        assert last == "Hearth: Queue full: about z"


@for_each(
    ("reply", "times"),
    [
        *((REPLIES[name], [2.0, 2.3, 2.3]) for name in ("429 json", "429 json with Via")),
        *((REPLIES[name], [2.0, 9.0, 9.0]) for name in ("429 header", "429 header with Via")),
        *((REPLIES[name], [2.0, 7.0, 7.0]) for name in ("429 bare", "429 bare with Via")),
        *((REPLIES[name], [2.0, 3.0, 3.0]) for name in ("500", "502 html")),
        (REPLIES["503 with a date"], [2.0, 60.0, 60.0]),
        (REPLIES["200 with the bucket empty"], [2.0, 3.5]),
        (limited(600), [2.0, 602.0, 602.0]),
    ],
)
def test_an_answer_that_asks_for_time_gets_it_and_then_the_same_message(reply, times):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(reply) as it:
            it.put("a", "b")
            await asyncio.sleep(2.1)
            if reply.status == 429:
                assert (it.status("state"), it.status("retry_in_s")) == ("waiting", round(times[1] - 2.1, 1))
            await asyncio.sleep(700)
            assert it.times == times
            assert it.webhooks.texts() == ["Hearth: Queue full: about a", "Hearth: Queue full: about b"]
            assert [each.attempts for each in it.events.of(AlertSent)] == [1 + len(times) - 2, 1]

    scenario()


@for_each(("name", "is_gone", "lost"), [("401", True, "abc"), ("404", True, "abc"), ("302", False, "a"), ("400", False, "a")])
def test_a_refused_message_is_given_up_and_a_webhook_that_is_gone_gets_no_more_until_the_configuration_is_read_again(name, is_gone, lost):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(REPLIES[name]) as it:
            it.put("a", "b")
            await asyncio.sleep(10)
            it.put("c")
            await asyncio.sleep(3600)
            assert it.times == ([2.0] if is_gone else [2.0, 2.0, 12.0])
            assert it.failures == [(f"http_{name}", 1, is_gone)]
            assert (it.status("state"), it.target.dropped, it.status("waiting")) == ("stopped" if is_gone else "ready", len(lost), 0)
            it.target.point_at(URL)
            it.put("d")
            await asyncio.sleep(10)
            first = f"Hearth: Queue full: about {'d' if is_gone else 'b'}"
            assert it.webhooks.texts()[0] == f"{first}\nDropped, since it could not be sent in time: {len(lost)} more."

    scenario()


@for_each(("reply", "reason"), [(REPLIES["500"], "http_500"), (STALL, "timeout"), (Reply(reset=True), "broken")])
def test_a_target_that_keeps_failing_gets_a_bounded_number_of_tries_further_and_further_apart(reply, reason):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(default=reply) as it:
            it.put("a")
            await asyncio.sleep(300)
            assert it.failures == [(reason, MAX_ATTEMPTS, False)]
            assert it.status("state") == "failing"
            took = 10.0 if reply is STALL else 0.0
            assert it.times == [2.0 + took * tries + waited for tries, waited in enumerate((0, 1, 3, 7, 15))]
            it.put("b")
            await asyncio.sleep(600)
            gaps = [later - earlier for earlier, later in zip(it.times[5:], it.times[6:], strict=False)]
            assert [round(gap - took) for gap in gaps] == [32, 60, 60, 60]

    scenario()


@in_virtual_time
async def test_a_condition_that_goes_on_is_told_once_a_long_outage_of_the_target_is_over():
    async with bench(default=Reply(reset=True)) as it:
        it.target.put(down())
        it.put("a")
        await asyncio.sleep(2 * 3600)
        assert (it.target.dropped, it.status("waiting")) == (1, 1)
        it.webhooks.default = OK
        await asyncio.sleep(120)
        assert it.webhooks.texts() == ["Hearth: Model server down: it is down\nDropped, since it could not be sent in time: 1 more."]


@in_virtual_time
async def test_of_conditions_that_changed_during_the_outage_the_newest_news_stands():
    async with bench(default=REPLIES["500"]) as it:
        it.put_all(down(), replace(up(), subject="b"))
        await asyncio.sleep(10)  # the first message is on its way
        it.put_all(up(3600.0), replace(down(3600.0), subject="b"))
        await asyncio.sleep(3600)
        it.webhooks.default = OK
        await asyncio.sleep(120)
        assert sorted(it.webhooks.texts()) == ["Hearth: Model server down: it is down", "Hearth: Over: Model server down: it is up"]


@in_virtual_time
async def test_after_it_has_recovered_failures_are_forgotten():
    async with bench(REPLIES["500"], REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(30)
        it.put("b")
        await asyncio.sleep(30)
        assert it.times == [2.0, 3.0, 5.0, 32.0]
        assert it.status("state") == "ready"


@in_virtual_time
async def test_a_stream_of_alerts_is_never_more_than_twenty_posts_a_minute():
    async with bench() as it:
        for number in range(400):
            it.put(f"c{number}")
            await asyncio.sleep(0.9)
        await asyncio.sleep(120)
        assert max(sum(at <= each < at + 60 for each in it.times) for at in it.times) == 20
        assert sum(each.alerts for each in it.events.of(AlertSent)) == 400
        assert "And 20 more." in " ".join(it.webhooks.texts())


@in_virtual_time
async def test_ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted():
    async with bench(default=STALL) as it:
        it.put(*(f"c{number}" for number in range(10_000)))
        await asyncio.sleep(5)
        it.put(*(f"d{number}" for number in range(10_000)))
        assert it.status("waiting") <= 2 * CAPACITY
        assert it.target.dropped + it.status("waiting") == 20_000
        it.webhooks.default = OK
        await asyncio.sleep(300)
        assert it.status("waiting") == 0
        assert it.target.dropped + sum(each.alerts for each in it.events.of(AlertSent)) == 20_000
        assert any("could not be sent in time: " in text for text in it.webhooks.texts())


@in_virtual_time
async def test_what_waits_at_the_end_is_sent_in_one_message_and_a_post_that_is_out_is_not_sent_twice():
    async with bench(latency_s=0.5) as it:
        it.put("a", "b")
        await asyncio.sleep(2.1)
        it.put("c")
        await it.target.aclose(2.0)
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert it.webhooks.texts() == ["Hearth: Queue full: about a", "Hearth: 2 alerts: Queue full: about b\nQueue full: about c"]
        assert (it.target.dropped, len(it.events.of(AlertSent))) == (0, 2)


@for_each("moment", [1.0, 2.5, 13.0])
def test_a_target_that_stalls_holds_up_the_end_for_two_seconds_at_most(moment):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(default=STALL) as it:
            it.put("a", "b")
            await asyncio.sleep(moment)
            await it.target.aclose(2.0)
            assert asyncio.get_running_loop().time() <= moment + 2.0
            assert it.target.dropped == 2

    scenario()


@pytest.mark.parametrize(("reply", "posts"), [(limited(600), 1), (REPLIES["500"], 4)])
def test_a_target_that_asked_for_silence_gets_none_at_the_end_and_one_that_failed_one_more_try(reply, posts):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(reply, default=reply) as it:
            it.put("a")
            await asyncio.sleep(7)
            await it.target.aclose(2.0)
            assert len(it.times) == posts
            assert it.failures == [("stopping", posts, False)]

    scenario()


@in_virtual_time
async def test_another_address_is_tried_at_once_and_none_at_all_forgets_what_waits():
    async with bench(default=REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(20)
        it.webhooks.default = OK
        it.target.point_at(OTHER_URL)
        it.put("b")
        await asyncio.sleep(3)
        assert it.webhooks.accepted[-1].path == "/api/webhooks/2/x"
        it.put("c")
        it.target.point_at("")
        await asyncio.sleep(30)
        assert (it.target.configured, it.status("waiting")) == (False, 0)
        assert "about c" not in " ".join(it.webhooks.texts())


@in_virtual_time
async def test_the_end_of_an_old_address_does_not_stop_the_new_one():
    async with bench(REPLIES["404"], latency_s=1.0) as it:
        it.put("a")
        await asyncio.sleep(2.5)
        it.target.point_at(OTHER_URL)
        await asyncio.sleep(1)
        it.put("b")
        await asyncio.sleep(10)
        assert it.status("state") == "ready"
        assert "about b" in it.webhooks.texts()[0]


@in_virtual_time
async def test_a_test_says_what_came_back_also_of_a_target_that_has_stopped_and_revives_it():
    async with bench(REPLIES["404"], REPLIES["401"]) as it:
        it.put("a")
        await asyncio.sleep(5)
        assert (await it.target.test(message())).name == "http_401"
        assert it.status("state") == "stopped"
        assert (await it.target.test(message())).name == "http_204"
        assert it.status("state") == "ready"


@in_virtual_time
async def test_a_test_does_not_overtake_a_post_that_is_out_and_says_nothing_about_the_message_that_waits_for_its_next_try():
    async with bench(STALL) as it:
        it.put("a")
        await asyncio.sleep(3)
        assert (await it.target.test(message())).name == "http_204"
        assert it.times[1] == 12.0
    async with bench(REPLIES["500"], REPLIES["500"], REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(8)
        assert len(it.times) == 3
        assert (await it.target.test(message())).name == "http_204"
        assert it.events.of(AlertSent) == []
        await asyncio.sleep(60)
        assert [text.rpartition(": ")[2] for text in it.webhooks.texts()] == ["it is full", "about a"]
        assert [each.attempts for each in it.events.of(AlertSent)] == [4]


@in_virtual_time
async def test_a_message_that_cannot_be_made_is_a_defect_and_the_next_one_goes_out():
    async with bench() as it:
        compose = it.target._compose

        def breaks_once(url: str, of: Any) -> Post:
            it.target._compose = compose
            raise RuntimeError("a defect")

        it.target._compose = breaks_once
        it.put("a", "b")
        await asyncio.sleep(10)
        assert it.webhooks.texts() == ["Hearth: Queue full: about b\nDropped, since it could not be sent in time: 1 more."]
        assert [(each.where, each.detail) for each in it.events.of(InternalFault)] == [("alerts", "RuntimeError")]
        assert it.failures == [("broken", 1, False)]
