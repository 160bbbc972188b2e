"""`hearth open`: which address a browser is given, and what is said where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.api.dashboard.page import STATIC
from hearth.cli.opening import PAGES
from hearth.types import SERVICE

ALIVE = {"service": SERVICE}
NO_SCREEN = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
KEY = "hearth_a+b/c"


@pytest.fixture
def alive(busy):
    for path in ("", "/base"):
        busy.put(f"{path}/healthz", ALIVE)
    return busy


@pytest.mark.parametrize(
    ("words", "path", "address"),
    [
        ("", "", "/"),
        ("now", "/", "/"),
        ("models", "", "/dashboard/models"),
        ("models", "/base/", "/base/dashboard/models"),
        ("", "/base", "/base/"),
        ("wall", "?a=b#c", "/dashboard/wall"),
    ],
)
def test_the_address_of_a_page_is_printed_without_a_key(hearth, alive, words, path, address):
    result = hearth("open", *words.split(), "--print", HEARTH_URL=alive.url + path, HEARTH_KEY=KEY)
    assert (result.exit_code, result.stdout) == (0, f"{alive.url}{address}\n")
    assert [each["path"].rpartition("/")[2] for each in alive.seen] == ["healthz"]


def test_a_key_is_in_the_address_only_where_that_is_asked_for(hearth, alive):
    asked = ("open", "--sign-in", "--url", alive.url)
    result = hearth(*asked, "--print", HEARTH_KEY=KEY)
    assert (result.exit_code, result.stdout) == (0, f"{alive.url}/#key=hearth_a%2Bb%2Fc\n")
    result = hearth(*asked)
    assert (result.exit_code, "--sign-in needs a key" in result.stderr) == (2, True)
    result = hearth(*asked, HEARTH_KEY=KEY, **NO_SCREEN)
    assert (result.exit_code, "hearth_" in result.output) == (0, False)


def test_without_a_screen_the_address_is_printed_and_said_to_be_for_another_browser(hearth, alive):
    result = hearth("open", "--url", alive.url, **NO_SCREEN)
    assert (result.exit_code, result.stdout) == (0, f"{alive.url}/\n")
    assert "No browser can be started here" in result.stderr


@pytest.mark.parametrize(
    ("answer", "status"),
    [(None, 200), ({"service": "other"}, 200), ({"detail": "Not Found"}, 404)],
)
def test_nothing_is_opened_where_no_gateway_runs(hearth, busy, answer, status):
    busy.put("/healthz", answer, status)
    result = hearth("open", "--print", "--url", busy.url if answer else "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "Start it with `hearth serve`" in result.stderr


def test_every_page_of_the_dashboard_can_be_opened():
    names = re.findall(r'^  \{ name: "(\w+)"', (STATIC / "pages.js").read_text(), re.MULTILINE)
    assert tuple(names) == PAGES


def test_an_unknown_page_is_refused_with_those_that_there_are(hearth):
    result = hearth("open", "modles")
    assert (result.exit_code, "'models'" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "given"), [((), "{url}/\n"), (("--sign-in",), "{url}/#key=hearth_a%2Bb%2Fc\n")]
)
@pytest.mark.parametrize("code", [0, 1])
def test_a_browser_gets_the_address_and_one_that_fails_is_reported(
    alive, tmp_path: Path, options, given, code
):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\nexit {code}\n')
    browser.chmod(0o755)
    environ = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    environ |= {"BROWSER": str(browser), "PATH": "", "HEARTH_URL": alive.url, "HEARTH_KEY": KEY}
    program = "import sys; from hearth.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "open", *options],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{alive.url}/\n"), done.stderr
    assert opened.read_text() == given.format(url=alive.url)
    assert ("No browser can be started here" in done.stderr) == bool(code)
