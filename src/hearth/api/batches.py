"""`/v1/batches`: OpenAI's batches. Created, shown, listed and cancelled by the key that they belong to.

What belongs to others looks like what does not exist, also to an admin.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from hearth.admission.auth import Identity
from hearth.admission.gate import Admission, admission_of, count
from hearth.api.dependencies import Caller, CurrentRequest, idempotency_key_of, replayed_header
from hearth.api.files import DAY_S, batches_of, listing
from hearth.clock import new_batch_id
from hearth.errors import BadRequest, NotFound
from hearth.gateway import Gateway
from hearth.job_types import BatchRecord, BatchStatus, NewBatch, Page
from hearth.jobs.batch_lines import ENDPOINTS
from hearth.jobs.batches import Batches
from hearth.jobs.requests import digest_of

BATCHES_PATH = "/v1/batches"
MAX_WINDOW_S = 30 * DAY_S
_WINDOW = re.compile(r"([1-9][0-9]{0,4})([hm])", re.ASCII)

_Key = Annotated[str, Field(min_length=1, max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class OutputExpiry(BaseModel):
    """How long the files that a batch writes are kept."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchBody(BaseModel):
    """What `POST /v1/batches` takes."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: Annotated[str, Field(max_length=64)]
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[_Key, _Value] | None, Field(max_length=16)] = None
    output_expires_after: OutputExpiry | None = None


class BatchesQuery(BaseModel):
    """What `GET /v1/batches` takes."""

    model_config = ConfigDict(extra="ignore")

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class BatchPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, asked: BatchBody, request: CurrentRequest, caller: Caller) -> JSONResponse:
        """Take a batch: answered once it is on the disk.

        Raises:
            BadRequest, RateLimited: a batch counts once.
            NotFound: the caller has no such file. KeyInUse, KeyReused, QueueFull, ShuttingDown, StorageUnavailable.
        """
        batches = batches_of(self._gateway)
        if asked.endpoint not in ENDPOINTS:
            raise BadRequest(f"endpoint: write one of {', '.join(ENDPOINTS)}")
        admission = admission_of(caller, request.headers, self._gateway.config)
        new = self._new(asked, caller, admission, idempotency_key_of(request))
        count(caller, admission, self._gateway.rate_limiter, self._gateway.clock.monotonic())
        batch = await batches.create(new)
        return JSONResponse(batch_view(batch), headers=replayed_header(is_new=batch.batch_id == new.batch_id))

    def _new(self, asked: BatchBody, caller: Identity, admission: Admission, key: str | None) -> NewBatch:
        settings, expiry = self._gateway.config.settings, asked.output_expires_after
        return NewBatch(
            batch_id=new_batch_id(),
            caller=caller.caller,
            lane=admission.lane,
            priority=max(settings.jobs.priority, caller.max_priority),
            models=caller.models,
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            window_text=asked.completion_window,
            window_s=window_s_of(asked.completion_window),
            output_life_s=settings.batches.keep_files_days * DAY_S if expiry is None else expiry.seconds,
            metadata=asked.metadata,
            idempotency_key=key,
            digest=digest_of(asked.model_dump(mode="json")),
        )

    async def batch(self, batch_id: str, caller: Caller) -> dict[str, object]:
        """One batch. Raises NotFound, StorageUnavailable."""
        return batch_view(await _owned(batches_of(self._gateway), batch_id, caller))

    async def listed(self, query: Annotated[BatchesQuery, Query()], caller: Caller) -> dict[str, object]:
        """The caller's batches, the latest first. Raises NotFound for an unknown `after`, StorageUnavailable."""
        page = Page(caller=caller.caller, limit=query.limit + 1, after=query.after)
        found = await batches_of(self._gateway).records.list_batches(page)
        return listing([batch_view(each) for each in found], query.limit)

    async def cancel(self, batch_id: str, caller: Caller) -> dict[str, object]:
        """Cancel a batch that has not ended; again is no error. Raises NotFound, StorageUnavailable."""
        batches = batches_of(self._gateway)
        await _owned(batches, batch_id, caller)
        await batches.cancel(batch_id)
        return batch_view(await _owned(batches, batch_id, caller))


async def _owned(batches: Batches, batch_id: str, caller: Identity) -> BatchRecord:
    batch = await batches.records.find(batch_id)
    if batch is None or batch.caller != caller.caller:
        raise NotFound("there is no such batch")
    return batch


def window_s_of(text: str) -> float:
    """A completion window in seconds: `24h`, `90m`, at most 30 days. Raises BadRequest."""
    found = _WINDOW.fullmatch(text)
    seconds = 0.0 if found is None else int(found[1]) * (3600.0 if found[2] == "h" else 60.0)
    if not 0.0 < seconds <= MAX_WINDOW_S:
        raise BadRequest("completion_window: write hours or minutes such as 24h or 90m, at most 720h")
    return seconds


def batch_view(batch: BatchRecord) -> dict[str, object]:
    """A batch in OpenAI's words."""
    tokens = batch.tokens
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors(batch),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window_text,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_wall_s),
        "in_progress_at": _second(batch.in_progress_wall_s),
        "expires_at": int(batch.expires_wall_s),
        "finalizing_at": _second(batch.finalizing_wall_s),
        "cancelling_at": _second(batch.cancelling_wall_s),
        **{f"{end.value}_at": _second(batch.ended_wall_s) if batch.status is end else None for end in BatchStatus if end.is_end},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.prompt + tokens.output,
        },
        "metadata": batch.metadata,
    }


def _errors(batch: BatchRecord) -> dict[str, object] | None:
    if not batch.problems:
        return None
    data = [{"code": each.code, "line": each.line, "message": each.message, "param": each.param} for each in batch.problems]
    return {"object": "list", "data": data}


def _second(wall_s: float | None) -> int | None:
    return None if wall_s is None else int(wall_s)
