"""One target: every answer has its consequence, one post at a time, at the pace allowed, and
nothing kept for ever. Virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth.alerts.channels import MAX_WAIT_S, outcome_of, problem_of
from hearth.alerts.delivery import CAPACITY, DIGEST_ABOVE, GATHER_S, MAX_ATTEMPTS
from hearth.config.settings import AlertType
from hearth.events import AlertSent, InternalFault
from hearth.types import Post, PostAnswer
from tests.alerts.harness import ONE, TITLE, alerted, alerting, down, message, up
from tests.support.fake_webhooks import OK, REPLIES, Reply, limited
from tests.support.house import within
from tests.support.virtual_time import WALL_AT_START, in_virtual_time

OTHER_URL = "https://discord.example/api/webhooks/2/x"
STALL = Reply(stall=True)
RESET = Reply(reset=True)
ERROR = REPLIES["500"]
failing = within(lambda: alerting(default=ERROR))
"""As `alerted`, where nothing can be delivered."""
WAITS_S = {
    **dict.fromkeys(("429 json", "429 json with Via"), 0.3),
    **dict.fromkeys(("429 header", "429 header with Via"), 7.0),
    "429 milliseconds": 1.5,
    "429 milliseconds, rounded": 1.0,
    "429 seconds of a shared limit": 44.0,
    **dict(zip(("503 with a date", "200 with the bucket empty"), (60.0, 1.5), strict=True)),
}
STATUSES = {
    **dict.fromkeys((200, 204), "delivered"),
    **dict.fromkeys((400, 413, 422), "refused"),
    **dict.fromkeys((301, 302, 304, 308, 401, 403, 404, 405, 410, 418, 429), "blocked"),
    **dict.fromkeys((408, 425, 500, 502, 503), "retry"),
}
DELETED = ("401", "404")
"""Replies with one of Discord's codes for a webhook that does not exist."""
NO_ADVICE = [
    *(
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"retry_after": null}',
        b'{"retry_after": -1}',
    ),
    *(
        b'{"retry_after": "soon"}',
        b'{"retry_after": NaN}',
        b'{"retry_after": true}',
        b'{"retry_after": 1e999}',
        b"1" * 400,
    ),
]


def outcome_of_reply(name: str) -> str:
    if name in DELETED:
        return "gone"
    status = REPLIES[name].status
    return "wait" if status == 429 and name in WAITS_S else STATUSES[status]


def answer_of(reply: Reply) -> PostAnswer:
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return PostAnswer(status=reply.status, headers=headers, body=reply.body)


def test_what_an_answer_means():
    assert {
        name: outcome_of(answer_of(reply), WALL_AT_START) for name, reply in REPLIES.items()
    } == {name: (outcome_of_reply(name), WAITS_S.get(name, 0.0)) for name in REPLIES}
    assert {
        status: outcome_of(PostAnswer(status=status), 0.0)[0] for status in STATUSES
    } == STATUSES
    assert outcome_of(PostAnswer(failure="dns"), 0.0) == ("retry", 0.0)


@pytest.mark.parametrize(
    ("location", "moved"),
    [
        ("https://new.example/x", "to https://new.example:"),
        ("https://user:canary@new.example:8443/canary", "to https://new.example:8443:"),
        ("/canary", "to another path of its host"),
        ("//new.example/canary", "to http://new.example:"),
        ("https://user:canary@OLD.example/canary", "to https://old.example:"),
        ("http://[::1]:9/canary", "to http://[::1]:9:"),
        ("http://]a[@canary", "elsewhere"),
        ("https://[bad", "elsewhere"),
        ("ftp://new.example/", "elsewhere"),
        ("https://" + "x" * 5000, "to https://" + "x" * 91 + "…:"),
        ("", "elsewhere"),
    ],
)
def test_a_receiver_that_has_moved_is_named_without_its_path(location, moved):
    answer = PostAnswer(status=301, headers={"location": location})
    said = problem_of(answer, "http://old.example/hook")
    assert said.startswith(f"the receiver has moved {moved}")
    assert "canary" not in said


@pytest.mark.parametrize("code", ["[]", "{}", "null", '"10015"', "10016", "1e999"])
def test_only_the_codes_of_a_webhook_that_does_not_exist_stop_a_target(code):
    answer = PostAnswer(status=404, body=b'{"code": %b}' % code.encode())
    assert outcome_of(answer, 0.0) == ("blocked", 0.0)
    assert problem_of(answer, OTHER_URL) == "there is nothing at the address: copy it again"


def test_what_is_delivered_is_no_problem_and_every_refusal_is_one():
    said = {name: problem_of(answer_of(reply), OTHER_URL) for name, reply in REPLIES.items()}
    assert [name for name, each in said.items() if not each] == [
        name for name, reply in REPLIES.items() if reply.status in {200, 204}
    ]


@pytest.mark.parametrize(
    "header", ["", "soon", "-3", "nan", "Mon, 05 Jan 1970 00:00:00 GMT", "99999 99999"]
)
def test_a_429_that_says_nothing_usable_asks_for_no_time(header):
    answers = [
        PostAnswer(status=429, headers={"retry-after": header}, body=body) for body in NO_ADVICE
    ]
    assert [outcome_of(answer, WALL_AT_START) for answer in answers] == [("blocked", 0.0)] * len(
        NO_ADVICE
    )


@pytest.mark.parametrize(
    ("body", "wait_s"), [(b"2.25", 4.5), (b"90000", MAX_WAIT_S), (b"1e308", MAX_WAIT_S)]
)
def test_the_longest_advice_holds_but_for_an_hour_at_most(body, wait_s):
    headers = {"retry-after": "3", "x-ratelimit-reset-after": "4.5"}
    assert (
        outcome_of(
            PostAnswer(status=429, headers=headers, body=b'{"retry_after": %b}' % body), 0.0
        )[1]
        == wait_s
    )


@alerted
async def test_an_alert_arrives_once_after_a_moment_and_is_reported(it):
    await it.put("webui", wait_s=60)
    assert (it.times, it.texts) == ([GATHER_S], ["about webui"])
    (sent,) = it.events.of(AlertSent)
    assert (sent.target, sent.types, sent.alerts, sent.attempts) == (
        "discord",
        ("starvation",),
        1,
        1,
    )
    expected = {
        "name": "discord",
        "host": "discord.example",
        "state": "ready",
        "sent": 1,
        "failed": 0,
        "dropped": 0,
    }
    assert it.target.status() == {
        **expected,
        "waiting": 0,
        "last": "http_204",
        "problem": None,
        "retry_in_s": None,
    }


@alerted
async def test_few_alerts_are_a_message_each_and_many_are_one(it):
    few, many = (
        [f"{letter}{number}" for number in range(count)]
        for letter, count in (("c", DIGEST_ABOVE), ("d", DIGEST_ABOVE + 1))
    )
    await it.put(*few, wait_s=60)
    await it.put(*many, wait_s=60)
    assert it.texts == [
        *(f"about {each}" for each in few),
        "Hearth (warning): 4 alerts: "
        + "\n".join(f"Warning: {TITLE}: about {each}" for each in many),
    ]
    it.webhooks.seen.clear()
    for suppressed in (0, 2, 0):
        await it.put("a", suppressed=suppressed)
    await it.put(down(), up(), wait_s=60)
    assert it.texts == [
        "about a 4 more like this since the last message.",
        "Resolved: Model server down: it is up",
    ]


@alerted
async def test_the_worst_alert_goes_first_and_the_critical_ones_before_all_others(it):
    await it.put("a", wait_s=0)
    await it.put(up(), down(subject="b"), wait_s=60)
    assert it.texts == [
        "Hearth (critical): Model server down: it is down",
        "about a",
        "Resolved: Model server down: it is up",
    ]
    it.webhooks.seen.clear()
    await it.put(*(f"c{number}" for number in range(20)))
    await it.put(*(f"m{number} {'x' * 1000}" for number in range(7)), kind=AlertType.QUEUE_FULL)
    await asyncio.sleep(60)
    titles = [text.partition(": ")[2].partition(":")[0] for text in it.webhooks.texts()]
    assert titles == ["2 alerts", "2 alerts", "2 alerts", "21 alerts"]


@alerted
async def test_a_critical_alert_gives_its_room_to_no_other(it):
    await it.put(*(f"bad {number}" for number in range(CAPACITY)), kind=AlertType.QUEUE_FULL)
    await it.put("harmless", up(), kind=AlertType.GPU_HOT)
    assert (it.status("waiting"), it.target.dropped) == (CAPACITY, 2)
    await asyncio.sleep(600)
    said = "\n".join(it.texts)
    assert all(f"about bad {number}" in said for number in range(CAPACITY))
    assert "harmless" not in said


@alerted
async def test_without_room_the_oldest_of_the_least_bad_goes_and_is_counted(it):
    await it.put("first bad", kind=AlertType.QUEUE_FULL)
    await it.put(*(f"c{number}" for number in range(CAPACITY - 2)))
    await it.put("harmless", kind=AlertType.RESIDENCY_DRIFTED)
    await it.put(*(f"more {number}" for number in range(10)), kind=AlertType.QUEUE_FULL)
    assert (it.status("waiting"), it.target.dropped) == (CAPACITY, 10)
    await asyncio.sleep(60)
    await it.put("z", wait_s=60)
    digest, last = it.texts
    assert (
        digest.index("about first bad") < digest.index("about more 0") < digest.index("about c9\n")
    )
    assert not any(
        f"about {lost}\n" in digest for lost in ("harmless", *(f"c{number}" for number in range(9)))
    )
    assert digest.endswith("10 more could not be sent in time and were dropped.")
    assert last == "about z"


@pytest.mark.parametrize(
    ("reply", "times"),
    [
        *(
            (REPLIES[name], [2.0, 2.0 + WAITS_S[name], 2.0 + WAITS_S[name]])
            for name in WAITS_S
            if name.startswith("429") and name in WAITS_S
        ),
        *((REPLIES[name], [2.0, 3.0, 3.0]) for name in ("500", "502 html")),
        (REPLIES["503 with a date"], [2.0, 60.0, 60.0]),
        (REPLIES["200 with the bucket empty"], [2.0, 3.5]),
        (limited(600), [2.0, 602.0, 602.0]),
    ],
)
@in_virtual_time
async def test_an_answer_that_asks_for_time_gets_it_and_then_the_same_message(reply, times):
    async with alerting(ONE, reply) as it:
        await it.put("a", "b", wait_s=2.1)
        if reply.status == 429:
            assert (it.status("state"), it.status("retry_in_s")) == (
                "waiting",
                round(times[1] - 2.1, 1),
            )
        await asyncio.sleep(700)
        assert (it.times, it.texts, it.attempts) == (
            times,
            ["about a", "about b"],
            [1 + len(times) - 2, 1],
        )


@pytest.mark.parametrize("name", DELETED)
@in_virtual_time
async def test_a_deleted_webhook_gets_no_more_until_the_settings_are_read_again(name):
    async with alerting(ONE, REPLIES[name]) as it:
        await it.put("a", "b", wait_s=10)
        await it.put("c", wait_s=2 * 3600)
        assert (it.times, it.failures) == ([2.0], [(f"http_{name}", 1, True)])
        assert (it.status("state"), it.target.dropped, it.status("waiting")) == ("stopped", 3, 0)
        assert "alerts.discord_webhook_url" in it.status("problem")
        it.alerter.update(ONE)
        await it.put("d", wait_s=10)
        assert it.texts == ["about d\n3 more could not be sent in time and were dropped."]
        assert (it.status("state"), it.status("problem")) == ("ready", None)


@in_virtual_time
async def test_a_message_that_is_refused_for_itself_is_given_up_at_once():
    async with alerting(ONE, REPLIES["400"]) as it:
        await it.put("a", wait_s=5)
        assert (it.status("state"), it.status("last")) == ("failing", "http_400")
        await it.put("b", wait_s=10)
        assert (it.times, it.failures) == ([2.0, 7.0], [("http_400", 1, False)])
        assert it.texts == ["about b\n1 more could not be sent in time and were dropped."]
        assert it.status("state") == "ready"


BLOCKING = ["301", "302", "403 html", "404 html", "429 bare", "429 bare with Via"]


@pytest.mark.parametrize("name", BLOCKING)
@in_virtual_time
async def test_a_blocked_target_is_tried_again_up_to_once_an_hour(name):
    async with alerting(ONE, default=REPLIES[name]) as it:
        await it.put("a", wait_s=30)
        assert (it.status("state"), it.target.dropped) == ("failing", 0)
        assert it.status("problem")
        for _ in range(12):
            await it.put("b", wait_s=3600)
        gaps = [later - earlier for earlier, later in zip(it.times, it.times[1:], strict=False)]
        assert gaps[:8] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
        it.webhooks.default = OK
        await it.put(down(), wait_s=3600)
        assert (it.status("state"), "it is down" in " ".join(it.texts)) == ("ready", True)


@pytest.mark.parametrize("name", BLOCKING)
@in_virtual_time
async def test_a_receiver_that_only_restarts_gets_the_same_message_a_minute_later(name):
    async with alerting(ONE, REPLIES[name]) as it:
        await it.put("a", "b", wait_s=200)
        assert (it.times, it.texts) == ([2.0, 62.0, 62.0], ["about a", "about b"])
        assert (it.failures, it.target.dropped) == ([], 0)


@in_virtual_time
async def test_settings_that_are_read_again_end_the_wait_of_a_blocked_target():
    async with alerting(ONE, REPLIES["404 html"], REPLIES["404 html"]) as it:
        await it.put("a", wait_s=70)
        it.alerter.update(ONE)
        await asyncio.sleep(1)
        assert (it.times, it.texts) == ([2.0, 62.0, 70.0], ["about a"])


@in_virtual_time
async def test_no_answer_in_between_does_not_reset_how_long_a_ban_is_waited_for():
    async with alerting(ONE, *[REPLIES["429 bare"], RESET] * 3) as it:
        await it.put("a", wait_s=3600)
        assert it.times == [2.0, 62.0, 63.0, 183.0, 185.0]


@pytest.mark.parametrize(
    ("reply", "reason", "took_s"),
    [(ERROR, "http_500", 0.0), (STALL, "timeout", 10.0), (RESET, "broken", 0.0)],
)
@in_virtual_time
async def test_a_failing_target_gets_bounded_tries_further_and_further_apart(reply, reason, took_s):
    async with alerting(default=reply) as it:
        await it.put("a", wait_s=300)
        assert (it.failures, it.status("state")) == ([(reason, MAX_ATTEMPTS, False)], "failing")
        assert it.times == [
            2.0 + took_s * tries + waited for tries, waited in enumerate((0, 1, 3, 7, 15))
        ]
        await it.put("b", wait_s=600)
        gaps = [later - earlier for earlier, later in zip(it.times[5:], it.times[6:], strict=False)]
        assert [round(gap - took_s) for gap in gaps] == [32, 60, 60, 60]
        it.webhooks.default = OK
        await it.put("c", wait_s=300)
        it.webhooks.script.append(ERROR)
        await it.put("d", wait_s=60)
        assert [
            round(later - earlier)
            for earlier, later in zip(it.times[-2:], it.times[-1:], strict=False)
        ] == [1], "failures are forgotten"


@failing
async def test_a_lasting_condition_is_sent_once_a_long_outage_is_over(it):
    await it.put(down(), up(subject="b"), wait_s=10)  # the first message is on its way
    await it.put(up(3600.0), down(3600.0, "b"), down(3600.0, "c"))
    await it.put("a", wait_s=2 * 3600)
    assert (it.target.dropped, it.status("waiting")) == (1, 3)
    it.webhooks.default = OK
    await asyncio.sleep(120)
    said = "\n".join(it.texts).splitlines()
    lost = "1 more could not be sent in time and were dropped."
    assert sorted(said) == [
        lost,
        *["Hearth (critical): Model server down: it is down"] * 2,
        "Resolved: Model server down: it is up",
    ]


@alerted
async def test_a_stream_of_alerts_is_never_more_than_twenty_posts_a_minute(it):
    for number in range(400):
        await it.put(f"c{number}", wait_s=0.9)
    await asyncio.sleep(120)
    assert max(sum(at <= each < at + 60 for each in it.times) for at in it.times) == 20
    assert sum(each.alerts for each in it.events.of(AlertSent)) == 400
    assert "And 20 more." in " ".join(it.texts)


@in_virtual_time
async def test_ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted():
    async with alerting(default=STALL) as it:
        await it.put(*(f"c{number}" for number in range(10_000)), wait_s=5)
        await it.put(*(f"d{number}" for number in range(10_000)))
        assert it.status("waiting") <= 2 * CAPACITY
        assert it.target.dropped + it.status("waiting") == 20_000
        it.webhooks.default = OK
        await asyncio.sleep(300)
        arrived = sum(each.alerts for each in it.events.of(AlertSent))
        assert (it.status("waiting"), it.target.dropped + arrived) == (0, 20_000)


@in_virtual_time
async def test_what_waits_at_the_end_is_one_message_and_nothing_is_sent_twice():
    async with alerting(latency_s=0.5) as it:
        await it.put("a", "b", wait_s=2.1)
        await it.put("c")
        await it.target.aclose(2.0)
        assert it.now == pytest.approx(3.0)
        assert it.texts == [
            "about a",
            f"Hearth (warning): 2 alerts: Warning: {TITLE}: about b\nWarning: {TITLE}: about c",
        ]
        assert (it.target.dropped, it.attempts) == (0, [1, 1])


@pytest.mark.parametrize(
    ("reply", "wait_s", "posts", "dropped"),
    [
        (STALL, 1.0, 1, 2),
        (STALL, 2.5, 1, 2),
        (STALL, 13.0, 2, 2),
        (limited(600), 7.0, 1, 2),
        (ERROR, 7.0, 4, 2),
    ],
)
@in_virtual_time
async def test_the_end_takes_two_seconds_at_most_and_respects_asked_for_silence(
    reply, wait_s, posts, dropped
):
    async with alerting(default=reply) as it:
        await it.put("a", "b", wait_s=wait_s)
        await it.target.aclose(2.0)
        assert it.now <= wait_s + 2.0
        assert (len(it.times), it.target.dropped, it.failures[0][0]) == (posts, dropped, "stopping")


@in_virtual_time
async def test_another_address_is_tried_at_once_and_none_forgets_what_waits():
    async with alerting(default=ERROR) as it:
        await it.put("a", wait_s=20)
        it.webhooks.default = OK
        it.alerter.update(ONE.replace(discord_webhook_url=OTHER_URL))
        await it.put("b", wait_s=3)
        assert it.webhooks.accepted[-1].path == "/api/webhooks/2/x"
        await it.put("c")
        it.alerter.update(ONE.replace(discord_webhook_url=""))
        await asyncio.sleep(30)
        assert (it.target.configured, it.status("waiting"), "about c" in " ".join(it.texts)) == (
            False,
            0,
            False,
        )
    async with alerting(ONE, REPLIES["404"], latency_s=1.0) as it:
        await it.put("a", wait_s=2.5)
        it.alerter.update(ONE.replace(discord_webhook_url=OTHER_URL))
        await it.put("b", wait_s=10)
        assert (it.status("state"), it.texts, it.target.dropped) == (
            "ready",
            ["about a", "about b"],
            0,
        )


@in_virtual_time
async def test_a_test_says_what_came_back_and_does_not_overtake_messages():
    async with alerting(ONE, REPLIES["404"], REPLIES["401"]) as it:
        await it.put("a", wait_s=5)
        for name, state in (("http_401", "stopped"), ("http_204", "ready")):
            assert ((await it.target.test(message()))["answer"], it.status("state")) == (
                name,
                state,
            )
    async with alerting(ONE, STALL) as it:
        await it.put("a", wait_s=3)
        assert ((await it.target.test(message()))["answer"], it.times[1] - it.times[0]) == (
            "http_204",
            10.0,
        )
    async with alerting(ONE, ERROR, ERROR, ERROR) as it:
        await it.put("a", wait_s=8)
        assert (len(it.times), (await it.target.test(message()))["answer"], it.attempts) == (
            3,
            "http_204",
            [],
        )
        await asyncio.sleep(60)
        assert (it.texts, it.attempts) == (["it is full", "about a"], [4])


@alerted
async def test_a_message_that_cannot_be_made_is_a_defect_and_the_next_one_goes_out(it):
    compose = it.target._compose

    def breaks_once(url: str, of: Any) -> Post:
        it.target._compose = compose
        raise RuntimeError("a defect")

    it.target._compose = breaks_once
    await it.put("a", "b", wait_s=10)
    assert it.texts == ["about b\n1 more could not be sent in time and were dropped."]
    assert [(each.where, each.detail) for each in it.events.of(InternalFault)] == [
        ("alerts", "RuntimeError")
    ]
    assert it.failures == [("broken", 1, False)]
