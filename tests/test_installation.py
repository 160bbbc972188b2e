"""How a package is added, for each way in which Hearth is installed."""

from __future__ import annotations

import pytest

from hearth.installation import how_to_install, packages_of_extra

WANTED = ("matplotlib<4,>=3.11",)
PYTHON = "/home/me/my hearth/.venv/bin/python"


@pytest.mark.parametrize(
    ("made_by", "has_pip", "says"),
    [
        ("venv", True, f"run `'{PYTHON}' -m pip install --no-deps 'matplotlib<4,>=3.11'`"),
        ("uv", False, f"run `uv pip install --python '{PYTHON}' --no-deps 'matplotlib<4,>=3.11'`"),
        ("pipx", False, "run `pipx runpip hearth-gateway install --no-deps 'matplotlib<4,>=3.11'`"),
        ("pipx", True, "run `pipx runpip hearth-gateway install --no-deps 'matplotlib<4,>=3.11'`"),
    ],
)
def test_the_tool_that_made_the_environment_adds_a_package_to_it(tmp_path, made_by, has_pip, says):
    prefix = tmp_path / "hearth-gateway"
    prefix.mkdir()
    if made_by == "pipx":
        (prefix / "pipx_metadata.json").write_text("{}")
    told = how_to_install(WANTED, "--no-deps", prefix=prefix, python=PYTHON, has_pip=has_pip)
    assert told == says


def test_pipx_keeps_what_is_added_with_all_that_it_requires(tmp_path):
    (tmp_path / "pipx_metadata.json").write_text("{}")
    told = how_to_install(WANTED, prefix=tmp_path, python=PYTHON, has_pip=False)
    assert told == f"run `pipx inject {tmp_path.name} 'matplotlib<4,>=3.11'`"


def test_one_that_only_root_can_write_to_needs_root(tmp_path):
    told = how_to_install(
        WANTED, prefix=tmp_path / "none", python="/opt/hearth/bin/python", has_pip=True
    )
    assert told == "as root, run `/opt/hearth/bin/python -m pip install 'matplotlib<4,>=3.11'`"


def test_an_extra_names_what_it_requires():
    assert packages_of_extra("plots") == WANTED
    assert [each.partition("<")[0] for each in packages_of_extra("otel")] == [
        "opentelemetry-exporter-otlp-proto-http",
        "opentelemetry-sdk",
    ]
    assert packages_of_extra("none") == ()
