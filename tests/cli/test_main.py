"""The root command: what it lists, what it imports, how errors of ours become exit codes, what a shell completes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from hearth.cli import LazyCommand, RootGroup, main
from hearth.errors import ConfigError, SwapFailed
from hearth.types import __version__
from tests.support.cases import for_each

HEAVY = ("fastapi", "starlette", "uvicorn", "ollama", "aiohttp", "pydantic", "rich", "asyncio", "yaml")
NOBODY = "--url localhost:1"


@for_each("command", ["--help", "stauts", f"status --json {NOBODY}", f"cancel 17 {NOBODY}", f"admin pause {NOBODY}"])
def test_what_draws_and_serves_nothing_imports_nothing_heavy(command):
    program = (
        "import sys\nfrom hearth.cli import main\n"
        f"try: main({command.split()!r})\nexcept SystemExit: pass\n"
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "IMPORTED"


def test_help_lists_every_command_in_the_order_of_use_with_the_first_line_of_its_own_help(hearth):
    text = hearth("--help").output
    places = [text.index(f"\n  {name} ") for name in main.commands]
    assert places == sorted(places)
    for stand_in in main.commands.values():
        assert isinstance(stand_in, LazyCommand)
        assert stand_in.load().get_short_help_str(limit=200) == stand_in.short_help
    with pytest.raises(TypeError, match="not a click command"):
        LazyCommand("broken", target="hearth.cli:__doc__", short_help="").load()
    assert hearth("--version").output == f"hearth {__version__}\n"
    assert hearth("version").output.startswith(f"hearth {__version__} (Python ")


@for_each(
    ("error", "code", "says"),
    [
        (ConfigError(["a:1: x", "a:9: y"]), 2, "Error: 2 problems in the configuration:\n  a:1: x\n  a:9: y\n"),
        (ConfigError(["x"]), 2, "Error: 1 problem in the configuration:\n  x\n"),
        (SwapFailed("no room"), 1, "Error: no room\n"),
        (ZeroDivisionError(), 1, ""),  # a defect is not dressed up as a message
    ],
)
def test_an_error_of_ours_is_a_message_and_an_exit_code(error, code, says):
    def fail() -> None:
        raise error

    result = CliRunner().invoke(RootGroup("hearth", commands=[click.Command("fail", callback=fail)]), ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", says)


@for_each(
    ("words", "offered"),
    [
        ("s", ["serve", "status", "submit", "simulate"]),
        ("chat --url {url} ll", ["llama3.1:8b"]),
        ("log --url {url} --model n", ["nomic-embed-text:latest"]),
        ("chat --url http://127.0.0.1:9 ", []),
        ("chat --url ftp://x:y ", []),
        ("ca", ["cancel"]),
        ("config d", ["diff"]),
        ("status --w", ["--watch"]),
        ("submit --pri", ["--priority"]),
        ("submit --priority ", ["critical", "normal", "background"]),
        ("log --outcome c", ["completed", "cancelled"]),
        ("cancel --url {busy} --caller n", ["n8n", "nightly"]),
    ],
)
def test_a_shell_completes_commands_options_choices_and_the_names_that_the_gateway_knows(url, busy, words, offered):
    busy.put("/llm/log?limit=500", {"items": [{"caller": "nightly"}, {"caller": "n8n"}]})
    *before, incomplete = words.format(url=url, busy=busy.url).split(" ")
    completing = ShellComplete(main, {}, "hearth", "_HEARTH_COMPLETE")
    assert [item.value for item in completing.get_completions(before, incomplete)] == offered
    del busy.answers["/llm/log?limit=500"]  # a gateway without a store
    assert "--caller" not in before or completing.get_completions(before, "")
