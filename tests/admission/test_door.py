"""Host, framing, origin and media type: what no caller may send."""

from __future__ import annotations

import pytest

from hearth.admission.door import HostList, check_framing, check_host, check_media, check_origin
from hearth.admission.headers import RequestHeaders
from hearth.errors import BadRequest, Forbidden, HostNotAllowed, UnsupportedMedia


def headers(*fields: tuple[bytes, bytes]) -> RequestHeaders:
    return RequestHeaders.of(fields)


def hosts(host: str = "127.0.0.1", *allowed: str) -> HostList:
    return HostList(host, allowed)


@pytest.mark.parametrize(
    "host", [b"localhost", b"127.0.0.1", b"[::1]", b"hearth.localhost", b"localhost:8411", b"127.0.0.1:1", b"[::1]:8411", b"LOCALHOST"]
)
def test_loopback_names_are_allowed_with_any_port(host):
    check_host(headers((b"host", host)), hosts())


@pytest.mark.parametrize("host", [b"gpu-box.lan", b"GPU-Box.LAN:8411", b"[fd00::5]:8411", b"10.0.0.5"])
def test_the_configured_host_and_the_listed_hosts_are_allowed(host):
    check_host(headers((b"host", host)), hosts("10.0.0.5", "gpu-box.lan", "fd00::5"))


@pytest.mark.parametrize(
    "host",
    [b"evil.test", b"localhost.evil.test", b"evil.test:8411", b"notlocalhost", b"127.0.0.1.evil.test", b"localhost.", b"a/.localhost"],
)
def test_any_other_host_is_misdirected(host):
    with pytest.raises(HostNotAllowed, match=r"server\.allowed_hosts"):
        check_host(headers((b"host", host)), hosts())


@pytest.mark.parametrize(
    ("listening", "name", "error"), [("0.0.0.0", b"0.0.0.0", HostNotAllowed), ("::", b"[::]", HostNotAllowed), ("::", b"::", BadRequest)]
)
def test_listening_everywhere_does_not_allow_the_wildcard_address_as_a_name(listening, name, error):
    with pytest.raises(error):
        check_host(headers((b"host", name)), hosts(listening))


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ((b"host", b""),),
        ((b"host", b"localhost"), (b"host", b"localhost")),
        ((b"host", b"localhost:80/x"),),
        ((b"host", b"localhost:80@evil.test"),),
        ((b"host", b"[::1]x"),),
        ((b"host", b"localhost:\xb2"),),
    ],
)
def test_a_missing_repeated_or_malformed_host_is_a_bad_request(fields):
    with pytest.raises(BadRequest):
        check_host(headers(*fields), hosts())


def test_a_host_that_was_admitted_once_opens_the_door_for_no_other_one():
    known, good = hosts(), (b"host", b"127.0.0.1:8411")
    check_host(headers(good), known)
    check_host(headers(good), known)
    with pytest.raises(BadRequest):
        check_host(headers(good, good), known)
    with pytest.raises(HostNotAllowed):
        check_host(headers((b"host", b"evil.example")), known)
    with pytest.raises(HostNotAllowed):
        check_host(headers((b"host", b"evil.example")), known)
    with pytest.raises(BadRequest):
        check_host(headers(), known)


def test_a_length_said_in_two_ways_is_refused():
    with pytest.raises(BadRequest):
        check_framing(headers((b"content-length", b"3"), (b"transfer-encoding", b"chunked")))
    with pytest.raises(BadRequest):
        check_framing(headers((b"content-length", b"3"), (b"content-length", b"4")))
    check_framing(headers((b"content-length", b"3")))
    check_framing(headers((b"transfer-encoding", b" Chunked")))


CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    "fields", [(CHUNKED, CHUNKED), ((b"transfer-encoding", b"gzip, chunked"),), ((b"transfer-encoding", b"identity"),)]
)
def test_a_body_comes_in_chunks_or_with_its_length_and_in_no_other_way(fields):
    with pytest.raises(BadRequest, match="Transfer-Encoding"):
        check_framing(headers(*fields))


HOST = (b"host", b"localhost:8411")


@pytest.mark.parametrize(
    "origin",
    [b"http://evil.test", b"null", b"", b"http://localhost:3000", b"http://localhost:84111", b"ftp://localhost:8411", b"localhost:8411"],
)
def test_a_page_of_another_origin_may_not_change_anything(origin):
    for method in ("POST", "DELETE", "PUT", "OPTIONS"):
        with pytest.raises(Forbidden):
            check_origin(method, headers(HOST, (b"origin", origin)))


def test_reading_with_a_foreign_origin_is_left_to_the_browser_which_shows_the_page_nothing():
    check_origin("GET", headers(HOST, (b"origin", b"http://evil.test")))


def test_the_own_origin_and_no_origin_may_change_things():
    check_origin("POST", headers(HOST, (b"origin", b"http://localhost:8411")))
    check_origin("POST", headers(HOST))


def test_two_origins_are_no_origin_of_ours():
    own = (b"origin", b"http://localhost:8411")
    with pytest.raises(Forbidden):
        check_origin("POST", headers(HOST, own, own))


def test_a_cross_site_request_is_refused_unless_somebody_follows_a_link():
    cross = (b"sec-fetch-site", b"cross-site")
    for method in ("GET", "POST"):
        with pytest.raises(Forbidden):
            check_origin(method, headers(HOST, cross, (b"sec-fetch-mode", b"no-cors")))
    with pytest.raises(Forbidden):
        check_origin("POST", headers(HOST, cross, (b"sec-fetch-mode", b"navigate")))
    check_origin("GET", headers(HOST, cross, (b"sec-fetch-mode", b"navigate")))


JSON = (b"content-type", b"application/json")
FORM = (b"content-type", b"application/x-www-form-urlencoded")


@pytest.mark.parametrize("kind", [b"application/json", b"application/json; charset=utf-8", b"Application/JSON"])
def test_json_is_always_accepted(kind):
    check_media("POST", headers((b"content-type", kind), (b"origin", b"http://localhost:8411")))


def test_curl_may_leave_the_type_out_or_call_it_a_form():
    check_media("POST", headers(FORM))
    check_media("POST", headers())


def test_programs_may_call_json_plain_text_and_nodes_fetch_is_a_program():
    node = (b"sec-fetch-mode", b"cors")
    for kind in (b"text/plain;charset=UTF-8", b"application/x-www-form-urlencoded"):
        check_media("POST", headers((b"content-type", kind), node))
    check_media("POST", headers((b"content-type", b"multipart/form-data; boundary=x"), node), form=True)


@pytest.mark.parametrize("sign", [(b"origin", b"http://localhost:8411"), (b"sec-fetch-site", b"same-site")])
def test_a_browser_may_not_leave_the_type_out_or_send_a_form(sign):
    for fields in ((sign,), (FORM, sign), ((b"content-type", b"text/plain"), sign)):
        with pytest.raises(UnsupportedMedia):
            check_media("POST", headers(*fields))


@pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"application/octet-stream", b"text/json"])
def test_other_types_are_refused(kind):
    with pytest.raises(UnsupportedMedia):
        check_media("POST", headers((b"content-type", kind)))


def test_only_binary_addresses_take_octets():
    octets = headers((b"content-type", b"application/octet-stream"))
    check_media("POST", octets, binary=True)
    with pytest.raises(UnsupportedMedia):
        check_media("POST", octets)


def test_a_post_without_a_body_may_be_called_octets_as_aiohttp_does():
    check_media("POST", headers((b"content-type", b"application/octet-stream"), (b"content-length", b"0")))
    with pytest.raises(UnsupportedMedia):
        check_media("POST", headers((b"content-type", b"application/octet-stream"), (b"content-length", b"2")))


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"zstd", b"deflate", b"gzip, gzip", b"identity, gzip"])
def test_compressed_bodies_are_refused(encoding):
    with pytest.raises(UnsupportedMedia):
        check_media("POST", headers(JSON, (b"content-encoding", encoding)))


def test_the_identity_encoding_is_no_encoding():
    check_media("POST", headers(JSON, (b"content-encoding", b"identity")))


def test_a_get_has_no_media_type_to_check():
    check_media("GET", headers((b"content-type", b"text/plain")))
