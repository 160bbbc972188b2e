"""The version stands in one place, and what names it elsewhere agrees."""

from __future__ import annotations

import re
from datetime import date

from hearth.types import __version__
from tests.support.places import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_changelog_has_unreleased_on_top_and_then_this_version():
    unreleased, *versions = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert unreleased == "Unreleased"
    assert versions[0].split(" - ")[0] == __version__
    numbers = [tuple(map(int, version.split(" - ")[0].split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)
    days = [date.fromisoformat(version.split(" - ")[1]) for version in versions]
    assert days == sorted(days, reverse=True)


def test_each_version_of_the_changelog_has_the_usual_sections_in_order():
    for version in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert sections == [name for name in SECTIONS if name in sections], version.split("\n")[0]


def test_the_pages_name_no_other_version_of_hearth_than_this_one():
    named = {
        f"{page.relative_to(ROOT)}: {version}"
        for page in (ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md"))
        for version in re.findall(
            r"^hearth (\d+\.\d+\.\d+)|^ok +processes +(\d+\.\d+\.\d+)",
            page.read_text("utf-8"),
            re.MULTILINE,
        )
        for version in version
        if version not in {"", __version__}
    }
    assert named == set()
