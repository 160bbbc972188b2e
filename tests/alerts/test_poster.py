"""Posting over real sockets: every answer, every failure, and that the fake without sockets says the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator

import pytest

from hearth.alerts.channels import COMPOSERS, Answer, Post
from hearth.alerts.poster import MAX_ANSWER_BYTES, HttpPoster
from tests.alerts.samples import message
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


@pytest.mark.parametrize("name", REPLIES)
async def test_the_real_poster_and_the_one_in_memory_agree_about_every_answer(name, poster):
    async with serving(Webhooks(REPLIES[name])) as url:
        real = await poster.post(post_to(url))
    in_memory = await MemoryPoster(Webhooks(REPLIES[name]), latency_s=0).post(post_to("http://memory"))
    assert carried(real) == carried(in_memory)
    assert len(real.body) <= MAX_ANSWER_BYTES


async def test_what_is_posted_arrives_as_it_is(poster):
    webhooks = Webhooks()
    async with serving(webhooks) as url:
        for name, path in (("discord", "/api/webhooks/1/x?thread_id=7"), ("webhook", "/hook?a=b%20c"), ("ntfy", "/topic")):
            assert (await poster.post(COMPOSERS[name](url + path, message()))).status == 204
    discord, webhook, ntfy = webhooks.seen
    assert (discord.path, discord.query) == ("/api/webhooks/1/x", {"thread_id": "7", "wait": "true"})
    assert (webhook.path, webhook.query, webhook.headers["content-type"]) == ("/hook", {"a": "b c"}, "application/json")
    assert (ntfy.path, ntfy.headers["title"], ntfy.body) == ("/topic", "Hearth: Queue full", b"it is full")
    assert discord.headers["user-agent"].startswith("hearth-gateway/")


async def test_credentials_in_the_address_become_a_header(poster):
    webhooks = Webhooks()
    async with serving(webhooks) as url:
        await poster.post(post_to(url.replace("http://", "http://me:secret@")))
    assert webhooks.seen[0].headers["authorization"] == "Basic bWU6c2VjcmV0"


async def test_a_redirect_is_not_followed(poster):
    webhooks = Webhooks(REPLIES["302"], default=OK)
    async with serving(webhooks) as url:
        assert (await poster.post(post_to(url))).status == 302
    assert len(webhooks.seen) == 1


async def test_a_target_that_says_nothing_times_out():
    poster = HttpPoster(timeout_s=0.05)
    async with serving(Webhooks(Reply(stall=True))) as url:
        assert await poster.post(post_to(url)) == Answer(failure="timeout")
    await poster.aclose()


async def test_a_target_that_hangs_up_is_broken(poster):
    async with serving(Webhooks(Reply(reset=True))) as url:
        assert await poster.post(post_to(url)) == Answer(failure="broken")


async def test_a_closed_port_is_a_failure_to_connect(poster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert await poster.post(post_to(f"http://127.0.0.1:{port}")) == Answer(failure="connect")


async def test_plain_text_where_tls_is_expected_is_a_failure_of_either_kind(poster):
    async with serving(Webhooks()) as url:
        answer = await poster.post(post_to(url.replace("http://", "https://")))
    assert answer.failure in {"tls", "connect", "broken"}
    assert answer.status is None


async def test_a_name_that_nobody_knows_is_a_failure_of_dns():
    def unknown(host: str, port: int) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    poster = HttpPoster(lookup=unknown)
    assert await poster.post(post_to("http://nowhere.invalid")) == Answer(failure="dns")
    await poster.aclose()


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_what_cannot_be_a_name_is_a_failure_of_dns_too(host, poster):
    assert await poster.post(post_to(f"http://{host}")) == Answer(failure="dns")


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
    assert answers == [Answer(failure="timeout")] * 5
    assert asked == ["slow.example"]
    release.set()
    await poster.aclose()


async def test_a_poster_that_was_closed_opens_again(poster):
    async with serving(Webhooks()) as url:
        assert (await poster.post(post_to(url))).status == 204
        await poster.aclose()
        assert (await poster.post(post_to(url))).status == 204
