"""What reaches the terminal."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from hearth.cli.gateway_client import printable
from hearth.cli.views import console_for
from tests.support.cases import for_each


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def painted(stream: io.StringIO, **environ: str) -> str:
    console_for(stream, environ=environ).print(Text("red", style="bold red"))
    return stream.getvalue()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_terminal_gets_colours():
    assert "\x1b[" in painted(Terminal())


def test_no_color_means_no_escape_sequence_at_all():
    assert painted(Terminal(), NO_COLOR="1") == "red\n"


def test_an_empty_no_color_counts_as_unset():
    assert "\x1b[" in painted(Terminal(), NO_COLOR="")


def test_a_pipe_gets_no_colours():
    assert painted(io.StringIO()) == "red\n"


def test_a_pipe_is_wide_enough_for_a_row_unless_columns_says_otherwise():
    assert console_for(io.StringIO(), environ={}).width == 120
    assert console_for(io.StringIO(), environ={"COLUMNS": "60"}).width == 60
    assert console_for(io.StringIO(), environ={"COLUMNS": "wide"}).width == 120


def test_markup_in_a_name_is_only_text():
    stream = io.StringIO()
    console_for(stream, environ={}).print("[red]x[/red] :smile:")
    assert stream.getvalue() == "[red]x[/red] :smile:\n"


@for_each("name", ["\x1b[2Jx", "x\ry", "x\ny", "\u202ex", "\x07", "\x9b2J"])
def test_a_name_cannot_steer_the_terminal(name):
    assert printable(name).isprintable()
    assert len(printable(name)) == len(name)


def test_ordinary_names_are_unchanged():
    assert printable("qwen2.5:32b-instruct-q6_K Küche 日本") == "qwen2.5:32b-instruct-q6_K Küche 日本"
