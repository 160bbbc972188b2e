"""Calls from a Python program that embeds Hearth: a prompt in, a future with the completion out, through the same queue as everyone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hearth.dialects.ollama import completion_call, read_completion
from hearth.dialects.prompt_size import tokens_of
from hearth.errors import BackendError, ModelNotFound
from hearth.reply import Reply
from hearth.types import BackendCall, Completion, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a program asks for; `model` None runs on whatever is resident."""

    prompt: str
    model: str | None
    max_tokens: int | None
    json_mode: bool
    task_type: str | None

    @property
    def prompt_tokens(self) -> int:
        """Estimated size of the prompt."""
        return tokens_of(len(self.prompt))

    def call_on(self, model: str) -> BackendCall:
        """The backend call for the model that was chosen."""
        return completion_call(self.prompt, model, self.max_tokens, json_mode=self.json_mode)


class Accepted(Protocol):
    """What a submission gives back."""

    @property
    def sequence(self) -> Sequence: ...

    @property
    def reply(self) -> Reply: ...


async def complete(
    accepted: Accepted, now: Callable[[], float], model_of: Callable[[], str | None], cancel: Callable[[Sequence], object]
) -> Completion:
    """Wait for the answer of a submitted `Asked.call_on`; being cancelled cancels the item.

    Raises:
        HearthError: what became of it instead.
    """
    began_at = now()
    try:
        head = await accepted.reply.head()
        body = await accepted.reply.body()
    except asyncio.CancelledError:
        cancel(accepted.sequence)
        raise
    model = model_of() or ""
    if head.status == 404:
        raise ModelNotFound(f"model '{model}' not found")
    if head.status >= 400:
        raise BackendError(f"the model server answered {head.status}")
    return read_completion(body, round((now() - began_at) * 1000), model)


class Futures:
    """Hands results to futures, and keeps the tasks that wait for them alive."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Completion]] = set()

    def watch(self, task: asyncio.Task[Completion]) -> asyncio.Future[Completion]:
        """A future for the task's result; cancelling it cancels the task."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._hand_over, future))
        future.add_done_callback(lambda ended: task.cancel() if ended.cancelled() else None)
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
