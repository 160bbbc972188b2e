"""Durable jobs (`/llm/jobs`) and OpenAI's batches (`/v1/batches`) over HTTP.

Work belongs to the key that sent it. What belongs to others looks like what does not exist, except
to an admin, who sees that a job is there and may cancel it, but never its result. Nobody is shown a
webhook's URL.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal, get_args

from fastapi import Query
from fastapi.responses import JSONResponse, Response
from pydantic import AwareDatetime, BaseModel, Field

from hearth.admission.admit import Admitted
from hearth.admission.auth import Identity, names_alias
from hearth.api.body import RequestBody
from hearth.api.dependencies import (
    Caller,
    CurrentBody,
    CurrentRequest,
    idempotency_key_of,
    replayed_header,
)
from hearth.api.files import batches_of, listing
from hearth.api.request import Request
from hearth.clock import new_id
from hearth.config.settings import Settings
from hearth.dialects.gojson import folded
from hearth.dialects.request import Envelope
from hearth.errors import BadRequest, Forbidden, NotFound
from hearth.execution.aliases import CheckRequest
from hearth.gateway import Gateway
from hearth.job_types import Batch, BatchEnd, Job, JobState, Page
from hearth.jobs.batch_lines import ENDPOINTS
from hearth.jobs.batches import Batches
from hearth.jobs.queue import body_of, digest_of, endpoint_of, envelope_of
from hearth.jobs.service import Jobs
from hearth.jobs.webhooks import MAX_URL_CHARS, check_webhook
from hearth.types import DAY_S, JOB_PREFIX, JsonDict, Priority

JOBS_PATH = "/llm/jobs"
MAX_ROWS = 1000
_AS_THEY_ARE = (
    "caller",
    "task_type",
    "job_key",
    "model",
    "attempts",
    "accepted_wall_s",
    "not_before_wall_s",
    "off_peak",
    "ended_wall_s",
    "reason",
    "error",
    "status",
)


class JobBody(BaseModel, extra="forbid"):
    """What `POST /llm/jobs` takes; `not_before` is ISO 8601 with an offset, or seconds since
    1970.
    """

    request: dict[str, Any]
    endpoint: str | None = None
    task_type: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    job_key: Annotated[str | None, Field(min_length=1, max_length=255)] = None
    priority: Literal["critical", "normal", "background"] | None = None
    not_before: AwareDatetime | None = None
    window: Literal["offpeak"] | None = None
    webhook: Annotated[str | None, Field(max_length=MAX_URL_CHARS)] = None


class JobsQuery(BaseModel, extra="forbid"):
    """What `GET /llm/jobs` takes."""

    state: JobState | None = None
    unended: bool = False
    caller: str | None = None
    task_type: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50


class CancelJobQuery(BaseModel, extra="forbid"):
    """What `DELETE /llm/jobs/{id}` takes."""

    forget: bool = False


class JobPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def accept(
        self, asked: JobBody, request: CurrentRequest, body: CurrentBody
    ) -> JSONResponse:
        """Take a job: 202 once it is on the disk.

        Raises:
            BadRequest, Forbidden, RateLimited, ModelNotFound, NotCapable: as for a request that
            waits for its answer. KeyInUse, KeyReused, QueueFull, ShuttingDown, StorageUnavailable.
        """
        jobs = self._jobs()
        new = await self._new(asked, request, body)
        kept = await jobs.accept(new)
        is_new = kept.job_id == new.job_id
        shown = {
            "id": kept.job_id,
            "state": kept.state.value,
            "new": is_new,
            "position": kept.position,
        }
        base_path = self._gateway.settings.server.base_path
        location = {"location": f"{base_path}{JOBS_PATH}/{kept.job_id}"}
        return JSONResponse(
            shown, status_code=202, headers=location | replayed_header(is_new=is_new)
        )

    async def _new(self, asked: JobBody, request: Request, body: RequestBody) -> Job:
        """The job that a caller asks for, who may have it."""
        settings = self._gateway.settings
        caller = body.admission.identity
        path, content, envelope, digest = await body.run(
            partial(_request_of, asked, self._gateway.aliases.check_request, large=body.is_large)
        )
        del asked.request  # `content` is a copy of it
        body.hold(len(content))
        key = idempotency_key_of(request)
        webhook = (
            None if asked.webhook is None else check_webhook(asked.webhook, settings.jobs.webhooks)
        )
        admitted = body.admission.admit(envelope.model, task_type=asked.task_type)
        self._check_alias(caller, envelope.model)
        model = await self._gateway.aliases.resolve(
            envelope.model, envelope.needs, local_only=caller.local_only
        )
        if envelope.refusal is not None:
            raise envelope.refusal
        return Job(
            job_id=new_id(JOB_PREFIX),
            caller=caller.caller,
            lane=admitted.lane,
            priority=_priority(asked, admitted, caller, settings),
            task_type=admitted.task_type,
            job_key=asked.job_key,
            path=path,
            model=model,
            request=content,
            not_before_wall_s=None if asked.not_before is None else asked.not_before.timestamp(),
            off_peak=asked.window == "offpeak",
            webhook_url=webhook,
            idempotency_key=key,
            digest=digest,
        )

    def _check_alias(self, caller: Identity, model: str) -> None:
        """A job outlives what is known of its key: its alias may stand for any of its models."""
        gateway = self._gateway
        is_alias = bool(gateway.aliases.named(model))
        if is_alias and not names_alias(caller.models, model, gateway.engines.canonical):
            raise Forbidden(f'this key may not use the model "{model}" for a job')

    async def job(self, job_id: str, caller: Caller) -> Response:
        """One job; with its result for the caller it belongs to.

        Raises NotFound, StorageUnavailable.
        """
        jobs = self._jobs()
        record = await self._found(jobs, job_id, caller)
        page = bytes(JSONResponse(_view(jobs, record)).body)
        if record.result is not None and record.caller == caller.caller:
            page = b"".join(
                (page[:-1], b',"result":', _readable(record.result, record.content_type), b"}")
            )
        return Response(page, media_type="application/json")

    async def listed(self, query: Annotated[JobsQuery, Query()], caller: Caller) -> JsonDict:
        """The caller's own jobs, everybody's for an admin, the latest first, without results.

        Raises StorageUnavailable.
        """
        jobs = self._jobs()
        if not caller.admin and query.caller not in (None, caller.caller):
            return {"jobs": []}
        owner = query.caller if caller.admin else caller.caller
        found = await jobs.store.list_jobs(
            caller=owner,
            state=query.state,
            unended=query.unended,
            task_type=query.task_type,
            limit=query.limit,
            positions=True,
        )
        return {"jobs": [_view(jobs, record) for record in found]}

    async def cancel(
        self, job_id: str, query: Annotated[CancelJobQuery, Query()], caller: Caller
    ) -> JsonDict:
        """Cancel a job that has not ended, and forget it with its result where that is asked for;
        again is no error.

        Raises:
            NotFound, StorageUnavailable.
        """
        jobs = self._jobs()
        record = await self._found(jobs, job_id, caller)
        cancelled = await jobs.cancel(record)
        if not cancelled:
            record = await self._found(jobs, job_id, caller)
        state = JobState.CANCELLED if cancelled else record.state
        shown = {"id": job_id, "cancelled": state is JobState.CANCELLED, "state": state.value}
        return shown | {"forgotten": await jobs.store.remove(job_id)} if query.forget else shown

    async def _found(self, jobs: Jobs, job_id: str, caller: Identity) -> Job:
        record = await jobs.store.find(job_id)
        if record is None or not (caller.admin or record.caller == caller.caller):
            raise NotFound("there is no such job")
        return record

    def _jobs(self) -> Jobs:
        if self._gateway.jobs is None:
            raise NotFound("there are no durable jobs here", remedy="storage.enabled is off")
        return self._gateway.jobs


def _request_of(
    asked: JobBody, check: CheckRequest, *, large: bool
) -> tuple[str, bytes, Envelope, str]:
    """Path, body and envelope of what is asked of the model server, and the digest of it all.
    Raises BadRequest, ModelNotFound.

    Of a `large` request the digest is that of its bytes: sorting its keys would cost too much.
    """
    path = endpoint_of(asked.request, asked.endpoint)
    content = body_of(path, asked.request, large=large)
    # a copy of what is kept already
    envelope = replace(envelope_of(path, content), body=b"")
    try:
        check(path, folded(asked.request), envelope.model)
    except BadRequest as error:
        envelope = replace(envelope, refusal=error)
    others = asked.model_dump(mode="json", exclude={"request"})
    digest = (
        digest_of(others, sha256(content).hexdigest())
        if large
        else digest_of(others | {"request": asked.request})
    )
    return path, content, envelope, digest


def _priority(asked: JobBody, admitted: Admitted, caller: Identity, settings: Settings) -> Priority:
    """What is asked for, else what `priority_map` says of the task type, else `jobs.priority`;
    never above the caller's own ceiling.
    """
    listed = settings.priority_map.get(admitted.task_type or "", settings.jobs.priority)
    wanted = listed if asked.priority is None else Priority[asked.priority.upper()]
    return max(wanted, caller.max_priority)


def _view(jobs: Jobs, record: Job) -> JsonDict:
    return {
        "id": record.job_id,
        "state": record.state.value,
        **{name: getattr(record, name) for name in _AS_THEY_ARE},
        "endpoint": record.path,
        "emulator": record.emulated,
        "lane": record.lane.value,
        "priority": record.priority.name.lower(),
        "webhook": record.webhook,
        "position": record.position,
        "estimated_start_s": jobs.estimated_start_s(record),
        "sequence": jobs.runner.sequence_of(record.job_id),
    }


def _readable(result: bytes, content_type: str) -> bytes:
    """The answer as it was written where it is JSON, else its text as JSON.

    Written anew, much that can be read would be an error.
    """
    if "json" in content_type:
        try:
            json.loads(result.decode("utf-8"), parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        else:
            return result
    return json.dumps(result.decode("utf-8", "replace")).encode("ascii")


def _refuse(constant: str) -> None:
    """NaN and the like, which Python reads and JSON does not have."""
    raise ValueError(constant)


BATCHES_PATH = "/v1/batches"
MAX_WINDOW_S = 30 * DAY_S
_WINDOW = re.compile(r"([1-9][0-9]{0,4})([hm])", re.ASCII)

_Key = Annotated[str, Field(min_length=1, max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class OutputExpiry(BaseModel, extra="forbid"):
    """How long the files that a batch writes are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchBody(BaseModel, extra="forbid"):
    """What `POST /v1/batches` takes."""

    input_file_id: Annotated[str, Field(max_length=64)]
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[_Key, _Value] | None, Field(max_length=16)] = None
    output_expires_after: OutputExpiry | None = None


class BatchesQuery(BaseModel):
    """What `GET /v1/batches` takes."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class BatchPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(
        self, asked: BatchBody, request: CurrentRequest, body: CurrentBody
    ) -> JSONResponse:
        """Take a batch: answered once it is on the disk.

        Raises:
            BadRequest, RateLimited: a batch counts once. NotFound: the caller has no such file.
            KeyInUse, KeyReused, QueueFull, ShuttingDown, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        settings = self._gateway.settings
        if asked.endpoint not in ENDPOINTS:
            raise BadRequest(f"endpoint: must be one of {', '.join(ENDPOINTS)}")
        key = idempotency_key_of(request)
        window_s = window_s_of(asked.completion_window)
        caller = body.admission.identity
        life_s = settings.batches.keep_files_days * DAY_S
        if asked.output_expires_after is not None:
            life_s = asked.output_expires_after.seconds
        new = Batch(
            batch_id=new_id("batch_"),
            caller=caller.caller,
            lane=body.admission.admit().lane,
            priority=max(settings.jobs.priority, caller.max_priority),
            models=caller.models,
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            window_text=asked.completion_window,
            window_s=window_s,
            output_life_s=life_s,
            metadata=asked.metadata,
            idempotency_key=key,
            digest=digest_of(asked.model_dump(mode="json")),
        )
        batch = await batches.create(new)
        return JSONResponse(
            batch_view(batch), headers=replayed_header(is_new=batch.batch_id == new.batch_id)
        )

    async def batch(self, batch_id: str, caller: Caller) -> JsonDict:
        """One batch. Raises NotFound, StorageUnavailable."""
        return batch_view(await owned_batch(batches_of(self._gateway), batch_id, caller))

    async def listed(self, query: Annotated[BatchesQuery, Query()], caller: Caller) -> JsonDict:
        """The caller's batches, the latest first.

        Raises NotFound for an unknown `after`, StorageUnavailable.
        """
        page = Page(caller=caller.caller, limit=query.limit + 1, after=query.after)
        found = await batches_of(self._gateway).store.list_batches(page)
        return listing([batch_view(each) for each in found], query.limit)

    async def cancel(self, batch_id: str, caller: Caller) -> JsonDict:
        """Cancel a batch that has not ended; again is no error.

        Raises NotFound, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        await owned_batch(batches, batch_id, caller)
        await batches.cancel(batch_id)
        return batch_view(await owned_batch(batches, batch_id, caller))


async def owned_batch(
    batches: Batches, batch_id: str, caller: Identity, *, of_messages: bool = False
) -> Batch:
    """Raises NotFound for what does not exist, belongs to others or came to the other API,
    StorageUnavailable.
    """
    batch = await batches.store.find(batch_id)
    if batch is None or batch.caller != caller.caller or batch.of_messages is not of_messages:
        raise NotFound("there is no such batch")
    return batch


def window_s_of(text: str) -> float:
    """A completion window in seconds: `24h`, `90m`, at most 30 days. Raises BadRequest."""
    found = _WINDOW.fullmatch(text)
    seconds = 0.0 if found is None else int(found[1]) * (3600.0 if found[2] == "h" else 60.0)
    if not 0.0 < seconds <= MAX_WINDOW_S:
        raise BadRequest(
            "completion_window: must be hours or minutes, such as 24h or 90m, at most 720h"
        )
    return seconds


def batch_view(batch: Batch) -> JsonDict:
    """A batch in OpenAI's words."""
    problems = [
        {name: each[name] for name in ("code", "line", "message", "param")}
        for each in batch.problems
    ]
    emulated: JsonDict = {"emulator": True} if batch.emulated else {}
    return emulated | {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window_text,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_wall_s),
        "in_progress_at": _second(batch.in_progress_wall_s),
        "expires_at": int(batch.expires_wall_s),
        "finalizing_at": _second(batch.finalizing_wall_s),
        "cancelling_at": _second(batch.cancelling_wall_s),
        **{
            f"{end}_at": _second(batch.ended_wall_s) if batch.status == end else None
            for end in get_args(BatchEnd)
        },
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens + batch.output_tokens,
        },
        "metadata": batch.metadata,
    }


def _second(wall_s: float | None) -> int | None:
    return None if wall_s is None else int(wall_s)
