"""What is written about a request of a batch: OpenAI's output and error lines. Pure.

A whole answer of the model server with a good status goes into the output file; everything else goes into the error file, an answer with a
bad status as `response`, what never had an answer as `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from hearth.batch_types import BatchLine, BatchStatus, EndedLine, LineOutcome, Tokens
from hearth.job_types import JobEnd, JobState

_UNDONE: Mapping[BatchStatus, tuple[str, str]] = MappingProxyType(
    {
        BatchStatus.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
        BatchStatus.CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    }
)
_CANCELLED_ALONE = ("request_cancelled", "This request was cancelled.")
_LOST = ("result_lost", "This request was executed, and its answer was deleted before it could be written here.")


def outcome_of(ended: EndedLine) -> LineOutcome:
    """What is written about a line whose job has ended."""
    end = ended.end
    if end is None:
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, _LOST)
    if end.state is JobState.CANCELLED:
        undone = _CANCELLED_ALONE if ended.ending is None else _UNDONE.get(ended.ending, _CANCELLED_ALONE)
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, undone)
    body = _document(end)
    if body is None:
        why = (end.reason or "invalid_response", end.error or "The answer of the model server is not JSON.")
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, why)
    completed = end.state is JobState.COMPLETED
    tokens = _tokens(body) if completed else Tokens()
    return LineOutcome(line=ended.line, job=ended.job, completed=completed, text=_with_answer(ended, end), tokens=tokens)


def undone(line: BatchLine, ending: BatchStatus, request_id: str) -> LineOutcome:
    """What is written about a line that never became a job, because its batch ends as `ending`."""
    return _without_answer(line.line, None, request_id, line.custom_id, _UNDONE[ending])


def _document(end: JobEnd) -> object | None:
    if not end.result or "json" not in end.content_type:
        return None
    try:
        document: object = json.loads(end.result.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return document


def _with_answer(ended: EndedLine, end: JobEnd) -> bytes:
    """The answer stands in the line as the model server wrote it; line breaks can only be between its values."""
    answer = b" ".join((end.result or b"").splitlines())
    names = f'{{"id": {json.dumps(ended.job_id)}, "custom_id": {json.dumps(ended.custom_id)}, '
    head = f'"response": {{"status_code": {end.status}, "request_id": {json.dumps(ended.job_id)}, "body": '
    return (names + head).encode() + answer.strip() + b'}, "error": null}\n'


def _without_answer(line: int, job: int | None, request_id: str, custom_id: str, why: tuple[str, str]) -> LineOutcome:
    error = {"code": why[0], "message": why[1]}
    text = json.dumps({"id": request_id, "custom_id": custom_id, "response": None, "error": error}) + "\n"
    return LineOutcome(line=line, job=job, completed=False, text=text.encode())


def _tokens(body: object) -> Tokens:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return Tokens()
    return Tokens(
        prompt=_count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        output=_count(usage, "completion_tokens") or _count(usage, "output_tokens"),
    )


def _count(usage: Mapping[str, object], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else 0
