"""The root command: what it imports, and what a shell completes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from hearth.cli import LazyCommand, main

HEAVY = (
    "fastapi",
    "starlette",
    "uvicorn",
    "ollama",
    "aiohttp",
    "pydantic",
    "rich",
    "asyncio",
    "yaml",
)
NOBODY = "--url localhost:1"


def printed(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "command",
    ["--help", "stauts", f"status --json {NOBODY}", f"cancel 17 {NOBODY}", f"admin pause {NOBODY}"],
)
def test_what_draws_and_serves_nothing_imports_nothing_heavy(command):
    program = (
        "import sys\nfrom hearth.cli import main\n"
        f"try: main({command.split()!r})\nexcept SystemExit: pass\n"
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert printed(program)[-1] == "IMPORTED"


def test_a_full_disk_under_the_output_is_said_in_one_line():
    program = "from hearth.cli import main\nmain(['simulate', '--list'])"
    with open("/dev/full", "w") as full:  # noqa: PTH123 (a device)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"


def groups(command: click.Command, path: str = "hearth") -> Iterator[tuple[str, click.Group]]:
    """Every group of commands, and how it is called."""
    if isinstance(command, click.Group):
        yield path, command
        for name, inner in command.commands.items():
            if inner.hidden:
                continue
            yield from groups(loaded(inner), f"{path} {name}")


def loaded(command: click.Command) -> click.Command:
    return command.load() if isinstance(command, LazyCommand) else command


@pytest.mark.parametrize(
    ("path", "group"), [pytest.param(*each, id=each[0]) for each in groups(main)]
)
def test_every_command_is_one_whole_line_of_a_list_80_columns_wide(hearth, path, group):
    listed = hearth(*path.split()[1:], "--help", COLUMNS="80").stdout.partition("Commands:\n")[2]
    lines = dict(line.split(maxsplit=1) for line in listed.partition("\n\n")[0].splitlines())
    said = {
        name: loaded(command).get_short_help_str(limit=1000)
        for name, command in group.commands.items()
        if not command.hidden
    }
    assert lines == said


@pytest.mark.parametrize(
    ("path", "group"), [pytest.param(*each, id=each[0]) for each in groups(main)]
)
def test_help_fits_80_columns_and_names_what_an_option_takes(hearth, path, group):
    for name, command in group.commands.items():
        shown = hearth(*path.split()[1:], name, "--help", COLUMNS="80").stdout
        assert max(map(len, shown.splitlines())) <= 80, (path, name)
        for option in loaded(command).params:
            taken = option.make_metavar(click.Context(command))
            assert "RANGE" not in taken, (path, name, option.opts)


@pytest.mark.parametrize(
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
def test_a_shell_completes_commands_options_choices_and_known_names(url, busy, words, offered):
    busy.put("/llm/log?limit=500", {"items": [{"caller": "nightly"}, {"caller": "n8n"}]})
    *before, incomplete = words.format(url=url, busy=busy.url).split(" ")
    completing = ShellComplete(main, {}, "hearth", "_HEARTH_COMPLETE")
    assert [item.value for item in completing.get_completions(before, incomplete)] == offered
    del busy.answers["/llm/log?limit=500"]  # a gateway without a store
    assert "--caller" not in before or completing.get_completions(before, "")


@pytest.mark.parametrize("words", ["chat --url ftp://x:y", "log --url http:// --model"])
def test_an_invalid_address_completes_nothing_and_asks_nobody(words):
    program = (
        "import sys\nfrom click.shell_completion import ShellComplete\n"
        "from hearth.cli import main\n"
        "def note(event, _):\n    if event == 'socket.connect': print('CONNECTED')\n"
        "sys.addaudithook(note)\n"
        "completing = ShellComplete(main, {}, 'hearth', '_HEARTH_COMPLETE')\n"
        f"print(completing.get_completions({words.split()!r}, ''))"
    )
    assert printed(program) == ["[]"]
