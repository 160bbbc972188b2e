"""Only YAML that means what it looks like is read; nothing hostile gets further than a ConfigError.

With libyaml and without it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.config.document import FASTEST_LOADER, MAX_DEPTH, Document
from hearth.config.loading import parse_config
from hearth.errors import ConfigError
from tests.support.cases import for_each
from tests.support.places import ROOT

SHIPPED = ROOT / "config/llm_gateway.yaml"
Loader = type[Any]
both_loaders = pytest.mark.parametrize("loader", [FASTEST_LOADER, yaml.SafeLoader])


def problems(text: str, loader: Loader) -> list[tuple[str, int | None, str]]:
    found = Document(text, source="f", loader=loader).problems
    return [(str(each.path[-1]), each.line, each.text) for each in found]


@both_loaders
def test_plain_values_come_with_the_lines_of_their_keys_and_text_stays_text(loader: Loader):
    document = Document(
        "a:\n  b: [1, -2.5,\n   true]\n\n'c': text # note\nd:\n", source="f", loader=loader
    )
    assert document.value == {"a": {"b": [1, -2.5, True]}, "c": "text", "d": None}
    assert document.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 2,
        ("a", "b", 1): 2,
        ("a", "b", 2): 3,
        ("c",): 5,
        ("d",): 6,
    }
    texts = ["'22:30'", '"0644"', "1e3", "06:00-22:00", "0o17", "v1", "1.2.3"]
    assert Document(f"[{', '.join(texts)}]", source="f", loader=loader).value == [
        each.strip("'\"") for each in texts
    ]
    assert document.problems == []


MISREAD_NUMBERS = [
    "22:30",
    "1:30:00",
    "0644",
    "0x1F",
    "0b11",
    "1_000",
    "+5",
    ".5",
    "5.",
    ".inf",
    "-.INF",
    ".nan",
    "2026-01-02",
    "9" * 31,
]
MISREAD_KEYS = ["on", "yes", "5", "1.5", "22:30", "2026-01-02", "null", "~", "true"]
NOT_SUPPORTED = ["&x 1", "*x", "{<<: 1}", "!!str 1", "!!python/object:os.system {}", "{&x b: 1}"]


@both_loaders
@for_each(
    ("text", "says"),
    [
        *((f"a: 1\nb: {each}\n", "put quotes around") for each in MISREAD_NUMBERS),
        *((f"a: 1\n{each}: 1\n", "put quotes around it") for each in MISREAD_KEYS),
        *((f"a: 1\nb: {each}\n", "not supported; ") for each in NOT_SUPPORTED),
        ("a: 1\n'a': 3\n", "is already given in line 1; remove one of them"),
    ],
)
def test_what_does_not_mean_what_it_looks_like_is_refused_with_advice(
    loader: Loader, text: str, says: str
):
    ((_, line, said),) = problems(text, loader)
    assert (line, says in said) == (2, True)
    value: Any = Document(text, source="f", loader=loader).value
    assert value["a"] == 1


@both_loaders
def test_an_alias_bomb_costs_nothing(loader: Loader):
    levels = ["a0: &a0 [x, x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)
    ]
    assert len(problems("\n".join(levels), loader)) == 30 + 29 * 9


@both_loaders
@for_each(
    ("text", "says"),
    [
        ("a:\n\tb: 1\n", "that cannot start any token; indent with spaces, not tabs"),
        ("a: 1\nb: *\n", "put quotes around text that begins with `*`"),
        ("models:\n- @x\n", "put quotes around text that begins with @"),
        ("a: b: c\n", "put quotes around text that contains `: `"),
        ("a: 1\n--- \nb: 2\n", "f:2: begins a second document"),
        *(
            (text, "f:1: has a list, mapping or alias as a key; keys must be text")
            for text in ("[a]: 1\n", "{a: 1}: 1\n", "? " * 100_000)
        ),
        *(
            (f"a: 1\nb: {character}\n", f"f:2: control character U+00{ord(character):02X}")
            for character in "\0\x1b\x7f\x85"
        ),
        *(
            (text, "is nested deeper than 16 levels")
            for text in ("a: " + "[" * 100_000, "{a: " * 50_000, "- " * 100_000, "[{a: " * 1000)
        ),
        ("{a: " * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "is nested deeper than 16 levels"),
        *(
            (text, "f:")
            for text in (
                "'",
                '"',
                "{",
                "[",
                "a: {",
                "%YAML 3.0\n---\na: 1\n",
                "a: 'x\n\nb: y",
                "a: %x",
                "}",
                ": :\n -",
            )
        ),
        *((text, "f:") for text in ("a: \ud800", "a: \ufffe")),
    ],
)
def test_what_is_not_yaml_or_too_deep_is_told_with_its_line_and_advice(
    loader: Loader, text: str, says: str
):
    with pytest.raises(ConfigError) as caught:
        Document(text, source="f", loader=loader)
    assert caught.value.problems[-1].startswith("f:")
    assert says in caught.value.problems[-1]


def test_sixteen_levels_are_read_and_a_hostile_key_cannot_reach_the_terminal():
    assert problems("{a: " * MAX_DEPTH + "1" + "}" * MAX_DEPTH, FASTEST_LOADER) == []
    with pytest.raises(ConfigError) as caught:
        parse_config('"\\e[31mred": 1\n"' + "k" * 5000 + '": 1\n', source="f", environ={})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 800


@settings(max_examples=190, deadline=None, derandomize=True)
@given(
    st.data(),
    st.text(alphabet=st.sampled_from("ab:1.-[]{}&*!|>'\"%@`#?,\n\t \ud800é0x~<=$"), max_size=40),
)
def test_any_text_or_damaged_file_is_read_or_a_config_error(data: st.DataObject, text: str):
    whole = SHIPPED.read_text("utf-8")
    at = data.draw(st.integers(0, len(whole)))
    dropped = data.draw(st.integers(0, 40))
    damaged = whole[:at] + data.draw(st.text(max_size=6)) + whole[at + dropped :]
    for each in (text, damaged):
        with contextlib.suppress(ConfigError):
            parse_config(each, source="f", environ={})
