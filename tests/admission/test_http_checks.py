"""Host, framing, origin and media type: what no caller may send.

Tables of header fields, and what becomes of each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hearth.admission.http_checks import (
    HostRules,
    RequestHeaders,
    check_framing,
    check_media,
    check_origin,
)
from hearth.config.settings import ServerSettings
from hearth.errors import BadRequest, Forbidden, HearthError, HostNotAllowed, UnsupportedMedia
from tests.support.cases import for_each

Field = tuple[bytes, bytes]
HOST = (b"host", b"localhost:8411")
ORIGIN = (b"origin", b"http://localhost:8411")


def refusal(
    check: Callable[..., None], *arguments: object, **more: bool
) -> type[HearthError] | None:
    """What the check raises."""
    try:
        check(*arguments, **more)
    except HearthError as error:
        return type(error)
    return None


OWN = b"localhost 127.0.0.1 [::1] hearth.localhost localhost:8411 127.0.0.1:1 [::1]:8411 LOCALHOST"
OWN += b" localhost. hearth.localhost.:8411 host.docker.internal:8411 host.containers.internal"
LISTED = b" gpu-box.lan gpu-box.lan.:8411 GPU-Box.LAN:8411 [fd00::5]:8411 10.0.0.5"
MATCHED = b" a.home.arpa b.a.home.arpa:8411 A.Home.Arpa."
ADDRESSES = b" 192.168.1.9 192.168.1.9:8411 0.0.0.0 [fd00::7] [::]:8411"
"""What no DNS name can be made to lead to."""
OTHERS = (
    b"127.1 2130706433 0x7f.1 evil.test evil.test:8411 localhost.evil.test "
    b"notlocalhost 127.0.0.1.evil.test"
)
OTHERS += (
    b" localhost.. a/.localhost docker.internal [127.0.0.1] [fd00::zz] home.arpa "
    b".home.arpa home.arpa.evil.test a/.home.arpa"
)
MALFORMED = b"localhost:80/x localhost:80@evil.test [::1]x localhost:\xb2"
LIST = ServerSettings(allowed_hosts=("gpu-box.lan", "fd00::5", "*.home.arpa"))
KNOWN = HostRules("10.0.0.5", LIST)
SHIPPED = HostRules("127.0.0.1", ServerSettings())
KEYED = HostRules("10.0.0.5", LIST, has_keys=True)
ANY = HostRules("::", ServerSettings(allowed_hosts=("*",)), has_keys=True)


@pytest.mark.parametrize(
    ("rules", "hosts", "expected"),
    [
        (SHIPPED, OWN, None),
        (KNOWN, OWN + LISTED + MATCHED, None),
        (KEYED, OWN + LISTED + MATCHED + ADDRESSES, None),
        (ANY, OWN + LISTED + MATCHED + ADDRESSES + b" evil.test", None),
        (SHIPPED, OTHERS + LISTED + MATCHED + ADDRESSES, HostNotAllowed),
        (KNOWN, OTHERS + ADDRESSES, HostNotAllowed),
        (KEYED, OTHERS, HostNotAllowed),
        *((rules, MALFORMED, BadRequest) for rules in (SHIPPED, KNOWN, KEYED, ANY)),
        (HostRules("0.0.0.0", ServerSettings()), b"0.0.0.0", HostNotAllowed),
        (HostRules("::", ServerSettings()), b"[::]", HostNotAllowed),
        (HostRules("::", ServerSettings()), b"::", BadRequest),
    ],
)
def test_a_host_is_one_name_of_this_machine_or_one_that_the_owner_has_set(rules, hosts, expected):
    for host in hosts.split():
        assert refusal(rules.check_host, RequestHeaders.of([(b"host", host)])) is expected, host
    for fields in ((HOST, HOST), ((b"host", b""),)):
        assert refusal(rules.check_host, RequestHeaders.of(fields)) is BadRequest
    # HTTP/1.0, which no browser speaks
    assert refusal(rules.check_host, RequestHeaders.of([])) is None


LENGTH = (b"content-length", b"3")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((LENGTH,), None),
        (((b"transfer-encoding", b" Chunked"),), None),
        ((LENGTH, CHUNKED), BadRequest),
        ((LENGTH, (b"content-length", b"4")), BadRequest),
        ((CHUNKED, CHUNKED), BadRequest),
        (((b"transfer-encoding", b"gzip, chunked"),), BadRequest),
        (((b"transfer-encoding", b"identity"),), BadRequest),
    ],
)
def test_a_body_comes_in_chunks_or_with_its_length_said_once(fields, expected):
    assert refusal(check_framing, RequestHeaders.of(fields)) is expected


FOREIGN = (
    b"http://evil.test http://localhost.evil.test http://localhost:8411@evil.test "
    b"http://localhost:8411/ http://127.0.0.1:8411 null "
    b"http://localhost:3000 http://localhost:84111 ftp://localhost:8411 localhost:8411"
)
CROSS = (b"sec-fetch-site", b"cross-site")
NAVIGATES = (b"sec-fetch-mode", b"navigate")
NO_CORS = (b"sec-fetch-mode", b"no-cors")
CHANGES = ("POST", "DELETE", "PUT", "OPTIONS")


@for_each(
    ("methods", "fields", "more", "expected"),
    [
        *((CHANGES, [(b"origin", origin)], {}, Forbidden) for origin in (b"", *FOREIGN.split())),
        (CHANGES, [ORIGIN, ORIGIN], {}, Forbidden),
        (CHANGES, [], {}, None),
        (CHANGES, [ORIGIN], {}, None),
        # the browser shows the page nothing
        (["GET"], [(b"origin", b"http://evil.test")], {}, None),
        (["GET", "POST"], [CROSS, NO_CORS], {}, Forbidden),
        (["POST"], [CROSS, NAVIGATES], {}, Forbidden),
        (["GET"], [CROSS, NAVIGATES], {}, None),  # somebody follows a link
        (["GET"], [CROSS, NAVIGATES, (b"sec-fetch-dest", b"iframe")], {}, Forbidden),
        (["GET"], [CROSS, NAVIGATES], {"forwards": True}, Forbidden),
        (["GET"], [NAVIGATES], {"forwards": True}, None),
    ],
)
def test_a_page_of_another_origin_may_change_nothing_and_fetch_nothing(
    methods, fields, more, expected
):
    for method in methods:
        assert (
            refusal(check_origin, method, RequestHeaders.of([HOST, *fields]), **more) is expected
        ), method


def typed(kind: bytes, *others: Field) -> tuple[Field, ...]:
    return ((b"content-type", kind), *others)


def coded(*codings: bytes) -> tuple[Field, ...]:
    return typed(b"application/json", *((b"content-encoding", coding) for coding in codings))


FORM = b"application/x-www-form-urlencoded"
TEXT = b"text/plain;charset=UTF-8"
PARTS = b"multipart/form-data; boundary=x"
OCTETS = b"application/octet-stream"
NODE = (b"sec-fetch-mode", b"cors")
SIGNS = (ORIGIN, (b"sec-fetch-site", b"same-origin"))
TAKEN: list[tuple[tuple[Field, ...], dict[str, bool]]] = [
    *(
        (typed(kind, ORIGIN), {})
        for kind in (b"application/json", b"application/json; charset=utf-8", b"Application/JSON")
    ),
    *((fields, {}) for fields in ((), typed(FORM), typed(TEXT, NODE), typed(FORM, NODE))),
    (typed(PARTS, NODE), {"form": True}),
    (typed(OCTETS), {"binary": True}),
    (typed(OCTETS, (b"content-length", b"0")), {}),  # as aiohttp calls no body
    (coded(b"identity"), {}),
    (coded(b"zstd"), {"zstd": True}),
]
REFUSED: list[tuple[tuple[Field, ...], dict[str, bool]]] = [
    *((fields, {}) for sign in SIGNS for fields in ((sign,), typed(FORM, sign), typed(TEXT, sign))),
    *((typed(PARTS, sign), {"form": True}) for sign in SIGNS),
    *(
        (fields, {})
        for fields in (
            typed(PARTS),
            typed(OCTETS),
            typed(OCTETS, (b"content-length", b"2")),
            typed(b"text/json"),
        )
    ),
    *(
        (coded(coding), {})
        for coding in (b"gzip", b"br", b"zstd", b"deflate", b"gzip, gzip", b"identity, gzip")
    ),
    *((fields, {"zstd": True}) for fields in (coded(b"gzip"), coded(b"zstd", b"zstd"))),
]


@pytest.mark.parametrize(("table", "expected"), [(TAKEN, None), (REFUSED, UnsupportedMedia)])
def test_a_body_is_json_and_a_browser_has_to_say_so(table, expected):
    for fields, admitted in table:
        assert refusal(check_media, "POST", RequestHeaders.of(fields), **admitted) is expected, (
            fields,
            admitted,
        )
        assert refusal(check_media, "GET", RequestHeaders.of(fields), **admitted) is None
