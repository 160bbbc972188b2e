"""The one way into the queue for work that came over HTTP: admit, then submit.

Must never read a body or write an answer. Called by `api.inference` and `api.completions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from hearth.admission.auth import Identity
from hearth.admission.gate import Standing, admit, standing_of
from hearth.api.visit import Visit
from hearth.dialects.envelope import Envelope
from hearth.errors import ModelNotFound
from hearth.gateway import Gateway
from hearth.observability.tracing.spans import Origin
from hearth.queue import NewItem, Ticket
from hearth.types import BackendCall, Headers, Way, WorkKind, preview_of, value

JSON_BODY: Headers = ((b"content-type", b"application/json"),)
"""Every body that goes on has been read as JSON."""

_PREVIEWED_BYTES = 256 * 1024
_EMBED = WorkKind.EMBED
"""Looked up once: in Python 3.11 that takes as long as calling a function."""
_FORWARDED = (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta")


@value
class Wanted:
    """Work that a caller asks for.

    Attributes:
        envelope: what is known of its body.
        model: as the caller wrote it; None runs on whatever is resident.
        call: the backend call, or what makes it once the model is chosen.
        ways: how a stream of it can go on after an interruption.
        task_type: from the body, where the route has the field.
        digest: stands for address and body as they were sent.
        allow_cloud: Claude may answer, as far as the caller's own rights go.
    """

    envelope: Envelope
    model: str | None
    call: BackendCall | Callable[[str], BackendCall]
    ways: tuple[Way, ...] = ()
    task_type: str | None = None
    digest: bytes = b""
    allow_cloud: bool = True
    prompt: str | None = None

    def preview(self) -> str:
        """How the prompt begins: the caller's own words of the last turn; nothing of a body that is long to read once more."""
        if self.prompt is not None:
            return preview_of(self.prompt)
        return preview_of(_prompt_in(self.envelope.body)) if len(self.envelope.body) <= _PREVIEWED_BYTES else ""


def _prompt_in(body: bytes) -> str:
    try:
        document = json.loads(body)
        turns = document.get("messages") or document.get("input") or document.get("prompt") or ""
        said = turns[-1] if isinstance(turns, list) and turns else turns
        said = said.get("content", "") if isinstance(said, dict) else said
        return said if isinstance(said, str) else " ".join(str(part.get("text", "")) for part in said)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""


async def submit(gateway: Gateway, visit: Visit, identity: Identity, wanted: Wanted) -> Ticket:
    """Take work into the queue.

    Raises:
        BadRequest, Forbidden, RateLimited: see `admission.gate`.
        ModelNotFound: it is not installed, in the words of Ollama.
        QueueFull, Draining, ShuttingDown: with `retry_after_s`.
        HearthError: see `cloud.desk`, where only Claude could answer.
    """
    standing = standing_of(identity, visit.headers, gateway.config, task_type=wanted.task_type)
    admit(identity, wanted.model, standing, gateway.rate_limiter, gateway.clock.monotonic())
    gateway.orders.check_open()
    previews = gateway.config.settings.server.prompt_previews
    cloud = gateway.cloud
    if cloud is not None and wanted.allow_cloud and cloud.open_to(identity):
        ticket = await cloud.take(_item(visit, identity, standing, wanted, wanted.model, previews=previews))
        if ticket is not None:
            return _traced(gateway, visit, ticket)
    new = _item(visit, identity, standing, wanted, await _installed_name(gateway, wanted), previews=previews)
    joined = gateway.embeddings.take(new) if new.kind is _EMBED and gateway.embeddings is not None else None
    return _traced(gateway, visit, joined or gateway.worker.submit(new))


def told_of(ticket: Ticket) -> Headers:
    """What the headers of the answer say of an accepted request: its place, its wait, and who answers in place of the GPU."""
    told: Headers = ((b"x-queue-position", b"%d" % ticket.position),)
    if ticket.estimated_wait_s is not None:
        told = (*told, (b"x-estimated-wait-seconds", b"%.1f" % ticket.estimated_wait_s))
    if ticket.is_rough:
        told = (*told, (b"x-estimated-wait-rough", b"true"))
    return (*told, (b"x-hearth-served-by", ticket.served_by.encode("ascii"))) if ticket.served_by else told


def _traced(gateway: Gateway, visit: Visit, ticket: Ticket) -> Ticket:
    """The ticket; where traces are kept, they learn where it came from."""
    if gateway.traces is not None:
        text = visit.headers.text
        origin = Origin(
            route=visit.path,
            provider="anthropic" if ticket.served_by else "ollama",
            traceparent=text(b"traceparent"),
            tracestate=text(b"tracestate"),
        )
        gateway.traces.note(ticket.sequence, origin)
    return ticket


def _item(visit: Visit, identity: Identity, standing: Standing, wanted: Wanted, model: str | None, *, previews: bool) -> NewItem:
    envelope = wanted.envelope
    return NewItem(
        lane=standing.lane,
        priority=standing.priority,
        caller=identity.caller,
        model=model,
        task_type=standing.task_type,
        kind=envelope.kind,
        dialect=envelope.dialect,
        streaming=envelope.streaming,
        ways=wanted.ways,
        prompt_tokens=envelope.prompt_tokens,
        max_tokens=envelope.max_tokens,
        request_id=visit.request_id,
        call=wanted.call,
        digest=wanted.digest,
        prompt_preview=wanted.preview() if previews else "",
    )


async def _installed_name(gateway: Gateway, wanted: Wanted) -> str | None:
    if wanted.model is None:
        return None
    try:
        return await gateway.resolve(wanted.model)
    except ModelNotFound as error:
        if wanted.envelope.kind is WorkKind.EMBED:
            raise ModelNotFound(f'model "{wanted.model}" not found, try pulling it first') from error
        raise


def forwarded_headers(visit: Visit) -> Headers:
    """What a model server may see of a caller's headers: never a credential, a cookie or an origin.

    The body has been read as JSON, so that is what it is forwarded as, whatever `curl -d` called it.
    """
    values = visit.headers.values
    return (*JSON_BODY, *((name, values[name]) for name in _FORWARDED if name in values))
