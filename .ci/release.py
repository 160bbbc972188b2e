"""Build a release into dist/ and check it: `make release`, or `make release ARGS="--tag v0.2.0"`.

dist/ then has the wheel, the source, SHA256SUMS and NOTES.md, which is this version's part of the
changelog. Nothing is published. Ends with 1 and says why where something does not fit.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MADE = {"PKG-INFO"}
"""What a source distribution has beside the files of the repository."""


class Refused(Exception):
    """This is no release, and why."""


def version() -> str:
    """The one of the program, as it stands in the source."""
    text = (ROOT / "src" / "hearth" / "types.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise Refused("src/hearth/types.py: no line `__version__ = ...`")
    return found[1]


def notes(number: str, *, tagged: bool, address: str) -> str:
    """A version's part of the changelog, without its heading; a tag leaves nothing unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    parts: dict[str, str] = dict(
        re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    )
    if number not in parts:
        raise Refused(f"CHANGELOG.md: no version {number}")
    if tagged and parts.get("Unreleased", "").strip():
        raise Refused(f"CHANGELOG.md: move what is under Unreleased to {number}")
    # shown outside the repository, where its links lead to the pages as they were at the tag
    return parts[number].replace("](docs/", f"]({address}/blob/v{number}/docs/").strip() + "\n"


def check_tag(tag: str, number: str) -> None:
    """Does the tag name this version, and is the checkout what it names?"""
    if tag != f"v{number}":
        raise Refused(f"the tag {tag} is not v{number}, the version of src/hearth/types.py")
    if changed := git("status", "--porcelain"):
        raise Refused(f"the checkout has changes that are not committed: {', '.join(changed)}")


def git(*arguments: str) -> list[str]:
    """The lines that git prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def run(*command: str | Path) -> None:
    """Run a module of this environment, whose packages are locked; only what fails is shown."""
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def only(pattern: str) -> Path:
    """The one file that was built."""
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        raise Refused(f"{len(found)} files {pattern} in {DIST}")
    return found[0]


def check_source(archive: Path) -> None:
    """The source has the files of the repository, and none that only lies in this checkout."""
    with tarfile.open(archive) as source:
        names = {each.name.partition("/")[2] for each in source if each.isfile()}
    expected = {*git("ls-files"), *MADE}
    missing, added = sorted(expected - names), sorted(names - expected)
    if missing or added:
        raise Refused(f"{archive.name}: missing {missing}, too many {added}")


def check_wheel(wheel: Path) -> None:
    """Every file of the package is in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {each.removeprefix("src/") for each in git("ls-files", "src/hearth")}
    if missing := package - names:
        raise Refused(f"{wheel.name}: missing {sorted(missing)}")


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def release(tag: str | None, address: str) -> str:
    """Build and check everything; the lines of SHA256SUMS."""
    number = version()
    if tag is not None:
        check_tag(tag, number)
    text = notes(number, tagged=tag is not None, address=address)
    shutil.rmtree(DIST, ignore_errors=True)
    run("hatchling", "build", "-t", "sdist", "-d", DIST)
    source = only(f"*-{number}.tar.gz")
    check_source(source)
    # from the source alone, as others build it
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    run("pip", "wheel", *offline, "--wheel-dir", DIST, source)
    wheel = only("*.whl")
    check_wheel(wheel)
    sums = "".join(f"{digest(each.read_bytes())}  {each.name}\n" for each in (wheel, source))
    (DIST / "SHA256SUMS").write_text(sums)
    (DIST / "NOTES.md").write_text(text, "utf-8")
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag that is released, such as v0.2.0")
    parser.add_argument("--address", default="", help="the repository's, for links in the notes")
    asked = parser.parse_args()
    try:
        sums = release(asked.tag, asked.address)
    except Refused as refused:
        print(f"no release: {refused}", file=sys.stderr)  # noqa: T201
        return 1
    print(sums, end="")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
