"""The edges of the emulated server: names, durations, hosts, methods, keys in any case, model
files, refusals, managing models.
"""

from __future__ import annotations

from math import inf
from typing import Any

import anthropic
import ollama
import pytest

from hearth.dialects.gojson import Body
from hearth.dialects.writers import nanoseconds
from hearth.emulator import load_profiles
from hearth.emulator.models import default_profiles, parse_name
from hearth.emulator.server import foreign_page, served
from hearth.emulator.wire import keep_alive_s, timestamp
from hearth.errors import ConfigError
from tests.emulator.captures import connect, send, take_apart
from tests.emulator.conftest import StartEmulator, toys
from tests.support.patience import until


def request(method: str, path: str, body: str = "", *headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", body]).encode()


def test_keep_alives_timestamps_and_durations_are_gos():
    kept = [keep_alive_s(Body({"keep_alive": value})) for value in (None, 0, 2.5, "1m", -1, "-5m")]
    assert kept == [None, 0.0, 2.5, 60.0, inf, inf]
    assert [timestamp(0.5), timestamp(3.0), timestamp(inf)[:2]] == [
        "1970-01-01T00:00:00.5Z",
        "1970-01-01T00:00:03Z",
        "23",
    ]
    assert [nanoseconds(0.0, step=1000), nanoseconds(0.0123456789, step=1000)] == [1000, 12_345_000]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("a", "a:latest"),
        ("a:b", "a:b"),
        ("me/a", "me/a:latest"),
        ("hub.example:5000/me/a:x", "hub.example:5000/me/a:x"),
        ("library/a/b", "library/a/b:latest"),
        *((text, None) for text in ("", "bad name!!", "a:", "a/b/c/d", "/a", ":x")),
    ],
)
def test_names_are_completed_with_their_defaults_or_impossible(text: str, short: str | None):
    name = parse_name(text)
    assert (name and name.short) == short


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        *(
            (host, "", True)
            for host in ("localhost:1", "127.0.0.1", "box.local", "192.168.1.5:8", "[::1]:9")
        ),
        ("evil.example", "", False),
        *(
            ("localhost:1", origin, True)
            for origin in ("http://localhost:1", "http://localhost:2", "app://anything")
        ),
        ("localhost:1", "http://localhost.evil.example", False),
    ],
)
def test_only_local_hosts_and_pages_are_served(host: str, origin: str, expected: bool):
    assert served(host, origin) is expected
    assert foreign_page(origin, host) is (origin not in ("", "http://localhost:1"))


PART = '{{"model":"tiny-a","messages":[{{"role":"user","content":[{{"type":{}}}]}}]}}'
SHA = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


async def test_requests_at_the_edges_are_answered_like_gin_and_logged(
    start_emulator: StartEmulator,
):
    emulator, url = await start_emulator(toys("tiny-a", "emb"))
    for method, path, body, status, said in (
        ("GET", "/api/tags/", "", 301, b""),
        ("DELETE", "/api/tags", "", 405, b""),
        ("HEAD", "/api/tags", "", 200, b""),
        ("OPTIONS", "/api/tags", "", 405, b""),  # only a page of another origin asks beforehand
        ("POST", "/v1/images/generations", "", 404, b""),
        ("GET", "/v1/models/", "", 301, b""),
        # keys match in any letter case, and what follows the first value is ignored
        (
            "POST",
            "/api/generate",
            '{"MODEL":"TINY-A","Stream":false} trailing',
            200,
            b'"model":"TINY-A"',
        ),
        *(
            ("POST", "/v1/chat/completions", PART.format(kind), 400, b"invalid message format")
            for kind in ("[]", "{}", "1", "null")
        ),
        ("POST", "/api/pull", '{"model":"nothing"}', 200, b'{"error":"pull model manifest:'),
        ("POST", f"/api/blobs/{SHA}", "abc", 201, b""),
        ("POST", f"/api/blobs/{SHA}", "abc", 200, b""),
        ("HEAD", f"/api/blobs/{SHA}", "", 200, b""),
        ("POST", "/api/show?x=1", '{"model":"tiny-a"}', 200, b"capabilities"),
    ):
        answer = await send(url, request(method, path, body))
        assert (int(answer[9:12]), said in answer) == (status, True), (method, path, body)
        assert tuple(emulator.requests[-1]) == (method, path, body.encode())
    # less than no dimensions are all of them
    of = [f'{{"model":"emb","input":"a","dimensions":{count}}}' for count in (-1, 0)]
    less, none = [
        take_apart(await send(url, request("POST", "/v1/embeddings", body))) for body in of
    ]
    assert (less.status, less.chunks) == (b"HTTP/1.1 200 OK", none.chunks)


@pytest.mark.parametrize(
    ("method", "path", "to", "said"),
    [
        (
            "GET",
            "//api//tags?a=//b",
            "/api/tags?a=//b",
            '<a href="/api/tags?a=//b">Temporary Redirect</a>.\n\n',
        ),
        ("GET", "/api//tags/", "/api/tags/", '<a href="/api/tags/">Temporary Redirect</a>.\n\n'),
        ("HEAD", "/api///tags", "/api/tags", ""),
        ("POST", "/api//chat", "/api/chat", ""),
        ("POST", "//evil.example//api/chat", "/evil.example/api/chat", ""),
    ],
)
async def test_the_mux_of_go_takes_out_double_slashes_before_ollama_sees_a_request(
    start_emulator: StartEmulator, method: str, path: str, to: str, said: str
):
    emulator, url = await start_emulator(toys("tiny-a"))
    answer = (await send(url, request(method, path, "{}" if method == "POST" else ""))).decode()
    assert answer.startswith("HTTP/1.1 307 Temporary Redirect\r\n")
    assert f"\r\nLocation: {to}\r\n" in answer
    assert answer.endswith(f"\r\n\r\n{said}")
    assert list(emulator.requests) == []


async def test_connections_are_kept_half_closed_or_of_http_1_0(start_emulator: StartEmulator):
    emulator, url = await start_emulator(toys("tiny-a", "ma"))
    reader, writer = await connect(url)
    for _ in range(2):
        writer.write(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert not [name for name in (b"Connection", b"Server") if name in head]
        assert b"version" in await reader.readexactly(20)
    writer.close()
    old = request(
        "POST", "/api/generate", '{"model":"tiny-a","prompt":"x","options":{"num_predict":2}}'
    ).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await send(url, old)
    assert (b"chunked" in answer, answer[-2:]) == (False, b"}\n")
    reader, writer = await connect(url)
    writer.write(
        request(
            "POST", "/api/generate", '{"model":"ma","prompt":"x","options":{"num_predict":9000}}'
        )
    )
    await reader.readuntil(b"\n\r\n")
    writer.write_eof()  # counts as a caller that left
    assert b'"done":true' not in await reader.read()
    writer.close()
    await until(lambda: not emulator.in_flight)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[{}]",
        "[{name: a, nope: 1}]",
        "[{name: 'no good'}]",
        "[{name: a, decode_tokens_per_s: 0}]",
        "[",
        "",
    ],
)
def test_a_model_file_may_be_json_and_a_bad_one_is_a_config_error(text: str):
    assert [
        one.name for one in load_profiles('[{"name": "a"}, {"name": "b:c", "vram_gib": 3}]')
    ] == ["a", "b:c"]
    with pytest.raises(ConfigError):
        load_profiles(text)


# What the official clients do with an Ollama of its own, beside all that `tests/clients` does
# through a gateway with this emulator.


async def test_ollama_manages_models(start_emulator: StartEmulator):
    url = (await start_emulator(default_profiles(), speed=1000.0))[1]
    async with ollama.AsyncClient(host=url, trust_env=False) as native:
        await native.copy("qwen2.5-coder:14b", "mine")
        await native.create(
            model="tuned", from_="mine", system="be brief", parameters={"num_ctx": 512}
        )
        shown = await native.show("tuned")
        assert ("num_ctx" in str(shown.parameters), shown.capabilities) == (
            True,
            ["completion", "tools", "insert"],
        )
        assert {"mine:latest", "tuned:latest"} <= {
            one.model for one in (await native.list()).models
        }
        await native.delete("mine")
        assert "mine:latest" not in {one.model for one in (await native.list()).models}
        assert [part.status async for part in await native.pull("llama3.1:8b", stream=True)][
            -1
        ] == "success"
        assert (await native.generate(model="tuned", prompt="")).done_reason == "load"
        assert [(one.model, one.context_length) for one in (await native.ps()).models] == [
            ("tuned:latest", 512)
        ]


async def test_a_thinking_model_thinks_first_in_every_dialect(start_emulator: StartEmulator):
    thinker = default_profiles()[1].model_copy(
        update={"name": "thinker", "capabilities": ("completion", "thinking")}
    )
    url = (await start_emulator([thinker], speed=1000.0))[1]
    asked: Any = {"model": "thinker", "messages": [{"role": "user", "content": "say hello"}]}
    async with ollama.AsyncClient(host=url, trust_env=False) as native:
        parts = [part.message async for part in await native.chat(**asked, stream=True)]
        quiet = await native.chat(**asked, think=False)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as claude:
        message = await claude.messages.create(
            max_tokens=100, thinking={"type": "enabled", "budget_tokens": 1024}, **asked
        )
    assert [bool(parts[0].thinking), bool(parts[-2].content), bool(quiet.message.thinking)] == [
        True,
        True,
        False,
    ]
    assert [block.type for block in message.content] == ["thinking", "text"]
