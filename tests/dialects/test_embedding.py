"""One body from several, and several answers from one, against what a real Ollama wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.embedding import (
    MAX_BODY_BYTES,
    SingleInput,
    joined_body,
    shares_of,
    single_input,
    split_answer,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from tests.dialects.captured import captured
from tests.support.llama_server_wire import recorded

EMBED, OPENAI, LEGACY = (
    INFERENCE_ROUTES[path] for path in ("/api/embed", "/v1/embeddings", "/api/embeddings")
)
OPTIONS = b'{"model":"m"}'
ROOM = "x" * (MAX_BODY_BYTES - len(b'{"model":"m","input":""}'))


def inputs(*texts: str, route: Route = EMBED, **fields: object) -> list[SingleInput]:
    found = [
        single_input(route, json.dumps({"model": "emb", "input": text, **fields}).encode())
        for text in texts
    ]
    return [each for each in found if each]


@pytest.mark.parametrize(
    ("route", "body", "one"),
    [
        (EMBED, b'{"model":"m","input":"a"}', ("a", OPTIONS)),
        (EMBED, b'{"model":"m","input":["a"]}', ("a", OPTIONS)),
        (EMBED, b'{"input":"a","model":"m"}', ("a", OPTIONS)),
        (EMBED, b'{"model":"m","input":"%s"}' % ROOM.encode(), (ROOM, OPTIONS)),
        *(
            (EMBED, b'{"model":"m","input":"a",%s}' % other, ("a", options))
            for other, options in (
                (b'"dimensions":8', b'{"dimensions":8,"model":"m"}'),
                (b'"truncate":false', b'{"model":"m","truncate":false}'),
                (b'"options":{"num_batch":4}', b'{"model":"m","options":{"num_batch":4}}'),
            )
        ),
        (EMBED, b'{"model":"M","input":"a"}', ("a", b'{"model":"M"}')),
        # What is not plainly one short input goes as it is.
        *(
            (EMBED, b'{"model":"m","input":%s}' % given, None)
            for given in (b'["a","b"]', b"[]", b'""', b'[""]', b"[1,2]", b'"%sx"' % ROOM.encode())
        ),
        *(
            (EMBED, body, None)
            for body in (
                OPTIONS,
                b'{"model":"m","Input":"a"}',
                b'{"model":"m","input":"a","INPUT":"b"}',
            )
        ),
        (EMBED, b'{"model":"m","input":"a","input":"b"}', None),
        (LEGACY, b'{"model":"m","prompt":"a","input":"a"}', None),
    ],
)
def test_a_call_is_one_input_and_what_it_has_in_common_with_others(
    route: Route, body: bytes, one: tuple[str, bytes] | None
):
    found = single_input(route, body)
    assert (None if found is None else (found.text, found.options)) == one


def test_the_joined_body_has_all_inputs_in_order_and_the_rest_as_it_was():
    both = inputs("é\u2028<", "b", route=OPENAI, dimensions=4)
    assert json.loads(joined_body(both)) == {
        "model": "emb",
        "input": ["é\u2028<", "b"],
        "dimensions": 4,
    }


def test_answers_of_ollama_are_cut_without_touching_a_digit():
    whole = captured("embed_many").body
    parts = split_answer(EMBED, whole, inputs("hello", "the of")) or []
    said = json.loads(whole)
    assert [json.loads(part) for part, _ in parts] == [
        {**said, "embeddings": [vector], "prompt_eval_count": count}
        for vector, count in zip(said["embeddings"], (7, 8), strict=True)
    ]
    assert (
        b"[[0.99361116,0.06277645,-0.009725292,0.013038688,-0.075350516,0.019965269,0.04715197,"
        b"0.0152280945]]" in parts[0][0]
    )
    whole = captured("oai_embeddings").body
    parts = split_answer(OPENAI, whole, inputs("hello", "x")) or []
    said = json.loads(whole)
    assert sum(count or 0 for _, count in parts) == said["usage"]["prompt_tokens"]
    for (part, count), item in zip(parts, said["data"], strict=True):
        own = {
            "data": [{**item, "index": 0}],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
        assert json.loads(part) == {**said, **own}
        assert part.endswith(b"}\n")


def test_answers_of_llama_cpp_are_cut_likewise():
    whole = recorded("embeddings").body
    said = json.loads(whole)
    parts = split_answer(OPENAI, whole, inputs("hi", "the house")) or []
    assert [count for _, count in parts] == [3, 12]
    for (part, count), item in zip(parts, said["data"], strict=True):
        own = {
            "data": [{**item, "index": 0}],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
        assert json.loads(part) == {**said, **own}


def test_base64_of_llama_cpp_is_cut_likewise():
    item = b'{"embedding":"AA==","index":%d,"object":"embedding","encoding_format":"base64"}'
    whole = b'{"usage":{"prompt_tokens":4,"total_tokens":4},"data":[%b,%b]}'
    own = b'{"usage":{"prompt_tokens":2,"total_tokens":2},"data":[%b]}' % (item % 0)
    parts = split_answer(OPENAI, whole % (item % 0, item % 1), inputs("a", "b"))
    assert parts == [(own, 2), (own, 2)]


BASE64 = b'{"object":"embedding","embedding":"3HR/Pz0egT30BSC8AYtWPA==","index":%d}'
ITEM = b'{"object":"embedding","embedding":[1],"index":%d}'


@pytest.mark.parametrize(
    ("route", "body", "parts"),
    [
        (
            OPENAI,
            b'{"object":"list","data":[%b,%b],"model":"emb",'
            b'"usage":{"prompt_tokens":4,"total_tokens":4}}\n' % (BASE64 % 0, BASE64 % 1),
            [
                (
                    b'{"object":"list","data":[%b],"model":"emb",'
                    b'"usage":{"prompt_tokens":2,"total_tokens":2}}\n' % (BASE64 % 0),
                    2,
                )
            ]
            * 2,
        ),
        (
            EMBED,
            b'{"model":"m","embeddings":[[1],[2]]}',
            [
                (b'{"model":"m","embeddings":[[1]]}', None),
                (b'{"model":"m","embeddings":[[2]]}', None),
            ],
        ),
        *(
            (EMBED, body, None)
            for body in (b"", b"nonsense", b'{"model":"m","embeddings":[[1],[2]')
        ),
        *(
            (EMBED, b'{"model":"m","embeddings":[%s],"prompt_eval_count":2}' % vectors, None)
            for vectors in (b"[1]", b"[1],[2],[3]", b"[1], [2]", b"[1],null")
        ),
        (OPENAI, b'{"object":"list","data":[%b,%b],"model":"m"}' % (ITEM % 1, ITEM % 0), None),
    ],
)
def test_base64_is_cut_like_numbers_and_of_another_shape_nothing_is_guessed(
    route: Route, body: bytes, parts: list[tuple[bytes, int | None]] | None
):
    assert split_answer(route, body, inputs("a", "b")) == parts


@given(st.integers(0, 10_000), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_shares_add_up_and_nobody_goes_without_where_there_is_enough(total, weights):
    shares = shares_of(total, weights)
    assert sum(shares) == total
    assert min(shares) >= (1 if total >= len(weights) else 0)
    assert shares_of(102, [1, 3]) == [26, 76]
