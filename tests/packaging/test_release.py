"""A release: the version stands in one place and what names it agrees, `make release` refuses what
is none, and the upgrade's notes name what `hearth config check` names.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.types import __version__
from tests.support.places import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", ".ci/release.py")
UNRELEASED = re.compile(r"(?<=## Unreleased\n).*?(?=^## )", re.MULTILINE | re.DOTALL)
OLDER = """
backend: {mode: auto}
gpu: {swap_timeout_s: 300}
scheduling: {schedule_drain_minutes: 3, announcements: [{task_type: news, cron: "30 6 * * *"}]}
queue: {max_interrupt_count: 2}
alerts: {ntfy_url: "http://127.0.0.1:9/hearth"}
rate_limits: {default: {requests_per_minute: 50}}
"""
"""Every key whose meaning has changed, as a file of 0.1 may have it."""


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


def test_nothing_stands_twice_in_a_version_of_the_changelog():
    """Git merges lines that two branches have changed by keeping both (.gitattributes)."""
    for version in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        begins = [line[:60] for line in version.splitlines() if line.startswith("- ")]
        assert [each for each, count in Counter(begins).items() if count > 1] == []


def test_the_pages_name_no_other_version_of_hearth_than_this_one():
    shown = re.compile(r"^(?:hearth|ok +processes) +(\d+\.\d+\.\d+)", re.MULTILINE)
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]
    named = {page.name: set(shown.findall(page.read_text("utf-8"))) for page in pages}
    assert {name: versions for name, versions in named.items() if versions - {__version__}} == {}


def test_the_upgrades_notes_name_the_keys_that_config_check_names(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(OLDER)
    checked = CliRunner().invoke(main, ["config", "check", str(tmp_path / "mine.yaml")])
    assert checked.exit_code == 0, checked.output
    warned = set(re.findall(r"^warning: (\S+):", checked.output, re.MULTILINE))
    page = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
    tables = re.findall(r"\*\*Configuration\.\*\*(.*?)\*\*Programs\.\*\*", page, re.DOTALL)
    keys = {key for table in tables for key in re.findall(r"(?m)^\| `([^`]+)`", table)}
    assert keys == warned


def git(*arguments: str, checkout: Path) -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", checkout, *name, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with what is packaged, as if all of it was released."""
    checkout = tmp_path_factory.mktemp("repository")
    for name in NEEDED:
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in ("config", "systemd", "src/hearth"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "CHANGELOG.md").write_text(UNRELEASED.sub("\n", CHANGELOG), "utf-8")
    git("init", "--quiet", checkout=checkout)
    git("add", "--all", checkout=checkout)
    git("commit", "--quiet", "--message", "all", checkout=checkout)
    return checkout


@pytest.fixture
def checkout(committed: Path, tmp_path: Path) -> Path:
    """A clone of it that a test may change."""
    git("clone", "--quiet", str(committed), str(tmp_path / "checkout"), checkout=tmp_path)
    return tmp_path / "checkout"


def release(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / ".ci" / "release.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_release_has_wheel_source_checksums_and_the_notes_of_its_version(checkout: Path):
    done = release(checkout, "--tag", f"v{__version__}", "--address", "https://example.org/hearth")
    assert (done.returncode, done.stderr) == (0, "")
    dist = checkout / "dist"
    names = {f"hearth_gateway-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")}
    assert {each.name for each in dist.iterdir()} == names | {"SHA256SUMS", "NOTES.md"}
    sums = dict(line.split("  ")[::-1] for line in done.stdout.splitlines())
    assert (dist / "SHA256SUMS").read_text() == done.stdout
    assert sums == {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in names}
    notes = (dist / "NOTES.md").read_text("utf-8")
    assert notes.strip() in CHANGELOG.replace(
        "](docs/", f"](https://example.org/hearth/blob/v{__version__}/docs/"
    )
    assert not re.search(r"^## ", notes, re.MULTILINE)


def test_a_tag_of_another_version_is_refused(checkout: Path):
    done = release(checkout, "--tag", "v9.9.9")
    assert done.returncode == 1
    assert f"the tag v9.9.9 is not v{__version__}" in done.stderr


def test_a_tag_whose_checkout_was_changed_is_refused(checkout: Path):
    (checkout / "README.md").write_text("changed")
    done = release(checkout, "--tag", f"v{__version__}")
    assert (done.returncode, "README.md" in done.stderr) == (1, True)


def test_a_tag_with_unreleased_changes_is_refused(checkout: Path):
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text("utf-8").replace("## Unreleased", "## Unreleased\n\n### Added\n\n- x"),
        "utf-8",
    )
    git("commit", "--quiet", "--all", "--message", "x", checkout=checkout)
    done = release(checkout, "--tag", f"v{__version__}")
    assert (done.returncode, "Unreleased" in done.stderr) == (1, True)


def test_a_version_without_notes_is_refused(checkout: Path):
    types = checkout / "src" / "hearth" / "types.py"
    types.write_text(types.read_text("utf-8").replace(f'"{__version__}"', '"9.9.9"'), "utf-8")
    done = release(checkout)
    assert (done.returncode, "CHANGELOG.md: no version 9.9.9" in done.stderr) == (1, True)


def test_a_file_that_only_lies_in_the_checkout_is_not_published(checkout: Path):
    (checkout / "my.key").write_text("secret")
    done = release(checkout)
    assert (done.returncode, "too many ['my.key']" in done.stderr) == (1, True)
