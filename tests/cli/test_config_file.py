"""Where the configuration comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.cli.config import find_config


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """All four places, each with a file."""
    found = {
        "explicit": tmp_path / "mine.yaml",
        "named": tmp_path / "named.yaml",
        "project": tmp_path / "project" / "config" / "llm_gateway.yaml",
        "user": tmp_path / "xdg" / "hearth" / "llm_gateway.yaml",
    }
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return found


def environ(places: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    return {"HEARTH_CONFIG": str(places["named"]), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}


def test_the_named_file_beats_the_variable_beats_the_project_beats_the_user(places, tmp_path):
    env, project = environ(places, tmp_path), tmp_path / "project"
    assert find_config(places["explicit"], environ=env, directory=project).path == places["explicit"]
    assert find_config(None, environ=env, directory=project).path == places["named"]
    del env["HEARTH_CONFIG"]
    assert find_config(None, environ=env, directory=project).path == places["project"]
    assert find_config(None, environ=env, directory=tmp_path).path == places["user"]


def test_without_any_file_the_defaults_are_used_and_said(tmp_path):
    found = find_config(None, environ={"HOME": str(tmp_path)}, directory=tmp_path)
    assert found.path is None
    assert "defaults" in found.why


def test_a_file_that_was_named_is_taken_even_if_it_does_not_exist(places, tmp_path):
    missing = tmp_path / "missing.yaml"
    assert find_config(missing, environ={}, directory=tmp_path).path == missing
    assert find_config(None, environ={"HEARTH_CONFIG": str(missing)}, directory=tmp_path / "project").path == missing


def test_the_variable_is_named_as_the_reason(places, tmp_path):
    assert "HEARTH_CONFIG" in find_config(None, environ=environ(places, tmp_path), directory=tmp_path).why


def test_an_empty_variable_counts_as_unset(places, tmp_path):
    found = find_config(None, environ={"HEARTH_CONFIG": "", "HOME": str(tmp_path)}, directory=tmp_path / "project")
    assert found.path == places["project"]


def test_without_a_valid_xdg_directory_the_users_is_under_home(tmp_path):
    under_home = tmp_path / ".config" / "hearth" / "llm_gateway.yaml"
    under_home.parent.mkdir(parents=True)
    under_home.write_text("{}\n")
    for value in ("", "relative/path"):
        found = find_config(None, environ={"XDG_CONFIG_HOME": value, "HOME": str(tmp_path)}, directory=tmp_path / "elsewhere")
        assert found.path == under_home


def test_a_directory_of_that_name_is_not_a_file(tmp_path):
    (tmp_path / "config" / "llm_gateway.yaml").mkdir(parents=True)
    assert find_config(None, environ={"HOME": str(tmp_path)}, directory=tmp_path).path is None
