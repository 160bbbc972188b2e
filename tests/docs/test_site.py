"""The site as `make docs` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_commands import ROOT

LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)")


def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {page.relative_to(tmp_path).as_posix(): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    assert {"index.html", "changelog.html", "reference/settings.html", "reference/http.html"} <= set(built)
    assert 'id="scheduling.aging.promote_after_s"' in built["reference/settings.html"]
    assert {address for page in built.values() for address in LOADED.findall(page)} == set()
    assert (tmp_path / "search" / "search_index.js").is_file(), "the search works where the site is opened from the disk"
    assert "fonts.g" not in "".join(each.read_text("utf-8") for each in tmp_path.rglob("*.css"))
