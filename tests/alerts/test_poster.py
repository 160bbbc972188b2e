"""Posting over real sockets: every answer, every failure, and that the fake without sockets says the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator

import pytest

from hearth.alerts.channels import COMPOSERS, Answer, Post
from hearth.alerts.poster import MAX_ANSWER_BYTES, HttpPoster
from tests.alerts.samples import message
from tests.support.cases import for_each
from tests.support.fake_webhooks import OK, REPLIES, MemoryPoster, Reply, Webhooks, serving

CARRIED = ("retry-after", "x-ratelimit-remaining", "x-ratelimit-reset-after", "via")


def carried(answer: Answer) -> tuple[object, ...]:
    return answer.status, answer.failure, answer.body, {name: answer.headers.get(name) for name in CARRIED}


def post_to(url: str) -> Post:
    return COMPOSERS["ntfy"](f"{url}/topic", message())


@pytest.fixture
async def poster() -> AsyncIterator[HttpPoster]:
    made = HttpPoster(timeout_s=30.0)
    yield made
    await made.aclose()


@for_each("name", REPLIES)
async def test_the_real_poster_and_the_one_in_memory_agree_about_every_answer_and_neither_follows_a_redirect(name, poster):
    webhooks = Webhooks(REPLIES[name], default=OK)
    async with serving(webhooks) as url:
        real = await poster.post(post_to(url))
    in_memory = await MemoryPoster(Webhooks(REPLIES[name]), latency_s=0).post(post_to("http://memory"))
    assert carried(real) == carried(in_memory)
    assert (len(real.body) <= MAX_ANSWER_BYTES, len(webhooks.seen)) == (True, 1)
    await poster.aclose()  # a poster that was closed opens again


async def test_what_is_posted_arrives_as_it_is_and_credentials_in_the_address_become_a_header(poster):
    webhooks = Webhooks()
    async with serving(webhooks) as url:
        for name, path in (("discord", "/api/webhooks/1/x?thread_id=7"), ("webhook", "/hook?a=b%20c"), ("ntfy", "/topic")):
            assert (await poster.post(COMPOSERS[name](url + path, message()))).status == 204
        await poster.post(post_to(url.replace("http://", "http://me:secret@")))
    discord, webhook, ntfy, with_credentials = webhooks.seen
    assert (discord.path, discord.query) == ("/api/webhooks/1/x", {"thread_id": "7", "wait": "true"})
    assert (webhook.path, webhook.query, webhook.headers["content-type"]) == ("/hook", {"a": "b c"}, "application/json")
    assert (ntfy.path, ntfy.headers["title"], ntfy.body) == ("/topic", "Hearth: Queue full", b"it is full")
    assert discord.headers["user-agent"].startswith("hearth-gateway/")
    assert with_credentials.headers["authorization"] == "Basic bWU6c2VjcmV0"


@for_each(("reply", "timeout_s", "failure"), [(Reply(stall=True), 0.05, "timeout"), (Reply(reset=True), 30.0, "broken")])
async def test_a_target_that_does_not_answer_is_a_failure(reply, timeout_s, failure):
    poster = HttpPoster(timeout_s=timeout_s)
    async with serving(Webhooks(reply)) as url:
        assert await poster.post(post_to(url)) == Answer(failure=failure)
    await poster.aclose()


async def test_a_closed_port_or_plain_text_where_tls_is_expected_is_a_failure(poster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await poster.post(post_to(f"http://127.0.0.1:{taken.getsockname()[1]}")) == Answer(failure="connect")
    async with serving(Webhooks()) as url:
        answer = await poster.post(post_to(url.replace("http://", "https://")))
    assert (answer.status, answer.failure in {"tls", "connect", "broken"}) == (None, True)


@for_each("host", ["a..b", "a" * 64 + ".example", "nowhere.invalid"])
async def test_what_is_no_name_or_one_that_nobody_knows_is_a_failure_of_dns(host):
    def unknown(host: str, port: int) -> list[tuple[object, ...]]:
        if host.endswith("invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(socket.getaddrinfo(host, port))

    poster = HttpPoster(lookup=unknown)
    assert await poster.post(post_to(f"http://{host}")) == Answer(failure="dns")
    await poster.aclose()


async def test_names_are_looked_up_beside_the_threads_that_requests_use():
    webhooks, asked = Webhooks(), []

    def lookup(host: str, port: int) -> list[tuple[object, ...]]:
        asked.append((host, threading.current_thread().name))
        return list(socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM))

    poster = HttpPoster(lookup=lookup)
    async with serving(webhooks) as url:
        assert (await poster.post(post_to(url.replace("127.0.0.1", "hooks.example")))).status == 204
    assert asked == [("hooks.example", "hearth-alert-dns")]
    assert webhooks.seen[0].headers["host"].startswith("hooks.example:")
    await poster.aclose()


async def test_a_name_server_that_hangs_costs_one_thread_however_often_it_is_asked():
    release, asked = threading.Event(), []

    def hanging(host: str, port: int) -> list[tuple[object, ...]]:
        asked.append(host)
        release.wait()
        return []

    poster = HttpPoster(timeout_s=0.05, lookup=hanging)
    answers = [await poster.post(post_to("http://slow.example")) for _ in range(5)]
    assert (answers, asked) == ([Answer(failure="timeout")] * 5, ["slow.example"])
    release.set()
    await poster.aclose()
