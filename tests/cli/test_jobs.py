from __future__ import annotations

import json

import pytest

from hearth.cli import CommandFailed
from hearth.cli.client import GatewayClient
from hearth.cli.jobs import answer_text, ended

REQUEST = {"model": "llama3.1:8b", "prompt": "why?", "options": {"num_predict": 3}}


@pytest.fixture
def job_id(hearth, url) -> str:
    """A job that was submitted and has completed."""
    submitted = hearth(
        "jobs", "submit", "--task-type", "letter", "--wait", "--url", url, input=json.dumps(REQUEST)
    )
    assert submitted.exit_code == 0, submitted.output
    found, _, _ = submitted.stdout.partition(":")
    assert submitted.stdout.splitlines()[1] == f"{found}: completed"
    return str(found)


def test_a_job_that_has_completed_is_shown_with_its_result(hearth, url, job_id):
    assert hearth("jobs", "wait", job_id, "--url", url).stdout == f"{job_id}: completed\n"
    shown = hearth("jobs", "show", job_id, "--url", url).stdout
    assert all(words in shown for words in (job_id, "completed", "letter", "attempts"))
    text = hearth("jobs", "show", job_id, "--result", "--url", url).stdout
    whole = json.loads(hearth("jobs", "show", job_id, "--json", "--url", url).stdout)
    assert text.strip() == whole["result"]["response"].strip()


def test_jobs_are_listed_by_their_state(hearth, url, job_id):
    assert job_id in hearth("jobs", "list", "--state", "completed", "--url", url).stdout
    assert hearth("jobs", "list", "--unended", "--url", url).stdout == "no jobs match\n"


def test_an_unknown_job_keeps_none_of_the_others_from_being_cancelled(hearth, busy):
    busy.put("/llm/jobs/none", {"error": "there is no such job"}, 404)
    busy.put("/llm/jobs/there", {"state": "cancelled", "cancelled": True})
    result = hearth("jobs", "cancel", "none", "there", "--url", busy.url)
    assert (result.exit_code, result.stdout) == (
        1,
        "none: there is no such job\nthere: cancelled\n",
    )


def test_a_completed_job_is_not_cancelled_but_forgotten(hearth, url, job_id):
    assert hearth("jobs", "cancel", job_id, "--url", url).exit_code == 1
    forgotten = hearth("jobs", "cancel", job_id, "--forget", "--url", url)
    assert (forgotten.exit_code, forgotten.stdout) == (0, f"{job_id}: completed, forgotten\n")
    assert hearth("jobs", "show", job_id, "--url", url).exit_code == 1


def test_a_file_may_hold_many_jobs_and_sending_it_once_makes_none_twice(hearth, url, tmp_path):
    later = {"request": REQUEST, "not_before": "2100-01-01T00:00:00Z"}
    (tmp_path / "jobs.jsonl").write_text(f"{json.dumps(later)}\n\n{json.dumps(later)}\n")
    first, again = (
        hearth("jobs", "submit", "jobs.jsonl", "--once", "--url", url).stdout.splitlines()
        for _ in range(2)
    )
    ids = [line.partition(":")[0] for line in first]
    assert len(set(ids)) == 2
    assert [line.partition(":")[0] for line in again if "known already" in line] == ids
    late = hearth("jobs", "wait", ids[0], "--timeout", "0", "--url", url)
    assert (late.exit_code, "has not ended after 0 s" in late.stderr) == (1, True)
    cancelled = hearth("jobs", "cancel", *ids, "--url", url)
    assert (cancelled.exit_code, cancelled.stdout) == (
        0,
        "".join(f"{each}: cancelled\n" for each in ids),
    )
    waited = hearth("jobs", "wait", *ids, "--url", url)
    assert (waited.exit_code, waited.stdout.count(": cancelled")) == (1, 2)
    missing = hearth("jobs", "show", ids[0], "--result", "--url", url)
    assert (missing.exit_code, "has no result (cancelled)" in missing.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        (
            "why?",
            ["-m", "m", "--off-peak"],
            [{"request": {"model": "m", "prompt": "why?"}, "window": "offpeak"}],
        ),
        (
            '{"request": {"model": "m"}}',
            ["--priority", "normal"],
            [{"request": {"model": "m"}, "priority": "normal"}],
        ),
        (
            '[{"model": "a"}, {"model": "b"}]',
            [],
            [{"request": {"model": "a"}}, {"request": {"model": "b"}}],
        ),
        ("why?", [], "line 1 is not JSON"),
        ('{}\n{"a"', [], "line 2 is not JSON"),
        ("[1]", [], "JSON objects"),
        ("[]", [], "JSON objects"),
        (" ", [], "empty"),
    ],
)
def test_a_file_is_sent_as_it_says_and_one_without_jobs_is_refused(
    hearth, busy, text, options, found
):
    busy.bodies.clear()
    busy.put("/llm/jobs", {"id": "job_1", "state": "queued", "new": True, "position": 3}, 202)
    result = hearth("jobs", "submit", *options, "--url", busy.url, input=text)
    sent = found if isinstance(found, list) else []
    assert (result.exit_code, busy.bodies, result.stdout) == (
        0 if sent else 2,
        sent,
        "job_1: queued, position 3\n" * len(sent),
    )
    assert sent or found in result.stderr
    busy.put("/llm/jobs", {"error": "the queue is full"}, 503)
    refused = hearth("jobs", "submit", *options, "--url", busy.url, input=text).stderr
    assert (
        not sent
        or refused
        == f"Error: job 1 of {len(sent)} was refused, 0 were accepted: the queue is full\n"
    )


def test_waiting_asks_again_until_the_job_has_ended(busy):
    busy.put("/llm/jobs/job_1", {"state": "running"})
    after = iter([{"state": "running"}, {"state": "failed", "reason": "swap_failed"}])
    client = GatewayClient(busy.url)
    found = list(
        ended(client, ("job_1",), None, lambda _: busy.put("/llm/jobs/job_1", next(after)))
    )
    assert found == [("job_1", {"state": "failed", "reason": "swap_failed"})]
    busy.put("/llm/jobs/job_1", {"state": "queued"})
    with pytest.raises(CommandFailed, match="is queued"):
        list(ended(client, ("job_1",), 0.0, lambda _: None))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain", "plain"),
        ({"response": "a"}, "a"),
        ({"message": {"content": "b"}}, "b"),
        ({"choices": [{"message": {"content": "c"}}]}, "c"),
        ({"choices": [{"text": "d"}]}, "d"),
        ({"content": [{"type": "text", "text": "e"}, {"type": "text", "text": "f"}]}, "ef"),
        ({"embeddings": [[1]]}, '{\n  "embeddings": [\n    [\n      1\n    ]\n  ]\n}'),
    ],
)
def test_the_text_of_an_answer_is_found_in_every_dialect(result, text):
    assert answer_text(result) == text
