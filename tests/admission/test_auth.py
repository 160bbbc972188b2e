"""Who is asking: one key, in one of three headers, or nobody but this machine."""

from __future__ import annotations

import itertools

import pytest

from hearth.admission.auth import LOCAL_CALLER, Identity, Keyring, digest_of
from hearth.admission.http_checks import RequestHeaders
from hearth.config.settings import AuthSettings, KeySettings
from hearth.errors import BadRequest, HearthError, Unauthenticated
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
PAIRS = [(FORMS[0], FORMS[3]), (FORMS[3], FORMS[4]), (FORMS[0], FORMS[0]), (FORMS[3], (b"x-api-key", b"other"))]


def headers(*fields: tuple[bytes, bytes]) -> RequestHeaders:
    return RequestHeaders.of(fields)


def refusal(keyring: Keyring, peer: str | None, *fields: tuple[bytes, bytes]) -> HearthError | None:
    try:
        keyring.identify(headers(*fields), peer)
    except HearthError as error:
        return error
    return None


def test_every_form_of_a_key_names_the_same_caller_with_the_rights_of_the_key():
    expected = Identity(
        caller="house", lane=Lane.INTERNAL, max_priority=Priority.NORMAL, models=("llama*",), admin=True, authenticated=True
    )
    assert expected.may_manage_models
    for form in FORMS:
        assert KEYED.identify(headers(form), "192.168.1.9") == expected, form


def test_anything_but_a_known_key_is_unauthenticated_even_from_loopback():
    for fields in (
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
    ):
        assert isinstance(refusal(KEYED, "127.0.0.1", *fields), Unauthenticated), fields


def test_more_than_one_credential_is_a_bad_request_where_there_are_keys():
    for pair in PAIRS:
        assert isinstance(refusal(KEYED, "127.0.0.1", *pair), BadRequest), pair
        assert KEYLESS.identify(headers(*pair), "127.0.0.1").caller == LOCAL_CALLER


def test_a_field_that_a_client_sends_for_a_key_that_was_set_to_nothing_is_no_second_credential():
    blanks = [(b"authorization", b"Bearer "), (b"authorization", b""), (b"x-api-key", b""), (b"api-key", b" ")]
    for form, blank in itertools.product(FORMS, blanks):
        if form[0] != blank[0]:
            assert KEYED.identify(headers(blank, form), "192.168.1.9").caller == "house", (form, blank)


def test_without_keys_this_machine_is_the_local_caller_and_admin_but_manages_no_models():
    for peer in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        identity = KEYLESS.identify(headers(FORMS[0]), peer)
        assert (identity.caller, identity.lane, identity.admin, identity.authenticated) == (LOCAL_CALLER, Lane.EXTERNAL, True, False)
        assert not identity.may_manage_models


def test_without_keys_nobody_else_comes_in_whatever_is_said_of_forwarding():
    forwarded = ((b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1"), (b"x-real-ip", b"127.0.0.1"))
    for peer in ("192.168.1.9", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "", "unix", None):
        for fields in ((), forwarded):
            with pytest.raises(Unauthenticated, match="no API keys are configured"):
                KEYLESS.identify(headers(*fields), peer)


def test_a_digest_in_upper_case_in_the_file_is_the_same_digest():
    keyring = Keyring(AuthSettings(keys=(KeySettings(name="a", sha256=digest_of(KEY).upper()),)))
    assert keyring.identify(headers(FORMS[3]), None).caller == "a"


def test_credentials_do_not_show_in_a_repr():
    assert KEY not in repr(headers(*FORMS[:1]))
    assert digest_of(KEY) not in repr(KEYED)
