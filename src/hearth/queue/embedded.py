"""Calls from a Python program that embeds Hearth: a prompt in, a future with the completion out, through the same queue as everyone."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace

from hearth.clock import new_request_id
from hearth.dialects.gojson import encode_large
from hearth.dialects.ollama import completion_call, error_text, read_completion
from hearth.dialects.request import tokens_of
from hearth.errors import BackendError, BadRequest, ModelNotFound
from hearth.execution.request import Reply
from hearth.queue.item import Submission
from hearth.types import BackendCall, Completion, Lane, LoadOptions, Priority, RequestId

_BEGINNING_CHARS = 1000
"""More than a preview shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCall:
    """What a program asks for; `model` None runs on whatever is resident. `load_options` gives the pinned options of a model.

    The prompt is kept as the JSON that goes on, which for a large one takes longer to write than a decision may.
    """

    prompt: InitVar[str]
    prompt_json: bytes = field(init=False)
    prompt_tokens: int = field(init=False)
    beginning: str = field(init=False)
    model: str | None
    max_tokens: int | None
    json_mode: bool
    task_type: str | None
    load_options: Callable[[str], LoadOptions]
    chain_id: str | None = None

    def __post_init__(self, prompt: str) -> None:
        if self.max_tokens == 0:
            raise BadRequest("max_tokens: at least 1")
        object.__setattr__(self, "prompt_json", encode_large(prompt))
        object.__setattr__(self, "beginning", prompt[:_BEGINNING_CHARS])
        object.__setattr__(self, "prompt_tokens", tokens_of(len(prompt)))

    def item(self, model: str | None, lane: Lane, priority: Priority, caller: str) -> Submission:
        """The request as it is submitted; `model` by the name that the backend lists."""
        return Submission(
            lane=lane,
            priority=priority,
            caller=caller,
            model=model,
            request_id=RequestId(new_request_id()),
            call=self.call_on,
            task_type=self.task_type,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            chain_id=self.chain_id,
        )

    def call_on(self, model: str) -> BackendCall:
        """The backend call for the model that was chosen."""
        num_ctx = self.load_options(model).num_ctx
        return completion_call(self.prompt_json, model, self.max_tokens, json_mode=self.json_mode, num_ctx=num_ctx)


async def complete(reply: Reply, now: Callable[[], float], model_of: Callable[[], str | None], *, json_mode: bool = False) -> Completion:
    """Wait for the answer of a submitted `PromptCall.call_on`. `json_mode`: read the text as JSON as well.

    Raises:
        HearthError: what became of it instead.
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
    found = read_completion(body, round((now() - began_at) * 1000), model)
    return replace(found, parsed=_parsed(found.output) if json_mode else None, cost_usd=reply.cost_usd)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Futures:
    """Hands results to futures, and keeps the tasks that wait for them alive."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Completion]] = set()

    def watch(self, task: asyncio.Task[Completion], give_up: Callable[[], object]) -> asyncio.Future[Completion]:
        """A future for the task's result; cancelling it, or the task, gives the item up, also before the task has taken a step."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._hand_over, future))
        future.add_done_callback(lambda ended: _stop(task, give_up) if ended.cancelled() else None)
        return future

    def _hand_over(self, future: asyncio.Future[Completion], task: asyncio.Task[Completion]) -> None:
        self._tasks.discard(task)
        if future.done():
            return
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _stop(task: asyncio.Task[Completion], give_up: Callable[[], object]) -> None:
    give_up()
    task.cancel()
