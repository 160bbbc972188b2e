"""The workflows and forms in `.github`: they parse, call what is there, and may no more than they
need.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.places import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = {
    path.stem: yaml.load(path.read_text("utf-8"), yaml.BaseLoader)  # else `on` is true
    for path in sorted((GITHUB / "workflows").glob("*.yml"))
}
JOBS = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"].values()]
STEPS = [step for _, job in JOBS for step in job.get("steps", [])]
FORMS = sorted(each for each in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if each.stem != "config")


def test_every_action_has_a_version_and_every_workflow_that_is_called_exists():
    used = [step["uses"] for step in STEPS if "uses" in step]
    used += [job["uses"] for _, job in JOBS if "uses" in job]
    ours = [each for each in used if each.startswith("./")]
    assert ours
    assert all((ROOT / each).is_file() for each in ours)
    others = [each for each in used if each not in ours]
    assert [each for each in others if not re.search(r"@(v\d[\d.]*|[0-9a-f]{40})$", each)] == []


def test_commands_of_ours_that_workflows_run_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert ".ci/run" in scripts
    called = {word for script in scripts for word in re.findall(r"(?m)^make ([a-z]+)", script)}
    assert "release" in called
    assert called <= targets


def test_no_workflow_may_write_but_the_jobs_that_publish():
    assert all(flow["permissions"] == {"contents": "read"} for flow in WORKFLOWS.values())
    writing = {
        f"{name}: {permission}"
        for name, job in JOBS
        for permission, access in job.get("permissions", {}).items()
        if access == "write"
    }
    publishing = ("contents", "packages", "attestations", "id-token")
    assert writing == {f"release: {permission}" for permission in publishing}


def test_nothing_that_a_stranger_writes_is_part_of_a_command():
    """A title or a branch in `${{ }}` would be run as a command."""
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_every_job_that_is_needed_is_there_and_publishing_waits_for_the_checks():
    for flow in WORKFLOWS.values():
        for job in flow["jobs"].values():
            needed = job.get("needs", [])
            names = [needed] if isinstance(needed, str) else needed
            assert set(names) <= set(flow["jobs"])
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["image"]["needs"] == "ci"
    assert "ci" in jobs["publish"]["needs"]
    assert jobs["ci"]["uses"].endswith("ci.yml")


def test_the_checks_run_on_the_pythons_that_the_project_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [
        version[1]
        for each in project["classifiers"]
        if (version := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
    ]
    job = WORKFLOWS["ci"]["jobs"]["check"]
    assert job["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_has_what_github_wants_and_leads_to_pages_that_exist(form: Any):
    text = form.read_text("utf-8")
    asked = yaml.safe_load(text)
    assert {"name", "description", "body"} <= set(asked)
    ids = [each["id"] for each in asked["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(each["attributes"].get("label") for each in asked["body"] if "id" in each)
    pages = re.findall(r"blob/main/([^)\s]+)", text)
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_the_bug_form_asks_for_what_doctor_says():
    asked = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8"))
    (doctor,) = [each for each in asked["body"] if each.get("id") == "doctor"]
    assert "`hearth doctor`" in doctor["attributes"]["label"]
    assert doctor["validations"]["required"] is True


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/releases.md", "docs/upgrading.md"])
def test_what_contributors_are_told_to_run_exists(page: str):
    text = (ROOT / page).read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`| )make ([a-z]+)(?=[ `]|$)", text, re.MULTILINE)) <= targets
    assert [
        each for each in re.findall(r"\btests/[\w/.]+\w", text) if not (ROOT / each).exists()
    ] == []
