"""One call of the model server for several callers: who is in it, what it asks, and whose answer is where in its answer.

An item of the queue like any other, with one slot and one place in line. Its body is made when an attempt starts, so a member that has
left by then costs nothing. A call for one member goes out as its caller sent it. Holds values; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hearth.dialects.embedding import Part, joined_body, split_answer
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.events import Event, ItemDispatched
from hearth.execution.reply import Reply
from hearth.execution.request import call_on
from hearth.queue.embedding_members import Member
from hearth.queue.item import Submission
from hearth.types import SEVERAL_CALLERS, BackendCall, Headers, Lane, Priority, RequestId, Sequence, WorkKind

_JSON_BODY: Headers = ((b"content-type", b"application/json"),)


class Key(NamedTuple):
    """What calls must have in common to go together: address, model, place in line, and all of the body but the input."""

    path: str
    model: str | None
    lane: Lane
    priority: Priority
    task_type: str | None
    options: bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """The call.

    Attributes:
        members: those that are alive.
        opened_at: when its first member came; called_at: when it went to the queue.
        sequence, reply: its place in the queue and its answer; None before.
        asked: whose inputs the last attempt asks for, as they were when it began.
        apart: its one member was in another call before, which has failed.
    """

    key: Key
    opened_at: float
    members: list[Member] = field(default_factory=list)
    called_at: float = 0.0
    sequence: Sequence | None = None
    reply: Reply | None = None
    asked: tuple[Member, ...] = ()
    apart: bool = False

    def item(self, request_id: RequestId, told: Callable[[Event], None]) -> Submission:
        """The call as the queue takes it."""
        self.asked = tuple(self.members)
        callers, first = {member.new.caller for member in self.members}, self.members[0].new
        return Submission(
            lane=self.key.lane,
            priority=self.key.priority,
            caller=first.caller if len(callers) == 1 else SEVERAL_CALLERS,
            model=self.key.model,
            task_type=self.key.task_type,
            kind=WorkKind.EMBED,
            dialect=first.dialect,
            prompt_tokens=sum(member.new.prompt_tokens for member in self.members),
            request_id=request_id,
            call=self._call_on,
            inputs=len(self.members),
            told=told,
            accepted=self.apart,
            carries=True,
        )

    def hear(self, event: Event) -> None:
        """With an attempt it is settled who is asked for: its body may be made more than once, and a member may leave in between."""
        if isinstance(event, ItemDispatched):
            self.asked = tuple(self.members) or self.asked

    def _call_on(self, model: str) -> BackendCall:
        if len(self.asked) > 1:
            body = joined_body([member.one for member in self.asked])
            return BackendCall(method="POST", path=self.key.path, headers=_JSON_BODY, body=body)
        return call_on(self.asked[0].new.call, model)

    def parts(self, body: bytes, prompt_tokens: int | None) -> list[Part] | None:
        """The answer to each of `asked` from the one to all of them; None where it cannot be told whose is what."""
        if len(self.asked) == 1:
            return [Part(body=body, prompt_tokens=prompt_tokens)]
        return split_answer(INFERENCE_ROUTES[self.key.path.partition("?")[0]], body, [member.one for member in self.asked])
