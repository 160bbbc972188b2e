"""Which conversation is in which slot of a llama-server.

The server chooses the slot of a call that names none, and says so to nobody; but the newest task in
its list of slots is that of the last call, so the list is read before anything else is sent.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.dialects.stream import count_in
from hearth.engines.llama_server.saved import SavedConversation
from hearth.engines.llama_server.slot_routes import SlotRoutes
from hearth.types import NO_USAGE, Usage, entity


@entity
class Slot:
    """A slot as far as it is known.

    Attributes:
        conversation: whose text it holds; empty for unknown. prompt_tokens: of its last prompt.
        on_disk: so many tokens of it are in a file. calls: under way in it. task, tokens, is_busy:
        what the server last said of it.
    """

    number: int
    conversation: str = ""
    prompt_tokens: int = 0
    on_disk: int = 0
    used_at: float = 0.0
    calls: int = 0
    task: int = -1
    tokens: int = 0
    is_busy: bool = False

    def forget(self) -> None:
        self.conversation = ""
        self.prompt_tokens = 0
        self.on_disk = 0

    def hold(self, saved: SavedConversation) -> None:
        """It was read from a file."""
        self.conversation = saved.conversation
        self.prompt_tokens = saved.prompt_tokens
        self.tokens = saved.tokens
        self.on_disk = saved.tokens


@entity
class SlotCall:
    """A call to the server.

    Attributes:
        slot: None for unknown. restored: what was restored for it. usage: of its answer.
    """

    conversation: str
    slot: Slot | None
    restored: SavedConversation | None = None
    usage: Usage = NO_USAGE
    has_ended: bool = False


class SlotTable:
    """The slots of one run of a server. Used by one caller at a time, but for `end`."""

    def __init__(self, routes: SlotRoutes, count: int, clock: Clock) -> None:
        self._routes = routes
        self._clock = clock
        self._slots = [Slot(number) for number in range(count)]
        self._lost: SlotCall | None = None
        """The last call, where the server has chosen its slot."""

    @property
    def only(self) -> Slot | None:
        """The slot of a server that has one."""
        return self._slots[0] if len(self._slots) == 1 else None

    @property
    def latest_first(self) -> list[Slot]:
        return sorted(self._slots, key=lambda slot: slot.used_at, reverse=True)

    def own(self, conversation: str) -> Slot | None:
        """The slot that holds this conversation."""
        if not conversation:
            return None
        return next((each for each in self._slots if each.conversation == conversation), None)

    def free(self) -> Slot | None:
        """One in which nothing runs, as the server said last: an empty one if there is any, else
        the one that was not used for longest.
        """
        idle = [slot for slot in self._slots if not (slot.calls or slot.is_busy)]
        return min(idle, key=lambda slot: (slot.tokens > 0, slot.used_at), default=None)

    def begin(self, call: SlotCall) -> None:
        """The server has taken a call."""
        if call.slot is None:
            self._lost = call
        else:
            self._take(call.slot, call)

    def end(self, call: SlotCall, usage: Usage) -> None:
        """An answer has ended, or was cut off: the slot keeps what was read."""
        call.usage = usage
        call.has_ended = True
        if call.slot is not None:
            self._leave(call.slot, usage)

    def _take(self, slot: Slot, call: SlotCall) -> None:
        """A call is, or was, in this slot."""
        for other in self._slots:
            if other.conversation == call.conversation and other is not slot:
                other.forget()
        if slot.conversation != call.conversation:
            slot.forget()
        slot.conversation = call.conversation
        slot.on_disk = 0
        slot.calls += 1
        call.slot = slot
        if call.has_ended:
            self._leave(slot, call.usage)

    def _leave(self, slot: Slot, usage: Usage) -> None:
        slot.calls -= 1
        slot.used_at = self._clock.monotonic()
        slot.prompt_tokens = usage.prompt_tokens or slot.prompt_tokens

    async def find_lost(self) -> None:
        """See where the last call went, if the server has chosen its slot."""
        call = self._lost
        if call is None:
            return
        before = max(slot.task for slot in self._slots)
        await self.look()
        self._lost = None
        newest = max(self._slots, key=lambda slot: slot.task)
        if newest.task > before:
            self._take(newest, call)

    async def look(self) -> bool:
        """Ask the server for its slots. False: it does not say, so nothing is known."""
        listed = await self._routes.listed()
        if listed is None:
            for slot in self._slots:
                slot.forget()
            return False
        for slot, shown in zip(self._slots, listed, strict=False):
            if isinstance(shown, dict):
                task = count_in(shown, "id_task")
                slot.task = -1 if task is None else task
                slot.tokens = count_in(shown, "n_prompt_tokens") or 0
                slot.is_busy = shown.get("is_processing") is True
        return True
