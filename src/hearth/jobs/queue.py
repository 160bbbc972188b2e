"""What a job asks of the model server, checked when it is accepted and put into its final form when
it runs; and which job is next.

A job has no reader who waits, so its answer is always one whole document: `stream` is switched off.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hearth.dialects.gojson import encode_large, folded
from hearth.dialects.request import Envelope, read_request
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest, KeyInUse
from hearth.execution.request import Submission
from hearth.job_types import Job
from hearth.types import (
    JSON_BODY,
    BackendCall,
    JsonMapping,
    Lane,
    LoadOptions,
    QueueItem,
    RequestId,
)

RETRY_AFTER_S = 1.0
_GUESSES = (("messages", Endpoint.CHAT), ("prompt", Endpoint.GENERATE), ("input", Endpoint.EMBED))


@contextmanager
def key_in_use(used: set[tuple[str, str]], caller: str, key: str | None) -> Iterator[None]:
    """For the time of the block, nobody else may use the caller's key; without one, nothing is in
    the way. Raises KeyInUse.
    """
    own = set() if key is None else {(caller, key)}
    if used & own:
        raise KeyInUse(retry_after_s=RETRY_AFTER_S)
    used |= own
    try:
        yield
    finally:
        used -= own


def endpoint_of(request: JsonMapping, endpoint: str | None) -> str:
    """The inference route that a request is meant for, or the native one that takes such a body.

    Raises BadRequest.
    """
    if endpoint is not None:
        if endpoint not in INFERENCE_ROUTES:
            raise BadRequest(f"endpoint: must be one of {', '.join(INFERENCE_ROUTES)}")
        return endpoint
    for name, path in _GUESSES:
        if name in request:
            return path.value
    raise BadRequest(
        "request: must be the body of an inference route, with messages, prompt or input"
    )


def body_of(path: str, request: Mapping[str, Any], *, large: bool = False) -> bytes:
    """The request as the whole body of its route, a `large` one in pieces.

    Raises BadRequest for what JSON cannot say.
    """
    fields = folded({**request})  # or `Stream` would go on beside `stream`
    whole = {name: value for name, value in fields.items() if name != "stream_options"}
    if INFERENCE_ROUTES[path].kind == "generate":
        whole["stream"] = False
    try:
        return (
            encode_large(whole)
            if large
            else json.dumps(whole, allow_nan=False, separators=(",", ":")).encode("ascii")
        )
    except ValueError as error:
        raise BadRequest("request: contains a number that JSON does not allow") from error


def envelope_of(
    path: str,
    body: bytes,
    pinned: LoadOptions | None = None,
    model: str | None = None,
    wire_name: Callable[[str], str] = str,
) -> Envelope:
    """What the queue must know of a request; for a body that is sent: `pinned`, how its model is
    loaded; `model`, to which in place of the one that it names; `wire_name`, what that is called.

    Raises BadRequest, ModelNotFound.
    """
    pinned = pinned or LoadOptions()
    envelope, _ = read_request(
        INFERENCE_ROUTES[path], body, lambda _: pinned, model=model, wire_name=wire_name
    )
    if envelope.kind in ("load", "unload") or envelope.max_tokens == 0:
        raise BadRequest(
            "request: would generate nothing; give a prompt or messages, and no num_predict of 0"
        )
    return envelope


def item_of(
    job: Job,
    model: str,
    pinned: LoadOptions,
    *,
    renamed: bool = False,
    wire_name: Callable[[str], str] = str,
) -> Submission:
    """A started job as the GPU's queue takes it; its request id is the job's. `renamed`: its body
    names an alias, and is sent with `model` in its place. `wire_name`: what its body calls a model.

    Raises as `envelope_of`.
    """
    named = model if renamed else None
    envelope = envelope_of(job.path, job.request, pinned, named, wire_name)
    item = QueueItem(
        lane=job.lane,
        priority=job.priority,
        caller=job.caller,
        model=model,
        request_id=RequestId(job.job_id),
        task_type=job.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
        conversation=envelope.conversation,
    )
    call = BackendCall(method="POST", path=job.path, headers=JSON_BODY, body=envelope.body)
    return Submission(item=item, call=call, durable=True, needs=envelope.needs)


def digest_of(*parts: object) -> str:
    """What tells one submission from another, SHA-256 in hex; the order of keys in objects does
    not.
    """
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, default=str).encode("ascii")
    ).hexdigest()


BATCH_LIMIT = 32
"""So many jobs may go before an older one of another model, because theirs is in memory."""


def rank_of(job: Job) -> tuple[bool, int]:
    """Internal before external; then the priority, which external work has none of."""
    return (True, 0) if job.lane is Lane.EXTERNAL else (False, int(job.priority))


def place_of(job: Job) -> tuple[tuple[bool, int], int]:
    """The sort key of all jobs that wait."""
    return (rank_of(job), job.number)


def next_job(
    heads: Sequence[Job],
    suspects: Sequence[Job],
    running: Sequence[Job],
    in_memory: Collection[str],
    fits: Callable[[Job], bool],
) -> Job | None:
    """The job to start now, None where none may. One waits behind an older one of its type.

    Jobs of one model are a batch: the GPU's queue gets no job of another one before they have all
    ended, except a more urgent job and one whose model fits beside theirs. So no policy of that
    queue takes turns between them (Peregrine's LLM queue optimizer).

    Args:
        heads: of the jobs whose time has come, the first of each lane, priority, task type and
        model. suspects: jobs that were running when an earlier process died; each runs alone.
        in_memory: models that need no swap; of jobs of one rank, theirs go first. fits: whether the
        job's model needs no other one of those that run to be unloaded.
    """
    if suspects:
        suspect = min(suspects, key=place_of)
        # A job of its type that is older was put back already by the process that died.
        older = [
            job for job in heads if job.task_type is not None and job.task_type == suspect.task_type
        ]
        return None if running else min((suspect, *older), key=place_of)
    ready = _first_of_types(sorted(heads, key=place_of), running)
    if not ready:
        return None
    first = ready[0]
    chosen = next(
        (job for job in ready if job.model in in_memory and rank_of(job) == rank_of(first)), first
    )
    batch = {other.model for other in running if rank_of(other) <= rank_of(chosen)}
    return chosen if not batch or chosen.model in batch or fits(chosen) else None


def _first_of_types(in_order: Sequence[Job], running: Sequence[Job]) -> list[Job]:
    """Those that are the first of their task type, and of which no job runs on another model."""
    models_running = defaultdict[str | None, set[str]](set)
    first_of_type = dict[str | None, Job]()
    for job in running:
        models_running[job.task_type].add(job.model)
    for job in in_order:
        first_of_type.setdefault(job.task_type, job)
    return [
        job
        for job in in_order
        if job.task_type is None
        or (job is first_of_type[job.task_type] and models_running[job.task_type] <= {job.model})
    ]
