"""A request is made repeatable where it can be, and nothing else in it changes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.gojson import Body, decode, folded
from hearth.dialects.request import Seeded, seeded
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.types import Way
from tests.support.cases import for_each

NATIVE = ["/api/chat", "/api/generate"]
OPENAI = ["/v1/chat/completions", "/v1/completions"]
SEEDLESS = ["/v1/messages", "/v1/responses"]


def seeding(path: str, body: bytes) -> Seeded:
    route, fields = INFERENCE_ROUTES[path], folded(Body(decode(body)).fields)
    return seeded(route, body, fields, 4711)


def told(known: Seeded) -> tuple[bytes, bool]:
    return known.body, known.repeatable


@for_each(
    ("path", "body", "expected"),
    [
        ("/api/chat", b' {"model": "m", "n": 1.0}', b' {"options":{"seed":4711},"model": "m", "n": 1.0}'),
        ("/api/chat", b'{"options": {"num_ctx": 1e3}, "x": "\xff"}', b'{"options":{"seed":4711,"num_ctx":1000.0},"x":"\xef\xbf\xbd"}'),
        ("/api/generate", b'{"OPTIONS":{}}', b'{"options":{"seed":4711}}'),
        ("/api/generate", b'{"options":{"temperature":0}}', b'{"options":{"seed":4711,"temperature":0}}'),
        ("/api/generate", b'{"a":1,"options": null}', b'{"a":1,"options":{"seed":4711}}'),
        ("/api/chat", b'{"options":{"a":1,"seed": null }}', b'{"options":{"seed":4711,"a":1}}'),
        ("/api/chat", b'{"options":{"Seed":5}}', b'{"options":{"seed":4711,"Seed":5}}'),
        ("/api/chat", b'{"seed":5}', b'{"options":{"seed":4711},"seed":5}'),
        ("/api/chat", b'{"tools":[{"options":{"seed":5}}]}', b'{"options":{"seed":4711},"tools":[{"options":{"seed":5}}]}'),
        ("/v1/chat/completions", b'{"model":"m"} trailing', b'{"seed":4711,"model":"m"} trailing'),
        ("/v1/completions", b'{"model":"m","Seed":null}', b'{"model":"m","seed":4711}'),
    ],
)
def test_a_seed_is_put_in_where_none_was_given(path: str, body: bytes, expected: bytes) -> None:
    assert told(seeding(path, body)) == (expected, True)


@for_each(
    ("seed", "repeatable"), [("0", True), ("7", True), ("-2", True), ("-1", False), ("4294967295", False), ("5.0", True), ("1" * 400, True)]
)
@for_each("path", [*NATIVE, *OPENAI])
def test_the_callers_own_seed_stays_and_minus_one_means_another_answer_every_time(path: str, seed: str, *, repeatable: bool) -> None:
    body = ('{"options":{"seed":%s}}' if path in NATIVE else '{"seed":%s}') % seed
    assert told(seeding(path, body.encode())) == (body.encode(), repeatable)


@for_each(
    ("path", "body"),
    [
        ("/api/chat", b'{"options":{"temperature":0,"seed":-1}}'),
        ("/v1/completions", b'{"temperature":0.0,"seed":-1}'),
        ("/v1/messages", b'{"temperature":0}'),
        ("/v1/responses", b'{"Temperature":0}'),
    ],
)
def test_at_temperature_zero_a_request_repeats_itself_without_a_seed(path: str, body: bytes) -> None:
    answer = seeding(path, body)
    assert answer.body is body
    assert answer.repeatable


@for_each("path", SEEDLESS)
@for_each("body", [b'{"temperature":0.1}', b'{"temperature":false}', b'{"seed":5}', b"{}"])
def test_routes_without_a_seed_do_not_repeat_themselves(path: str, body: bytes) -> None:
    assert told(seeding(path, body)) == (body, False)


@for_each(("path", "body"), [("/api/chat", b'{"options":{"seed":"7"}}'), ("/api/chat", b'{"options":{"seed":true}}')])
def test_a_seed_that_is_no_number_is_left_to_the_model_server(path: str, body: bytes) -> None:
    assert told(seeding(path, body)) == (body, False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(
        st.text(max_size=6).filter(lambda key: key.isascii() and key == key.lower() not in ("seed", "options")), VALUES, min_size=1
    ),
    indent=st.none() | st.just(1),
)
def test_no_other_field_and_no_order_changes(fields: dict[str, object], indent: int | None) -> None:
    body = json.dumps(fields, indent=indent).encode()
    again = json.loads(seeding("/v1/completions", body).body)
    assert list(again.items()) == [("seed", 4711), *fields.items()]
    nested = json.dumps({"options": fields, **fields}, indent=indent).encode()
    options = json.loads(seeding("/api/chat", nested).body)["options"]
    assert list(options.items()) == [("seed", 4711), *fields.items()]


REPLAY, CONTINUE = Way.REPLAY, Way.CONTINUE


@for_each(
    ("path", "options", "only_replay", "continue_diverged", "ways"),
    [
        ("/api/chat", {}, False, True, (CONTINUE, REPLAY)),
        ("/api/chat", {}, True, True, (REPLAY,)),
        ("/api/chat", {"seed": 3}, False, True, (REPLAY, CONTINUE)),
        ("/api/chat", {"seed": 3}, False, False, (REPLAY,)),
        ("/api/chat", {"temperature": 0}, False, True, (REPLAY, CONTINUE)),
        ("/v1/messages", {}, False, False, (CONTINUE,)),
        ("/v1/messages", {}, True, True, ()),
    ],
)
def test_who_chose_a_repeatable_answer_is_replayed_first_and_continued_only_where_that_is_set(
    path: str, options: dict[str, object], only_replay: bool, continue_diverged: bool, ways: tuple[Way, ...]
) -> None:
    """`scheduling.started_streams` and `scheduling.on_divergence`."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "options": options}
    assert seeding(path, json.dumps(body).encode()).ways(only_replay=only_replay, continue_diverged=continue_diverged) == ways
