"""Messages about the ends of jobs: signed, to allowed hosts and harmless addresses only, again and
again until they are taken.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import pytest

from hearth.config.fields import signing_secret
from hearth.config.settings import WebhookSettings
from hearth.errors import BadRequest, Forbidden
from hearth.events import JobEnded, WebhookDelivered, WebhookFailed
from hearth.job_types import Delivery, JobEnd, JobState, StoreLimits, WebhookState
from hearth.jobs.runner import fields_of
from hearth.jobs.webhooks import (
    WebhookSender,
    check_webhook,
    host_of,
    is_forbidden,
    pause_s,
    post_of,
    signature,
)
from hearth.types import DAY_S, Post, PostAnswer
from tests.jobs.house import job
from tests.storage.memory import Disk
from tests.support.cases import for_each
from tests.support.recorder import Recorder
from tests.support.virtual_time import WALL_AT_START, LoopClock, in_virtual_time, loop_s

SECRET = "a secret of the owner"
URL = "http://hook.lan:8080/t0ken"
SETTINGS = WebhookSettings(allowed_hosts=("hook.lan",), secret=SECRET, max_attempts=4)


# Where they may go.


@for_each(
    "address",
    [
        "169.254.169.254",
        "169.254.1.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",  # RFC 6052, section 2.2: of a prefix of 48 bits,
        "64:ff9b:1:5a9:fe:a9fe::",  # of 56,
        "64:ff9b:1:5:a9:fea9:fe00:0",  # of 64,
        "64:ff9b:1:5::a9fe:a9fe",  # and of 96
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::",  # the server of Teredo
        "2001:0:4136:e378:8000:63bf:5601:5601",  # its client
        "::169.254.169.254",
        "::ffff:0:169.254.169.254",
        "2001:db8::5efe:169.254.169.254",
        "2001:db8::200:5efe:a9fe:a9fe",
        "::ffff:0.0.0.0",
        "no address",
    ],
)
def test_nothing_is_sent_to_addresses_of_secrets_and_crowds(address):
    assert is_forbidden(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "::1", "192.168.1.9", "10.0.0.1", "fd12::1", "1.1.1.1", "2606:4700::1111"),
        *(
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:1:5::1.1.1.1",
            "64:ff9b:1:a00:0:100::",
        ),
        *("::ffff:0:10.0.0.1", "2002:a00:1::1", "2001:db8::5efe:10.0.0.1"),
    ],
)
def test_the_owners_own_machines_and_the_internet_may_be_allowed(address):
    assert not is_forbidden(address)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (URL, "hook.lan"),
        ("https://HOOK.lan/x?y=1", "hook.lan"),
        ("http://hook.lan./", "hook.lan"),
        ("https://[::1]:443", "::1"),
    ],
)
def test_a_url_on_an_allowed_host_is_taken(url, host):
    assert check_webhook(url, SETTINGS.replace(allowed_hosts=("hook.lan", "[::1]"))) == url
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://other.lan/", Forbidden),
        ("http://hook.lan.evil.test/", Forbidden),
        ("http://evil.test/hook.lan", Forbidden),
        ("http://hook.lan@evil.test/", BadRequest),
        ("http://user:pw@hook.lan/", BadRequest),
        ("http://evil.test\\@hook.lan/", BadRequest),
        ("ftp://hook.lan/", BadRequest),
        ("file:///etc/passwd", BadRequest),
        ("http://hook.lan/#x", BadRequest),
        ("http://hook.lan:0/", BadRequest),
        ("http://hook.lan:99999/", BadRequest),
        ("http:///x", BadRequest),
        ("hook.lan", BadRequest),
        ("http://hook.lan/ x", BadRequest),
        ("http://hook.lan/\n", BadRequest),
        ("http://hook.lan/" + "x" * 2000, BadRequest),
    ],
)
def test_any_other_is_refused_and_not_quoted(url, error):
    with pytest.raises(error) as refused:
        check_webhook(url, SETTINGS)
    assert "t0ken" not in refused.value.message
    assert "evil" not in refused.value.message


# What they say.

DELIVERY = Delivery(
    job_id="job_1",
    url=URL,
    host="hook.lan",
    state=JobState.COMPLETED,
    task_type="letter",
    emulated=True,
    reason="",
    accepted_wall_s=1.0,
    ended_wall_s=2.5,
    attempts=0,
    due_wall_s=2.5,
)


def test_a_message_says_what_ended_without_a_result_and_is_signed():
    said = {
        "job_id": "job_1",
        "state": "completed",
        "task_type": "letter",
        "reason": "",
        "accepted_wall_s": 1.0,
        "ended_wall_s": 2.5,
    }
    post = post_of(DELIVERY, SECRET, 1_700_000_000.9)
    assert (post.url, json.loads(post.body)) == (
        URL,
        said | {"type": "job.completed", "emulator": True},
    )
    expected = base64.b64encode(
        hmac.new(SECRET.encode(), b"job_1.1700000000." + post.body, hashlib.sha256).digest()
    ).decode()
    assert (post.headers["webhook-id"], post.headers["webhook-timestamp"]) == (
        "job_1",
        "1700000000",
    )
    assert post.headers["webhook-signature"] == f"v1,{expected}"
    assert SECRET not in str(post)


def test_the_signature_is_that_of_standard_webhooks_and_odd_secrets_refused():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signed = signature(
        secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signing_secret(secret) == secret
    for key in ("no base64 at all", "\u00fcber den Wolken", "c2hvcnQgc2VjcmV0", "A" * 100):
        with pytest.raises(ValueError, match="base64 of 24 to 64 bytes"):
            signing_secret(f"whsec_{key}")


def test_pauses_grow():
    assert [pause_s(attempts) for attempts in range(1, 10)] == [
        5,
        30,
        120,
        600,
        1800,
        3600,
        7200,
        7200,
        7200,
    ]


# How they are kept until they are taken.


class ScriptedPoster:
    """Answers as told, in order, the last one again and again; keeps what it was given.

    `slow_s`: how long a job's message takes.
    """

    def __init__(self, *said: str, slow_s: Mapping[str, float] = MappingProxyType({})) -> None:
        self._said = list(said)
        self._slow_s = slow_s
        self.came: list[tuple[float, str, Mapping[str, str]]] = []

    async def post(self, post: Post, timeout_s: float) -> PostAnswer:
        self.came.append((loop_s(), post.url, post.headers))
        await asyncio.sleep(self._slow_s.get(post.headers["webhook-id"], 0.0))
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        return PostAnswer(failure=said) if said else PostAnswer(status=204)

    async def aclose(self) -> None:
        """Nothing is open."""


class Teller:
    """One process that tells, on a disk, for the time of the block."""

    def __init__(
        self,
        disk: Disk,
        poster: ScriptedPoster,
        settings: WebhookSettings = SETTINGS,
        clock: LoopClock | None = None,
    ) -> None:
        clock = clock or LoopClock()
        self.table = disk.tables(clock).jobs
        self.events = Recorder()
        self._sender = WebhookSender(
            outbox=self.table,
            poster=poster,
            settings=lambda: settings,
            clock=clock,
            events=self.events,
        )

    async def end_a_job(self, job_id: str = "job_1", url: str = URL) -> None:
        accepted = await self.table.accept(
            job(job_id, webhook_url=url), StoreLimits(max_queued=1000, max_bytes=1 << 20)
        )
        await self.table.claim(accepted.number)
        await self.table.finish(accepted.number, JobEnd(state=JobState.COMPLETED))
        self._sender.emit(
            JobEnded(
                **fields_of(accepted, 0.0),
                state="completed",
                reason="",
                attempts=1,
                total_s=1.0,
                status=200,
            )
        )

    async def state(self) -> WebhookState:
        found = await self.table.find("job_1")
        assert found is not None
        return found.webhook

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._sender.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.parametrize(
    ("said", "settings", "posted_at", "state", "reason"),
    [
        ([""], SETTINGS, [1], "delivered", None),
        (["http_500"], SETTINGS, [1, 6, 36, 156], "failed", "http_500"),
        (["http_410"], SETTINGS, [1], "failed", "http_410"),
        ([""], WebhookSettings(secret=SECRET), [], "failed", "not_allowed"),
        ([""], WebhookSettings(allowed_hosts=("hook.lan",)), [], "failed", "not_allowed"),
    ],
)
@in_virtual_time
async def test_a_message_goes_out_after_its_job_until_taken_or_given_up(
    said, settings, posted_at, state, reason
):
    poster = ScriptedPoster(*said)
    began_at = loop_s()
    async with Teller(Disk(), poster, settings) as teller:
        await asyncio.sleep(1)
        await teller.end_a_job()
        await asyncio.sleep(10_000)
    assert [at - began_at for at, _, _ in poster.came] == pytest.approx(posted_at, abs=0.1)
    assert {(url, headers["webhook-id"]) for _, url, headers in poster.came} <= {(URL, "job_1")}
    (told,) = [
        event for event in teller.events.all if isinstance(event, WebhookDelivered | WebhookFailed)
    ]
    assert (told.job_id, told.host, told.attempts, getattr(told, "reason", None)) == (
        "job_1",
        "hook.lan",
        len(posted_at) or 1,
        reason,
    )
    assert await teller.state() == state
    assert "t0ken" not in repr(teller.events.all)


@pytest.mark.parametrize(
    ("back_s", "pauses"), [(0.0, [0, 5, 35]), (7200.0, [0, 3, 33]), (10 * 365 * DAY_S, [0, 3, 33])]
)
@in_virtual_time
async def test_a_restart_goes_on_telling_and_a_clock_set_back_delays_nothing(back_s, pauses):
    poster = ScriptedPoster("dns", "timeout", "")
    disk = Disk()
    began_at = loop_s()
    async with Teller(disk, poster, clock=LoopClock(wall_at_start=WALL_AT_START + back_s)) as ahead:
        await ahead.end_a_job()
        await asyncio.sleep(3)
    async with Teller(disk, poster) as right:
        await asyncio.sleep(1000)
    assert [at - began_at for at, _, _ in poster.came] == pytest.approx(pauses, abs=0.1)
    assert await right.state() == "delivered"


@in_virtual_time
async def test_a_backlog_for_a_host_that_does_not_answer_keeps_no_other_waiting():
    poster = ScriptedPoster("timeout", slow_s={f"dead_{n}": 10.0 for n in range(50)})
    teller = Teller(Disk(), poster, SETTINGS.replace(allowed_hosts=("dead.lan", "hook.lan")))
    for n in range(50):
        await teller.end_a_job(f"dead_{n}", url=f"http://dead.lan/{n}")
    async with teller:
        await asyncio.sleep(1)
        await teller.end_a_job("alive")
        await asyncio.sleep(1)
    assert [headers["webhook-id"] for _, _, headers in poster.came] == [
        *(f"dead_{n}" for n in range(4)),
        "alive",
    ]


@in_virtual_time
async def test_a_slow_message_keeps_only_its_own_place_and_many_messages_all_arrive():
    poster = ScriptedPoster("", slow_s={"job_1": 8.0})
    teller = Teller(Disk(), poster)
    for n in range(50):
        await teller.end_a_job(f"job_{n}")
    async with teller:
        await asyncio.sleep(10)
    assert [at for at, _, _ in poster.came] == [0.0] * 50
    assert {headers["webhook-id"] for _, _, headers in poster.came} == {
        f"job_{n}" for n in range(50)
    }


@in_virtual_time
async def test_a_disk_that_fails_means_a_second_message_rather_than_none_and_no_storm():
    disk = Disk()
    poster = ScriptedPoster("")
    async with Teller(disk, poster) as teller:
        await teller.end_a_job()
        await asyncio.sleep(0)
        disk.broken = True
        await asyncio.sleep(590)
        disk.broken = False
        await asyncio.sleep(120)
    assert [at for at, _, _ in poster.came] == [0.0, 600.0]
    assert await teller.state() == "delivered"
