"""Who is asking."""

from __future__ import annotations

import base64
import itertools

import pytest

from hearth.admission.auth import (
    Identity,
    Keyring,
    digest_of,
    user_of,
)
from hearth.admission.http_checks import RequestHeaders
from hearth.config.settings import (
    AuthSettings,
    KeySettings,
)
from hearth.errors import (
    BadRequest,
    Unauthenticated,
    WrongKey,
)
from hearth.types import LOCAL_CALLER, Lane, Priority
from tests.support.fields import Fields

KEY = "hearth_correct"
RIGHTS: Fields = {
    "lane": Lane.INTERNAL,
    "max_priority": Priority.NORMAL,
    "models": ("llama*",),
    "admin": True,
}
KEYED = Keyring(
    AuthSettings(keys=(KeySettings(name="house", sha256=digest_of(KEY).upper(), **RIGHTS),))
)
KEYLESS = Keyring(AuthSettings())
FORMS = [
    (b"authorization", form % KEY.encode())
    for form in (b"Bearer %b", b"bearer %b", b"Bearer   %b ")
]
FORMS += [(name, KEY.encode()) for name in (b"x-api-key", b"api-key")]
BLANKS = [
    (b"authorization", b"Bearer "),
    (b"authorization", b""),
    (b"x-api-key", b""),
    (b"api-key", b" "),
]
TWICE = [
    [FORMS[0], FORMS[0]],
    [FORMS[3], (b"x-api-key", b"other")],
    [(b"x-api-key", b"other"), FORMS[3]],
]
WRONG = [
    (b"authorization", b"Bearer other"),
    (b"x-api-key", b"undefined"),
    (b"api-key", b"\xff\xfe"),
]
FORWARDED = [
    (b"x-forwarded-for", b"127.0.0.1"),
    (b"forwarded", b"for=127.0.0.1"),
    (b"x-real-ip", b"127.0.0.1"),
]


def test_every_form_of_a_key_names_the_same_caller_with_the_rights_of_the_key():
    # every admin may take leases and switch the mode
    rights = {**RIGHTS, "may_lease": True, "may_set_mode": True}
    expected = Identity(caller="house", authenticated=True, **rights)
    # A blank one is what a client sends for a key that was set to nothing.
    sent = [[form] for form in FORMS] + [
        [blank, form] for form, blank in itertools.product(FORMS, BLANKS) if form[0] != blank[0]
    ]
    assert [
        fields
        for fields in sent
        if KEYED.identify(RequestHeaders.of(fields), "192.168.1.9") != expected
    ] == []
    assert expected.admin
    assert KEY not in repr(RequestHeaders.of(FORMS[:1]))
    assert digest_of(KEY) not in repr(KEYED)


def basic(text: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Basic " + base64.b64encode(text.encode())


NO_KEYS = [
    *(
        basic("proxy:let me in"),
        basic("proxy"),
        basic(KEY),
        (b"authorization", b"Basic =%="),
        (b"authorization", b"Digest x=1"),
    ),
    *(
        (b"authorization", b"Bearer undefined"),
        (b"x-api-key", b"null"),
        (b"api-key", b"sk-no-key-required"),
    ),
]
"""What proxies add, and what clients send for a key that nobody has set."""


def test_a_key_may_come_twice_beside_others_and_as_the_password_of_basic():
    expected = KEYED.identify(RequestHeaders.of([FORMS[0]]), None)
    pairs = [
        pair for pair in itertools.product(FORMS, [*FORMS, *NO_KEYS]) if pair[0][0] != pair[1][0]
    ]
    alone = [(basic(f"anybody:{KEY}"),), (basic(f":{KEY}"),)]
    for fields in [
        *pairs,
        *((second, first) for first, second in pairs),
        *alone,
        (*alone[0], FORMS[3]),
    ]:
        assert KEYED.identify(RequestHeaders.of(fields), "192.168.1.9") == expected, fields


def test_keys_of_two_callers_are_refused_naming_both_headers():
    keys = ("hearth_first", "hearth_second")
    named = zip(("a", "b"), keys, strict=True)
    keyring = Keyring(
        AuthSettings(
            keys=tuple(KeySettings(name=name, sha256=digest_of(key)) for name, key in named)
        )
    )
    fields = [basic(f"x:{keys[0]}"), (b"api-key", keys[1].encode())]
    for sent in (fields, fields[::-1]):
        with pytest.raises(BadRequest, match="Authorization and api-key"):
            keyring.identify(RequestHeaders.of(sent), "192.168.1.9")


@pytest.mark.parametrize("fields", TWICE)
def test_one_header_with_two_values_is_refused_with_its_name(fields):
    name = "Authorization" if fields[0][0] == b"authorization" else "x-api-key"
    with pytest.raises(BadRequest, match=name):
        KEYED.identify(RequestHeaders.of(fields), "127.0.0.1")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        *(([field], WrongKey) for field in [*WRONG, basic("proxy:let me in")]),
        *((list(pair), WrongKey) for pair in itertools.combinations(WRONG, 2)),
        *(([field], Unauthenticated) for field in BLANKS),
        *(([field], Unauthenticated) for field in NO_KEYS[1:5]),
        ([], Unauthenticated),
    ],
)
def test_no_known_key_is_refused_and_only_a_plausible_one_counts_as_wrong(sent, error):
    with pytest.raises(Unauthenticated) as refused:
        KEYED.identify(RequestHeaders.of(sent), "127.0.0.1")
    assert type(refused.value) is error


@pytest.mark.parametrize(
    "peer", ["192.168.1.9", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "", "unix", None]
)
@pytest.mark.parametrize("fields", [[], FORWARDED, FORMS[:1]])
def test_without_keys_everybody_but_this_machine_is_refused_whatever_is_sent(peer, fields):
    with pytest.raises(Unauthenticated):
        KEYLESS.identify(RequestHeaders.of(fields), peer)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("fields", [[], *TWICE, NO_KEYS[:1]])
def test_without_keys_this_machine_is_local_and_admin(peer, fields):
    identity = KEYLESS.identify(RequestHeaders.of(fields), peer)
    assert (identity.caller, identity.lane, identity.admin, identity.authenticated) == (
        LOCAL_CALLER,
        Lane.EXTERNAL,
        True,
        False,
    )


USERS = Keyring(
    AuthSettings(
        keys=(
            KeySettings(name="webui", sha256=digest_of(KEY), users_from="X-OpenWebUI-User-Id"),
            KeySettings(name="plain", sha256=digest_of("hearth_plain")),
        )
    )
)
USER_ID = b"x-openwebui-user-id"


@pytest.mark.parametrize(
    ("key", "sent", "user"),
    [
        (KEY, [b"3f2a-77"], "3f2a-77"),
        (KEY, [b" ann@example.org "], "ann@example.org"),
        (KEY, [], ""),
        (KEY, [b""], ""),
        (KEY, [b"ann", b"bob"], ""),
        (KEY, [b"a" * 64], "a" * 64),
        (KEY, [b"a" * 65], ""),
        (KEY, [b"ann bob"], ""),
        (KEY, [b"ann\nbob"], ""),
        (KEY, ["änn".encode()], ""),
        (KEY, [b"<b>"], ""),
        ("hearth_plain", [b"ann"], ""),
    ],
)
def test_a_user_is_whom_a_key_that_may_names_in_a_plain_word(
    key: str, sent: list[bytes], user: str
):
    fields = [(b"x-api-key", key.encode()), *((USER_ID, each) for each in sent)]
    headers = RequestHeaders.of(fields, USERS.user_headers)
    identity = USERS.identify(headers, "192.168.1.9")
    assert user_of(identity, headers) == user
    assert identity.caller == ("webui" if key == KEY else "plain")


def test_no_key_can_be_taken_for_a_user():
    for name in ("X-API-Key", "Authorization", "x-", "x user"):
        with pytest.raises(ValueError, match="must be the name of a header"):
            KeySettings(name="webui", sha256=digest_of(KEY), users_from=name)
