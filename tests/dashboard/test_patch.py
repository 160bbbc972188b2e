"""Patches: what is sent makes the old state into the new one, and nothing else is sent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.api.dashboard.view import bare, merge_patch
from tests.dashboard.listening import applied
from tests.support.examples import EXAMPLES

SCALARS = st.one_of(st.integers(0, 3), st.sampled_from(["", "a", "é"]), st.booleans())
LEAVES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2))
STATES = st.dictionaries(
    st.sampled_from("abcd"), st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3))
)


@settings(max_examples=200 * EXAMPLES, deadline=None)
@given(old=STATES, new=STATES)
def test_a_patch_makes_the_old_state_into_the_new_one(old, new):
    assert applied(old, merge_patch(old, new)) == new


@given(state=STATES)
def test_nothing_is_sent_for_what_has_not_changed(state):
    assert merge_patch(state, dict(state)) == {}


def test_only_what_changed_is_named_and_what_is_gone_is_null():
    old: dict[str, object] = {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}
    assert merge_patch(old, {"a": {"x": 1, "y": 5}, "b": [1]}) == {"a": {"y": 5}, "b": [1], "c": None}


def test_what_is_unknown_is_absent_at_every_depth():
    assert bare({"a": None, "b": {"c": None, "d": [{"e": None, "f": 0}]}, 5: False}) == {"b": {"d": [{"f": 0}]}, "5": False}
