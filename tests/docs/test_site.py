"""The site as `make docs` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(site: Path):
    built = {
        page.relative_to(site).as_posix(): page.read_text("utf-8") for page in site.rglob("*.html")
    }
    assert {
        "index.html",
        "changelog.html",
        "reference/settings.html",
        "reference/http.html",
    } <= set(built)
    assert 'id="scheduling.aging.promote_after_s"' in built["reference/settings.html"]
    assert 'href="yielding.html"' in built["changelog.html"].partition("<article")[2]
    assert {address for page in built.values() for address in LOADED.findall(page)} == set()
    assert "fonts.g" not in "".join(each.read_text("utf-8") for each in site.rglob("*.css"))


async def test_the_search_works_in_a_browser_that_opens_the_site_as_files(site: Path, browser: Any):
    page = await browser.new_page()
    await page.goto((site / "index.html").as_uri())
    # by keys: the search reads what is written when a key goes up, which `fill` has none of
    await page.get_by_role("textbox", name="Search").press_sequentially("promote_after_s")
    found = page.locator(".md-search-result__link[href*='reference/settings.html']").first
    await found.wait_for()
    assert (await found.get_attribute("href") or "").startswith("file://")
