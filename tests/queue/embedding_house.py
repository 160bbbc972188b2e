"""A house whose embedding calls can go together, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth.config.settings import GatewayConfig
from hearth.engines.ollama.traits import canonical_model
from hearth.execution.request import Submission, Ticket
from hearth.types import BackendCall, Lane, Priority, QueueItem, RequestId
from tests.support.fake_ollama import FakeModel, FakeOllama, Service
from tests.support.fields import Fields
from tests.support.house import House, Test, body_of, settings_with, within
from tests.support.ollama_wire import vector_of

SERVICE_S = 0.2
NATIVE = "/api/embed"
OPENAI = "/v1/embeddings"


def embedding(
    text: str,
    model: str = "emb",
    *,
    path: str = NATIVE,
    lane: Lane = Lane.EXTERNAL,
    priority: Priority = Priority.NORMAL,
    caller: str = "test",
    request_id: str | None = None,
    task_type: str | None = None,
    **fields: Any,
) -> Submission:
    """An embedding call as a route would submit it."""
    body = json.dumps({"model": canonical_model(model), "input": text, **fields}).encode()
    item = QueueItem(
        lane=lane,
        priority=priority,
        caller=caller,
        model=canonical_model(model),
        task_type=task_type,
        kind="embed",
        dialect="ollama" if path == NATIVE else "openai",
        prompt_tokens=len(text),
        request_id=RequestId(request_id or f"req_{text}"),
    )
    return Submission(
        item=item,
        call=BackendCall(method="POST", path=path, headers=((b"user-agent", b"test"),), body=body),
    )


class EmbeddingHouse(House):
    """Two embedding models, one in memory; a call takes `SERVICE_S`."""

    def __init__(
        self, *, parallel: int = 1, ollama: type[FakeOllama] = FakeOllama, **keys: Any
    ) -> None:
        settings = settings_with(
            embeddings=keys, queue={"max_external_depth": 1000}, gpu={"parallel": parallel}
        )
        service = Service(service_s=SERVICE_S)
        models = [FakeModel(name=name, parallel=parallel) for name in ("emb", "other")]
        self.counted: list[str] = []
        """What was counted as a call of the model server, by the input that made it one."""
        super().__init__(
            *models, resident="emb", settings=settings, service=lambda _: service, ollama=ollama
        )

    def ask(self, text: str, model: str = "emb", **wanted: Any) -> Ticket:
        """Submit an embedding call the way the routes do."""
        new = embedding(text, model, **wanted)
        return self.gateway.embeddings.take(
            new, partial(self.counted.append, text)
        ) or self.worker.submit(new)

    def reload(self, **sections: Fields) -> None:
        """Put `settings_with(**sections)` in force."""
        self.gateway.reload(GatewayConfig(settings=settings_with(**sections)))

    def sent(self) -> list[list[str]]:
        """The inputs of each call that the model server has got."""
        given = [json.loads(call.body)["input"] for call in self.ollama.calls]
        return [each if isinstance(each, list) else [each] for each in given]


async def vector_in(ticket: Ticket) -> list[float]:
    """The one vector of a native answer. Raises HearthError where there is none."""
    (vector,) = json.loads(await body_of(ticket))["embeddings"]
    found: list[float] = vector
    return found


async def check_all(tickets: dict[str, Ticket]) -> None:
    """Each caller has got the vector of its own text."""
    vectors = await asyncio.gather(*(vector_in(ticket) for ticket in tickets.values()))
    assert vectors == [vector_of(text) for text in tickets]


def in_embedding_house(**keys: Any) -> Callable[[Test], Callable[..., None]]:
    """Run a test in virtual time within an `EmbeddingHouse(**keys)` of its own, which it gets as
    its first argument.
    """
    return within(lambda: EmbeddingHouse(**keys))
