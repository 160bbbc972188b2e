"""`hearth simulate` as scripts see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hearth.cli import main
from hearth.config.settings import PolicyName
from tests.simulation.test_measures import TRACE
from tests.support.cases import for_each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "day.jsonl").write_text(TRACE)
    (tmp_path / "bad.jsonl").write_text(TRACE + '{"id": 10}\n')
    (tmp_path / "bad.yaml").write_text("nonsense: 1\n")
    return tmp_path


def simulate(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *(option.replace("DIR", str(folder)) for option in options)])


def test_the_policies_are_compared_in_a_table_or_written_in_the_order_asked_for_and_to_stdout_nothing_else(folder):
    table = simulate(folder, "--trace", "DIR/day.jsonl")
    first_words = [line.split()[0] for line in table.stdout.splitlines() if line.strip()]
    assert (table.exit_code, [word for word in first_words if word in set(PolicyName)]) == (0, list(PolicyName))
    asked = ("--policy", "affinity", "--policy", "fifo", "--json")
    assert simulate(folder, "--trace", "DIR/day.jsonl", *asked, "DIR/runs.json").exit_code == 0
    assert [run["policy"] for run in json.loads((folder / "runs.json").read_text())] == ["affinity", "fifo"]
    runs = json.loads(simulate(folder, "--trace", "DIR/day.jsonl", "--json", "-").stdout)
    assert [run["policy"] for run in runs] == [policy.value for policy in PolicyName]


@for_each(
    ("options", "exit_code", "said"),
    [
        (("--trace", "DIR/bad.jsonl"), 2, "DIR/bad.jsonl:5: "),
        (("--trace", "DIR/none"), 2, "DIR/none: cannot be read"),
        (("--trace", "DIR/day.jsonl", "--policy", "luck"), 2, "'luck'"),
        (("--trace", "DIR/day.jsonl", "--config", "DIR/bad.yaml"), 2, "nonsense"),
        (("--trace", "DIR/day.jsonl", "--json", "DIR/none/o.json"), 1, "none"),
    ],
)
def test_a_failure_has_words_and_a_status_of_its_own(folder, options: tuple[str, ...], exit_code: int, said: str):
    result = simulate(folder, *options)
    assert (result.exit_code, "Traceback" in result.output) == (exit_code, False)
    assert said.replace("DIR", str(folder)) in result.stderr


def test_the_rules_of_a_configuration_apply(folder):
    requests = [{"id": number, "model": model, "service_s": 1} for number, model in enumerate("aba")]
    (folder / "day.jsonl").write_text("\n".join([TRACE.splitlines()[0], *map(json.dumps, requests)]))
    (folder / "c.yaml").write_text("scheduling:\n  max_swap_wait_s: 0\n  residency_factor: 0\n")
    swaps = []
    for more in ((), ("--config", "DIR/c.yaml")):
        result = simulate(folder, "--trace", "DIR/day.jsonl", "--policy", "affinity", "--json", "-", *more)
        swaps.append(len(json.loads(result.stdout)[0]["swaps"]))
    assert swaps == [1, 2]
