"""JSON is read and written as Go does it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in all but its stub
from typing import Any, Self

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hearth.dialects.gojson import (
    LARGE_BYTES,
    MAX_DEPTH,
    MAX_INVALID_BYTES,
    MAX_KEY_CHARS,
    PIECE_CHARS,
    Body,
    GoJsonError,
    JsonValue,
    check_structure,
    decode,
    decode_document,
    encode,
    encode_large,
    folded,
    lookup,
)
from hearth.errors import BadRequest
from tests.support.cases import for_each
from tests.support.fields import Fields

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
LONG = b'{"prompt":"' + b"a" * 2 * LARGE_BYTES
BROKEN = [
    *((body, "EOF") for body in (b"", b" \r\n\t")),
    *(
        (body, "unexpected EOF")
        for body in (b"{", b'{"model":', b'{"model":"a', b"[" + b"1," * 200_000, LONG)
    ),
    *(
        (body, f"invalid character {text}")
        for body, text in (
            (b'{"model": nope}', "'o' in literal null (expecting 'u')"),
            (b"[true, fals\xc3\xa9]", "'\u00c3' in literal false (expecting 'e')"),
            (LONG + b'\\q"}', "'q' in string escape code"),
            (LONG + b'\x01"}', r"'\x01' in string literal"),
            (b'{"a":"\n"}', r"'\n' in string literal"),
            (b'"\\u12g4"', r"'g' in \u hexadecimal character escape"),
            (b"\xef\xbb\xbf{}", "'\u00ef' looking for beginning of value"),
            (b"'a'", r"'\'' looking for beginning of value"),
            (b"[1,]", "']' looking for beginning of value"),
            (b"[NaN]", "'N' looking for beginning of value"),
            (b'{"a":-Infinity}', "'I' in numeric literal"),
            (b"[1.x]", "'x' after decimal point in numeric literal"),
            (b"[1e+]", "']' in exponent of numeric literal"),
            (b"[01]", "'1' after array element"),
            (b'[{"a":{}}, {"b":[]} 1]', "'1' after array element"),
            (b'{"a":[1] "b":2}', "'\"' after object key:value pair"),
            (b'{"a" 1}', "'1' after object key"),
            (b"{a:1}", "'a' looking for beginning of object key string"),
            (b'{"a":1,}', "'}' looking for beginning of object key string"),
        )
    ),
    (b'{"a":[1,{"b":nul', "unexpected EOF"),
    (b"[1e999]", "the number 1e999 is too large"),
    (b"[" + b"1" * 5000 + b".0]", f"the number {'1' * 100} is too large"),
    (b"[" + b"1" * 5000 + b"]", "a number has too many digits"),
    *(
        (b"[" * depth + b"]" * depth, "exceeded max depth")
        for depth in (MAX_DEPTH + 1, 1000, 200_000)
    ),
    (b"[" * 200_000, "exceeded max depth"),
]


@pytest.mark.parametrize(("body", "text"), BROKEN)
def test_a_broken_body_is_refused(body, text):
    with pytest.raises(GoJsonError) as raised:
        decode(body)
    assert raised.value.message == text


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b' {"a":1} trailing {', {"a": 1}),
        (json.dumps(["[" * 500]).encode(), ["[" * 500]),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)),
        (rb'"\ud800A"', "\ufffdA"),
        (rb'"\udc00\ud800"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (b'"a\xffb"', "a\ufffdb"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (rb'{"\ud800":[{"a":"\udfff"},1]}', {"\ufffd": [{"a": "\ufffd"}, 1]}),
        (
            b'{"a":"x","b":true,"c":[1],"d":1,"a":null,"b":null,"c":null,"d":null}',
            {"a": "x", "b": True, "c": None, "d": None},
        ),
    ],
)
def test_a_body_is_read_as_go_reads_it(body, value):
    assert decode(body) == value


def test_the_last_of_repeated_keys_wins_and_makes_a_body_inexact():
    value, exact = decode_document(b'{"a":1,"A":2,"a":3}')
    assert isinstance(value, dict)
    assert (list(value.items()), exact) == ([("A", 2), ("a", 3)], False)
    assert not decode_document(b'{"a":[{"b":1,"b":1}]}')[1]
    assert decode_document(b'{"a":1,"A":{"a":2}}')[1]


@given(
    st.lists(
        st.tuples(st.sampled_from(["model", "Model", "MODEL"]), st.sampled_from([None, "a", "b"])),
        max_size=8,
    )
)
@example([("Model", "a"), ("model", "b"), ("model", None)])
@example([("Model", "a"), ("model", "b"), ("Model", None)])
def test_a_text_is_the_last_non_null_in_any_spelling_of_its_key(members):
    body = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(text)}" for key, text in members) + "}"
    read = Body(decode(body.encode()))
    said = [text for _, text in members if text is not None]
    assert (read.string("model"), read.fields.get("model")) == (
        (said[-1], said[-1]) if said else ("", None)
    )


@given(JSON)
def test_what_is_written_reads_back_as_it_was(value):
    assert decode(encode(value)) == decode(encode_large(value)) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_either_a_value_or_a_go_error(body):
    with contextlib.suppress(GoJsonError):
        assert decode(encode(decode(body))) == decode(body)


def test_text_is_written_as_go_writes_it():
    assert (
        encode({"a": "<b>&\u2028\u2029ü\U0001f600\x7f"})
        == '{"a":"\\u003cb\\u003e\\u0026\\u2028\\u2029ü\U0001f600\x7f"}'.encode()
    )
    assert encode("\ud800") == encode_large("\ud800") == '"\ufffd"'.encode()


PLAIN: Fields = {"model": "a", "options": {"Seed": 1}}


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        *(({key: 5}, "keep_alive", 5) for key in ("Keep_Alive", "\u212aeep_alive")),
        ({"\u017fystem": "x"}, "system", "x"),
        ({"Model": "b", "model": None}, "model", "b"),
        ({"modes": "a"}, "model", None),
        ({**PLAIN, "Options": {"top_k": 2}, "OPTIONS": None}, "options", {"Seed": 1, "top_k": 2}),
    ],
)
def test_a_key_matches_in_every_spelling_that_go_accepts(fields, name, value):
    assert lookup(fields, name) == value
    assert folded(PLAIN) is PLAIN


NOTHING: list[Any] = [{}, []]
WRONG: list[tuple[Any, Any, str]] = [
    *((value, Body.string, "string") for value in (5, 1.5, True, *NOTHING)),
    *((value, Body.integer, "integer") for value in (1.5, "1", True, *NOTHING)),
    *((number, Body.integer, "integer, of 64 bits") for number in (2**63, -(2**63) - 1)),
    (1, Body.flag, "boolean"),
    (True, Body.number, "number"),
    *((value, Body.array, "array") for value in (NOTHING[0], "x")),
    *((value, Body.object, "object") for value in (NOTHING[1], "x", 5)),
]


@pytest.mark.parametrize(
    ("value", "read", "says"),
    [
        (5, Body.string, "number into Go struct field ChatRequest.messages.field of type string"),
        ([], Body.string, "array into Go struct field ChatRequest.messages.field of type string"),
        ("no", Body.flag, "string into Go struct field ChatRequest.messages.field of type bool"),
        (
            1.5,
            Body.integer,
            "number 1.5 into Go struct field ChatRequest.messages.field of type int",
        ),
        (True, Body.number, "bool into Go struct field ChatRequest.messages.field of type float64"),
        (
            2**63,
            Body.integer,
            f"number {2**63} into Go struct field ChatRequest.messages.field of type int",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_in_gos_words_where_its_struct_is_known(
    value, read, says
):
    body = Body({"messages": [{"field": value}]})
    (message,) = body.objects("messages", within="ChatRequest.messages.")
    with pytest.raises(GoJsonError) as raised:
        read(message, "field")
    assert raised.value.message == f"json: cannot unmarshal {says}"


@pytest.mark.parametrize(("field", "read", "kind"), WRONG)
def test_a_value_of_another_type_is_refused_by_name(field, read, kind):
    with pytest.raises(GoJsonError, match=f"^field must be of type {kind}$"):
        read(Body({"field": field}), "field")


@pytest.mark.parametrize("fields", [None, {}, {"a": None}])
def test_fields_that_are_absent_or_null_have_a_default(fields):
    body = Body(fields)
    assert (body.string("a"), body.flag("a"), body.flag("a", default=True)) == ("", False, True)
    assert (body.integer("a"), body.number("a"), body.array("a"), body.object("a").fields) == (
        None,
        None,
        [],
        {},
    )
    assert (Body({"n": 2**63 - 1}).integer("n"), Body({"n": 2}).number("n")) == (2**63 - 1, 2)


AWKWARD = '\U0001f600\\"\\\\\n<é\u4e2d,{[:'
"""What a cut in the wrong place would spoil."""


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("shift", range(13))
def test_a_large_text_is_read_and_written_in_pieces_as_if_it_were_whole(shift, escaped):
    value: Any = {
        "model": "a",
        "prompt": "x" * shift + (AWKWARD + "word") * (LARGE_BYTES // 12),
        "few": [1, 2.5, None, True, {}, []],
    }
    body = json.dumps(value, ensure_ascii=escaped).encode()
    assert len(body) > LARGE_BYTES
    assert decode(body) == json.loads(encode_large(value)) == value


MEMBERS = [
    *(
        "",
        " ",
        '"a":1',
        ' "a" : 1 , "b":\t[ ]\r\n',
        '"a":{},"b":{ "a" : {"a":null} }',
        '"a":1,"b":2,"a":3',
        '"":"","\\u0041":true',
    ),
    *(
        '"a"',
        '"a" ',
        '"a":',
        '"a" : ',
        '"a" 1',
        '"a":1 ',
        '"a":1 2',
        '"a":1,,',
        '"a":1 , ,',
        '"a":1,2',
        ",",
        "a:1",
        "'a':1",
        "1:1",
    ),
    *(
        '"a":nope',
        '"a": ,"b":1',
        '"a\\q":1',
        '"a\n":1',
        '"a',
        '"a":"b',
        "{",
        '"a":{',
        '"a":{"b":1',
        '"a":[{"b"]',
    ),
]


@pytest.mark.parametrize("ending", ["}]", "}", "", " "])
@for_each("members", MEMBERS)
def test_a_large_text_has_the_objects_and_the_faults_of_a_small_one(members, ending):
    def read(filler: str) -> tuple[JsonValue, bool] | str:
        try:
            return decode_document(f'["{filler}",{{{members}{ending}'.encode())
        except GoJsonError as error:
            return error.message

    def without_filler(found: tuple[JsonValue, bool] | str) -> object:
        return found if isinstance(found, str) else (found[0][1:], found[1])  # type: ignore[index]

    assert without_filler(read("x" * LARGE_BYTES)) == without_filler(read(""))


ESCAPED = {  # what a text may be full of, and what is read from it
    r"\u0041": "A",
    r"\n": "\n",
    r"\\": "\\",
    r"\"": '"',
    r"\ud83d\ude00": "\U0001f600",
    r"\ud83d": "\ufffd",
    r"\ude00": "\ufffd",
    r"\ud83d\ud83d\ude00": "\ufffd\U0001f600",
    r"\\ud83d": r"\ud83d",
    "a\\n": "a\n",
}


class Calls:
    """How often C was entered while a block ran, by the function: each time it keeps the
    interpreter's lock to its end.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.count = 0
        self._functions = functions

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _frame: object, event: str, called: object) -> None:
        self.count += event == "c_call" and called in self._functions


@pytest.mark.parametrize("escape", ESCAPED)
def test_a_text_full_of_escapes_is_read_in_many_short_pieces(escape):
    text = escape * (8 * LARGE_BYTES // len(escape))
    for shift in range(14):
        with Calls(scanstring) as calls:
            read = decode(f'{{"model":"a","prompt":"{"x" * shift}{text}"}}'.encode())
        assert read == {
            "model": "a",
            "prompt": "x" * shift + ESCAPED[escape] * (len(text) // len(escape)),
        }
        assert calls.count >= len(text) / PIECE_CHARS


@pytest.mark.parametrize("size", range(LARGE_BYTES + 1, LARGE_BYTES + 14))
@pytest.mark.parametrize("escape", ESCAPED)
def test_a_text_that_breaks_off_anywhere_in_an_escape_has_no_end(escape, size):
    with pytest.raises(GoJsonError, match=r"^(unexpected EOF|.*Invalid .*escape)$"):
        decode((b'"' + escape.encode() * LARGE_BYTES)[:size])


@pytest.mark.parametrize("escaped", [True, False])
def test_a_large_body_with_an_endless_key_is_refused(escaped):
    key = "é" * MAX_KEY_CHARS
    body = {key + "é": 1, "prompt": "a" * LARGE_BYTES}
    with pytest.raises(GoJsonError, match=r"^a key is longer than 65,536 characters$"):
        decode(json.dumps(body, ensure_ascii=escaped).encode())
    fitting = {key[: MAX_KEY_CHARS // (6 if escaped else 1)]: 1, "prompt": "a" * LARGE_BYTES}
    assert decode(json.dumps(fitting, ensure_ascii=escaped).encode()) == fitting


@pytest.mark.parametrize("wrong", [b"\xff", b"\xed\xa0\x80", b"\xe2\x82", b"a\xf0\x9f"])
def test_bytes_that_are_no_text_become_replacement_signs(wrong):
    said = re.sub("[^a]", "\ufffd", wrong.decode("latin-1"))
    for shift in range(5):
        times = (MAX_INVALID_BYTES - 10) // len(wrong)
        body = b'["%b%b"]' % ("é".encode() * shift + b"x" * 3 * LARGE_BYTES, wrong * times)
        assert decode(body) == ["é" * shift + "x" * 3 * LARGE_BYTES + said * times]
    with pytest.raises(
        GoJsonError, match=r"^the body has more than 10,000 bytes that are not UTF-8$"
    ):
        decode(b'["%b"]' % (wrong * (MAX_INVALID_BYTES + 1)))


def test_a_large_text_is_written_in_many_short_pieces():
    value: Any = {
        "prompt": '\n"<é\U0001f600\ud800' * LARGE_BYTES,
        "few": [1, 2.5, None, True, {}, [], {"a": "b"}],
    }
    with Calls(json.encoder.encode_basestring) as calls:
        written = encode_large(value)
    assert json.loads(written) == json.loads(json.dumps(value).replace("\\ud800", "\ufffd"))
    assert calls.count >= len(value["prompt"]) / PIECE_CHARS


def test_values_are_counted_outside_of_texts_only():
    prose = b'{"prompt":"%b"}' % (rb"One, two: [three] and \"{four}\", \\\\" * 40_000)
    assert len(prose) > 4 * LARGE_BYTES
    assert (check_structure(prose), check_structure(b'{"a":[1,2,{}],"b":","}')) == (2, 8)
    for many in (
        b'{"a":[' + b"0," * 300_000 + b"0]}",
        b"[" * 300_001,
        b'{"a":1,' * 150_000,
        b" " * 9 * 1024 * 1024,
    ):
        with pytest.raises(BadRequest, match="the body has more than"):
            check_structure(many)
