"""The one way into the queue for work that came over HTTP: admit, then submit.

Must never read a body or write an answer. Called by `api.inference` and `api.completions`.
"""

from __future__ import annotations

from hearth.admission.auth import Identity
from hearth.admission.gate import admit, standing_of
from hearth.api.visit import Visit
from hearth.config.settings import Settings
from hearth.dialects.envelope import Envelope
from hearth.gateway import Gateway
from hearth.queue import NewItem, Ticket
from hearth.types import BackendCall, Headers, LoadOptions, canonical_model

_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
_FORWARDED = (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta")


class PinnedOptions:
    """Load options of a model as the configuration pins them, whichever of Ollama's spellings either side uses."""

    def __init__(self, settings: Settings) -> None:
        self._models = settings.models

    def __call__(self, model: str) -> LoadOptions:
        listed = canonical_model(model)
        for name in (model, listed, listed.removesuffix(":latest")):
            if name in self._models:
                return LoadOptions(num_ctx=self._models[name].num_ctx)
        return LoadOptions()


def submit(gateway: Gateway, visit: Visit, identity: Identity, envelope: Envelope, *, path: str, task_type: str | None = None) -> Ticket:
    """Take a request into the queue.

    Args:
        path: the backend's path, with the query as it was sent.
        task_type: from the body, where the route has the field.

    Raises:
        BadRequest, Forbidden, RateLimited: see `admission.gate`.
        QueueFull, ShuttingDown: with `retry_after_s`.
    """
    standing = standing_of(identity, visit.headers, gateway.config, task_type=task_type)
    admit(identity, envelope.model, standing, gateway.rate_limiter, gateway.clock.monotonic())
    return gateway.worker.submit(
        NewItem(
            lane=standing.lane,
            priority=standing.priority,
            caller=identity.caller,
            model=envelope.model,
            task_type=standing.task_type,
            kind=envelope.kind,
            dialect=envelope.dialect,
            streaming=envelope.streaming,
            prompt_tokens=envelope.prompt_tokens,
            max_tokens=envelope.max_tokens,
            request_id=visit.request_id,
            call=BackendCall(method="POST", path=path, headers=forwarded_headers(visit), body=envelope.body),
        )
    )


def forwarded_headers(visit: Visit) -> Headers:
    """What a model server may see of a caller's headers: never a credential, a cookie or an origin.

    The body has been read as JSON, so that is what it is forwarded as, whatever `curl -d` called it.
    """
    values = visit.headers.values
    return (_JSON, *((name, values[name]) for name in _FORWARDED if name in values))
