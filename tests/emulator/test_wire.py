"""The edges of the emulated server: names, durations, hosts, methods, keys in any case, model files, refusals."""

from __future__ import annotations

from math import inf

import pytest

from hearth.dialects.gojson import Body
from hearth.emulator import load_profiles
from hearth.emulator.models import parse_name
from hearth.emulator.server import foreign_page, served
from hearth.emulator.wire import keep_alive_s, nanoseconds, timestamp
from hearth.errors import ConfigError
from tests.emulator.captures import connect, send, take_apart
from tests.emulator.conftest import StartEmulator, toys
from tests.emulator.waiting import until
from tests.support.cases import for_each


def request(method: str, path: str, body: str = "", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", body]).encode()


def test_keep_alives_timestamps_and_durations_are_gos() -> None:
    kept = [keep_alive_s(Body({"keep_alive": value})) for value in (None, 0, 2.5, "1m", -1, "-5m")]
    assert kept == [None, 0.0, 2.5, 60.0, inf, inf]
    assert [timestamp(0.5), timestamp(3.0), timestamp(inf)[:2]] == ["1970-01-01T00:00:00.5Z", "1970-01-01T00:00:03Z", "23"]
    assert [nanoseconds(0.0, step=1000), nanoseconds(0.0123456789, step=1000)] == [1000, 12_345_000]


NAMES = {
    "a": "a:latest",
    "a:b": "a:b",
    "me/a": "me/a:latest",
    "hub.example:5000/me/a:x": "hub.example:5000/me/a:x",
    "library/a/b": "library/a/b:latest",
}


@for_each(("text", "short"), [*NAMES.items(), *dict.fromkeys(["", "bad name!!", "a:", "a/b/c/d", "/a", ":x"]).items()])
def test_names_are_completed_with_their_defaults_or_impossible(text: str, short: str | None) -> None:
    name = parse_name(text)
    assert (name and name.short) == short


@for_each(
    ("host", "origin", "expected"),
    [
        *((host, "", True) for host in ("localhost:1", "127.0.0.1", "box.local", "192.168.1.5:8", "[::1]:9")),
        ("evil.example", "", False),
        *(("localhost:1", origin, True) for origin in ("http://localhost:1", "http://localhost:2", "app://anything")),
        ("localhost:1", "http://localhost.evil.example", False),
    ],
)
def test_only_local_hosts_and_pages_are_served(host: str, origin: str, expected: bool) -> None:
    assert served(host, origin) is expected
    assert foreign_page(origin, host) is (origin not in ("", "http://localhost:1"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/tags/", b"301 Moved Permanently"),
        ("DELETE", "/api/tags", b"405 Method Not Allowed"),
        ("HEAD", "/api/tags", b"200 OK"),
        ("POST", "/v1/images/generations", b"404 Not Found"),
        ("GET", "/v1/models/", b"301 Moved Permanently"),
    ],
)
async def test_paths_and_methods_are_answered_like_gin(method: str, path: str, status: bytes, start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("tiny-a"))
    assert (await send(url, request(method, path))).startswith(b"HTTP/1.1 " + status)


async def test_keys_match_in_any_letter_case_and_what_follows_the_first_value_is_ignored(start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("tiny-a"))
    answer = await send(url, request("POST", "/api/generate", '{"MODEL":"TINY-A","Stream":false} trailing'))
    assert b'"model":"TINY-A"' in answer
    assert b'"done_reason":"load"' in answer


async def test_less_than_no_dimensions_are_all_of_them(start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("emb"))
    asked = [f'{{"model":"emb","input":"a","dimensions":{count}}}' for count in (-1, 0)]
    answers = [take_apart(await send(url, request("POST", "/v1/embeddings", body))) for body in asked]
    assert answers[0].status == b"HTTP/1.1 200 OK"
    assert answers[0].chunks == answers[1].chunks


async def test_a_part_of_no_known_type_is_an_invalid_message_whatever_its_type_is_made_of(start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("ma"))
    for kind in ("[]", "{}", "1", "null"):
        body = f'{{"model":"ma","messages":[{{"role":"user","content":[{{"type":{kind}}}]}}]}}'
        answer = take_apart(await send(url, request("POST", "/v1/chat/completions", body)))
        assert (answer.status, b"invalid message format" in answer.chunks[0]) == (b"HTTP/1.1 400 Bad Request", True)


async def test_a_kept_alive_connection_serves_again_and_has_no_connection_header(start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("tiny-a"))
    reader, writer = await connect(url)
    for _ in range(2):
        writer.write(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert not [name for name in (b"Connection", b"Server") if name in head]
        assert b"version" in await reader.readexactly(20)
    writer.close()


async def test_an_http_1_0_client_gets_an_unchunked_stream(start_emulator: StartEmulator) -> None:
    _, url = await start_emulator(toys("tiny-a"))
    body = '{"model":"tiny-a","prompt":"x","options":{"num_predict":2}}'
    answer = await send(url, request("POST", "/api/generate", body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"chunked" not in answer
    assert answer.endswith(b"}\n")


async def test_a_half_closed_connection_counts_as_a_caller_that_left(start_emulator: StartEmulator) -> None:
    emulator, url = await start_emulator(toys("ma"))
    reader, writer = await connect(url)
    writer.write(request("POST", "/api/generate", '{"model":"ma","prompt":"x","options":{"num_predict":9000}}'))
    await reader.readuntil(b"\n\r\n")
    writer.write_eof()
    assert b'"done":true' not in await reader.read()
    writer.close()
    await until(lambda: not emulator.in_flight)


async def test_pulls_blobs_and_the_log_of_requests(start_emulator: StartEmulator) -> None:
    emulator, url = await start_emulator(toys("tiny-a"))
    answer = take_apart(await send(url, request("POST", "/api/pull", '{"model":"nothing"}')))
    assert answer.chunks[0] == b'{"status":"pulling manifest"}\n'
    assert answer.chunks[-1].startswith(b'{"error":"pull model manifest:')
    path = "/api/blobs/sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    statuses = [(await send(url, request(method, path, body)))[9:12] for method, body in (("POST", "abc"), ("POST", "abc"), ("HEAD", ""))]
    assert statuses == [b"201", b"200", b"200"]
    await send(url, request("POST", "/api/show?x=1", '{"model":"tiny-a"}'))
    assert tuple(emulator.requests[-1]) == ("POST", "/api/show?x=1", b'{"model":"tiny-a"}')


def test_a_model_file_may_be_json_and_needs_only_names() -> None:
    assert [one.name for one in load_profiles('[{"name": "a"}, {"name": "b:c", "vram_gib": 3}]')] == ["a", "b:c"]


@for_each("text", ["{}", "[{}]", "[{name: a, nope: 1}]", "[{name: 'no good'}]", "[{name: a, decode_tokens_per_s: 0}]", "[", ""])
def test_a_bad_model_file_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        load_profiles(text)
