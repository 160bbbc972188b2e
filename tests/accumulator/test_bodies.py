"""One body from several, and several answers from one, against what a real Ollama wrote."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.embedding import MAX_BODY_BYTES, SingleInput, joined_body, shares_of, single_input, split_answer
from hearth.dialects.routes import INFERENCE_ROUTES
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


@for_each("body", [{"model": "m", "input": "a"}, {"model": "m", "input": ["a"]}, {"input": "a", "model": "m"}])
def test_one_input_is_one_whether_it_stands_in_a_list_or_not(body):
    one = single_input(EMBED, json.dumps(body).encode())
    assert one is not None
    assert (one.text, one.options) == ("a", b'{"model":"m"}')


@for_each(
    "body",
    [
        b'{"model":"m","input":["a","b"]}',
        b'{"model":"m","input":[]}',
        b'{"model":"m","input":""}',
        b'{"model":"m","input":[""]}',
        b'{"model":"m","input":[1,2]}',
        b'{"model":"m"}',
        b'{"model":"m","Input":"a"}',
        b'{"model":"m","input":"a","INPUT":"b"}',
        b'{"model":"m","input":"a","input":"b"}',
        b'{"model":"m","input":"%s"}' % (b"x" * MAX_BODY_BYTES),
    ],
)
def test_what_is_not_plainly_one_short_input_goes_as_it_is(body):
    assert single_input(EMBED, body) is None


def test_the_longest_body_that_may_have_company_has_it():
    text = "x" * (MAX_BODY_BYTES - len(b'{"model":"m","input":""}'))
    assert single_input(EMBED, b'{"model":"m","input":"%b"}' % text.encode()) is not None


def test_the_order_of_the_fields_makes_no_difference():
    bodies = b'{"model":"m","dimensions":8,"input":"a"}', b'{"input":"a","dimensions":8,"model":"m"}'
    one, other = (single_input(EMBED, body) for body in bodies)
    assert one is not None
    assert other is not None
    assert one.options == other.options


def test_the_old_route_takes_one_prompt_only_and_is_left_alone():
    assert single_input(LEGACY, b'{"model":"m","prompt":"a","input":"a"}') is None


@for_each("other", [{"dimensions": 8}, {"truncate": False}, {"options": {"num_batch": 4}}, {"model": "M"}, {"anything": 1}])
def test_any_other_field_makes_another_kind_of_call(other):
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


def test_base64_is_cut_like_numbers():
    one = b'{"object":"embedding","embedding":"3HR/Pz0egT30BSC8AYtWPA==","index":%d}'
    body = b'{"object":"list","data":[%b,%b],"model":"emb","usage":{"prompt_tokens":4,"total_tokens":4}}\n' % (one % 0, one % 1)
    parts = split_answer(OPENAI, body, inputs("a", "b"))
    assert parts is not None
    assert {part.body for part in parts} == {
        b'{"object":"list","data":[%b],"model":"emb","usage":{"prompt_tokens":2,"total_tokens":2}}\n' % (one % 0)
    }


@for_each(
    "body",
    [
        b"",
        b"nonsense",
        b'{"model":"m","embeddings":[[1]],"prompt_eval_count":2}',
        b'{"model":"m","embeddings":[[1],[2],[3]],"prompt_eval_count":2}',
        b'{"model":"m","embeddings":[[1], [2]],"prompt_eval_count":2}',
        b'{"model":"m","embeddings":[[1],null],"prompt_eval_count":2}',
        b'{"model":"m","embeddings":[[1],[2]',
    ],
)
def test_of_an_answer_of_another_shape_nothing_is_guessed(body):
    assert split_answer(EMBED, body, inputs("a", "b")) is None


def test_vectors_that_come_in_another_order_are_not_handed_out():
    one = b'{"object":"embedding","embedding":[1],"index":%d}'
    body = b'{"object":"list","data":[%b,%b],"model":"m"}' % (one % 1, one % 0)
    assert split_answer(OPENAI, body, inputs("a", "b")) is None


def test_an_answer_without_a_count_is_cut_without_one():
    parts = split_answer(EMBED, b'{"model":"m","embeddings":[[1],[2]]}', inputs("a", "b"))
    assert parts is not None
    assert [(part.body, part.prompt_tokens) for part in parts] == [
        (b'{"model":"m","embeddings":[[1]]}', None),
        (b'{"model":"m","embeddings":[[2]]}', None),
    ]


@given(st.integers(0, 10_000), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_shares_add_up_and_nobody_goes_without_where_there_is_enough(total, weights):
    shares = shares_of(total, weights)
    assert sum(shares) == total
    assert min(shares) >= (1 if total >= len(weights) else 0)


def test_a_longer_input_has_the_larger_share():
    assert shares_of(102, [1, 3]) == [26, 76]
