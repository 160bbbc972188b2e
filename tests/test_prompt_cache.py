"""What a model server keeps of conversations: as much as its slots and the host's memory hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hearth.prompt_cache import BATCH_TOKENS, PromptCache

MEASURED = Path(__file__).parents[1] / "benchmarks" / "prompt_cache.json"


def test_going_on_costs_the_new_tokens_alone_and_the_last_one_always():
    cache = PromptCache[str](slots=1)
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
    cache = PromptCache[str](slots, host_tokens)
    for name in "abcd":
        cache.keep(name, 100)
    assert [name for name in "abcd" if cache.cached(name, 100)] == kept


def test_who_goes_on_is_the_latest_again():
    cache = PromptCache[str](1, 100)
    for name in ("a", "b", "a", "c"):
        cache.keep(name, 100)
    assert [name for name in "abc" if cache.cached(name, 100)] == ["a", "c"]


def measured() -> dict[str, float]:
    """`make bench ARGS="prompt_cache --json benchmarks/prompt_cache.json"`."""
    findings = json.loads(MEASURED.read_text())["findings"]
    return {each["name"]: each["measured"] for each in findings}


@pytest.mark.parametrize(
    ("name", "slots", "host_tokens"),
    [
        ("two conversations in turn, one slot", 1, 6000),
        ("two conversations in turn, one slot, no host cache", 1, 0),
        ("two in turn, each larger than the host cache", 1, 300),
        ("two conversations in turn, two slots, no host cache", 2, 0),
    ],
)
def test_what_is_reckoned_with_is_what_a_real_server_was_seen_to_do(name, slots, host_tokens):
    cache = PromptCache[str](slots, host_tokens)
    cache.keep("one", 600)
    cache.keep("two", 600)
    assert cache.cached("one", 600) / 600 == pytest.approx(measured()[name], abs=0.01)


def test_a_prompt_whose_caller_left_keeps_whole_batches():
    (cut,) = [kept for name, kept in measured().items() if name.startswith("kept of a prompt")]
    assert (cut > 0, cut % BATCH_TOKENS) == (True, 0)
