"""Who is asking: one key, in one of three headers, or nobody but this machine."""

from __future__ import annotations

import pytest

from hearth.admission.auth import LOCAL_CALLER, Keyring, digest_of
from hearth.admission.headers import RequestHeaders
from hearth.config.settings import AuthSettings, KeySettings
from hearth.errors import BadRequest, Unauthenticated
from hearth.types import Lane, Priority

KEY = "hearth_correct"
HOUSE = KeySettings(name="house", sha256=digest_of(KEY), lane=Lane.INTERNAL, max_priority=Priority.NORMAL, models=("llama*",), admin=True)
KEYED = Keyring(AuthSettings(keys=(HOUSE,)))
KEYLESS = Keyring(AuthSettings())

FORMS = [
    (b"authorization", f"Bearer {KEY}".encode()),
    (b"authorization", f"bearer {KEY}".encode()),
    (b"authorization", f"Bearer   {KEY} ".encode()),
    (b"x-api-key", KEY.encode()),
    (b"api-key", KEY.encode()),
]


def headers(*fields: tuple[bytes, bytes]) -> RequestHeaders:
    return RequestHeaders.of(fields)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_key_names_the_same_caller_with_the_rights_of_the_key(form):
    identity = KEYED.identify(headers(form), "192.168.1.9")
    assert identity.caller == "house"
    assert identity.lane is Lane.INTERNAL
    assert identity.max_priority is Priority.NORMAL
    assert identity.models == ("llama*",)
    assert identity.admin
    assert identity.authenticated
    assert identity.may_manage_models


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", KEY.encode()),),
        ((b"authorization", b"Basic " + KEY.encode()),),
        ((b"authorization", b"Bearer"),),
        ((b"x-api-key", b""),),
        ((b"x-api-key", KEY.upper().encode()),),
        ((b"api-key", b"\xff\xfe"),),
        ((b"x-caller", b"house"),),
        ((b"x-api-key", digest_of(KEY).encode()),),
    ],
)
def test_anything_but_a_known_key_is_unauthenticated_even_from_loopback(fields):
    with pytest.raises(Unauthenticated):
        KEYED.identify(headers(*fields), "127.0.0.1")


PAIRS = pytest.mark.parametrize(
    "pair", [(FORMS[0], FORMS[3]), (FORMS[3], FORMS[4]), (FORMS[0], FORMS[0]), (FORMS[3], (b"x-api-key", b"other"))]
)


@PAIRS
def test_more_than_one_credential_is_a_bad_request(pair):
    with pytest.raises(BadRequest):
        KEYED.identify(headers(*pair), "127.0.0.1")


@PAIRS
def test_without_keys_nobody_looks_at_what_a_client_sends_for_one(pair):
    assert KEYLESS.identify(headers(*pair), "127.0.0.1").caller == LOCAL_CALLER


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blank", [(b"authorization", b"Bearer "), (b"authorization", b""), (b"x-api-key", b""), (b"api-key", b" ")])
def test_a_field_that_a_client_sends_for_a_key_that_was_set_to_nothing_is_no_second_credential(form, blank):
    if form[0] != blank[0]:
        assert KEYED.identify(headers(blank, form), "192.168.1.9").caller == "house"


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_without_keys_this_machine_is_the_local_caller_and_admin_but_manages_no_models(peer):
    identity = KEYLESS.identify(headers(FORMS[0]), peer)
    assert identity.caller == LOCAL_CALLER
    assert identity.lane is Lane.EXTERNAL
    assert identity.admin
    assert not identity.authenticated
    assert not identity.may_manage_models


@pytest.mark.parametrize("peer", ["192.168.1.9", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "", "unix", None])
def test_without_keys_nobody_else_comes_in(peer):
    with pytest.raises(Unauthenticated, match="no API keys are configured"):
        KEYLESS.identify(headers(), peer)


def test_forwarded_addresses_do_not_make_a_peer_local():
    fields = ((b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1"), (b"x-real-ip", b"127.0.0.1"))
    with pytest.raises(Unauthenticated):
        KEYLESS.identify(headers(*fields), "192.168.1.9")


def test_a_digest_in_upper_case_in_the_file_is_the_same_digest():
    keyring = Keyring(AuthSettings(keys=(KeySettings(name="a", sha256=digest_of(KEY).upper()),)))
    assert keyring.identify(headers(FORMS[3]), None).caller == "a"


def test_credentials_do_not_show_in_a_repr():
    assert KEY not in repr(headers(*FORMS[:1]))
    assert digest_of(KEY) not in repr(KEYED)
