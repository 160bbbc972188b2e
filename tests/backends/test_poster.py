"""Posting over real sockets: every answer, every failure, that the fake without sockets says the
same, and alerts of a whole gateway.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from hearth.alerts.channels import COMPOSERS
from hearth.backends.poster import (
    FORBIDDEN_ADDRESS,
    MAX_ANSWER_BYTES,
    Found,
    HttpPoster,
    Lookup,
    system_lookup,
)
from hearth.config.settings import AlertSettings
from hearth.events import AlertSent
from hearth.jobs.webhooks import is_forbidden
from hearth.observability.logs import line_of, to_json, to_text
from hearth.types import Post, PostAnswer
from tests.alerts.harness import TITLE, message
from tests.support.fake_webhooks import OK, REPLIES, MemoryPoster, Reply, Webhooks, serving
from tests.support.home import HELLO, LLAMA, house_settings, open_home
from tests.support.recorder import Recorder

LONG_S = 30.0
CARRIED = ("retry-after", "x-ratelimit-remaining", "x-ratelimit-reset-after", "via")


def carried(answer: PostAnswer) -> tuple[object, ...]:
    return (
        answer.status,
        answer.failure,
        answer.body,
        {name: answer.headers.get(name) for name in CARRIED},
    )


def post_to(url: str) -> Post:
    return COMPOSERS["ntfy"](f"{url}/topic", message())


@pytest.fixture
async def open_poster() -> AsyncIterator[Callable[..., HttpPoster]]:
    made: list[HttpPoster] = []

    def make(
        forbidden: Callable[[str], bool] = lambda _: False, lookup: Lookup = system_lookup
    ) -> HttpPoster:
        made.append(HttpPoster(forbidden, lookup=lookup))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


def found(*addresses: str) -> Lookup:
    """A name server that always says so."""

    def lookup(host: str, port: int) -> Found:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
        ]

    return lookup


@pytest.mark.parametrize("name", REPLIES)
async def test_the_real_poster_and_the_fake_agree_and_follow_no_redirect(name, open_poster):
    webhooks = Webhooks(REPLIES[name], default=OK)
    async with serving(webhooks) as url:
        real = await open_poster().post(post_to(url), LONG_S)
    in_memory = await MemoryPoster(Webhooks(REPLIES[name]), latency_s=0).post(
        post_to("http://memory"), LONG_S
    )
    assert carried(real) == carried(in_memory)
    assert (len(real.body) <= MAX_ANSWER_BYTES, len(webhooks.seen)) == (True, 1)


async def test_a_post_arrives_as_it_is_and_credentials_become_a_header(open_poster):
    webhooks = Webhooks()
    poster = open_poster()
    async with serving(webhooks) as url:
        for name, path in (
            ("discord", "/api/webhooks/1/x?thread_id=7"),
            ("webhook", "/hook?a=b%20c"),
            ("ntfy", "/topic"),
        ):
            assert (await poster.post(COMPOSERS[name](url + path, message()), LONG_S)).delivered
            await poster.aclose()  # a poster that was closed opens again
        await poster.post(post_to(url.replace("http://", "http://me:secret@")), LONG_S)
    discord, webhook, ntfy, with_credentials = webhooks.seen
    assert (discord.path, discord.query) == (
        "/api/webhooks/1/x",
        {"thread_id": "7", "wait": "true"},
    )
    assert (webhook.path, webhook.query, webhook.headers["content-type"]) == (
        "/hook",
        {"a": "b c"},
        "application/json",
    )
    assert (ntfy.path, ntfy.headers["title"], ntfy.body) == (
        "/topic",
        f"Hearth (warning): {TITLE}",
        b"it is full",
    )
    assert discord.headers["user-agent"].startswith("hearth-gateway/")
    assert with_credentials.headers["authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize(
    ("reply", "timeout_s", "failure"),
    [(Reply(stall=True), 0.05, "timeout"), (Reply(reset=True), LONG_S, "broken")],
)
async def test_an_answer_that_goes_wrong_is_a_failure_in_one_word(
    open_poster, reply, timeout_s, failure
):
    async with serving(Webhooks(reply)) as url:
        assert await open_poster().post(post_to(url), timeout_s) == PostAnswer(failure=failure)


@asynccontextmanager
async def answering(
    status: int, length: int, *pieces: bytes, ends: bool = False
) -> AsyncIterator[str]:
    """A server that sends the pieces one by one, and then ends the connection or is silent."""
    done = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Length": str(length)})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            for _ in range(20):  # the caller reads this piece by itself
                await asyncio.sleep(0)
        if not ends:
            await done.wait()
        if request.transport is not None:  # the caller has not closed it before
            request.transport.close()
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    done.set()
    await runner.cleanup()


LIMITED = b'{"retry_after": 600.5}'


@pytest.mark.parametrize(
    ("server", "body"),
    [
        (answering(429, 22, LIMITED[:9], LIMITED[9:]), LIMITED),
        (answering(429, 99, LIMITED[:9], LIMITED[9:]), LIMITED),
        (answering(429, 99, LIMITED[:9], ends=True), LIMITED[:9]),
        (answering(500, 10**6, *[b"x" * 2**15] * 3), b"x" * MAX_ANSWER_BYTES),
        (answering(200, 9), b""),
        (answering(200, 9, b"late", ends=True), b""),
    ],
)
async def test_a_refusal_is_read_whole_and_a_late_text_is_no_failure(server, body, open_poster):
    poster = open_poster()
    async with server as url:
        answer = await poster.post(post_to(url), 0.3)
    assert (answer.body, answer.failure, answer.delivered) == (body, "", not body)


async def test_a_connection_that_goes_wrong_is_a_failure_in_one_word(open_poster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = await open_poster().post(
            post_to(f"http://127.0.0.1:{taken.getsockname()[1]}"), LONG_S
        )
        assert answer == PostAnswer(failure="connect")
    async with serving(Webhooks()) as url:
        answer = await open_poster().post(post_to(url.replace("http://", "https://")), LONG_S)
        assert (answer.status, answer.failure in {"tls", "connect", "broken"}) == (None, True)


def unknown(host: str, port: int) -> Found:
    if host.endswith("invalid"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return list(socket.getaddrinfo(host, port))


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "nowhere.invalid"])
async def test_a_name_that_is_unknown_is_a_failure_in_one_word(open_poster, host):
    poster = open_poster(lookup=unknown)
    assert await poster.post(post_to(f"http://{host}"), LONG_S) == PostAnswer(failure="dns")


async def test_names_are_looked_up_beside_the_threads_of_requests(open_poster):
    webhooks = Webhooks()
    release = threading.Event()
    asked = []

    def lookup(host: str, port: int) -> Found:
        asked.append((host, threading.current_thread().name))
        if host == "slow.example":
            release.wait()
        return found("127.0.0.1")(host, port)

    async with serving(webhooks) as url:
        poster = open_poster(lookup=lookup)
        assert (
            await poster.post(post_to(url.replace("127.0.0.1", "hooks.example")), LONG_S)
        ).status == 204
    assert webhooks.seen[0].headers["host"].startswith("hooks.example:")
    answers = [await poster.post(post_to("http://slow.example"), 0.05) for _ in range(5)]
    assert (answers, asked) == (
        [PostAnswer(failure="timeout")] * 5,
        [(host, "hearth-dns") for host in ("hooks.example", "slow.example")],
    )
    release.set()


@pytest.mark.parametrize("addresses", [("169.254.169.254",), ("127.0.0.1", "169.254.169.254")])
async def test_a_name_that_leads_to_a_forbidden_address_is_never_connected_to(
    addresses, open_poster
):
    webhooks = Webhooks()
    async with serving(webhooks) as url:
        poster = open_poster(is_forbidden, lookup=found(*addresses))
        answer = await poster.post(post_to(url.replace("127.0.0.1", "hook.lan")), LONG_S)
        assert (answer.name, webhooks.seen) == (FORBIDDEN_ADDRESS, [])
        allowed = open_poster(is_forbidden, lookup=found("127.0.0.1"))
        assert [(await allowed.post(post_to(url), LONG_S)).delivered for _ in range(2)] == [
            True,
            True,
        ]
        assert len(webhooks.connections) == 2, (
            "a kept connection would pass by the check of its address"
        )


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "2852039166",
        "0xa9fea9fe",
        "169.254.43518",
        "0",
    ],
)
async def test_an_address_in_any_spelling_is_checked_too(host, open_poster):
    assert await open_poster(is_forbidden).post(post_to(f"http://{host}:9/"), LONG_S) == PostAnswer(
        failure=FORBIDDEN_ADDRESS
    )


# Alerts in a whole gateway: a real one on loopback, an emulated model server, and targets on real
# sockets.


SECRET = "canary-4d5e6f"


def every_target(url: str) -> AlertSettings:
    discord, webhook, ntfy = (f"{url}/{path}{SECRET}" for path in ("api/webhooks/1/", "", "topic-"))
    return AlertSettings(
        discord_webhook_url=discord,
        webhook_url=webhook,
        ntfy_url=ntfy,
        queue_depth_warning=1000,
        loop_lag_warning_s=60,
    )


async def test_a_caller_beyond_its_limit_is_reported_and_no_address_shows():
    received = Webhooks()
    statuses = []
    heard = Recorder()
    async with (
        serving(received) as url,
        open_home(house_settings(per_minute=1).replace(alerts=every_target(url))) as home,
    ):
        home.gateway.events.subscribe(heard)
        body = {"model": LLAMA, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
        async with aiohttp.ClientSession(trust_env=False) as session:
            for _ in range(6):
                async with session.post(f"{home.url}/api/chat", json=body) as got:
                    statuses.append(got.status)
        assert statuses == [200, 429, 429, 429, 429, 429]
        await heard.until(lambda: len(heard.of(AlertSent)) == 3)
        status = home.gateway.worker.get_status()
        lines = (line_of(each, 0.0) for each in home.events.all)
        shown = json.dumps(status) + "".join(
            to_json(line) + to_text(line, colour=False) for line in lines
        )
    text = (
        "Hearth (warning): Caller over its rate limit: local was refused by its rate limit at "
        "least 5 times within 5 minutes."
    )
    assert received.texts() == [text] * 3
    part: Any = status["alerts"]
    assert (part["sent"], part["dropped"], [each["host"] for each in part["targets"]]) == (
        3,
        0,
        ["127.0.0.1"] * 3,
    )
    assert SECRET not in shown
    assert SECRET not in repr(home.gateway.config)
