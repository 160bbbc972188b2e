"""Who is asking, a request's place in line, its models, its rate and the room for its body."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import pytest

from hearth.admission.auth import (
    Admission,
    BodyRoom,
    Identity,
    Keyring,
    admission_of,
    admit,
    check_model,
    digest_of,
)
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import RateLimiter
from hearth.config.settings import (
    AuthSettings,
    CallerLimits,
    GatewayConfig,
    KeySettings,
    RateLimitSettings,
    Settings,
)
from hearth.errors import (
    BadRequest,
    Forbidden,
    NoRoomForBodies,
    RateLimited,
    Unauthenticated,
    WrongKey,
)
from hearth.types import LOCAL_CALLER, Lane, Priority

KEY = "hearth_correct"
RIGHTS: dict[str, Any] = {
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
    expected = Identity(caller="house", authenticated=True, **RIGHTS)
    # A blank one is what a client sends for a key that was set to nothing.
    sent = [[form] for form in FORMS] + [
        [blank, form] for form, blank in itertools.product(FORMS, BLANKS) if form[0] != blank[0]
    ]
    assert [
        fields
        for fields in sent
        if KEYED.identify(RequestHeaders.of(fields), "192.168.1.9") != expected
    ] == []
    assert expected.may_manage_models
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
def test_without_keys_everybody_but_this_machine_is_refused_whatever_is_sent(peer):
    for fields in ([], FORWARDED, FORMS[:1]):
        with pytest.raises(Unauthenticated):
            KEYLESS.identify(RequestHeaders.of(fields), peer)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_without_keys_this_machine_is_local_and_admin_but_manages_no_models(peer):
    for fields in ([], *TWICE, NO_KEYS[:1]):
        identity = KEYLESS.identify(RequestHeaders.of(fields), peer)
        assert (identity.caller, identity.lane, identity.admin, identity.authenticated) == (
            LOCAL_CALLER,
            Lane.EXTERNAL,
            True,
            False,
        )
        assert not identity.may_manage_models


CONFIG = GatewayConfig(
    settings=Settings(priority_map={"reply": Priority.CRITICAL, "digest": Priority.BACKGROUND})
)
LONGEST = "aZ0_.:-" + "x" * 57


def identity(**changes: Any) -> Identity:
    base = {
        "caller": "c",
        "lane": Lane.EXTERNAL,
        "max_priority": Priority.CRITICAL,
        "models": (),
        "admin": False,
        "authenticated": True,
    }
    return Identity(**{**base, **changes})


EXTERNAL, INTERNAL, LOCAL = identity(), identity(lane=Lane.INTERNAL), identity(authenticated=False)
LOW = identity(lane=Lane.INTERNAL, max_priority=Priority.BACKGROUND)
ASSISTANT = identity(lane=Lane.INTERNAL, priority=Priority.CRITICAL)


@pytest.mark.parametrize(
    ("who", "task_type", "hint", "lane", "priority"),
    [
        (INTERNAL, "reply", "", Lane.INTERNAL, Priority.CRITICAL),
        (ASSISTANT, "", "", Lane.INTERNAL, Priority.CRITICAL),
        (ASSISTANT, "", "background", Lane.INTERNAL, Priority.BACKGROUND),
        (ASSISTANT, "digest", "", Lane.INTERNAL, Priority.BACKGROUND),
        (INTERNAL, "digest", "", Lane.INTERNAL, Priority.BACKGROUND),
        (INTERNAL, LONGEST, "", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "", Lane.INTERNAL, Priority.NORMAL),
        (LOW, "reply", "", Lane.INTERNAL, Priority.BACKGROUND),  # the ceiling of the key
        (LOW, "", "", Lane.INTERNAL, Priority.BACKGROUND),
        # its task type is only recorded
        (EXTERNAL, "reply", "critical", Lane.EXTERNAL, Priority.NORMAL),
        (LOCAL, "", "", Lane.EXTERNAL, Priority.NORMAL),
        (LOCAL, "reply", "", Lane.INTERNAL, Priority.CRITICAL),
        (INTERNAL, "", "background", Lane.INTERNAL, Priority.BACKGROUND),  # a hint only lowers
        (INTERNAL, "reply", "Normal", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "critical", Lane.INTERNAL, Priority.NORMAL),
        (INTERNAL, "", "9", Lane.INTERNAL, Priority.NORMAL),
    ],
)
def test_the_key_decides_the_lane_and_the_task_type_the_priority(
    who, task_type, hint, lane, priority
):
    expected = Admission(lane=lane, priority=priority, task_type=task_type or None)
    headers = RequestHeaders.of(
        [(b"x-task-type", task_type.encode()), (b"x-priority", hint.encode())]
    )
    assert admission_of(who, headers, CONFIG) == expected
    other = RequestHeaders.of(
        [(b"x-task-type", b"other" if task_type else b""), (b"x-priority", hint.encode())]
    )
    # that of a body goes before the header
    assert admission_of(who, other, CONFIG, task_type=task_type) == expected


@pytest.mark.parametrize(
    "task_type", ["x" * 65, "two words", "new\nline", "\x1b[31m", "ünlaut", "reply\n"]
)
def test_a_task_type_that_could_disturb_a_log_is_refused(task_type):
    with pytest.raises(BadRequest):
        admission_of(INTERNAL, RequestHeaders.of([]), CONFIG, task_type=task_type)


def test_a_key_with_models_may_use_those_and_what_their_wildcards_match():
    few = ("llama3.1:8b", "qwen*")
    for models, model in (((), "anything"), ((), None), (few, "llama3.1:8b"), (few, "qwen2.5:32b")):
        check_model(identity(models=models), model)
    for model, text in (
        ("llama3.1:70b", r"llama3\.1:70b"),
        ("QWEN2.5:32b", "QWEN"),
        (None, "name one"),
    ):
        with pytest.raises(Forbidden, match=text):
            check_model(identity(models=few), model)


def place(lane: Lane) -> Admission:
    return Admission(lane=lane, priority=Priority.NORMAL, task_type=None)


@pytest.mark.parametrize(
    ("who", "lane", "per_minute", "admitted"),
    [
        (EXTERNAL, Lane.EXTERNAL, 2, 2),
        (EXTERNAL, Lane.EXTERNAL, None, 120),
        # without keys nobody is limited until the owner says so
        (LOCAL, Lane.EXTERNAL, None, 5000),
        (LOCAL, Lane.EXTERNAL, 0, 0),
        (INTERNAL, Lane.INTERNAL, 2, 5000),
    ],
)
def test_an_external_caller_has_a_rate_and_a_forbidden_model_costs_nothing(
    who, lane, per_minute, admitted
):
    limits = RateLimiter(RateLimitSettings(default=CallerLimits(requests_per_minute=per_minute)))
    with pytest.raises(Forbidden):
        admit(identity(models=("a",)), "b", place(Lane.EXTERNAL), limits, 100.0)
    for _ in range(admitted):
        admit(who, "m", place(lane), limits, 100.0)
    if admitted < 5000:
        with pytest.raises(RateLimited) as refused:
            admit(who, "m", place(lane), limits, 110.0)
        assert refused.value.retry_after_s == (pytest.approx(50.0) if admitted else 3600.0)
        assert (
            f"may make {admitted} requests in any minute (rate_limits.default.requests_per_minute)"
            in refused.value.message
        )


def test_a_caller_may_hold_half_of_the_free_room_the_house_has_the_last_quarter():
    room = BodyRoom()

    def fill(lane: Lane, caller: str, most: int) -> None:
        room.take(lane, caller, most, 256)
        with pytest.raises(NoRoomForBodies):
            room.take(lane, caller, 1, 256)

    fill(Lane.EXTERNAL, "greedy", 96)
    fill(Lane.EXTERNAL, "second", 48)
    fill(Lane.INTERNAL, "house", 112)
    room.take(Lane.EXTERNAL, "greedy", -96, 1)  # a smaller limit refuses nothing that is given back
    room.take(Lane.INTERNAL, "house", -112, 256)
    fill(Lane.EXTERNAL, "greedy", 72)
