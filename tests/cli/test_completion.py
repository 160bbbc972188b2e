"""Shell completion, as docs/cli.md says how to switch it on: click's own, with our lazily loaded commands."""

from __future__ import annotations

from click.shell_completion import ShellComplete

from hearth.cli import main
from tests.support.cases import for_each


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    return [item.value for item in ShellComplete(main, {}, "hearth", "_HEARTH_COMPLETE").get_completions(before, incomplete)]


@for_each(
    ("words", "offered"),
    [
        (("s",), ["serve", "status", "submit", "simulate"]),
        (("ca",), ["cancel"]),
        (("config", "d"), ["diff"]),
        (("status", "--w"), ["--watch"]),
        (("submit", "--pri"), ["--priority"]),
        (("submit", "--priority", ""), ["critical", "normal", "background"]),
        (("log", "--outcome", "c"), ["completed", "cancelled"]),
    ],
)
def test_commands_options_and_choices_are_completed(words, offered):
    assert completed(*words) == offered
