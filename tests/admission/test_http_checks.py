"""Host, framing, origin and media type: what no caller may send. Tables of header fields, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from hearth.admission.http_checks import HostList, RequestHeaders, check_framing, check_host, check_media, check_origin
from hearth.errors import BadRequest, Forbidden, HearthError, HostNotAllowed, UnsupportedMedia

Field = tuple[bytes, bytes]
HOST = (b"host", b"localhost:8411")
ORIGIN = (b"origin", b"http://localhost:8411")
JSON = (b"content-type", b"application/json")
CHUNKED = (b"transfer-encoding", b"chunked")


def refusal(check: Callable[..., None], *arguments: object, **more: bool) -> type[HearthError] | None:
    """What the check raises."""
    try:
        check(*arguments, **more)
    except HearthError as error:
        return type(error)
    return None


def of_host(names: Iterable[bytes], listening: str = "127.0.0.1", *allowed: str) -> dict[bytes, type[HearthError] | None]:
    hosts = HostList(listening, allowed)
    return {name: refusal(check_host, RequestHeaders.of([(b"host", name)]), hosts) for name in names}


def test_a_host_is_a_name_of_this_machine_or_one_that_the_owner_has_set():
    own = (b"localhost", b"127.0.0.1", b"[::1]", b"hearth.localhost", b"localhost:8411", b"127.0.0.1:1", b"[::1]:8411", b"LOCALHOST")
    assert set(of_host(own).values()) == {None}
    listed = (b"gpu-box.lan", b"GPU-Box.LAN:8411", b"[fd00::5]:8411", b"10.0.0.5")
    assert set(of_host(listed, "10.0.0.5", "gpu-box.lan", "fd00::5").values()) == {None}
    others = (
        b"evil.test",
        b"localhost.evil.test",
        b"evil.test:8411",
        b"notlocalhost",
        b"127.0.0.1.evil.test",
        b"localhost.",
        b"a/.localhost",
    )
    assert set(of_host((*others, *listed)).values()) == {HostNotAllowed}
    assert of_host([b"0.0.0.0"], "0.0.0.0") | of_host([b"[::]", b"::"], "::") == {
        b"0.0.0.0": HostNotAllowed,
        b"[::]": HostNotAllowed,
        b"::": BadRequest,
    }
    with pytest.raises(HostNotAllowed, match=r"server\.allowed_hosts"):
        check_host(RequestHeaders.of([(b"host", b"evil.test")]), HostList("127.0.0.1", ()))


def test_a_missing_repeated_or_malformed_host_is_a_bad_request():
    malformed = (b"", b"localhost:80/x", b"localhost:80@evil.test", b"[::1]x", b"localhost:\xb2")
    assert set(of_host(malformed).values()) == {BadRequest}
    for fields in ((), (HOST, HOST)):
        assert refusal(check_host, RequestHeaders.of(fields), HostList("127.0.0.1", ())) is BadRequest


def test_a_host_that_was_admitted_once_lets_no_other_one_in():
    known, evil = HostList("127.0.0.1", ()), (b"host", b"evil.example")
    for fields, expected in (
        ([HOST], None),
        ([HOST], None),
        ([HOST, HOST], BadRequest),
        ([evil], HostNotAllowed),
        ([evil], HostNotAllowed),
        ([], BadRequest),
    ):
        assert refusal(check_host, RequestHeaders.of(fields), known) is expected


def test_a_body_comes_in_chunks_or_with_its_length_said_once():
    length = (b"content-length", b"3")
    for fields, expected in {
        (length,): None,
        ((b"transfer-encoding", b" Chunked"),): None,
        (length, CHUNKED): BadRequest,
        (length, (b"content-length", b"4")): BadRequest,
        (CHUNKED, CHUNKED): BadRequest,
        ((b"transfer-encoding", b"gzip, chunked"),): BadRequest,
        ((b"transfer-encoding", b"identity"),): BadRequest,
    }.items():
        assert refusal(check_framing, RequestHeaders.of(fields)) is expected, fields


def test_a_page_of_another_origin_may_not_change_anything():
    others = (
        b"http://evil.test",
        b"null",
        b"",
        b"http://localhost:3000",
        b"http://localhost:84111",
        b"ftp://localhost:8411",
        b"localhost:8411",
    )
    for method in ("POST", "DELETE", "PUT", "OPTIONS"):
        for origin in others:
            assert refusal(check_origin, method, RequestHeaders.of([HOST, (b"origin", origin)])) is Forbidden, (method, origin)
        assert refusal(check_origin, method, RequestHeaders.of([HOST, ORIGIN, ORIGIN])) is Forbidden
        for fields in ([HOST], [HOST, ORIGIN]):
            assert refusal(check_origin, method, RequestHeaders.of(fields)) is None
    assert refusal(check_origin, "GET", RequestHeaders.of([HOST, (b"origin", others[0])])) is None  # the browser shows the page nothing


def test_a_cross_site_request_is_refused_unless_somebody_follows_a_link():
    for method, mode, expected in (
        ("GET", b"no-cors", Forbidden),
        ("POST", b"no-cors", Forbidden),
        ("POST", b"navigate", Forbidden),
        ("GET", b"navigate", None),
    ):
        fields = [HOST, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", mode)]
        assert refusal(check_origin, method, RequestHeaders.of(fields)) is expected, (method, mode)


FORM, TEXT, PARTS, OCTETS = (
    (b"content-type", kind)
    for kind in (
        b"application/x-www-form-urlencoded",
        b"text/plain;charset=UTF-8",
        b"multipart/form-data; boundary=x",
        b"application/octet-stream",
    )
)
NODE = (b"sec-fetch-mode", b"cors")
SIGNS = (ORIGIN, (b"sec-fetch-site", b"same-origin"))
TAKEN: list[tuple[tuple[Field, ...], dict[str, bool]]] = [
    *(((((b"content-type", kind)), ORIGIN), {}) for kind in (b"application/json", b"application/json; charset=utf-8", b"Application/JSON")),
    ((), {}),
    ((FORM,), {}),
    ((TEXT, NODE), {}),
    ((FORM, NODE), {}),
    ((PARTS, NODE), {"form": True}),
    ((OCTETS,), {"binary": True}),
    ((OCTETS, (b"content-length", b"0")), {}),  # as aiohttp calls no body
    ((JSON, (b"content-encoding", b"identity")), {}),
    ((JSON, (b"content-encoding", b"zstd")), {"zstd": True}),
]
REFUSED: list[tuple[tuple[Field, ...], dict[str, bool]]] = [
    *((fields, {}) for sign in SIGNS for fields in ((sign,), (FORM, sign), (TEXT, sign))),
    *(((PARTS, sign), {"form": True}) for sign in SIGNS),
    ((PARTS,), {}),
    ((OCTETS,), {}),
    ((OCTETS, (b"content-length", b"2")), {}),
    (((b"content-type", b"text/json"),), {}),
    *(((JSON, (b"content-encoding", coding)), {}) for coding in (b"gzip", b"br", b"zstd", b"deflate", b"gzip, gzip", b"identity, gzip")),
    ((JSON, (b"content-encoding", b"gzip")), {"zstd": True}),
    ((JSON, (b"content-encoding", b"zstd"), (b"content-encoding", b"zstd")), {"zstd": True}),
]


def test_a_body_is_json_and_a_browser_has_to_say_so():
    for expected, table in ((None, TAKEN), (UnsupportedMedia, REFUSED)):
        for fields, admitted in table:
            assert refusal(check_media, "POST", RequestHeaders.of(fields), **admitted) is expected, (fields, admitted)
    assert refusal(check_media, "GET", RequestHeaders.of([TEXT])) is None
