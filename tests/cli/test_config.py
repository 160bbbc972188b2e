"""`hearth config`: the file as the gateway would read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

GOOD = """\
queue: {max_external_depth: 7}
priority_map: {parse_task: critical, generate_nudge: background}
models: {"llama3.1:8b": {parallel: 2}}
"""
BAD = "queue: {max_external_depth: many}\ngpu: {swap_timout_s: 5}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    return path


def test_a_usable_file_is_ok_with_counts(hearth, file):
    result = hearth("config", "check", str(file))
    assert result.exit_code == 0, result.output
    assert f"{file}: ok" in result.stdout
    assert "models: 1" in result.stdout
    assert "task types: 2" in result.stdout


def test_every_problem_is_listed_on_stderr_with_file_and_line_and_ends_with_2(hearth, file):
    file.write_text(BAD)
    result = hearth("config", "check", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mine.yaml:1: queue.max_external_depth" in result.stderr
    assert "mine.yaml:2: gpu.swap_timout_s" in result.stderr


def test_a_missing_file_ends_with_2(hearth, tmp_path):
    result = hearth("config", "check", str(tmp_path / "missing.yaml"))
    assert result.exit_code == 2
    assert "missing.yaml: cannot be read" in result.stderr


def test_without_any_file_the_defaults_are_ok_and_said(hearth):
    result = hearth("config", "check")
    assert result.exit_code == 0
    assert "defaults" in result.stdout


def test_the_file_that_serve_would_use_is_found_by_the_variable(hearth, file):
    assert f"{file} (from HEARTH_CONFIG)" in hearth("config", "check", HEARTH_CONFIG=str(file)).stdout


def test_show_prints_the_effective_settings_as_yaml(hearth, file):
    shown = yaml.safe_load(hearth("config", "show", str(file)).stdout)
    assert shown["queue"]["max_external_depth"] == 7
    assert shown["queue"]["max_interrupt_count"] == 3


def test_show_never_prints_a_key_or_its_whole_digest(hearth, file):
    digest = "ab" * 32
    file.write_text(f'auth: {{keys: [{{name: a, sha256: "{digest}"}}, {{name: b, key: "${{SECRET}}"}}]}}\n')
    result = hearth("config", "show", str(file), SECRET="hearth_clear_as_day")
    assert result.exit_code == 0, result.stderr
    assert digest not in result.output
    assert "hearth_clear" not in result.output


def test_the_schema_is_json(hearth):
    assert "$defs" in json.loads(hearth("config", "schema").stdout)


def test_the_snippet_of_a_new_key_is_a_usable_configuration(hearth, file):
    made = hearth("admin", "key", "new", "open-webui", "--admin").stdout
    file.write_text(made[made.index("auth:") :])
    result = hearth("config", "check", str(file))
    assert result.exit_code == 0, result.stderr
    assert "keys: 1" in result.stdout
