"""`man hearth`: what `--help` says, as a page that man renders without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import click
import pytest

from docs_build.man_page import PATH, man_page
from hearth.cli import main
from tests.cli.test_main import groups, loaded

MAN = shutil.which("man")


def shown(text: str) -> str:
    """The words of the page without its macros."""
    return re.sub(r"\\f[BR]|\\&", "", text).replace("\\-", "-")


def test_the_page_is_what_the_commands_say_now():
    assert PATH.read_text("utf-8") == man_page(), "run `make man`"


def test_every_command_is_on_the_page_with_its_options():
    page = shown(PATH.read_text("utf-8"))
    for path, group in groups(main):
        for name, command in group.commands.items():
            if command.hidden or isinstance(loaded(command), click.Group):
                continue
            of_command = page.partition(f'.SS "{path} {name}"\n')[2].partition("\n.S")[0]
            assert of_command, f"{path} {name}"
            common = page.partition(".SH COMMON OPTIONS\n")[2].partition("\n.S")[0]
            said = f"{of_command}\n{common if '--url and --key' in of_command else ''}"
            for each in loaded(command).params:
                if isinstance(each, click.Option) and not each.hidden:
                    assert each.opts[0] in said, (path, name, each.opts)


def test_exit_codes_and_the_environment_are_those_of_the_page_on_the_command():
    page = shown(PATH.read_text("utf-8"))
    assert "\n.B 3\nno gateway at the address" in page
    assert "\n.B HEARTH_KEY\n" in page


@pytest.mark.skipif(MAN is None, reason="no man")
def test_man_renders_the_page_without_a_warning():
    done = subprocess.run(
        [str(MAN), "--warnings", "-l", str(PATH)],
        env={"PATH": os.environ["PATH"], "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "PAGER": "cat"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "hearth - a gateway for the one GPU in a home" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
