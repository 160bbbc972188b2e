"""The root command: what it lists, what it imports, how errors of ours become exit codes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.cli.lazy import LazyCommand, RootGroup
from hearth.errors import ConfigError, SwapFailed
from hearth.types import __version__
from tests.support.cases import for_each

HEAVY = ("fastapi", "starlette", "uvicorn", "ollama", "aiohttp", "pydantic", "rich", "asyncio", "yaml")


def imported_by(*args: str) -> set[str]:
    """The heavy modules that a fresh interpreter has imported after `hearth ARGS`."""
    program = (
        "import sys\nfrom hearth.cli import main\n"
        f"try: main({list(args)!r})\nexcept SystemExit: pass\n"
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_lists_every_command_in_the_order_of_use_and_the_exit_codes(hearth):
    text = hearth("--help").output
    places = [text.index(f"\n  {name} ") for name in main.commands]
    assert places == sorted(places)
    for line in ("0  ok", "1  failure", "2  usage or configuration error", "3  the gateway cannot be reached", "NO_COLOR"):
        assert line in text


def test_help_imports_nothing_heavy():
    assert imported_by("--help") == set()


def test_a_misspelt_command_is_corrected_without_importing_any():
    assert imported_by("stauts") == set()


@for_each("command", ["status --json", "cancel 17", "admin pause"])
def test_a_command_that_draws_nothing_imports_neither_web_framework_nor_rich(command):
    assert imported_by(*command.split(), "--url", "http://127.0.0.1:1") == set()


def test_a_misspelt_command_is_a_usage_error_that_names_the_right_one(hearth):
    result = hearth("stauts")
    assert result.exit_code == 2
    assert "Did you mean 'status'?" in result.stderr


@for_each("name", sorted(main.commands))
def test_the_line_in_the_list_is_the_first_line_of_the_commands_own_help(name):
    stand_in = main.commands[name]
    assert isinstance(stand_in, LazyCommand)
    assert stand_in.load().get_short_help_str(limit=200) == stand_in.short_help


def test_version_is_the_packages_both_ways(hearth):
    assert hearth("--version").output == f"hearth {__version__}\n"
    assert hearth("version").output.startswith(f"hearth {__version__} (Python ")


def test_a_target_that_is_no_command_is_a_programming_error():
    with pytest.raises(TypeError, match="not a click command"):
        LazyCommand("broken", target="hearth.cli:__doc__", short_help="").load()


def failing(error: Exception) -> RootGroup:
    def fail() -> None:
        raise error

    return RootGroup("hearth", commands=[click.Command("fail", callback=fail)])


def test_a_config_error_ends_with_2_and_every_problem_on_its_own_line_on_stderr():
    result = CliRunner().invoke(failing(ConfigError(["a.yaml:1: x: first", "a.yaml:9: y: second"])), ["fail"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: 2 problems in the configuration:\n  a.yaml:1: x: first\n  a.yaml:9: y: second\n"


def test_a_single_config_problem_is_counted_in_the_singular():
    assert "1 problem in" in CliRunner().invoke(failing(ConfigError(["x"])), ["fail"]).stderr


def test_any_other_error_of_ours_ends_with_1_and_its_message():
    result = CliRunner().invoke(failing(SwapFailed("no room")), ["fail"])
    assert (result.exit_code, result.stderr) == (1, "Error: no room\n")


def test_a_defect_is_not_dressed_up_as_a_message():
    result = CliRunner().invoke(failing(ZeroDivisionError()), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)
