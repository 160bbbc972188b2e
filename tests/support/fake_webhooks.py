"""Where alerts go in tests: a Discord, an ntfy and a webhook that answer as told, as a real server
and in memory for virtual time.

`Webhooks` is the behaviour: it keeps what came, refuses what Discord would refuse, and else answers
from a script. `serving` puts it behind a real socket; `MemoryPoster` hands posts to it without one.
`tests/alerts/test_poster.py` compares the two.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from yarl import URL

from hearth.types import Post, PostAnswer
from tests.support.listening import listening
from tests.support.virtual_time import loop_s


@dataclass(frozen=True)
class Reply:
    """An answer; `stall` is none at all, `reset` the connection's end in its place."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stall: bool = False
    reset: bool = False


def limited(retry_after: object = None, **headers: str) -> Reply:
    """Discord's 429; with `Via` (as through its proxy) where given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry_after is None:
        return Reply(429, named, b"<html>slow down</html>")
    body = {"message": "You are being rate limited.", "retry_after": retry_after, "global": False}
    return Reply(429, {"Content-Type": "application/json", **named}, json.dumps(body).encode())


OK = Reply()
CREATED = Reply(200, {"Content-Type": "application/json"}, b'{"id": "1"}')
REPLIES: Mapping[str, Reply] = {
    "204": OK,
    "200": CREATED,
    "200 with the bucket empty": Reply(
        204, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "1.5"}
    ),
    "302": Reply(302, {"Location": "/elsewhere"}),
    "301": Reply(301, {"Location": "https://new.example:8443/secret?token=canary-77aa"}),
    "400": Reply(400, {}, b'{"code": 50006}'),
    "401": Reply(401, {}, b'{"code": 50027}'),
    "404": Reply(
        404, {"Content-Type": "application/json"}, b'{"message": "Unknown Webhook", "code": 10015}'
    ),
    "403 html": Reply(403, {"Content-Type": "text/html"}, b"<h1>error code: 1015</h1>"),
    "404 html": Reply(404, {"Content-Type": "text/html"}, b"<h1>starting</h1>"),
    "429 json": limited(0.3),
    "429 milliseconds": limited(1500, Retry_After="1500", X_RateLimit_Reset_After="1.5"),
    "429 milliseconds, rounded": limited(457, Retry_After="457", X_RateLimit_Reset_After="1"),
    "429 seconds of a shared limit": limited(43.3, Retry_After="44", X_RateLimit_Reset_After="1"),
    "429 json with Via": limited(0.3, Via="1.1 google"),
    "429 header": limited(None, Retry_After="7"),
    "429 header with Via": limited(None, Retry_After="7", Via="1.1 google"),
    "429 bare": limited(None),
    "429 bare with Via": limited(None, Via="1.1 google"),
    "500": Reply(500, {}, b"oops"),
    "502 html": Reply(502, {"Content-Type": "text/html"}, b"<html>" + b"x" * 100_000),
    "503 with a date": Reply(503, {"Retry-After": "Mon, 05 Jan 2026 00:01:00 GMT"}),
}


@dataclass(frozen=True)
class Received:
    """A post that came; `at` in seconds of the running loop."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float
    accepted: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def why_discord_refuses(body: bytes) -> str | None:
    """What Discord would not take: too long, empty, or able to ping somebody."""
    said = json.loads(body)
    if said.get("allowed_mentions") != {"parse": []}:
        return "mentions"
    embeds = said.get("embeds", [])
    sizes = [len(embed["title"]) + len(embed["description"]) for embed in embeds]
    if not 1 <= len(embeds) <= 10 or sum(sizes) > 6000 or len(said.get("content", "")) > 2000:
        return "size"
    return next(
        (
            name
            for embed in embeds
            for name, most in (("title", 256), ("description", 4096))
            if not 1 <= len(embed[name]) <= most
        ),
        None,
    )


class Webhooks:
    """The behaviour.

    `script` answers the next posts, `default` all others; a path may have a reply of its own in
    `at_path`.
    """

    def __init__(self, *replies: Reply, default: Reply = OK) -> None:
        self.script = deque(replies)
        self.default = default
        self.at_path: dict[str, Reply] = {}
        self.seen: list[Received] = []
        self.refused: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.arrived, self.released = asyncio.Event(), asyncio.Event()
        self.connections: set[asyncio.Transport] = set()

    def take(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Reply:
        problem = why_discord_refuses(body) if path.startswith("/api/webhooks/") else None
        if problem is not None:
            self.refused.append(problem)
            reply = Reply(400)
        else:
            reply = self.at_path.get(path) or (
                self.script.popleft() if self.script else self.default
            )
        accepted = 200 <= reply.status < 300 and not reply.stall and not reply.reset
        at = loop_s()
        self.seen.append(
            Received(
                path, dict(query), {k.lower(): v for k, v in headers.items()}, body, at, accepted
            )
        )
        self.arrived.set()
        return reply

    @property
    def accepted(self) -> list[Received]:
        return [each for each in self.seen if each.accepted]

    def texts(self) -> list[str]:
        """What arrived, as it was said: title and text, without Discord's escapes."""
        return [_text_of(each) for each in self.accepted]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._enter()
        assert request.transport is not None
        self.connections.add(request.transport)
        try:
            reply = self.take(request.path, request.query, request.headers, await request.read())
            if reply.reset:
                request.transport.abort()
            if reply.stall:
                await self.released.wait()
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        finally:
            self.in_flight -= 1

    def _enter(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)


def _text_of(post: Received) -> str:
    if post.headers["content-type"].startswith("text/plain"):
        return f"{post.headers['title']}: {post.body.decode()}"
    said = post.json
    if "embeds" in said:
        (embed,) = said["embeds"]
        return f"{embed['title']}: {embed['description']}".replace("\u200b", "").replace("\\", "")
    return f"{said['title']}: {said['text']}"


class MemoryPoster:
    """The `Poster` without sockets, for virtual time. Every answer takes `latency_s`."""

    def __init__(self, webhooks: Webhooks, *, latency_s: float = 0.1) -> None:
        self.webhooks = webhooks
        self.latency_s = latency_s
        self.closed = False

    async def post(self, post: Post, timeout_s: float) -> PostAnswer:
        self.webhooks._enter()
        try:
            url = URL(post.url)
            reply = self.webhooks.take(url.path, url.query, post.headers, post.body)
            if reply.stall:
                await asyncio.sleep(timeout_s)
                return PostAnswer(failure="timeout")
            await asyncio.sleep(self.latency_s)
            if reply.reset:
                return PostAnswer(failure="broken")
            headers = {name.lower(): value for name, value in reply.headers.items()}
            answer = PostAnswer(status=reply.status, headers=headers)
            return answer if answer.delivered else replace(answer, body=reply.body[: 64 * 1024])
        finally:
            self.webhooks.in_flight -= 1

    async def aclose(self) -> None:
        self.closed = True


@asynccontextmanager
async def serving(webhooks: Webhooks) -> AsyncIterator[str]:
    """The behaviour on loopback; yields the address without a path."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", webhooks.handle)
    async with listening(app) as url:
        try:
            yield url
        finally:
            webhooks.released.set()
