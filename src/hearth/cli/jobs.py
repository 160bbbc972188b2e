"""`hearth jobs`: durable jobs of a running gateway, over `/llm/jobs`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import click

from hearth.cli import CommandFailed, ExitCode
from hearth.cli.client import (
    AS_ANSWERED,
    GatewayClient,
    Json,
    complete_callers,
    complete_models,
    draw,
    flag,
    gateway_options,
    json_option,
    part,
    parts,
    read_text,
    text,
)
from hearth.cli.options import LIMIT, PRIORITY, TEXT_FILE
from hearth.clock import SystemClock
from hearth.job_types import JobState
from hearth.types import JsonDict, without_none

_JOBS = "/llm/jobs"
_EVERY_S = 1.0
_IDS = click.argument("job_ids", nargs=-1, required=True, metavar="JOB...")


def _path(job_id: str, **query: str) -> str:
    return f"{_JOBS}/{quote(job_id, safe='')}" + (f"?{urlencode(query)}" if query else "")


@click.group
def jobs() -> None:
    """List, show, cancel, wait for and submit durable jobs."""


@jobs.command("list")
@gateway_options
@click.option(
    "--state",
    type=click.Choice([state.value for state in JobState]),
    help="Only jobs in this state.",
)
@click.option("--unended", is_flag=True, help="Only jobs that wait or run.")
@click.option(
    "--caller",
    metavar="NAME",
    shell_complete=complete_callers,
    help="Only jobs of this caller; other callers require an admin key.",
)
@click.option("--task-type", metavar="TYPE", help="Only jobs of this type.")
@LIMIT
@AS_ANSWERED
def list_jobs(
    client: GatewayClient, *, as_json: bool, unended: bool, **wanted: str | int | None
) -> None:
    """List jobs, the latest first."""
    asked = without_none(wanted)
    if unended:
        asked["unended"] = "true"
    draw("jobs", client.fetch(f"{_JOBS}?{urlencode(asked)}"), as_json=as_json)


@jobs.command
@gateway_options
@click.argument("job_id", metavar="JOB")
@click.option(
    "--result",
    "only_result",
    is_flag=True,
    help="Print only the text of the answer; ends with 1 if there is none.",
)
@AS_ANSWERED
def show(client: GatewayClient, job_id: str, *, only_result: bool, as_json: bool) -> None:
    """Show one job and its answer."""
    answer = client.fetch(_path(job_id))
    if as_json or not only_result:
        draw("job", answer, as_json=as_json)
    if as_json:
        return
    if "result" in answer:
        click.echo(answer_text(answer["result"]))
    elif only_result:
        raise CommandFailed(f"{job_id} has no result ({text(answer, 'state')})")


def answer_text(result: object) -> str:
    """The text in an answer of any of the APIs; the whole answer as JSON where that is not one
    text.
    """
    if isinstance(result, str):
        return result
    answer: Json = result if isinstance(result, dict) else {}
    choice = next(iter(parts(answer, "choices")), {})
    blocks = "".join(str(each.get("text", "")) for each in parts(answer, "content"))
    candidates = (
        answer.get("response"),
        part(answer, "message").get("content"),
        part(choice, "message").get("content"),
        choice.get("text"),
    )
    found = next((each for each in candidates if isinstance(each, str)), blocks)
    return found or json.dumps(result, indent=2, ensure_ascii=False)


@jobs.command
@gateway_options
@_IDS
@click.option("--forget", is_flag=True, help="Also delete the job and its result.")
@json_option("Print the gateway's answers, one per line.")
@click.pass_context
def cancel(
    context: click.Context,
    client: GatewayClient,
    job_ids: tuple[str, ...],
    *,
    forget: bool,
    as_json: bool,
) -> None:
    """Cancel jobs; ends with 1 if one was not cancelled."""
    query = {"forget": "true"} if forget else {}
    done = True
    for job_id in job_ids:
        answer = _cancelled(client, job_id, query)
        gone = forget and flag(answer, "forgotten")
        done &= gone or flag(answer, "cancelled")
        what = text(answer, "error") or text(answer, "state")
        words = f"{job_id}: {what}{', forgotten' if gone else ''}"
        click.echo(json.dumps(answer) if as_json else words)
    if not done:
        context.exit(ExitCode.FAILED)


def _cancelled(client: GatewayClient, job_id: str, query: Mapping[str, str]) -> JsonDict:
    """What the gateway answers; with `error` where it refuses.

    The others are tried all the same.
    """
    try:
        return client.ask("DELETE", _path(job_id, **query))
    except CommandFailed as refused:
        return {"id": job_id, "cancelled": False, "error": refused.message}


@jobs.command
@gateway_options
@_IDS
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Give up after this many seconds.",
)
@json_option("Print the jobs with their results, a line each.")
@click.pass_context
def wait(
    context: click.Context,
    client: GatewayClient,
    job_ids: tuple[str, ...],
    timeout_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Wait until jobs have ended; ends with 1 if one did not complete."""
    context.exit(_await(client, job_ids, timeout_s, as_json=as_json))


def _await(
    client: GatewayClient, job_ids: tuple[str, ...], timeout_s: float | None, *, as_json: bool
) -> ExitCode:
    completed = True
    for job_id, job in ended(client, job_ids, timeout_s):
        state = text(job, "state")
        reason = text(job, "reason")
        completed &= state == JobState.COMPLETED
        words = f"{job_id}: {state}{f' ({reason})' if reason else ''}"
        click.echo(json.dumps(job) if as_json else words)
    return ExitCode.OK if completed else ExitCode.FAILED


def ended(
    client: GatewayClient,
    job_ids: tuple[str, ...],
    timeout_s: float | None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[str, Json]]:
    """Each job once it has ended, in the order asked for.

    Raises CommandFailed where that takes longer than `timeout_s`.
    """
    clock = SystemClock()
    until = None if timeout_s is None else clock.monotonic() + timeout_s
    for job_id in job_ids:
        job = client.fetch(_path(job_id))
        while (state := text(job, "state")) in (JobState.QUEUED, JobState.RUNNING):
            if until is not None and clock.monotonic() >= until:
                raise CommandFailed(f"{job_id} has not ended after {timeout_s:g} s: it is {state}")
            pause(_EVERY_S)
            job = client.fetch(_path(job_id))
        yield job_id, job


@jobs.command
@gateway_options
@click.argument("file", type=TEXT_FILE, default="-", metavar="[FILE]")
@click.option(
    "--model",
    "-m",
    metavar="MODEL",
    shell_complete=complete_models,
    help="FILE is a prompt for this model, not JSON.",
)
@click.option(
    "--task-type",
    metavar="TYPE",
    help="Jobs of one type start in the order in which they were accepted.",
)
@click.option(
    "--priority",
    type=PRIORITY,
    help="For keys of lane internal.",
)
@click.option("--off-peak", is_flag=True, help="Run outside scheduling.active_hours only.")
@click.option(
    "--once",
    is_flag=True,
    help="Send an Idempotency-Key made of the file: sending it again makes no second job.",
)
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until all have ended, as `hearth jobs wait` does."
)
@json_option("Print the gateway's answers, one per line.")
@click.pass_context
def submit(
    context: click.Context,
    client: GatewayClient,
    file: Path,
    model: str | None,
    task_type: str | None,
    priority: str | None,
    *,
    off_peak: bool,
    once: bool,
    waits: bool,
    as_json: bool,
) -> None:
    """Submit jobs from FILE: one JSON object, or one per line.

    An object is what POST /llm/jobs takes, or only its request. Without FILE, or with -, reads
    stdin.
    """
    content = read_text(file)
    named = {
        "task_type": task_type,
        "priority": priority,
        "window": "offpeak" if off_peak else None,
    }
    extra = without_none(named)
    bodies = _bodies(content, model)
    digest = hashlib.sha256(content.encode()).hexdigest()
    accepted: list[str] = []
    for number, body in enumerate(bodies, start=1):
        headers = {"Idempotency-Key": f"{digest}-{number}"} if once else {}
        try:
            answer = client.ask("POST", _JOBS, {**body, **extra}, headers=headers)
        except CommandFailed as refused:
            raise CommandFailed(
                f"job {number} of {len(bodies)} was refused, {number - 1} were accepted:"
                f" {refused.message}"
            ) from refused
        accepted.append(text(answer, "id"))
        click.echo(json.dumps(answer) if as_json else _accepted(answer))
    if waits:
        context.exit(_await(client, tuple(accepted), None, as_json=as_json))


def _accepted(answer: Json) -> str:
    words = f"{text(answer, 'id')}: {text(answer, 'state')}"
    if position := text(answer, "position"):
        words += f", position {position}"
    return words if flag(answer, "new") else f"{words} (known already)"


def _bodies(content: str, model: str | None) -> list[JsonDict]:
    """The jobs in a text, which is a prompt where a model is named. Raises UsageError."""
    if model:
        return [{"request": {"model": model, "prompt": content}}]
    found: list[object] = []
    try:
        whole = json.loads(content)
        found = whole if isinstance(whole, list) else [whole]
    except ValueError:
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                found += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise click.UsageError(
                    f"line {number} is not JSON: {error}; for a prompt, name a model with --model"
                ) from error
    jobs = [each for each in found if isinstance(each, dict)]
    if len(jobs) < len(found) or not found:
        raise click.UsageError("write JSON objects, one per line")
    return [each if isinstance(each.get("request"), dict) else {"request": each} for each in jobs]
