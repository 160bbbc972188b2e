"""JSON is read and written as Go does it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hearth.dialects import gojson
from hearth.dialects.gojson import LARGE_BYTES, GoJsonError, JsonValue, check_structure, decode, encode_large
from hearth.errors import BadRequest
from tests.support.cases import for_each

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def error_of(body: bytes) -> str:
    with pytest.raises(GoJsonError) as raised:
        gojson.decode(body)
    return raised.value.message


@for_each(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b" \r\n\t", "EOF"),
        (b"{", "unexpected EOF"),
        (b'{"model":', "unexpected EOF"),
        (b'{"model":"a', "unexpected EOF"),
        (b'"a\\', "unexpected EOF"),
        (b'"\\u12', "unexpected EOF"),
        (b"tru", "unexpected EOF"),
        (b"-", "unexpected EOF"),
        (b'{"a":1.', "unexpected EOF"),
        (b'{"model": nope}', "invalid character 'o' in literal null (expecting 'u')"),
        (b"[trux]", "invalid character 'x' in literal true (expecting 'e')"),
        (b"{a:1}", "invalid character 'a' looking for beginning of object key string"),
        (b"{'a':1}", r"invalid character '\'' looking for beginning of object key string"),
        (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        (b'{"a":01}', "invalid character '1' after object key:value pair"),
        (b"[1,]", "invalid character ']' looking for beginning of value"),
        (b"[1 2]", "invalid character '2' after array element"),
        (b'"a\nb"', r"invalid character '\n' in string literal"),
        (b'"a\x01b"', r"invalid character '\x01' in string literal"),
        (b'"\\x41"', "invalid character 'x' in string escape code"),
        (b'"\\u12g4"', r"invalid character 'g' in \u hexadecimal character escape"),
        (b"[-x]", "invalid character 'x' in numeric literal"),
        (b"[1.x]", "invalid character 'x' after decimal point in numeric literal"),
        (b"[1ex]", "invalid character 'x' in exponent of numeric literal"),
        (b"\xef\xbb\xbf{}", "invalid character 'ï' looking for beginning of value"),
        (b"\x80", r"invalid character '\u0080' looking for beginning of value"),
        (b"<html>", "invalid character '<' looking for beginning of value"),
    ],
)
def test_a_broken_body_is_refused_with_the_text_of_gos_decoder(body: bytes, text: str) -> None:
    assert error_of(body) == text


@for_each("body", [b"NaN", b"[Infinity]", b'{"a":-Infinity}'])
def test_numbers_that_json_does_not_have_are_refused(body: bytes) -> None:
    assert error_of(body).startswith("invalid character")


@pytest.mark.parametrize("body", [b"[1e999]", b"[" + b"1" * 5000 + b"]"])
def test_numbers_too_large_to_hold_are_refused(body: bytes) -> None:
    assert "cannot unmarshal number" in error_of(body)


def test_data_after_the_first_value_is_ignored() -> None:
    assert gojson.decode(b' {"a":1} trailing {') == {"a": 1}


def test_nesting_up_to_the_limit_is_read() -> None:
    body = b"[" * gojson.MAX_DEPTH + b"]" * gojson.MAX_DEPTH
    assert gojson.encode(gojson.decode(body)) == body


@for_each("depth", [gojson.MAX_DEPTH + 1, 1000, 200_000])
@for_each("closed", [True, False])
def test_deeper_nesting_is_refused_by_name_and_never_exhausts_the_stack(depth: int, closed: bool) -> None:
    assert error_of(b"[" * depth + b"]" * (depth if closed else 0)) == "exceeded max depth"


def test_brackets_inside_strings_are_not_nesting() -> None:
    text = "[" * 500
    assert gojson.decode(json.dumps([text]).encode()) == [text]


@for_each(
    ("body", "text"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\ud800A"', "\ufffdA"),
        (rb'"\udc00\ud800"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (b'"a\xffb"', "a\ufffdb"),
        (b'"\xe2\x82"', "\ufffd\ufffd"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
    ],
)
def test_what_is_not_a_character_becomes_the_replacement_character(body: bytes, text: str) -> None:
    assert gojson.decode(body) == text


def test_lone_surrogates_are_replaced_in_keys_and_deep_inside() -> None:
    assert gojson.decode(rb'{"\ud800":[{"a":"\udfff"},1]}') == {"\ufffd": [{"a": "\ufffd"}, 1]}


def test_the_last_of_repeated_keys_wins_in_value_and_in_place() -> None:
    document = gojson.decode_document(b'{"a":1,"A":2,"a":3}')
    assert list(document.value.items() if isinstance(document.value, dict) else ()) == [("A", 2), ("a", 3)]
    assert not document.exact


def test_null_takes_away_what_go_points_at_but_no_text_and_no_truth_value() -> None:
    assert gojson.decode(b'{"a":"x","b":true,"c":[1],"d":1,"a":null,"b":null,"c":null,"d":null}') == {
        "a": "x",
        "b": True,
        "c": None,
        "d": None,
    }


@given(st.lists(st.tuples(st.sampled_from(["model", "Model", "MODEL"]), st.sampled_from([None, "a", "b"])), max_size=8))
@example([("Model", "a"), ("model", "b"), ("model", None)])
@example([("Model", "a"), ("model", "b"), ("Model", None)])
def test_a_text_is_the_last_that_is_not_null_however_its_key_is_spelled_and_repeated(members: list[tuple[str, str | None]]) -> None:
    body = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(text)}" for key, text in members) + "}"
    said = [text for _, text in members if text is not None]
    assert gojson.string_field(gojson.struct_of(gojson.decode(body.encode()), "T"), "model", "T") == (said[-1] if said else "")


def test_a_body_without_repeated_keys_is_exact() -> None:
    assert gojson.decode_document(b'{"a":1,"A":{"a":2}}').exact


@for_each(("tail", "text"), [(b"", "unexpected EOF"), (b'"', "unexpected EOF"), (b"}", "invalid JSON near byte 200001: Expecting value")])
def test_a_large_broken_body_gets_a_plain_text_without_a_slow_scan(tail: bytes, text: str) -> None:
    assert error_of(b"[" + b"1," * 100_000 + tail) == text


@given(JSON)
def test_what_is_written_reads_back_as_it_was(value: JsonValue) -> None:
    assert gojson.decode(gojson.encode(value)) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_either_a_value_or_a_go_error(body: bytes) -> None:
    with contextlib.suppress(GoJsonError):
        assert gojson.decode(gojson.encode(gojson.decode(body))) == gojson.decode(body)


@given(JSON, st.data())
def test_a_body_cut_short_anywhere_is_an_unexpected_end(value: JsonValue, data: st.DataObject) -> None:
    whole = json.dumps({"a": value}).encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(GoJsonError, match="EOF"):
        gojson.decode(cut)


def test_text_is_written_as_go_writes_it() -> None:
    assert gojson.encode({"a": "<b>&\u2028\u2029ü\U0001f600\x7f"}) == '{"a":"\\u003cb\\u003e\\u0026\\u2028\\u2029ü\U0001f600\x7f"}'.encode()


def test_a_lone_surrogate_is_written_as_the_replacement_character() -> None:
    assert gojson.encode("\ud800") == '"\ufffd"'.encode()


@for_each("key", ["keep_alive", "Keep_Alive", "KEEP_ALIVE", "\u212aeep_alive"])
def test_a_key_matches_in_every_spelling_that_go_accepts(key: str) -> None:
    assert gojson.lookup({key: 5}, "keep_alive") == 5
    assert gojson.without({"a": 1, key: 5, "b": 2}, "keep_alive") == {"a": 1, "b": 2}


def test_the_long_s_matches_s() -> None:
    assert gojson.lookup({"\u017fystem": "x"}, "system") == "x"


def test_of_several_spellings_the_last_one_counts_and_null_changes_nothing() -> None:
    assert gojson.lookup({"model": "a", "MODEL": "b", "Model": None}, "model") == "b"
    for name in ("model", "MODEL"):
        assert gojson.lookup_all({name: "a", "system": None}, ("model", "system", "prompt")) == ["a"]


@for_each(("value", "kind"), [(5, "number"), (1.5, "number"), (True, "bool"), ([], "array"), ({}, "object")])
def test_a_wrong_type_is_named_as_go_names_it(value: JsonValue, kind: str) -> None:
    with pytest.raises(GoJsonError) as raised:
        gojson.string_field({"model": value}, "model", "ChatRequest")
    assert raised.value.message == f"json: cannot unmarshal {kind} into Go struct field ChatRequest.model of type string"


@for_each("number", [1.5, 2**63, -(2**63) - 1])
def test_a_fraction_or_a_number_of_more_than_64_bits_does_not_fit_an_integer(number: float) -> None:
    with pytest.raises(GoJsonError) as raised:
        gojson.integer_field({"max_tokens": number}, "max_tokens", "MessagesRequest")
    assert raised.value.message == f"json: cannot unmarshal number {number} into Go struct field MessagesRequest.max_tokens of type int"


def test_the_largest_integer_of_64_bits_fits() -> None:
    assert gojson.integer_field({"n": 2**63 - 1}, "n", "X") == 2**63 - 1


@for_each("value", ["1", True, []])
def test_other_types_do_not_fit_an_integer(value: JsonValue) -> None:
    with pytest.raises(GoJsonError, match="of type int"):
        gojson.integer_field({"n": value}, "n", "X")


def test_typed_fields_that_are_absent_or_null_are_gos_zero_values() -> None:
    for fields in ({}, {"a": None}):
        assert gojson.string_field(fields, "a", "X") == ""
        assert gojson.bool_field(fields, "a", "X") is None
        assert gojson.integer_field(fields, "a", "X") is None
        assert gojson.array_field(fields, "a", "X", "[]string") == []
        assert gojson.object_field(fields, "a", "X", "api.Y") == {}
    assert gojson.struct_of(None, "api.ChatRequest") == {}


def test_a_body_that_is_no_object_does_not_fit_a_struct() -> None:
    with pytest.raises(GoJsonError) as raised:
        gojson.struct_of([1], "api.ChatRequest")
    assert raised.value.message == "json: cannot unmarshal array into Go value of type api.ChatRequest"


AWKWARD = '\U0001f600\\"\\\\\n<é\u4e2d,{[:'
"""What a cut in the wrong place would spoil."""


@for_each("escaped", [True, False])
@for_each("shift", range(13))
def test_a_large_text_is_read_and_written_in_pieces_as_if_it_were_whole(shift: int, escaped: bool) -> None:
    value: JsonValue = {"model": "a", "prompt": "x" * shift + AWKWARD * (LARGE_BYTES // 12), "few": [1, 2.5, None, True, {}, [], ["a"]]}
    body = json.dumps(value, ensure_ascii=escaped).encode()
    assert len(body) > LARGE_BYTES
    assert decode(body) == value
    assert json.loads(encode_large(value)) == value


@for_each(("broken", "says"), [(b'\\q"}', "Invalid"), (b"\x01", "Invalid control"), (b"", "unexpected EOF"), (b'" 1', "delimiter")])
def test_a_large_text_that_is_broken_is_refused(broken: bytes, says: str) -> None:
    with pytest.raises(GoJsonError, match=says):
        decode(b'{"prompt":"' + b"a" * 2 * LARGE_BYTES + broken)


def test_values_are_counted_outside_of_texts_only() -> None:
    prose = b'{"prompt":"%b"}' % (rb"One, two: [three] and \"{four}\", \\\\" * 40_000)
    assert len(prose) > 4 * LARGE_BYTES
    assert check_structure(prose) == 2
    assert check_structure(b'{"a":[1,2,{}],"b":","}') == 8
    for many in (b'{"a":[' + b"0," * 300_000 + b"0]}", b"[" * 300_001, b'{"a":1,' * 150_000, b" " * 9 * 1024 * 1024):
        with pytest.raises(BadRequest, match="the body has more than"):
            check_structure(many)
