"""The site as `make docs` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_commands import ROOT
from tests.support.patience import WITHIN_S

_LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(site: Path) -> None:
    built = {page.relative_to(site).as_posix(): page.read_text("utf-8") for page in site.rglob("*.html")}
    assert {"index.html", "changelog.html", "reference/settings.html", "reference/http.html"} <= set(built)
    assert 'id="scheduling.aging.promote_after_s"' in built["reference/settings.html"]
    assert {address for page in built.values() for address in _LOADED.findall(page)} == set()
    assert "fonts.g" not in "".join(each.read_text("utf-8") for each in site.rglob("*.css"))


async def test_the_search_works_where_the_site_is_opened_from_the_disk(site: Path, browser: Any) -> None:
    from playwright.async_api import expect  # noqa: PLC0415 - only where there is one

    page = await browser.new_page()
    await page.goto((site / "index.html").as_uri())
    await page.get_by_role("textbox", name="Search").fill("residency_factor")
    found = page.locator(".md-search-result__link").first
    await expect(found).to_be_visible(timeout=WITHIN_S * 1000)
    assert (await found.get_attribute("href") or "").startswith("file://")
