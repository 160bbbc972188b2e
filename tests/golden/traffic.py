"""The traffic that every version is given, and the transcript of what came back: statuses, headers,
bodies, rows, decisions.

One caller at a time, or several whose order is made certain by what the gateway itself says, so
that a transcript does not depend on time.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp

from tests.golden.masking import masked
from tests.golden.versions import ADMIN, ASSISTANT, LIMITED, VISITOR, Running
from tests.support.patience import WITHIN_S
from tests.support.reading import ends_with_an_error_line

_TIMED_HEADERS = frozenset(
    {
        "date",
        "x-request-id",
        "x-estimated-wait-seconds",
        "content-length",
        "retry-after",
        "etag",
        "last-modified",
    }
)
"""Whose values are times, ids or follow from masked text: only that they are there is written
down.
"""
_TEXT = re.compile(rb'"(?:content|response|text|delta)": ?"[^"]')
"""Text of a model, in any dialect's stream."""
HELLO = [{"role": "user", "content": "Say hello to the house."}]


class Transcript:
    """Asks, and writes down what was asked and answered."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Running) -> None:
        self.lines: list[str] = []
        self._session = session
        self.gateway = gateway

    def section(self, title: str) -> None:
        self.lines.append(f"\n## {title}")

    def note(self, text: str) -> None:
        self.lines.append(masked(text))

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = VISITOR,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """One exchange, written down once it is complete."""
        exchange = await self.answer(method, path, body, key=key, headers=headers)
        self.lines.extend(exchange.lines)
        return exchange.body

    async def answer(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = VISITOR,
        begun: asyncio.Event | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """As `ask`, for the caller to write down where several run at once; `begun` is set with the
        answer's first text.
        """
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = dict(headers or {})
        if data is not None:
            named.setdefault("Content-Type", "application/json")
        if key is not None:
            named["x-api-key"] = key
        url = self.gateway.url + path
        asking = self._session.request(method, url, data=data, headers=named, allow_redirects=False)
        async with asyncio.timeout(WITHIN_S), asking as answer:
            assert begun is None or answer.status == 200, await answer.text()
            text = bytearray()
            try:
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if begun is not None and _TEXT.search(text):
                        begun.set()
            except aiohttp.ClientPayloadError:
                if not ends_with_an_error_line(bytes(text)):
                    raise
            return Exchange(
                _asked(method, path, data, named), answer.status, answer.headers, bytes(text)
            )

    async def begun(
        self,
        method: str,
        path: str,
        body: object,
        *,
        key: str = VISITOR,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[Exchange]:
        """A stream of which the first text has come."""
        begun = asyncio.Event()
        asked = asyncio.create_task(
            self.answer(method, path, body, begun=begun, key=key, headers=headers)
        )
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait({asked, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert begun.is_set(), (await asked).lines
        return asked

    async def until(self, path: str, holds: Any, *, key: str = ADMIN) -> Any:
        """The JSON of a page once `holds` of it. Raises TimeoutError."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                async with self._session.get(
                    self.gateway.url + path, headers={"x-api-key": key}
                ) as answer:
                    page = await answer.json()
                if holds(page):
                    return page
                await asyncio.sleep(0.01)


class Exchange:
    """One request and its complete answer; `lines` is how it stands in a transcript."""

    def __init__(self, asked: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.body = body
        shown = sorted(
            f"{name.lower()}: {'*' if name.lower() in _TIMED_HEADERS else value}"
            for name, value in headers.items()
        )
        text = masked(body.decode("utf-8", "backslashreplace"))
        self.lines = [
            f"\n> {masked(asked)}",
            f"< {status}",
            *(f"< {masked(line)}" for line in shown),
            *text.splitlines(),
        ]


def _asked(method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> str:
    keys = {ADMIN: "admin", ASSISTANT: "assistant", VISITOR: "visitor", LIMITED: "limited"}
    named = " ".join(f"{name}={keys.get(value, value)}" for name, value in headers.items())
    body = "" if data is None else data.decode("utf-8", "backslashreplace")
    return f"{method} {path} {named} {body[:600]}".rstrip()


def asks_of(
    model: str, *, stream: bool, limit: int = 12, messages: Sequence[Mapping[str, Any]] = HELLO
) -> dict[str, dict[str, Any]]:
    """The same request in every dialect, by address."""
    prompt = str(messages[-1]["content"])
    return {
        "/api/chat": {
            "model": model,
            "messages": messages,
            "stream": stream,
            "options": {"num_predict": limit, "seed": 3},
        },
        "/api/generate": {
            "model": model,
            "prompt": prompt,
            "stream": stream,
            "options": {"num_predict": limit, "seed": 3},
        },
        "/v1/chat/completions": {
            "model": model,
            "messages": messages,
            "stream": stream,
            "max_tokens": limit,
            "seed": 3,
        },
        "/v1/completions": {
            "model": model,
            "prompt": prompt,
            "stream": stream,
            "max_tokens": limit,
            "seed": 3,
        },
        "/v1/responses": {
            "model": model,
            "input": prompt,
            "stream": stream,
            "max_output_tokens": limit,
            "temperature": 0,
        },
        "/v1/messages": {
            "model": model,
            "messages": messages,
            "stream": stream,
            "max_tokens": limit,
            "temperature": 0,
        },
    }


TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WRONG_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"model": 3}',
    b'{"model": ""}',
    (
        b'{"model": "house:8b", "seed": 1, "temperature": 0, "messages": "text", '
        b'"options": {"seed": 1}}'
    ),
    (
        b'{"model": "house:8b", "seed": 1, "temperature": 0, "messages": [{"role": '
        b'"nobody", "content": 1}], "options": {"seed": 1}}'
    ),
    (
        b'{"model": "house:8b", "seed": 1, "temperature": 0, "prompt": 7, "input": 7, '
        b'"max_tokens": "x", "options": {"seed": 1}}'
    ),
    b'{"model": "house:8b", "seed": 1, "temperature": 0, "stream": "yes", "options": {"seed": 1}}',
    b'{"model": "missing:1b", "messages": [], "prompt": "x", "input": "x", "max_tokens": 1}',
    b'{"model": "no such name!", "messages": [], "prompt": "x", "input": "x", "max_tokens": 1}',
    (
        b'{"model": "embedder", "messages": [{"role": "user", "content": "x"}], '
        b'"prompt": "x", "max_tokens": 1}'
    ),
    (
        b'{"model": "house:8b", "prompt": "\xff", "messages": [{"role": "user", '
        b'"content": "\xff"}], "options": {"num_predict": 3, "seed": 1}}'
    ),
)
FORM = """--BOUND\r
Content-Disposition: form-data; name="purpose"\r
\r
batch\r
--BOUND\r
Content-Disposition: form-data; name="file"; filename="batch.jsonl"\r
Content-Type: application/jsonl\r
\r
TEXT\r
--BOUND--\r
"""
PAGES = """
/ /api/version /api/tags /api/ps /v1/models /v1/models/house:8b /healthz /readyz /llm/models
/llm/log /llm/swaps /llm/history?window=7d /llm/jobs /llm/admin/orders /llm/admin/config
/llm/admin/stored /llm/admin/files /llm/nothing /nothing /v1/files /v1/batches
/llm/queue/item/999999 /llm/log?limit=0 /llm/log?since=nope /llm/jobs?state=odd /api//tags
"""


async def pages(seen: Transcript) -> None:
    seen.section("pages, by who asks")
    for path in PAGES.split():
        for key in (None, LIMITED, ADMIN):
            await seen.ask("GET", path, key=key)
    for asked in (
        "PUT /api/chat",
        "GET /api/chat",
        "DELETE /llm/jobs",
        "OPTIONS /api/chat",
        "HEAD /api/tags",
    ):
        await seen.ask(*asked.split())
    await seen.ask("GET", "/api/tags", headers={"Host": "somebody.example"})
    await seen.ask("POST", "/api/chat", {}, headers={"Origin": "http://evil.example"})
    await seen.ask("POST", "/api/chat", b"x=1", headers={"Content-Type": "text/html"})
    await seen.ask("POST", "/api/show", {"model": "house:8b"})
    await seen.ask("POST", "/api/pull", {"model": "house:8b"})


async def answers(seen: Transcript) -> None:
    seen.section("answers in every dialect, whole and streamed")
    for stream in (False, True):
        for path, body in asks_of("house:8b", stream=stream).items():
            await seen.ask("POST", path, body)
    seen.section(
        "tools, thinking, JSON, logprobs, stop, embeddings, counting, prompts without a model"
    )
    streams, wholes = asks_of("house:8b", stream=True), asks_of("house:8b", stream=False)
    options = {"num_ctx": 9, "num_predict": 2, "seed": 1}
    for path, body in (
        ("/api/chat", {**streams["/api/chat"], "tools": [{"type": "function", "function": TOOL}]}),
        (
            "/v1/chat/completions",
            {**streams["/v1/chat/completions"], "stream_options": {"include_usage": True}},
        ),
        ("/api/chat", {**asks_of("thinker:8b", stream=True)["/api/chat"], "think": True}),
        ("/api/chat", {**wholes["/api/chat"], "format": "json"}),
        ("/api/chat", {**wholes["/api/chat"], "logprobs": True}),
        (
            "/api/generate",
            {
                "model": "house:8b",
                "prompt": "x",
                "stream": False,
                "keep_alive": 5,
                "options": options,
            },
        ),
        ("/api/generate", {"model": "house:8b"}),
        ("/api/generate", {"model": "house:8b", "prompt": "x", "options": {"num_predict": 0}}),
        ("/api/embed", {"model": "embedder", "input": ["a", "b"]}),
        ("/api/embeddings", {"model": "embedder", "prompt": "a"}),
        ("/v1/embeddings", {"model": "embedder", "input": "a"}),
        ("/v1/messages/count_tokens", {"model": "house:8b", "messages": HELLO}),
        ("/llm/completions", {"prompt": "x", "max_tokens": 3}),
    ):
        await seen.ask("POST", path, body)
    await seen.ask("POST", "/v1/audio/transcriptions", b"")


async def refusals(seen: Transcript) -> None:
    seen.section("wrong bodies")
    for path in asks_of("x", stream=False):
        for body in WRONG_BODIES:
            await seen.ask("POST", path, body)
    seen.section("limits")
    for _ in range(3):
        await seen.ask(
            "POST",
            "/api/generate",
            {"model": "house:8b", "prompt": "x", "options": {"num_predict": 1, "seed": 1}},
            key=LIMITED,
        )
    await seen.ask("POST", "/api/generate", {"model": "secret:1b", "prompt": "x"})


async def claude(seen: Transcript) -> None:
    seen.section("what Claude answers, in every dialect")
    for stream in (False, True):
        for path, body in asks_of("cloudy:1b", stream=stream).items():
            await seen.ask(
                "POST",
                path,
                {
                    name: value
                    for name, value in body.items()
                    if name not in ("seed", "temperature")
                },
            )
    call = {"type": "function", "function": TOOL}
    await seen.ask(
        "POST",
        "/v1/chat/completions",
        {**asks_of("cloudy:1b", stream=False)["/v1/chat/completions"], "tools": [call]},
    )
    await seen.ask("POST", "/api/embed", {"model": "cloudy:1b", "input": "a"})


URGENT: dict[str, Any] = {"key": ASSISTANT, "headers": {"X-Task-Type": "parse_task"}}
ENDLESS = {"model": "endless:8b", "prompt": "x", "options": {"num_predict": 100000, "seed": 1}}


async def interruptions(seen: Transcript) -> None:
    """An external stream of each dialect is interrupted after its first bytes and goes on; what the
    caller has is the whole text.

    Of the ones that cannot be repeated only the kinds of events are written down: their text is
    drawn anew in each run.
    """
    seen.section("interrupted streams")
    repeatable = asks_of("coder:14b", stream=True, limit=30)
    unseeded = {
        path: {**body, "temperature": 1}
        for path, body in repeatable.items()
        if "temperature" in body
    }
    for asks in (repeatable, unseeded):
        for path, body in asks.items():
            asked = await seen.begun("POST", path, body)
            inner = await seen.answer(
                "POST", "/api/chat", asks_of("house:8b", stream=False)["/api/chat"], **URGENT
            )
            lines = (await asked).lines
            seen.lines.extend(
                lines
                if asks is repeatable
                else dict.fromkeys(line for line in lines if not line.startswith("data: "))
            )
            seen.lines.extend(inner.lines)
    seen.section("a whole answer that is interrupted starts over")
    asked = asyncio.create_task(
        seen.answer("POST", "/api/chat", asks_of("coder:14b", stream=False, limit=30)["/api/chat"])
    )
    await seen.until("/llm/queue/status", lambda status: status["running"])
    await seen.ask("POST", "/api/chat", asks_of("house:8b", stream=False)["/api/chat"], **URGENT)
    seen.lines.extend((await asked).lines)


def _waiting(status: Any) -> int:
    return int(status["internal_queue"]["pending"]) + int(status["external_queue"]["pending"])


async def order(seen: Transcript) -> None:
    """Twelve requests wait behind one; in which order they are served is the scheduler's
    decision.
    """
    seen.section("the order of what waits")
    served: list[str] = []

    async def one(name: str, model: str, key: str, kind: str) -> None:
        body = {
            "model": model,
            "prompt": name,
            "stream": False,
            "options": {"num_predict": 2, "seed": 1},
        }
        await seen.answer(
            "POST", "/api/generate", body, key=key, headers={"X-Task-Type": kind} if kind else {}
        )
        served.append(name)

    headers = {"X-Request-Id": "golden_holding", "X-Task-Type": "parse_task"}
    holding = await seen.begun("POST", "/api/generate", ENDLESS, key=ADMIN, headers=headers)
    tasks = []
    for count, (model, key, kind) in enumerate(
        (model, key, kind)
        for key, kind in ((VISITOR, ""), (ASSISTANT, "digest"), (ASSISTANT, ""), (VISITOR, ""))
        for model in ("coder:14b", "house:8b", "thinker:8b")
    ):
        name = f"{count} {model} {kind or ('internal' if key == ASSISTANT else 'external')}"
        tasks.append(asyncio.create_task(one(name, model, key, kind)))
        await seen.until(
            "/llm/queue/status", lambda status, waiting=count + 1: _waiting(status) >= waiting
        )
    await seen.ask("POST", "/llm/requests/golden_holding/cancel", key=ADMIN)
    await asyncio.gather(holding, *tasks)
    seen.note("\n".join(served))


async def leaving(seen: Transcript) -> None:
    seen.section("cancelled: running, waiting, by id, by caller")
    running = await seen.begun(
        "POST", "/api/generate", ENDLESS, headers={"X-Request-Id": "golden_running"}
    )
    body, headers = {**ENDLESS, "stream": False}, {"X-Request-Id": "golden_waiting"}
    waiting = asyncio.create_task(seen.answer("POST", "/api/generate", body, headers=headers))
    await seen.until("/llm/queue/status", lambda status: _waiting(status) == 1)
    await seen.ask("POST", "/llm/requests/golden_waiting/cancel")
    seen.lines.extend((await waiting).lines)
    await seen.ask("POST", "/llm/requests/golden_running/cancel", key=LIMITED)
    await seen.ask("POST", "/llm/requests/cancel")
    seen.note((await running).lines[1])
    await seen.ask("POST", "/llm/requests/golden_running/cancel")


async def jobs(seen: Transcript) -> None:
    seen.section("jobs and batches")
    request = {"model": "house:8b", "prompt": "x", "options": {"num_predict": 3, "seed": 1}}
    for _ in range(2):
        taken = await seen.ask(
            "POST",
            "/llm/jobs",
            {"request": request, "task_type": "letter"},
            headers={"Idempotency-Key": "golden-1"},
        )
    identity = json.loads(taken)["id"]
    await seen.until(f"/llm/jobs/{identity}", lambda job: job["state"] == "completed", key=VISITOR)
    await seen.ask("GET", f"/llm/jobs/{identity}")
    await seen.ask("GET", f"/llm/jobs/{identity}", key=LIMITED)
    await seen.ask(
        "POST",
        "/llm/jobs",
        {"request": {**request, "prompt": "y"}},
        headers={"Idempotency-Key": "golden-1"},
    )
    await seen.ask("POST", "/llm/jobs", {"request": request, "odd": 1})
    later = json.loads(
        await seen.ask(
            "POST", "/llm/jobs", {"request": request, "not_before": "2099-01-01T00:00:00+00:00"}
        )
    )["id"]
    await seen.ask("DELETE", f"/llm/jobs/{later}")
    await seen.ask(
        "POST", "/llm/jobs", {"request": request, "not_before": "2099-01-01T00:00:00+00:00"}
    )
    await seen.ask("GET", "/llm/jobs")
    body = asks_of("house:8b", stream=False, limit=3)["/v1/chat/completions"]
    text = json.dumps(
        {"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    )
    headers = {"Content-Type": "multipart/form-data; boundary=BOUND"}
    file = json.loads(
        await seen.ask("POST", "/v1/files", FORM.replace("TEXT", text).encode(), headers=headers)
    )["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = json.loads(await seen.ask("POST", "/v1/batches", asked))["id"]
    done = await seen.until(
        f"/v1/batches/{batch}", lambda page: page["status"] == "completed", key=VISITOR
    )
    await seen.ask("GET", f"/v1/batches/{batch}")
    await seen.ask("GET", f"/v1/files/{done['output_file_id']}/content")
    await seen.ask("GET", "/v1/files")
    await seen.ask("DELETE", f"/v1/files/{file}")


ORDERS: tuple[tuple[str, object], ...] = (
    *((name, None) for name in ("pause", "resume")),
    *(
        ("pin", {"model": "coder:14b"}),
        ("unpin", None),
        ("load", {"model": "thinker:8b"}),
        ("unload", {"model": "missing"}),
    ),
    *((name, None) for name in ("drain", "resume", "preempt")),
    ("announce", {"task_type": "digest", "at": "2099-01-01T08:00:00+01:00"}),
    *((name, None) for name in ("reload", "confirm-clock", "alert/test", "nothing")),
)


async def orders(seen: Transcript) -> None:
    seen.section("the owner's orders")
    for path, body in ORDERS:
        await seen.ask("POST", f"/llm/admin/{path}", body, key=ADMIN)
        if path in ("pin", "load") and isinstance(body, dict):
            await seen.until(
                "/llm/queue/status",
                lambda status, model=body["model"]: status["gpu"]["loaded_model"] == model,
            )
    await seen.ask("POST", "/llm/admin/pause", key=ASSISTANT)


_BY_THE_MINUTE = frozenset({"admissions", "estimates", "process"})
"""Tables whose rows follow from how fast the traffic went: what was admitted lately, what was
learned.
"""


def rows_of(database: Path) -> str:
    """The schema, and every row of every table; times, ids and what follows from them are
    masked.
    """
    lines: list[str] = []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        store.row_factory = sqlite3.Row
        for name, kind, sql in store.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        ).fetchall():
            lines.append(re.sub(r"\s+", " ", f"\n{sql}"))
            rows = store.execute(f'SELECT * FROM "{name}"').fetchall() if kind == "table" else ()
            if name not in _BY_THE_MINUTE:
                lines += sorted(
                    json.dumps({column: _shown(row[column]) for column in row.keys()})  # noqa: SIM118 - a row, no dict
                    for row in rows
                )
    return masked("\n".join(lines)) + "\n"


def _shown(value: object) -> object:
    return "<bytes>" if isinstance(value, bytes) else "<n>" if isinstance(value, float) else value


_TOLD_BY_TIME = ('"event":"request_rejected"', '"event":"more_requests_rejected"')
"""Many in a row are told as a number, which depends on how fast they came; each of them is an
exchange.
"""


def log_of(log: Path) -> str:
    """Its events in order."""
    lines = [masked(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return (
        "\n".join(line for line in lines if not any(kind in line for kind in _TOLD_BY_TIME)) + "\n"
    )


EVERYTHING = (pages, answers, refusals, claude, interruptions, order, leaving, jobs, orders)


async def transcripts_of(gateway: Running) -> dict[str, str]:
    """By file name."""
    async with aiohttp.ClientSession(
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"), auto_decompress=False
    ) as session:
        seen = Transcript(session, gateway)
        for part in EVERYTHING:
            await part(seen)
        return {
            "exchanges.txt": "\n".join(seen.lines).lstrip() + "\n",
            "metrics.txt": _metrics(
                (await seen.answer("GET", "/metrics", key=ADMIN)).body.decode()
            ),
            "openapi.json": json.dumps(
                json.loads((await seen.answer("GET", "/openapi.json", key=ADMIN)).body), indent=1
            )
            + "\n",
            "status.json": json.dumps(
                _shape(json.loads((await seen.answer("GET", "/llm/queue/status", key=ADMIN)).body)),
                indent=1,
            )
            + "\n",
        }


def _metrics(page: str) -> str:
    """Names, types, help and labels without buckets; a value only where it counts something in
    whole numbers. The order is no promise.
    """
    page = re.sub(r"^\w+_bucket\{.*\n", "", page, flags=re.MULTILINE)
    page = masked(
        re.sub(r" (?:\d+\.\d*(?:e[+-]\d+)?|NaN|[+-]Inf)$", " <n>", page, flags=re.MULTILINE)
    )
    families = re.split(r"^(?=# HELP)", page, flags=re.MULTILINE)
    return "".join(sorted("".join(sorted(family.splitlines(keepends=True))) for family in families))


def _shape(value: Any) -> Any:
    """The names and types of a JSON document."""
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    return [_shape(value[0])] if isinstance(value, list) and value else type(value).__name__
