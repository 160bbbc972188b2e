"""A code fence around an answer goes, wherever the stream is cut; everything else stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.dialects.claude.stream import Unfenced
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES


def unfenced(pieces: list[str]) -> str:
    one = Unfenced()
    return "".join([*(one.feed(piece) for piece in pieces), one.end()])


@for_each(
    ("text", "bare"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("\n ```\r\n{}\r\n```\n\n", "{}"),
        ('```json\n{"code": "```"}\n```', '{"code": "```"}'),
        ('{"code": "\\n```"}', '{"code": "\\n```"}'),
        ('```json\n{"cut": "of', '{"cut": "of'),
        ("", ""),
        ("  ", "  "),
        ("``", "``"),
        ("```", "```"),
        ("```json {}", "```json {}"),
    ],
)
def test_only_a_fence_around_the_whole_text_goes(text, bare):
    assert unfenced([text]) == bare
    assert unfenced(list(text)) == bare


@settings(max_examples=300 * EXAMPLES)
@given(st.lists(st.text(alphabet="`\n a{}", max_size=4), max_size=12), st.booleans())
def test_where_a_text_is_cut_makes_no_difference(pieces, fenced):
    pieces = ["```json\n", *pieces] if fenced else pieces
    assert unfenced(pieces) == unfenced(["".join(pieces)])


def test_nothing_is_held_back_longer_than_it_could_be_a_fence():
    one = Unfenced()
    one.feed("```json\n")
    assert [one.feed(piece) for piece in ('{"a":', " 1}", "\n", "``", "` x")] == ['{"a":', " 1}", "", "", "\n``` x"]
