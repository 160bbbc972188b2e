"""One body from several, and several answers from one, against what a real Ollama wrote."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.embedding import MAX_BODY_BYTES, SingleInput, joined_body, shares_of, single_input, split_answer
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from tests.emulator.captures import CAPTURES
from tests.support.cases import for_each

EMBED, OPENAI, LEGACY = (INFERENCE_ROUTES[path] for path in ("/api/embed", "/v1/embeddings", "/api/embeddings"))


def answer_in(capture: str) -> bytes:
    """The body that Ollama sent."""
    raw = (CAPTURES / capture).read_bytes().partition(b"<<< RESPONSE")[2]
    return raw.partition(b"\r\n\r\n")[2].partition(b"\n--- recv")[0]


def inputs(*texts: str) -> list[SingleInput]:
    found = [single_input(EMBED, json.dumps({"model": "emb", "input": text}).encode()) for text in texts]
    assert None not in found
    return [each for each in found if each]


ROOM = MAX_BODY_BYTES - len(b'{"model":"m","input":""}')


@for_each(
    "body",
    [
        b'{"model":"m","input":"a"}',
        b'{"model":"m","input":["a"]}',
        b'{"input":"a","model":"m"}',
        b'{"model":"m","input":"%s"}' % (b"x" * ROOM),
    ],
)
def test_one_input_is_one_whether_it_stands_in_a_list_or_not_and_however_its_fields_stand(body: bytes):
    one = single_input(EMBED, body)
    assert one is not None
    assert (one.text in ("a", "x" * ROOM), one.options) == (True, b'{"model":"m"}')


@for_each(
    ("route", "body"),
    [
        (EMBED, b'{"model":"m","input":["a","b"]}'),
        (EMBED, b'{"model":"m","input":[]}'),
        (EMBED, b'{"model":"m","input":""}'),
        (EMBED, b'{"model":"m","input":[""]}'),
        (EMBED, b'{"model":"m","input":[1,2]}'),
        (EMBED, b'{"model":"m"}'),
        (EMBED, b'{"model":"m","Input":"a"}'),
        (EMBED, b'{"model":"m","input":"a","INPUT":"b"}'),
        (EMBED, b'{"model":"m","input":"a","input":"b"}'),
        (EMBED, b'{"model":"m","input":"%s"}' % (b"x" * (ROOM + 1))),
        (LEGACY, b'{"model":"m","prompt":"a","input":"a"}'),
    ],
)
def test_what_is_not_plainly_one_short_input_goes_as_it_is(route: Route, body: bytes):
    assert single_input(route, body) is None


@for_each("other", [{"dimensions": 8}, {"truncate": False}, {"options": {"num_batch": 4}}, {"model": "M"}, {"anything": 1}])
def test_any_other_field_makes_another_kind_of_call(other: dict[str, object]):
    body = {"model": "m", "input": "a"}
    plain, changed = (single_input(EMBED, json.dumps(each).encode()) for each in (body, {**body, **other}))
    assert plain is not None
    assert changed is not None
    assert plain.options != changed.options


def test_the_joined_body_has_all_inputs_in_order_and_the_rest_as_it_was():
    both = [single_input(OPENAI, json.dumps({"model": "m", "input": text, "dimensions": 4}).encode()) for text in ("é\u2028<", "b")]
    assert json.loads(joined_body([each for each in both if each])) == {"model": "m", "input": ["é\u2028<", "b"], "dimensions": 4}


def test_a_native_answer_of_ollama_is_cut_without_touching_a_digit():
    whole = answer_in("embed_many.txt")
    parts = split_answer(EMBED, whole, inputs("hello", "the of"))
    assert parts is not None
    said = json.loads(whole)
    for part, vector in zip(parts, said["embeddings"], strict=True):
        assert json.loads(part.body) == {**said, "embeddings": [vector], "prompt_eval_count": part.prompt_tokens}
    assert b"[[0.99361116,0.06277645,-0.009725292,0.013038688,-0.075350516,0.019965269,0.04715197,0.0152280945]]" in parts[0].body
    assert [part.prompt_tokens for part in parts] == [7, 8]


def test_an_openai_answer_is_cut_and_each_part_is_the_first_of_its_own():
    whole = answer_in("oai_embeddings.txt")
    parts = split_answer(OPENAI, whole, inputs("hello", "x"))
    assert parts is not None
    said = json.loads(whole)
    for part, item in zip(parts, said["data"], strict=True):
        count = part.prompt_tokens
        own = {"data": [{**item, "index": 0}], "usage": {"prompt_tokens": count, "total_tokens": count}}
        assert json.loads(part.body) == {**said, **own}
        assert part.body.endswith(b"}\n")
    assert sum(part.prompt_tokens or 0 for part in parts) == said["usage"]["prompt_tokens"]


BASE64 = b'{"object":"embedding","embedding":"3HR/Pz0egT30BSC8AYtWPA==","index":%d}'
ITEM = b'{"object":"embedding","embedding":[1],"index":%d}'


@for_each(
    ("route", "body", "parts"),
    [
        (
            OPENAI,
            b'{"object":"list","data":[%b,%b],"model":"emb","usage":{"prompt_tokens":4,"total_tokens":4}}\n' % (BASE64 % 0, BASE64 % 1),
            [(b'{"object":"list","data":[%b],"model":"emb","usage":{"prompt_tokens":2,"total_tokens":2}}\n' % (BASE64 % 0), 2)] * 2,
        ),
        (
            EMBED,
            b'{"model":"m","embeddings":[[1],[2]]}',
            [(b'{"model":"m","embeddings":[[1]]}', None), (b'{"model":"m","embeddings":[[2]]}', None)],
        ),
        (EMBED, b"", None),
        (EMBED, b"nonsense", None),
        (EMBED, b'{"model":"m","embeddings":[[1]],"prompt_eval_count":2}', None),
        (EMBED, b'{"model":"m","embeddings":[[1],[2],[3]],"prompt_eval_count":2}', None),
        (EMBED, b'{"model":"m","embeddings":[[1], [2]],"prompt_eval_count":2}', None),
        (EMBED, b'{"model":"m","embeddings":[[1],null],"prompt_eval_count":2}', None),
        (EMBED, b'{"model":"m","embeddings":[[1],[2]', None),
        (OPENAI, b'{"object":"list","data":[%b,%b],"model":"m"}' % (ITEM % 1, ITEM % 0), None),
    ],
)
def test_base64_is_cut_like_numbers_and_of_another_shape_or_order_nothing_is_guessed(
    route: Route, body: bytes, parts: list[tuple[bytes, int | None]] | None
):
    found = split_answer(route, body, inputs("a", "b"))
    assert (None if found is None else [(part.body, part.prompt_tokens) for part in found]) == parts


@given(st.integers(0, 10_000), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_shares_add_up_and_nobody_goes_without_where_there_is_enough(total, weights):
    shares = shares_of(total, weights)
    assert sum(shares) == total
    assert min(shares) >= (1 if total >= len(weights) else 0)


def test_a_longer_input_has_the_larger_share():
    assert shares_of(102, [1, 3]) == [26, 76]
