"""What an engine of many machines answers in place of one of them, told from answers of a model."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from hearth.engines.elastic import LONGEST_PAUSE_S, ElasticPath
from hearth.errors import BackendError, EngineRefused, ProxyFailed
from hearth.types import BackendCall
from tests.engines.stub_server import StubServer, read, saying

CALL = BackendCall(method="POST", path="/v1/chat/completions", body=b"{}")
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"


MIDNIGHT = "Sat, 28 Nov 2026 00:00:00 GMT"


def answer(status: int, kind: str, pause: str = "") -> bytes:
    waits = f"Date: {MIDNIGHT}\r\nRetry-After: {pause}\r\n" if pause else ""
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\n{waits}Content-Length: 2\r\n\r\n"
    return head.encode() + b"{}"


@pytest.mark.parametrize(
    ("said", "expected", "pause_s"),
    [
        pytest.param(answer(503, PLAIN, "1"), EngineRefused, 1.0, id="Ray Serve is full"),
        pytest.param(answer(503, PLAIN), EngineRefused, None, id="no pause named"),
        pytest.param(answer(503, JSON, "2.5"), EngineRefused, 2.5, id="in JSON"),
        pytest.param(answer(503, JSON, "soon"), EngineRefused, None, id="no number"),
        pytest.param(answer(503, JSON, "-1"), EngineRefused, None, id="a negative pause"),
        pytest.param(answer(503, JSON, "inf"), EngineRefused, None, id="a pause without end"),
        pytest.param(answer(429, JSON, "3"), EngineRefused, 3.0, id="too many requests"),
        pytest.param(
            answer(429, JSON, "Sat, 28 Nov 2026 00:00:20 GMT"), EngineRefused, 20.0, id="a date"
        ),
        pytest.param(
            answer(503, PLAIN, "Fri, 27 Nov 2026 23:59:59 GMT"),
            EngineRefused,
            0.0,
            id="a date that is past",
        ),
        pytest.param(
            answer(503, PLAIN, "Sat, 99 Nov 2026 00:00:00 GMT"), EngineRefused, None, id="no date"
        ),
        pytest.param(answer(500, PLAIN), ProxyFailed, None, id="a replica of Ray Serve was killed"),
        pytest.param(answer(502, "text/html"), ProxyFailed, None, id="a page of a proxy"),
    ],
)
async def test_what_stands_before_the_machines_is_heard(
    said: bytes, expected: type[BackendError], pause_s: float | None
) -> None:
    async with (
        StubServer(saying(said)) as server,
        aclosing(ElasticPath(server.url, connect_timeout_s=30.0)) as path,
    ):
        with pytest.raises(expected) as raised:
            await path.open(CALL)
        assert raised.value.retry_after_s == pause_s


@pytest.mark.parametrize(
    ("said", "status"),
    [
        pytest.param(answer(200, JSON), 200, id="an answer"),
        pytest.param(answer(400, JSON), 400, id="a mistake of the caller"),
        pytest.param(answer(429, JSON), 429, id="a quota without a pause"),
        pytest.param(answer(429, JSON, f"{LONGEST_PAUSE_S + 1}"), 429, id="a quota of the day"),
        pytest.param(
            answer(429, JSON, "Sun, 29 Nov 2026 00:00:00 GMT"), 429, id="a quota until tomorrow"
        ),
        pytest.param(answer(500, JSON), 500, id="an error of the model server"),
    ],
)
async def test_what_a_model_server_answers_is_passed_on(said: bytes, status: int) -> None:
    async with (
        StubServer(saying(said)) as server,
        aclosing(ElasticPath(server.url, connect_timeout_s=30.0)) as path,
    ):
        exchange = await path.open(CALL)
        assert (exchange.status, await read(exchange)) == (status, [b"{}"])
