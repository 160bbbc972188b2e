"""Only YAML that means what it looks like is read; nothing hostile gets further than a ConfigError."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.config.document import FASTEST_LOADER, MAX_DEPTH, Document
from hearth.config.loading import parse_config
from hearth.errors import ConfigError
from tests.support.cases import for_each

SHIPPED = Path(__file__).parents[2] / "config/llm_gateway.yaml"
PURE = yaml.SafeLoader
Loader = type[Any]
both_loaders = for_each("loader", [FASTEST_LOADER, PURE])


def texts(document: Document) -> list[str]:
    return [each.text for each in document.problems]


def fatal(text: str, loader: Loader = FASTEST_LOADER) -> str:
    with pytest.raises(ConfigError) as caught:
        Document(text, source="f", loader=loader)
    return caught.value.problems[-1]


@both_loaders
def test_plain_values_come_with_the_lines_of_their_keys(loader: Loader) -> None:
    document = Document("a:\n  b: [1, -2.5,\n   true]\n\n'c': text # note\nd:\n", source="f", loader=loader)
    assert document.value == {"a": {"b": [1, -2.5, True]}, "c": "text", "d": None}
    assert document.lines == {("a",): 1, ("a", "b"): 2, ("a", "b", 0): 2, ("a", "b", 1): 2, ("a", "b", 2): 3, ("c",): 5, ("d",): 6}
    assert document.problems == []


@both_loaders
@for_each(
    "spelled", ["22:30", "1:30:00", "0644", "0x1F", "0b11", "1_000", "+5", ".5", "5.", ".inf", "-.INF", ".nan", "2026-01-02", "9" * 31]
)
def test_a_number_that_is_not_what_it_looks_like_is_refused(loader: Loader, spelled: str) -> None:
    document = Document(f"a: 1\nb: {spelled}\n", source="f", loader=loader)
    assert document.value == {"a": 1}
    assert [(each.path, each.line, "quotes" in each.text) for each in document.problems] == [(("b",), 2, True)]


@both_loaders
@for_each("spelled", ["'22:30'", '"0644"', "1e3", "06:00-22:00", "0o17", "v1", "1.2.3", "|-\n  x"])
def test_text_stays_text(loader: Loader, spelled: str) -> None:
    document = Document(f"b: {spelled}\n", source="f", loader=loader)
    assert isinstance(document.value, dict)
    assert isinstance(document.value["b"], str)
    assert document.problems == []


@both_loaders
@for_each("key", ["on", "yes", "5", "1.5", "22:30", "2026-01-02", "null", "~", "true"])
def test_a_key_that_is_no_text_is_refused_with_advice(loader: Loader, key: str) -> None:
    (text,) = texts(Document(f"{key}: 1\n", source="f", loader=loader))
    assert "put quotes around it" in text


@both_loaders
def test_a_duplicate_key_is_told_with_the_line_of_the_first(loader: Loader) -> None:
    document = Document("a:\n  x: 1\n  y: 2\n  'x': 3\n", source="f", loader=loader)
    assert [(each.path, each.line, each.text) for each in document.problems] == [
        (("a", "x"), 4, "is already given in line 2; remove one of them")
    ]


@both_loaders
@for_each(
    "text", ["a: &x 1\n", "a: &x [1]\nb: *x\n", "a: &x {}\nb: {<<: *x}\n", "&x a: 1\n", "a: !!str 1\n", "a: !!python/object:os.system {}\n"]
)
def test_anchors_aliases_merge_keys_and_tags_are_refused(loader: Loader, text: str) -> None:
    problems = texts(Document(text, source="f", loader=loader))
    assert problems
    assert all("not supported" in each for each in problems)


@both_loaders
def test_an_alias_bomb_costs_nothing(loader: Loader) -> None:
    levels = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    document = Document("\n".join(levels), source="f", loader=loader)
    assert len(document.problems) == 30 + 29 * 9


@both_loaders
@for_each("text", ["a: " + "[" * 100_000, "{a: " * 50_000, "- " * 100_000, "? " * 100_000, "[{a: " * 1000])
def test_deep_nesting_is_refused_before_it_costs_a_stack(loader: Loader, text: str) -> None:
    assert "nested deeper than 16 levels" in fatal(text, loader) or "keys must be text" in fatal(text, loader)


@both_loaders
@for_each(
    ("text", "line", "advice"),
    [
        ("a:\n\tb: 1\n", 2, "indent with spaces, not tabs"),
        ("a: 1\nb: *\n", 2, "put quotes around text that begins with `*`"),
        ("models:\n- @x\n", 2, "put quotes around text that begins with @"),
        ("a: b: c\n", 1, "put quotes around text that contains `: `"),
        ("a: 1\n--- \nb: 2\n", 2, "begins a second document"),
        ("[a]: 1\n", 1, "keys must be text"),
        ("{a: 1}: 1\n", 1, "keys must be text"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line_and_advice(loader: Loader, text: str, line: int, advice: str) -> None:
    problem = fatal(text, loader)
    assert problem.startswith(f"f:{line}: ")
    assert advice in problem


@both_loaders
@for_each(
    "text", ["'", '"', "{", "[", "a: {", "%YAML 3.0\n---\na: 1\n", "a: 'x\n\nb: y", "a: %x", "}", ": :\n -", "a: \ud800", "a: \ufffe"]
)
def test_broken_text_is_refused(loader: Loader, text: str) -> None:
    assert fatal(text, loader).startswith("f:")


def test_sixteen_levels_are_read_and_one_more_is_not() -> None:
    assert Document("{a: " * MAX_DEPTH + "1" + "}" * MAX_DEPTH, source="f").problems == []
    assert "nested deeper" in fatal("{a: " * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1))


@for_each("character", ["\0", "\x1b", "\x7f", "\x85"])
def test_control_characters_are_refused_with_their_line(character: str) -> None:
    assert fatal(f"a: 1\nb: {character}\n").startswith(f"f:2: control character U+00{ord(character):02X}")


def test_a_hostile_key_cannot_reach_the_terminal() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config('"\\e[31mred": 1\n"' + "k" * 5000 + '": 1\n', source="f", environ={})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 800


@settings(max_examples=190, deadline=None, derandomize=True)
@given(st.data(), st.text(alphabet=st.sampled_from("ab:1.-[]{}&*!|>'\"%@`#?,\n\t \ud800é0x~<=$"), max_size=40))
def test_any_text_and_any_damaged_file_is_either_read_or_refused_with_a_config_error(data: st.DataObject, text: str) -> None:
    whole = SHIPPED.read_text("utf-8")
    at, dropped = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 40))
    damaged = whole[:at] + data.draw(st.text(max_size=6)) + whole[at + dropped :]
    for each in (text, damaged):
        with contextlib.suppress(ConfigError):
            parse_config(each, source="f", environ={})
