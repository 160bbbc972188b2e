"""Calls from a Python program that embeds Hearth: a prompt in, a future with the completion out,
through the same queue as everyone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from functools import partial

from hearth.clock import new_id
from hearth.dialects.gojson import LARGE_BYTES, encode_large
from hearth.dialects.request import tokens_of
from hearth.dialects.stream import completion_call, error_text, read_completion
from hearth.errors import BackendError, BadRequest, ModelNotFound
from hearth.execution.request import Reply, Submission
from hearth.types import (
    EMULATOR_HEADER,
    BackendCall,
    Completion,
    Lane,
    LoadOptions,
    Priority,
    QueueItem,
    RequestId,
    preview_of,
)

_BEGINNING_CHARS = 1000
"""More than a preview shows."""


@dataclass(slots=True)
class PromptCall:
    """What a program asks for; `model` None runs on whatever is resident. `load_options` gives the
    pinned options of a model, and `own_name` what its engine calls it.

    The prompt is kept as the JSON that goes on, which for a large one takes longer to write than a
    decision may.
    """

    prompt: InitVar[str]
    model: str | None
    max_tokens: int | None
    json_mode: bool
    task_type: str | None
    load_options: Callable[[str], LoadOptions]
    own_name: Callable[[str], str] = str
    chain_id: str | None = None
    prompt_tokens: int = field(init=False)
    _prompt_json: bytes = field(init=False)
    _beginning: str = field(init=False)

    def __post_init__(self, prompt: str) -> None:
        for name, value, kind in (
            ("prompt", prompt, str),
            ("model", self.model, str | None),
            ("max_tokens", self.max_tokens, int | None),
            ("task_type", self.task_type, str | None),
        ):
            if not isinstance(value, kind):
                raise TypeError(
                    f"{name} must be {getattr(kind, '__name__', kind)}, not {type(value).__name__}"
                )
        if self.max_tokens == 0:
            raise BadRequest("max_tokens: at least 1")
        self.prompt_tokens = tokens_of(len(prompt))
        self._prompt_json = encode_large(prompt)
        self._beginning = prompt[:_BEGINNING_CHARS]

    def submission(
        self,
        model: str | None,
        lane: Lane,
        priority: Priority,
        caller: str,
        *,
        preview: bool = False,
        alias: str = "",
        choices: tuple[str, ...] = (),
    ) -> Submission:
        """The request as it is submitted; `model` by the name that the backend lists, of an alias
        the first of its `choices`.
        """
        item = QueueItem(
            lane=lane,
            priority=priority,
            caller=caller,
            model=model,
            alias=alias,
            choices=choices,
            request_id=RequestId(new_id("req_")),
            task_type=self.task_type,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            chain_id=self.chain_id,
            prompt_preview=preview_of(self._beginning) if preview else "",
        )
        return Submission(item=item, call=self.call_on)

    def call_on(self, model: str) -> BackendCall:
        return completion_call(
            self._prompt_json,
            self.own_name(model),
            self.max_tokens,
            json_mode=self.json_mode,
            num_ctx=self.load_options(model).num_ctx,
        )


async def complete(
    reply: Reply,
    now: Callable[[], float],
    model_of: Callable[[], str | None],
    *,
    json_mode: bool = False,
) -> Completion:
    """Wait for the answer of a submitted `PromptCall.call_on`; `json_mode` reads it as JSON as
    well. Raises HearthError.
    """
    began_at = now()
    head = await reply.head()
    body = await reply.body()
    model = model_of() or ""
    if head.status == 404:
        raise ModelNotFound(f"model '{model}' not found")
    if head.status == 400:
        raise BadRequest(error_text(body))
    if head.status >= 400:
        raise BackendError(f"the model server answered {head.status}: {error_text(body)}")
    read = partial(read_completion, body, round((now() - began_at) * 1000), model)
    found = await asyncio.to_thread(read) if len(body) > LARGE_BYTES else read()
    parsed = None
    if json_mode:
        with suppress(ValueError, RecursionError):
            parsed = json.loads(found.output)
    is_made_up = any(name == EMULATOR_HEADER for name, _ in head.headers)
    return replace(found, parsed=parsed, cost_usd=reply.cost_usd, emulator=is_made_up)


class CallTask(asyncio.Task[Completion]):
    """The answer of a call, as a future.

    `cancel` gives the request up before it returns: one that is cancelled in the tick in which it
    was made is never sent.
    """

    def __init__(
        self, answer: Coroutine[object, object, Completion], give_up: Callable[[], object]
    ) -> None:
        super().__init__(answer)
        self._give_up = give_up

    def cancel(self, msg: object = None) -> bool:
        if not self.done():
            self._give_up()
        return super().cancel(msg)
