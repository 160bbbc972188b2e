"""`man/hearth.1`, from what `--help` prints of every command, and the tables of docs/cli.md that
`--help` has no room for. `make man` writes it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from hearth.cli import LazyCommand, main
from hearth.types import __version__

ROOT = Path(__file__).parents[1]
PATH = ROOT / "man" / "hearth.1"
_COMMON = ("url", "key")
_TAKES_THEM = "Takes --url and --key, too."
_WIDTH = 79
_PARAGRAPH_BELOW_HEADING = re.compile(r"^(\.S[HS] .*\n)\.PP\n", re.MULTILINE)
_CODE = re.compile(r"`([^`]*)`")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_OPTION = re.compile(r"(?<![\w-])--?(?=[a-z ])")


def man_page() -> str:
    """The page, in the macros of man(7)."""
    root = click.Context(main, info_name="hearth", **main.context_settings)
    cli = (ROOT / "docs" / "cli.md").read_text("utf-8")
    what = (main.help or "").removeprefix("Hearth: ").rstrip(".")
    *_, about_files = (main.epilog or "").strip().split("\n\n")
    lines = [
        '.\\" Written by `make man` from what --help prints. Edit that instead.',
        f'.TH HEARTH 1 {_release_date()} "hearth {__version__}"',
        ".SH NAME",
        f"hearth \\- {_plain(what)}",
        ".SH SYNOPSIS",
        _usage(root),
        ".SH DESCRIPTION",
        *_paragraphs(main.help or ""),
        _plain("Every command prints its help with --help, as it stands below."),
        ".SH OPTIONS",
        *_options(root, root.command.get_params(root)),
        ".SH COMMANDS",
        *_commands(root),
        ".SH COMMON OPTIONS",
        *_options(_child(root, "status"), _common(_child(root, "status"))),
        ".SH EXIT STATUS",
        *_tagged(_table(cli, "Exit codes")),
        ".SH ENVIRONMENT",
        *_tagged(_table(cli, "Environment")),
        ".SH FILES",
        *_paragraphs(about_files),
    ]
    return _PARAGRAPH_BELOW_HEADING.sub(r"\1", "\n".join(lines)) + "\n"


def _release_date() -> str:
    """Of this version, as the changelog has it."""
    heading = f"## {__version__} - "
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    return next(each for each in lines if each.startswith(heading)).removeprefix(heading)


def _commands(context: click.Context) -> Iterator[str]:
    """Each command that does something, those of groups under the group's name."""
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name, command in group.commands.items():
        if command.hidden:
            continue
        inner = _child(context, name)
        if not isinstance(inner.command, click.Group) or inner.command.invoke_without_command:
            yield from _command(inner)
        yield from _commands(inner)


def _child(context: click.Context, name: str) -> click.Context:
    group = context.command
    assert isinstance(group, click.Group)
    command = group.commands[name]
    loaded = command.load() if isinstance(command, LazyCommand) else command
    return click.Context(loaded, info_name=name, parent=context)


def _command(context: click.Context) -> Iterator[str]:
    yield f".SS {_quoted(context.command_path)}"
    yield _usage(context)
    yield from _paragraphs(context.command.help or "")
    if _common(context):
        yield from _paragraphs(_TAKES_THEM)
    own = [each for each in context.command.params if each.name not in _COMMON]
    yield from _options(context, own)
    yield from _paragraphs(context.command.epilog or "")


def _common(context: click.Context) -> list[click.Parameter]:
    return [each for each in context.command.params if each.name in _COMMON]


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return f".B {_plain(context.command_path)}\n{_plain(' '.join(pieces))}"


def _options(context: click.Context, parameters: Iterable[click.Parameter]) -> Iterator[str]:
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record and record[1]:
            yield from _tagged({record[0]: record[1]})


def _tagged(texts: Mapping[str, str]) -> Iterator[str]:
    for tag, text in texts.items():
        yield f".TP\n.B {_plain(tag)}\n{_text(text)}"


def _paragraphs(text: str) -> Iterator[str]:
    """As click reads a help text: a paragraph that begins with a backspace keeps its lines."""
    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        yield ".PP"
        if paragraph.startswith("\b"):
            kept = paragraph.removeprefix("\b").strip("\n").splitlines()
            yield from (".nf", *map(_marked, kept), ".fi")
        else:
            yield _text(paragraph)


def _table(page: str, heading: str) -> dict[str, str]:
    """The rows of the table below a heading of a page in Markdown."""
    below = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in below.splitlines() if line[:1] == "|"]
    return {name.strip("`"): _LINK.sub(r"\1", text) for name, text in rows[2:]}


def _text(text: str) -> str:
    """Words for roff, in lines."""
    return textwrap.fill(_marked(text), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _marked(text: str) -> str:
    """Code in bold; no line may begin as a macro does."""
    escaped = _CODE.sub(lambda code: f"\\fB{code[1]}\\fR", _plain(text))
    return re.sub(r"(?<!\S)(?=[.'])", r"\\&", escaped)


def _plain(text: str) -> str:
    escaped = text.replace("\\", "\\e")
    return _OPTION.sub(lambda dashes: dashes[0].replace("-", "\\-"), escaped)


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(man_page(), encoding="utf-8")
