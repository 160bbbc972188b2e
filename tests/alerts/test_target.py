"""One target: every answer has its consequence, one post at a time, at the pace allowed, and nothing kept for ever. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from hearth.alerts.channels import COMPOSERS, Post
from hearth.alerts.delivery import CAPACITY, GATHER_S, MAX_ATTEMPTS, Target
from hearth.events import AlertFailed, AlertSent
from tests.alerts.samples import alert, down, message, up
from tests.support.fake_webhooks import OK, REPLIES, MemoryPoster, Reply, Webhooks, limited
from tests.support.virtual_time import LoopClock, in_virtual_time
from tests.worker.house import Recorder

SECRET = "canary-1a2b3c"
URL = f"https://discord.example/api/webhooks/1/{SECRET}"
STALL = Reply(stall=True)


@dataclass
class Bench:
    """A target at work, and what came of it."""

    target: Target
    webhooks: Webhooks
    events: Recorder
    task: asyncio.Task[None]

    def put(self, *subjects: str) -> None:
        for subject in subjects:
            self.target.put(alert(subject, text=f"about {subject}", at=asyncio.get_running_loop().time()))

    @property
    def times(self) -> list[float]:
        """When posts came, in seconds from the start."""
        return [round(each.at, 3) for each in self.webhooks.seen]

    @property
    def failures(self) -> list[tuple[str, int, bool]]:
        return [(each.reason, each.attempts, each.stopped) for each in self.events.of(AlertFailed)]

    def state(self) -> object:
        return self.target.status()["state"]

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def bench(*replies: Reply, default: Reply = OK, latency_s: float = 0.0) -> AsyncIterator[Bench]:
    webhooks, events = Webhooks(*replies, default=default), Recorder()
    poster = MemoryPoster(webhooks, latency_s=latency_s)
    target = Target("discord", compose=COMPOSERS["discord"], poster=poster, clock=LoopClock(), events=events)
    target.point_at(URL)
    made = Bench(target, webhooks, events, asyncio.ensure_future(target.run()))
    yield made
    await made.stop()
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
        assert it.target.status() == {
            "name": "discord",
            "host": "discord.example",
            "state": "ready",
            "sent": 1,
            "failed": 0,
            "dropped": 0,
            "waiting": 0,
            "last": "http_204",
            "retry_in_s": None,
        }


@in_virtual_time
async def test_many_at_once_are_one_message():
    async with bench() as it:
        it.put(*(f"c{number}" for number in range(10)))
        await asyncio.sleep(60)
        (text,) = it.webhooks.texts()
        assert text.startswith("Hearth: 10 alerts: ")
        assert all(f"about c{number}" in text for number in range(10))


@pytest.mark.parametrize(
    ("name", "again_at"),
    [
        ("429 json", 2.3),
        ("429 json with Via", 2.3),
        ("429 header", 9.0),
        ("429 header with Via", 9.0),
        ("429 bare", 7.0),
        ("429 bare with Via", 7.0),
        ("500", 3.0),
        ("502 html", 3.0),
    ],
)
def test_an_answer_that_asks_for_time_gets_it_and_then_the_same_message(name, again_at):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(REPLIES[name]) as it:
            it.put("webui")
            await asyncio.sleep(60)
            assert it.times == [2.0, again_at]
            assert it.webhooks.texts() == ["Hearth: Queue full: about webui"]
            assert [each.attempts for each in it.events.of(AlertSent)] == [2]

    scenario()


@in_virtual_time
async def test_ten_minutes_of_silence_that_were_asked_for_are_kept_also_for_what_comes_meanwhile():
    async with bench(limited(600)) as it:
        it.put("a")
        await asyncio.sleep(10)
        it.put("b")
        assert it.target.status()["retry_in_s"] == 592.0
        assert it.state() == "waiting"
        await asyncio.sleep(700)
        assert it.times == [2.0, 602.0, 602.0]


@in_virtual_time
async def test_a_bucket_that_is_empty_after_a_success_is_left_to_fill():
    async with bench(REPLIES["200 with the bucket empty"]) as it:
        it.put("a", "b")
        await asyncio.sleep(60)
        assert it.times == [2.0, 3.5]


@pytest.mark.parametrize("name", ["401", "404"])
def test_a_webhook_that_is_gone_gets_one_post_and_no_more_until_the_configuration_is_read_again(name):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(REPLIES[name]) as it:
            it.put("a", "b")
            await asyncio.sleep(10)
            it.put("c")
            await asyncio.sleep(3600)
            assert it.times == [2.0]
            assert it.failures == [(f"http_{name}", 1, True)]
            assert (it.state(), it.target.dropped, it.target.status()["waiting"]) == ("stopped", 3, 0)
            it.target.point_at(URL)
            it.put("d")
            await asyncio.sleep(10)
            (text,) = it.webhooks.texts()
            assert "about d" in text
            assert "could not be sent in time: 3 more." in text

    scenario()


@pytest.mark.parametrize("name", ["302", "400"])
def test_a_message_that_is_refused_is_given_up_and_the_next_one_goes_out(name):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(REPLIES[name]) as it:
            it.put("a", "b")
            await asyncio.sleep(10)
            assert it.failures == [(f"http_{name}", 1, False)]
            (text,) = it.webhooks.texts()
            assert text == "Hearth: Queue full: about b\nDropped, since it could not be sent in time: 1 more."

    scenario()


@pytest.mark.parametrize(("reply", "reason"), [(REPLIES["500"], "http_500"), (STALL, "timeout"), (Reply(reset=True), "broken")])
def test_a_target_that_keeps_failing_gets_a_bounded_number_of_tries_further_and_further_apart(reply, reason):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(default=reply) as it:
            it.put("a")
            await asyncio.sleep(300)
            assert it.failures == [(reason, MAX_ATTEMPTS, False)]
            assert it.state() == "failing"
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
        it.target.put(down(at=0.0))
        it.put("a")
        await asyncio.sleep(2 * 3600)
        assert (it.target.dropped, it.target.status()["waiting"]) == (1, 1)
        it.webhooks.default = OK
        await asyncio.sleep(120)
        (text,) = it.webhooks.texts()
        assert text == "Hearth: Model server down: it is down\nDropped, since it could not be sent in time: 1 more."


@in_virtual_time
async def test_a_condition_that_ended_during_the_outage_is_told_by_its_end_alone():
    async with bench(default=REPLIES["500"]) as it:
        it.target.put(down(at=0.0))
        await asyncio.sleep(3600)
        it.target.put(up(at=3600.0))
        await asyncio.sleep(600)
        it.webhooks.default = OK
        await asyncio.sleep(120)
        assert it.webhooks.texts() == ["Hearth: Over: Model server down: it is up"]


@in_virtual_time
async def test_after_it_has_recovered_failures_are_forgotten():
    async with bench(REPLIES["500"], REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(30)
        it.put("b")
        await asyncio.sleep(30)
        assert it.times == [2.0, 3.0, 5.0, 32.0]
        assert it.state() == "ready"


@in_virtual_time
async def test_a_stream_of_alerts_is_never_more_than_twenty_posts_a_minute():
    async with bench() as it:
        for number in range(400):
            it.put(f"c{number}")
            await asyncio.sleep(0.9)
        await asyncio.sleep(120)
        times = it.times
        assert max(sum(at <= each < at + 60 for each in times) for at in times) <= 20
        said = " ".join(it.webhooks.texts())
        told = sum(each.alerts for each in it.events.of(AlertSent))
        assert told == 400
        assert "And 20 more." in said


@in_virtual_time
async def test_ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted():
    async with bench(default=STALL) as it:
        for number in range(10_000):
            it.put(f"c{number}")
        await asyncio.sleep(5)
        for number in range(10_000):
            it.put(f"d{number}")
        status = it.target.status()
        in_memory = status["waiting"]
        assert isinstance(in_memory, int)
        assert in_memory <= 2 * CAPACITY
        assert it.target.dropped + in_memory == 20_000
        it.webhooks.default = OK
        await asyncio.sleep(300)
        assert it.target.status()["waiting"] == 0
        assert it.target.dropped + sum(each.alerts for each in it.events.of(AlertSent)) == 20_000
        assert any("could not be sent in time: " in text for text in it.webhooks.texts())


@in_virtual_time
async def test_what_waits_at_the_end_is_sent_in_one_message():
    async with bench(latency_s=0.5) as it:
        it.put("a", "b")
        await asyncio.sleep(2.1)
        it.put("c")
        await it.stop()
        began = asyncio.get_running_loop().time()
        await it.target.aclose(2.0)
        assert asyncio.get_running_loop().time() - began <= 1.0
        first, second = it.webhooks.texts()
        assert first == "Hearth: Queue full: about a"
        assert "about b" in second
        assert "about c" in second
        assert it.target.dropped == 0


@pytest.mark.parametrize("moment", [1.0, 2.5, 13.0])
def test_a_target_that_stalls_holds_up_the_end_for_two_seconds_at_most(moment):
    @in_virtual_time
    async def scenario() -> None:
        async with bench(default=STALL) as it:
            it.put("a", "b")
            await asyncio.sleep(moment)
            await it.stop()
            began = asyncio.get_running_loop().time()
            await it.target.aclose(2.0)
            assert asyncio.get_running_loop().time() - began <= 2.0
            assert it.target.dropped == 2

    scenario()


@in_virtual_time
async def test_a_post_that_is_out_when_the_end_comes_is_not_sent_twice():
    async with bench(latency_s=1.0) as it:
        it.put("a")
        await asyncio.sleep(2.5)
        await it.stop()
        await it.target.aclose(2.0)
        assert it.webhooks.texts() == ["Hearth: Queue full: about a"]
        assert len(it.events.of(AlertSent)) == 1


@in_virtual_time
async def test_a_task_that_is_started_again_takes_up_the_post_that_is_out():
    async with bench(latency_s=1.0) as it:
        it.put("a", "b")
        await asyncio.sleep(2.5)
        await it.stop()
        it.task = asyncio.ensure_future(it.target.run())
        await asyncio.sleep(10)
        assert len(it.webhooks.texts()) == 2


@in_virtual_time
async def test_a_target_that_asked_for_silence_gets_none_at_the_end():
    async with bench(limited(600)) as it:
        it.put("a")
        await asyncio.sleep(5)
        await it.stop()
        await it.target.aclose(2.0)
        assert len(it.times) == 1
        assert it.failures == [("stopping", 1, False)]


@in_virtual_time
async def test_another_address_is_tried_at_once_and_none_at_all_forgets_what_waits():
    async with bench(default=REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(20)
        it.webhooks.default = OK
        it.target.point_at("https://discord.example/api/webhooks/2/x")
        it.put("b")
        await asyncio.sleep(3)
        assert it.webhooks.accepted[-1].path == "/api/webhooks/2/x"
        it.put("c")
        it.target.point_at("")
        await asyncio.sleep(30)
        assert (it.target.configured, it.target.status()["waiting"]) == (False, 0)
        assert "about c" not in " ".join(it.webhooks.texts())


@in_virtual_time
async def test_the_end_of_an_old_address_does_not_stop_the_new_one():
    async with bench(REPLIES["404"], latency_s=1.0) as it:
        it.put("a")
        await asyncio.sleep(2.5)
        it.target.point_at("https://discord.example/api/webhooks/2/x")
        await asyncio.sleep(1)
        it.put("b")
        await asyncio.sleep(10)
        assert it.state() == "ready"
        assert "about b" in it.webhooks.texts()[0]


@in_virtual_time
async def test_a_trial_says_what_came_back_also_of_a_target_that_has_stopped_and_revives_it():
    async with bench(REPLIES["404"], REPLIES["401"]) as it:
        it.put("a")
        await asyncio.sleep(5)
        assert (await it.target.attempt(message(), 25.0)).name == "http_401"
        assert it.state() == "stopped"
        assert (await it.target.attempt(message(), 25.0)).delivered
        assert it.state() == "ready"


@in_virtual_time
async def test_a_trial_that_arrives_says_nothing_about_the_message_that_waits_for_its_next_try():
    async with bench(REPLIES["500"], REPLIES["500"], REPLIES["500"]) as it:
        it.put("a")
        await asyncio.sleep(8)
        assert len(it.times) == 3
        assert (await it.target.attempt(message(), 25.0)).delivered
        assert it.events.of(AlertSent) == []
        await asyncio.sleep(60)
        assert [text.rpartition(": ")[2] for text in it.webhooks.texts()] == ["it is full", "about a"]
        assert [each.attempts for each in it.events.of(AlertSent)] == [4]


@in_virtual_time
async def test_a_trial_does_not_overtake_a_post_that_is_out_and_ends_in_time():
    async with bench(STALL) as it:
        it.put("a")
        await asyncio.sleep(3)
        assert (await it.target.attempt(message(), 25.0)).delivered
        it.webhooks.default = STALL
        began = asyncio.get_running_loop().time()
        assert (await it.target.attempt(message(), 5.0)).name == "timeout"
        assert asyncio.get_running_loop().time() - began == 5.0


@in_virtual_time
async def test_a_trial_that_was_given_up_before_it_went_out_stays_here():
    async with bench(STALL) as it:
        it.put("a")
        await asyncio.sleep(3)
        assert (await it.target.attempt(message(), 5.0)).name == "timeout"
        await asyncio.sleep(60)
        assert it.webhooks.texts() == ["Hearth: Queue full: about a"]


@in_virtual_time
async def test_a_defect_in_composing_breaks_the_task_but_not_for_ever():
    broken: list[str] = []

    def compose(url: str, of: object) -> Post:
        broken.append(url)
        raise RuntimeError("a defect")

    events = Recorder()
    target = Target("discord", compose=compose, poster=MemoryPoster(Webhooks()), clock=LoopClock(), events=events)
    target.point_at(URL)
    target.put(down())
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(RuntimeError, match="a defect"):
            await target.run()
    task = asyncio.ensure_future(target.run())
    await asyncio.sleep(10)
    assert (len(broken), target.dropped) == (MAX_ATTEMPTS, 1)
    assert [each.reason for each in events.of(AlertFailed)] == ["broken"]
    task.cancel()
    await asyncio.wait([task])
    await target.aclose(2.0)
