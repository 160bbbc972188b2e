"""The alerter as a whole, in virtual time: events in, messages out."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hearth import events as ev
from hearth.alerts.alerter import CHECK_EVERY_S, MAX_CALLERS, MAX_KEYS, Debouncer, GatewayAlerter
from hearth.alerts.rules import Alert
from hearth.bootstrap.observers import join_alerts
from hearth.config.settings import AlertSettings, AlertType, GpuAlertSettings
from hearth.errors import NotFound
from hearth.events import (
    AlertFailed,
    AlertSent,
    BackendCameUp,
    BackendWentDown,
    Event,
    InternalFault,
    ItemQueued,
    SwapCompleted,
)
from hearth.execution.gpu_tracker import BUSY_ENOUGH_S, GpuTracker
from hearth.types import Lane
from tests.alerts.harness import (
    ALL,
    GATHERED_S,
    ONE,
    SECRET,
    WEBHOOK,
    alert,
    alerted,
    alerting,
    down,
    up,
)
from tests.observability.samples import rejected as refusal
from tests.observability.samples import sample
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import FakeModel
from tests.support.fake_webhooks import MemoryPoster, Reply, Webhooks
from tests.support.house import House, settings_with
from tests.support.virtual_time import in_virtual_time

MUTED = ONE.replace(mute=(AlertType.BACKEND_DOWN,))
SWAP = sample(SwapCompleted, from_models=("a",), to_model="b", offloaded=False)
WENT_DOWN = BackendWentDown(at=0.0, reason="x")
CAME_UP = BackendCameUp(at=0.0, version="1", down_s=8.0)
IS_DOWN = (
    "Hearth (critical): Model server down: The model server does not answer (x). Requests "
    "wait for it and then get 503."
)
IS_UP = "Hearth: Resolved: Model server down: The model server answers again after 8 s."


def rejected(reason: str, caller: str = "webui") -> Event:
    return replace(refusal(caller=caller), reason=reason)


def item(kind: type[Event], sequence: int, **more: Any) -> Event:
    return sample(kind, sequence=sequence, caller="webui", **more)


@in_virtual_time
async def test_repeated_refusals_of_a_caller_are_told_at_the_threshold():
    async with alerting(ONE.replace(rate_limit_alert_threshold=5)) as it:
        it.emit(rejected("rate_limited"))
        await asyncio.sleep(300)
        for _ in range(4):
            it.emit(rejected("rate_limited"))
            it.emit(rejected("rate_limited", "n8n"))
        assert await it.arrived() == []
        for _ in range(20):
            it.emit(rejected("rate_limited"))
        said = (
            "Hearth (warning): Caller over its rate limit: webui was refused by its rate limit at "
            "least 5 times within 5 minutes."
        )
        assert await it.arrived() == [said]
        await asyncio.sleep(600)
        for _ in range(5):
            it.emit(rejected("rate_limited"))
        assert await it.arrived() == [f"{said} 19 more like this since the last message."]
        assert it.alerter.status()["suppressed"] == 19


@in_virtual_time
async def test_one_of_something_is_not_written_as_several():
    async with alerting(ONE.replace(rate_limit_alert_threshold=1, queue_depth_warning=0)) as it:
        it.emit(rejected("rate_limited"))
        it.emit(item(ItemQueued, 1))
        it.emit(item(ev.ItemProtected, 1, interrupt_count=1))
        said = "".join(await it.arrived())
    for words in ("at least 1 time within", "1 external request waits", "interrupted 1 time."):
        assert words in said


@in_virtual_time
async def test_refusals_of_the_quietest_caller_are_forgotten_first():
    async with alerting(ONE.replace(rate_limit_alert_threshold=2)) as it:
        for number in (*range(MAX_CALLERS), 0, MAX_CALLERS, 2, 1):
            it.emit(rejected("rate_limited", f"caller {number}"))
        assert [
            text.partition(" was refused")[0].rpartition(": ")[2] for text in await it.arrived()
        ] == ["caller 0", "caller 2"]


@in_virtual_time
async def test_a_long_queue_is_told_at_its_limit_and_at_half_as_much_again():
    async with alerting(ONE.replace(queue_depth_warning=10)) as it:
        for number in range(10):
            it.emit(item(ItemQueued, number))
        assert await it.arrived() == []
        it.emit(item(ItemQueued, 10))
        assert await it.arrived() == [
            "Hearth (warning): Long queue: 11 external requests wait; the limit is 10."
        ]
        assert it.alerter.status()["active"] == [
            {"type": "queue_depth", "severity": "warning", "subject": ""}
        ]
        for number in range(5):
            it.emit(item(ev.ItemDispatched, number))
        it.emit(item(ev.ItemInterrupted, 0))
        it.emit(item(ev.ItemResent, 1))
        it.emit(item(ItemQueued, 11, lane=Lane.INTERNAL))
        for number in (0, 1, 11, 11):
            it.emit(item(ev.ItemEnded, number))
        assert await it.arrived() == []
        it.emit(item(ev.ItemLost, 10))
        assert await it.arrived() == ["Hearth: Resolved: Long queue: 5 external requests wait."]
        assert it.alerter.status()["active"] == []


@alerted
async def test_excessive_swapping_is_told_after_a_swap_and_its_end_within_a_minute(it):
    tracker = GpuTracker(
        "home",
        GpuAlertSettings(
            swaps_per_hour_warning=2, swap_wait_ms_warning=60_000, swap_overhead_pct_warning=100
        ),
    )
    it.alerter.watch_gpu(tracker.alarming)

    async def swap(length_s: float) -> None:
        tracker.record_swap_started("a", "b", it.now)
        await asyncio.sleep(length_s)
        tracker.record_swap_completed(it.now)
        it.emit(SWAP)

    for length_s in (1.0, 1.0, 61.0):
        await swap(length_s)
    third_at = it.now
    assert await it.arrived() == [
        "Hearth (warning): Many model swaps: 3 model swaps in the last hour; the limit is 2.",
        "Hearth (warning): Slow model swap: The last model swap took 61 s; the limit is 60 s.",
    ]
    await asyncio.sleep(third_at + 3600 + CHECK_EVERY_S + 1 - it.now)
    assert await it.arrived() == [
        "Hearth: Resolved: Many model swaps: It is back within its limit."
    ]
    tracker.update(
        "home",
        GpuAlertSettings(
            swaps_per_hour_warning=100, swap_wait_ms_warning=1e6, swap_overhead_pct_warning=25
        ),
    )
    tracker.record_execution_time(BUSY_ENOUGH_S, it.now)
    await swap(BUSY_ENOUGH_S)
    (text,) = await it.arrived()
    assert text.startswith(
        "Hearth (warning): Model swaps take much of the GPU's time: Model swaps took 50 % of "
    )


@in_virtual_time
async def test_the_swaps_of_a_quiet_hour_are_told_to_nobody():
    models = FakeModel(name="a", load_s=8.0), FakeModel(name="b", load_s=8.0)
    settings = settings_with(gpu={"home_model": "a"}, alerts={"webhook_url": WEBHOOK})
    house = House(*models, resident="a", settings=settings)
    webhooks = Webhooks()
    events = house.gateway.events
    alerter = GatewayAlerter(
        settings=settings.alerts, clock=house.clock, events=events, poster=MemoryPoster(webhooks)
    )
    events.subscribe(alerter)
    join_alerts(house.gateway, alerter, None)
    async with house:
        for _ in range(2):
            await house.answer("b", service_s=6.0)
            await asyncio.sleep(3600)
        assert len(house.events.of(SwapCompleted)) == 4
        alerter.alert_queue_full("webui")
        await asyncio.sleep(GATHERED_S)
        (text,) = webhooks.texts()
        assert "Queue full" in text
        await alerter.aclose()


@alerted
async def test_a_model_server_that_goes_and_comes_is_two_messages(it):
    for event, told in (
        (CAME_UP, []),
        (WENT_DOWN, [IS_DOWN]),
        (CAME_UP, [IS_UP]),
        (WENT_DOWN, []),
    ):
        it.emit(event)
        assert await it.arrived() == told
    await asyncio.sleep(600)
    assert await it.arrived() == [IS_DOWN]


@in_virtual_time
async def test_a_test_alert_reaches_every_target_and_a_stall_holds_up_no_other():
    async with alerting(ALL) as it:
        it.emit(rejected("queue_full", "n8n"))
        text = "A request of n8n was refused because the queue is full."
        assert await it.arrived() == [f"Hearth (critical): Queue full: {text}"] * 3
        it.webhooks.at_path[f"/api/webhooks/1/{SECRET}"] = Reply(404)
        answers = [
            ("discord", False, "http_404", "there is nothing at the address: copy it again"),
            ("webhook", True, "http_204", None),
            ("ntfy", True, "http_204", None),
        ]
        hosts = {"discord": "discord.example", "webhook": "hooks.example", "ntfy": "ntfy.example"}
        expected = [
            {
                "target": name,
                "host": hosts[name],
                "delivered": came,
                "answer": answer,
                "problem": problem,
            }
            for name, came, answer, problem in answers
        ]
        assert await it.alerter.test() == expected
        assert set(it.webhooks.texts()) == {
            "Hearth (information): Test message: Alerts from Hearth arrive here."
        }
        it.alerter.update(ALL)
        it.webhooks.at_path[f"/api/webhooks/1/{SECRET}"] = Reply(stall=True)
        it.emit(rejected("queue_full"))
        await asyncio.sleep(GATHERED_S)
        assert sorted(each.target for each in it.events.of(AlertSent)) == [
            "discord",
            "ntfy",
            "ntfy",
            "webhook",
            "webhook",
        ]


@pytest.mark.parametrize(
    ("at_first", "then", "told", "ends", "told_of_the_end"),
    [
        (AlertSettings(), ONE, [], False, [IS_DOWN]),
        (MUTED, ONE, [], False, [IS_DOWN]),
        (MUTED, ONE, [], True, []),
        (ONE, MUTED, [IS_DOWN], True, []),
        (ONE, ONE, [IS_DOWN], True, [IS_UP]),
    ],
)
@in_virtual_time
async def test_what_goes_on_is_known_and_told_as_soon_as_somebody_hears_of_it(
    at_first, then, told, ends, told_of_the_end
):
    async with alerting(at_first) as it:
        it.emit(WENT_DOWN)
        assert await it.arrived() == told
        assert it.alerter.status()["active"] == [
            {"type": "backend_down", "severity": "critical", "subject": ""}
        ]
        await asyncio.sleep(7200)
        it.alerter.update(then)
        if ends:
            it.emit(CAME_UP)
        assert await it.arrived() == told_of_the_end
        await asyncio.sleep(7200)
        assert await it.arrived() == []


@in_virtual_time
async def test_changed_settings_hold_at_once_and_what_was_sent_stays_known():
    async with alerting(AlertSettings()) as it:
        it.emit(rejected("queue_full", "first"))
        assert not it.alerter.send_alert(alert("second", at=it.now))
        with pytest.raises(NotFound, match=r"alerts\.discord_webhook_url"):
            await it.alerter.test()
        for settings, events, told in (
            (ONE, [rejected("queue_full", "webui")], 1),
            (
                ONE.replace(debounce_minutes=0, queue_depth_warning=0),
                [rejected("queue_full", "webui"), item(ItemQueued, 1)],
                2,
            ),
            (AlertSettings(), [rejected("queue_full", "n8n")], 0),
        ):
            it.alerter.update(settings)
            for event in events:
                it.emit(event)
            assert len(await it.arrived()) == told
        assert it.alerter.status() | {"active": 0, "suppressed": 0} == {
            "sent": 3,
            "dropped": 0,
            "targets": [],
            "active": 0,
            "suppressed": 0,
        }


@alerted
async def test_the_methods_say_whether_a_message_will_be_sent(it):
    calls: tuple[Callable[[], bool], ...] = (
        lambda: it.alerter.alert_rate_limited("webui", 5),
        lambda: it.alerter.alert_queue_depth(11),
        lambda: it.alerter.alert_queue_full("webui"),
        lambda: it.alerter.alert_starvation("webui", 3, model="a"),
        lambda: it.alerter.alert_budget(4.0, 5.0),
    )
    assert [call() for call in calls] == [True] * 5
    assert [call() for call in calls] == [False] * 5
    (text,) = await it.arrived()
    assert "4.00 USD of 5.00 USD for cloud models has been spent today." in text


@in_virtual_time
async def test_a_failure_to_alert_raises_no_alert():
    async with alerting(ONE, default=Reply(500)) as it:
        it.emit(rejected("queue_full"))
        it.emit(InternalFault(at=0.0, where="alerts", detail="ExceptionGroup"))
        await asyncio.sleep(3600)
        assert (len(it.events.of(AlertFailed)), it.status("waiting")) == (1, 0)


# One message per type and caller in a window, one notice when a condition has ended, nothing that
# the owner believes wrongly for long.


WINDOW_S = 600.0
HISTORIES = {
    "counted": (
        [alert(at=at) for at in (0.0, 1.0, 599.9, 600.0, 601.0, 1200.0)],
        [0, None, None, 2, None, 1],
    ),
    "reported while it lasts": ([down(at) for at in (0.0, 60.0, 599.0, 600.0)], [0, None, None, 2]),
    "told to be over once": ([down(0.0), up(5.0), up(6.0)], [0, 0, None]),
    "over without a beginning": (
        [up(5.0), alert(at=1.0), alert(at=2.0, resolved=True)],
        [None, 0, None],
    ),
    "callers and types apart": (
        [alert("a"), alert("b"), alert("a", AlertType.RATE_LIMITED), alert("a", at=1.0)],
        [0, 0, 0, None],
    ),
    "came and went untold": (
        [down(0.0), up(1.0), down(2.0), up(3.0), down(700.0)],
        [0, 0, None, None, 1],
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_is_sent_says_how_many_were_left_out_before(name):
    debouncer = Debouncer(WINDOW_S)
    alerts, suppressed = HISTORIES[name]
    sent = [debouncer.take(each) for each in alerts]
    assert [each and each.suppressed for each in sent] == suppressed
    assert debouncer.suppressed == sum(
        each is None and not of.resolved for each, of in zip(sent, alerts, strict=True)
    )


def test_conditions_back_within_the_window_are_told_at_its_end():
    debouncer = Debouncer(WINDOW_S)
    for subject, at in (("a", 0.0), ("b", 50.0), ("c", 50.0)):
        for each in (down(at, subject), up(at + 1.0, subject), down(at + 2.0, subject)):
            debouncer.take(each)
    debouncer.take(up(60.0, "c"))
    assert (debouncer.next_due_at(), debouncer.due(599.0)) == (600.0, [])
    assert [(each.subject, each.suppressed) for each in debouncer.due(600.0)] == [("a", 0)]
    assert debouncer.next_due_at() == 650.0
    assert [each.subject for each in debouncer.due(5000.0)] == ["b"]
    assert debouncer.next_due_at() is None
    assert debouncer.take(up(5001.0, "a")) is not None


def test_what_is_remembered_is_bounded_and_what_goes_on_is_kept():
    debouncer = Debouncer(WINDOW_S)
    debouncer.take(down(0.0))
    for number in range(2 * MAX_KEYS):
        assert debouncer.take(alert(f"caller {number}", at=float(number))) is not None
    assert len(debouncer._records) == MAX_KEYS
    assert debouncer.take(up(1e6)) is not None
    for number in range(MAX_KEYS):
        debouncer.take(down(1e7, f"model {number}"))
    told = [debouncer.take(alert("webui", at=1e7)) for _ in range(2)]
    assert (told[0] is not None, told[1], len(debouncer._records)) == (True, None, MAX_KEYS), (
        "also where everything goes on"
    )


@for_each("seed", range(50 * EXAMPLES))
def test_no_window_has_two_messages_and_the_owner_learns_the_truth(seed):
    rng = random.Random(seed)
    debouncer = Debouncer(WINDOW_S)
    now = 0.0
    is_down = False
    told_at = []
    believed_down = False
    for _ in range(60):
        now += rng.choice([0.5, 30.0, 200.0, 700.0])
        told: list[Alert | None] = [*debouncer.due(now)]
        if rng.random() < 0.7:
            is_down = not is_down if rng.random() < 0.8 else is_down
            told.append(debouncer.take(down(now) if is_down else up(now)))
        for each in told:
            if each is not None:
                assert believed_down or not each.resolved, (
                    "the end of something that was never told"
                )
                believed_down = not each.resolved
                told_at += [now] if believed_down else []
        if debouncer.next_due_at() is None:
            assert believed_down == is_down
    assert all(later - earlier >= WINDOW_S for earlier, later in itertools.pairwise(told_at))
    assert (believed_down or bool(debouncer.due(now + WINDOW_S))) == is_down
