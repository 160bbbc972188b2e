"""What a model server keeps of conversations: as much as its slots and the host's memory hold."""

from __future__ import annotations

import pytest

from hearth.prompt_cache import PromptCache


def test_going_on_costs_the_new_tokens_alone_and_the_last_one_always():
    cache = PromptCache(slots=1)
    assert cache.cached("one", 100) == 0
    cache.keep("one", 120)
    assert (cache.cached("one", 150), cache.cached("one", 120), cache.cached("two", 150)) == (
        120,
        119,
        0,
    )


@pytest.mark.parametrize(
    ("slots", "host_tokens", "kept"),
    [
        (1, 250, ["b", "c", "d"]),
        (2, 250, ["a", "b", "c", "d"]),
        (1, 0, ["d"]),
        (3, 0, ["b", "c", "d"]),
    ],
)
def test_the_latest_stay_in_the_slots_and_before_them_what_the_host_holds(slots, host_tokens, kept):
    cache = PromptCache(slots, host_tokens)
    for name in "abcd":
        cache.keep(name, 100)
    assert [name for name in "abcd" if cache.cached(name, 100)] == kept


def test_who_goes_on_is_the_latest_again():
    cache = PromptCache(1, 100)
    for name in ("a", "b", "a", "c"):
        cache.keep(name, 100)
    assert [name for name in "abc" if cache.cached(name, 100)] == ["a", "c"]
