"""`hearth simulate` as scripts see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.config.settings import PolicyName
from tests.simulation.test_measures import TRACE


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    path.write_text(TRACE)
    return path


def test_the_policies_are_compared_in_a_table(trace):
    result = CliRunner().invoke(main, ["simulate", "--trace", str(trace)])
    assert result.exit_code == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in set(PolicyName)] == list(PolicyName)


def test_the_runs_are_written_as_a_list_in_the_order_of_the_policies_asked_for(trace, tmp_path):
    out = tmp_path / "runs.json"
    result = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--policy", "affinity", "--policy", "fifo", "--json", str(out)])
    assert result.exit_code == 0
    assert [run["policy"] for run in json.loads(out.read_text())] == ["affinity", "fifo"]


def test_a_dash_writes_nothing_but_json_to_stdout(trace):
    result = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--json", "-"])
    assert [run["policy"] for run in json.loads(result.stdout)] == [policy.value for policy in PolicyName]


def test_a_bad_trace_is_exit_2_with_file_and_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(TRACE + '{"id": 10}\n')
    result = CliRunner().invoke(main, ["simulate", "--trace", str(path)])
    assert result.exit_code == 2
    assert f"{path}:5: " in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_trace_and_an_unknown_policy_are_exit_2(trace, tmp_path):
    missing = CliRunner().invoke(main, ["simulate", "--trace", str(tmp_path / "none")])
    assert (missing.exit_code, f"{tmp_path / 'none'}: cannot be read" in missing.stderr) == (2, True)
    unknown = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--policy", "luck"])
    assert (unknown.exit_code, "'luck'" in unknown.stderr) == (2, True)


def test_a_bad_configuration_is_exit_2(trace, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("nonsense: 1\n")
    result = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--config", str(config)])
    assert (result.exit_code, "nonsense" in result.stderr) == (2, True)


def test_the_rules_of_a_configuration_apply(trace, tmp_path):
    trace.write_text(
        TRACE.splitlines()[0]
        + """
{"id": 0, "model": "a", "service_s": 1}
{"id": 1, "model": "b", "service_s": 1}
{"id": 2, "model": "a", "service_s": 1}
"""
    )
    config, out = tmp_path / "c.yaml", tmp_path / "runs.json"
    config.write_text("scheduling:\n  max_swap_wait_s: 0\n  residency_factor: 0\n")
    arguments = ["simulate", "--trace", str(trace), "--policy", "affinity", "--json", str(out)]
    swaps = []
    for more in ([], ["--config", str(config)]):
        assert CliRunner().invoke(main, [*arguments, *more]).exit_code == 0
        swaps.append(len(json.loads(out.read_text())[0]["swaps"]))
    assert swaps == [1, 2]


def test_a_place_that_cannot_be_written_is_a_failure_in_words(trace, tmp_path):
    result = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--json", str(tmp_path / "none" / "o.json")])
    assert result.exit_code == 1
    assert "none" in result.stderr
    assert "Traceback" not in result.output
