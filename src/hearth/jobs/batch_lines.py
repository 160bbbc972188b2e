"""The lines of a batch: what each must be, the job that it becomes, and what is written of it in
the end.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal, cast

from hearth.admission.auth import may_use
from hearth.clock import new_id
from hearth.config.settings import Settings
from hearth.dialects.gojson import (
    LARGE_BYTES,
    GoJsonError,
    JsonObject,
    JsonValue,
    check_structure,
    decode,
    folded,
)
from hearth.dialects.routes import Endpoint
from hearth.errors import BackendUnreachable, BadRequest, HearthError, ModelNotFound
from hearth.execution.aliases import CheckRequest
from hearth.job_types import (
    Batch,
    BatchEnd,
    BatchLine,
    EndedLine,
    Job,
    JobEnd,
    JobState,
    LineOutcome,
    LineProblem,
)
from hearth.jobs import message_batches
from hearth.jobs.queue import body_of, envelope_of
from hearth.ports import BatchStore, FileStore
from hearth.types import BATCH_JOB_PREFIX, MIB, JsonMapping, frozen

ENDPOINTS = (
    Endpoint.OPENAI_CHAT.value,
    Endpoint.OPENAI_COMPLETIONS.value,
    Endpoint.OPENAI_EMBEDDINGS.value,
    Endpoint.OPENAI_RESPONSES.value,
)
"""What batches may ask for."""
MAX_CUSTOM_ID_CHARS = 512
_CUSTOM_ID = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ufffd]{{1,{MAX_CUSTOM_ID_CHARS}}}")
"""Any text. U+FFFD stands for half a character, which the output file could not name either."""


@frozen
class RawLine:
    """A line of a file; `text` is None where it is longer than any request may be.

    `start` and `length` in bytes, without its end.
    """

    line: int
    start: int
    length: int
    text: bytes | None


class Splitter:
    """Cuts a file into lines as it comes, without those that say nothing; lines are counted from 1,
    those too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._line = 1
        self._start = 0
        self._length = 0

    def feed(self, data: bytes) -> Iterator[RawLine]:
        """The lines that end in the next bytes of the file."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._grow(piece)
            yield from self.end()
        self._grow(rest)

    def _grow(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length <= self._limit_bytes:
            self._kept += piece

    def end(self) -> Iterator[RawLine]:
        text = bytes(self._kept) if self._length <= self._limit_bytes else None
        if text is None or text.removeprefix(BOM_UTF8).strip():
            yield RawLine(line=self._line, start=self._start, length=self._length, text=text)
        self._line += 1
        self._start += self._length + 1
        self._length = 0
        self._kept.clear()


def check_line(
    raw: RawLine, batch: Batch, canonical: Callable[[str], str], check_request: CheckRequest
) -> BatchLine | LineProblem:
    """The request in a line, its model as it is written there; or the first thing that is wrong
    with it.
    """
    try:
        value = _value_of(raw.text)
        _check_envelope(value, batch.endpoint)
        fields = cast("JsonObject", value["body"])
        body = body_of(batch.endpoint, fields, large=raw.length > LARGE_BYTES)
        model = envelope_of(batch.endpoint, body).model
        if not may_use(batch.models, model, canonical):
            return _problem(
                "model_not_allowed",
                "The key that sent this batch may not use this model.",
                raw.line,
                "body.model",
            )
        check_request(batch.endpoint, folded(fields), model)
    except _Wrong as wrong:
        code, message, param = wrong.args
        return _problem(code, message, raw.line, param)
    except ModelNotFound as error:
        return _problem("model_not_found", error.message, raw.line, "body.model")
    except HearthError as error:
        return _problem("invalid_request", error.message, raw.line, "body")
    return BatchLine(
        line=raw.line,
        custom_id=str(value["custom_id"]),
        model=model,
        start=raw.start,
        length=raw.length,
    )


def _refused(raw: RawLine, problem: LineProblem) -> BatchLine:
    """A line of a batch of messages that fails alone."""
    return BatchLine(
        line=raw.line,
        custom_id=message_batches.custom_id_in(raw.text or b""),
        model="",
        start=raw.start,
        length=raw.length,
        problem=problem,
    )


class _Wrong(Exception):
    """A line that cannot be run: code, message, and the parameter that is at fault, None for the
    whole line.
    """


def _problem(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> LineProblem:
    return {"code": code, "message": message, "line": line, "param": param}


def _value_of(text: bytes | None) -> dict[str, JsonValue]:
    """The object in a line: one reader for lines of any size. Raises _Wrong."""
    if text is None:
        raise _Wrong("line_too_long", "This line is longer than a request may be.", None)
    text = text.removeprefix(BOM_UTF8)
    if not _is_utf8(text):
        raise _Wrong(
            "invalid_encoding", "This line is not UTF-8 text. Save the file as UTF-8.", None
        )
    try:
        check_structure(text)
    except BadRequest as error:
        raise _Wrong("invalid_request", error.message, None) from error
    value: JsonValue = None
    with suppress(GoJsonError):
        value = decode(text, whole=True)
    if not isinstance(value, dict):
        raise _Wrong("invalid_json_line", "This line is not parseable as a JSON object.", None)
    return value


def _is_utf8(text: bytes) -> bool:
    """Whether it is UTF-8 and nothing else; a zero byte in JSON is half a character of UTF-16."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in text


def request_in(text: bytes, endpoint: str) -> bytes:
    """The body of the request in a line that was checked, as its route takes it."""
    value = cast("dict[str, dict[str, object]]", decode(text.removeprefix(BOM_UTF8)))
    return body_of(endpoint, value["body"], large=len(text) > LARGE_BYTES)


def _check_envelope(value: JsonMapping, endpoint: str) -> None:
    """What stands around a body. Raises _Wrong for the first rule that it breaks."""
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            raise _Wrong(
                "missing_required_parameter", f"Missing required parameter: '{name}'.", name
            )
    custom_id = value["custom_id"]
    body = value["body"]
    rules = {
        (
            "invalid_custom_id",
            f"custom_id must be 1 to {MAX_CUSTOM_ID_CHARS} characters, no control characters.",
            "custom_id",
        ): (isinstance(custom_id, str) and _CUSTOM_ID.fullmatch(custom_id) is not None),
        ("invalid_method", "The method must be POST.", "method"): value["method"] == "POST",
        ("invalid_url", f"The url must be the endpoint of the batch, {endpoint}.", "url"): (
            value["url"] == endpoint
        ),
        ("invalid_request", "The body must be an object.", "body"): isinstance(body, dict),
        ("invalid_request", "A batch cannot stream; leave stream out.", "body.stream"): not (
            isinstance(body, dict) and body.get("stream")
        ),
    }
    for wrong, holds in rules.items():
        if not holds:
            raise _Wrong(*wrong)


MAX_PROBLEMS = 100
"""So many are kept; the rest of the file is not read."""
LINES_TOGETHER = 1000


@dataclass(kw_only=True, eq=False)
class Check:
    """One batch that is being validated; in memory are the ids of its requests and one piece of its
    file.
    """

    batch: Batch
    files: FileStore
    batches: BatchStore
    settings: Settings
    resolve: Callable[[str], Awaitable[str]]
    canonical: Callable[[str], str]
    check_request: CheckRequest

    def __post_init__(self) -> None:
        of_messages = self.batch.of_messages  # they came in one body, whose bounds were theirs
        max_bytes = sys.maxsize if of_messages else int(self.settings.server.max_body_mib * MIB)
        self._splitter = Splitter(max_bytes)
        self._most = sys.maxsize if of_messages else self.settings.batches.max_requests
        self._place = -1
        self._seen: set[str] = set()
        self._names: dict[str, str | None] = {}
        self._problems: list[LineProblem] = []
        self._total = 0

    async def advance(self) -> bool:
        """Check the next piece; False once that was the last one.

        Raises StorageUnavailable: begin with a new check.
        """
        parts = await self.files.parts(self.batch.input_file, self._place)
        found = await asyncio.to_thread(self._read, [data for _, data in parts])
        if not await self._note(await self._checked(found)):
            return False
        if parts and len(self._problems) < MAX_PROBLEMS and self._total <= self._most:
            self._place = parts[-1][0]
            return True
        await self._settle()
        return False

    async def _note(self, lines: list[BatchLine]) -> bool:
        """False where the batch is not being validated any more.

        What an earlier process noted goes first.
        """
        for start in range(0, max(1, len(lines)), LINES_TOGETHER):
            first = self._place < 0 and start == 0
            if not await self.batches.note_lines(
                self.batch.number, lines[start : start + LINES_TOGETHER], first=first
            ):
                return False
        return True

    def _read(self, pieces: Sequence[bytes]) -> list[tuple[RawLine, BatchLine | LineProblem]]:
        """The lines that end in these pieces, without any the last one; no more of them once the
        problems are enough to say.
        """
        read = chain.from_iterable(map(self._splitter.feed, pieces))
        left = MAX_PROBLEMS - len(self._problems)
        found = list[tuple[RawLine, BatchLine | LineProblem]]()
        for raw in read if pieces else self._splitter.end():
            line = check_line(raw, self.batch, self.canonical, self.check_request)
            found.append((raw, line))
            left -= not isinstance(line, BatchLine)
            if left <= 0 and not self.batch.of_messages:
                break
        return found

    async def _checked(
        self, found: Sequence[tuple[RawLine, BatchLine | LineProblem]]
    ) -> list[BatchLine]:
        """The lines that are as they must be, under the installed names of their models; and those
        that fail alone.
        """
        self._total += len(found)
        kept = list[BatchLine]()
        for raw, read in found:
            line = await self._known(read) if isinstance(read, BatchLine) else read
            if isinstance(line, BatchLine):
                kept.append(line)
            elif self.batch.of_messages:
                kept.append(_refused(raw, line))
            else:
                self._problems.append(line)
        return kept

    async def _known(self, line: BatchLine) -> BatchLine | LineProblem:
        if line.custom_id in self._seen:
            return _problem(
                "duplicate_custom_id",
                "The custom_id of this line was used by an earlier one.",
                line.line,
                "custom_id",
            )
        self._seen.add(line.custom_id)
        if line.model not in self._names:
            try:
                self._names[line.model] = await self.resolve(line.model)
            except ModelNotFound:
                self._names[line.model] = None
            except BackendUnreachable:  # an engine that may have it: seen when it is to run
                self._names[line.model] = self.canonical(line.model)
        name = self._names[line.model]
        if name is None:
            return _problem(
                "model_not_found", "This model is not installed.", line.line, "body.model"
            )
        return replace(line, model=name)

    async def _settle(self) -> None:
        if self._total > self._most:
            says = f"A batch may have {self._most} requests; the file has more."
            self._problems.insert(0, _problem("too_many_requests", says))
        elif self._total == 0:
            self._problems.append(_problem("empty_file", "The file holds no request."))
        models = set(self._names.values())
        model = models.pop() if len(models) == 1 else None
        await self.batches.settle_validation(
            self.batch.number, self._problems[:MAX_PROBLEMS], self._total, model
        )


PORTION_BYTES = 4 * MIB
_UNDONE: dict[BatchEnd | None, tuple[str, str]] = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
_CANCELLED_ALONE = ("request_cancelled", "This request was cancelled.")
_UNDONE_AS: Mapping[str, Literal["cancelled", "expired"]] = {
    "batch_expired": "expired",
    "batch_cancelled": "cancelled",
    "request_cancelled": "cancelled",
}
"""By code."""
_LOST = (
    "result_lost",
    "This request was executed, and its answer was deleted before it could be written here.",
)


def outcome_of(ended: EndedLine, *, of_messages: bool = False) -> LineOutcome:
    """What is written about a line whose job has ended, in a batch `of_messages` in Anthropic's
    words.
    """
    end = ended.end
    without_answer = partial(_without_answer, ended, of_messages=of_messages)
    if end is None:
        return without_answer(*_LOST)
    if end.state is JobState.CANCELLED:
        return without_answer(*_UNDONE.get(ended.ending, _CANCELLED_ALONE))
    body = _document(end)
    completed = end.state is JobState.COMPLETED
    if body is None or (of_messages and not message_batches.is_result(body, succeeded=completed)):
        return without_answer(
            end.reason or "invalid_response",
            end.error or "The answer of the model server is not JSON.",
        )
    usage = body.get("usage") if completed and isinstance(body, dict) else None
    return LineOutcome(
        line=ended.line,
        job=ended.job,
        completed=completed,
        text=_with_answer(ended, end, of_messages=of_messages),
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_count(usage, "completion_tokens", "output_tokens"),
    )


def _document(end: JobEnd) -> object | None:
    if not end.result or "json" not in end.content_type:
        return None
    with suppress(ValueError, RecursionError):
        document: object = json.loads(end.result.decode("utf-8"))
        return document
    return None


def _with_answer(ended: EndedLine, end: JobEnd, *, of_messages: bool) -> bytes:
    """The answer stands in the line as the model server wrote it; line breaks can only be between
    its values.
    """
    answer = b" ".join((end.result or b"").splitlines()).strip()
    if of_messages:
        succeeded = end.state is JobState.COMPLETED
        return message_batches.with_answer(ended.custom_id, answer, succeeded=succeeded) + b"\n"
    names = f'{{"id": {json.dumps(ended.job_id)}, "custom_id": {json.dumps(ended.custom_id)}, '
    head = (
        f'"response": {{"status_code": {end.status}, "request_id": {json.dumps(ended.job_id)},'
        ' "body": '
    )
    return (names + head).encode() + answer + b'}, "error": null}\n'


def _without_answer(ended: EndedLine, code: str, message: str, *, of_messages: bool) -> LineOutcome:
    undone = _UNDONE_AS.get(code)
    if of_messages:
        text = message_batches.without_answer(ended.custom_id, code, message, undone)
    else:
        error = {"code": code, "message": message}
        whole = {"id": ended.job_id, "custom_id": ended.custom_id, "response": None, "error": error}
        text = json.dumps(whole).encode()
    return LineOutcome(
        line=ended.line, job=ended.job, completed=False, text=text + b"\n", undone=undone
    )


def _count(usage: object, *names: str) -> int:
    """The first of these numbers of tokens that is one."""
    values = [usage.get(name) for name in names] if isinstance(usage, Mapping) else []
    return next((value for value in values if isinstance(value, int) and 0 < value < 1 << 40), 0)


def without_job(line: BatchLine, ending: BatchEnd | None) -> EndedLine:
    """A line that never becomes a job: it has a problem, or its batch ends."""
    end = JobEnd(state=JobState.CANCELLED)
    if line.problem is not None:
        reason, error = (str(line.problem[name]) for name in ("code", "message"))
        end = JobEnd(state=JobState.FAILED, reason=reason, error=error)
    return EndedLine(
        line=line.line,
        custom_id=line.custom_id,
        job=None,
        job_id=new_id(BATCH_JOB_PREFIX),
        end=end,
        ending=ending,
    )


def portion(lines: Sequence[BatchLine]) -> Sequence[BatchLine]:
    """So many of them, at least one, that their part of the file is not long."""
    kept = [line for line in lines if line.start + line.length - lines[0].start <= PORTION_BYTES]
    return kept or lines[:1]


def jobs_of(batch: Batch, lines: Sequence[BatchLine], text: bytes) -> list[tuple[int, Job]]:
    """The jobs that lines become, by line; `text` begins with the first of them."""
    first = lines[0].start
    return [
        (
            line.line,
            Job(
                job_id=new_id(BATCH_JOB_PREFIX),
                caller=batch.caller,
                lane=batch.lane,
                priority=batch.priority,
                path=batch.endpoint,
                model=line.model,
                emulated=batch.emulated,
                request=request_in(
                    text[line.start - first : line.start - first + line.length], batch.endpoint
                ),
            ),
        )
        for line in lines
    ]
