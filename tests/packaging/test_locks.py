"""The lock files: what they pin installs wherever Hearth says it runs."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
OLDEST = "3.11.0"
"""The first of the Pythons that pyproject.toml admits; Debian 12 has 3.11.2."""


def locked(file: str) -> list[Requirement]:
    return [Requirement(line.rstrip("\\ ")) for line in (ROOT / file).read_text().splitlines() if re.match(r"[a-z]", line)]


def test_the_oldest_python_is_the_one_that_the_project_admits():
    assert f'requires-python = ">={OLDEST.removesuffix(".0")}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-dev.lock"])
def test_every_locked_package_installs_on_the_oldest_python(file):
    here = [package for package in locked(file) if (package.marker or Marker("python_version > '3'")).evaluate()]
    needs = {package.name: ",".join(distribution(package.name).metadata.get_all("Requires-Python", [])) for package in here}
    assert len(needs) > 30
    assert {name: need for name, need in needs.items() if OLDEST not in SpecifierSet(need)} == {}
