"""Every link of the documentation as a reader of the repository follows it, without `make docs`."""

from __future__ import annotations

import re

import pytest

from tests.support.places import ROOT

PAGES = sorted(
    page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str):
    folder = (ROOT / page).parent
    links = LINK.findall((ROOT / page).read_text("utf-8"))
    assert [link for link in links if not (folder / link).exists()] == []
