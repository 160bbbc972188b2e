"""Who takes the slot of a model that has only one: two long conversations take turns there no more
often than they must.

Where the prompt cache of a model has room for one conversation, whoever takes its slot destroys
what is warm. So a request of the warm conversation goes before the first of its line, and where
none waits, the slot is kept for it as long as a return is likely and pays (`policies.returns_by`,
the trip being the reading of both prompts). The first of a line waits for that no longer than
`MOST_TRIPS` such trips and `scheduling.max_swap_wait_s` since its arrival, and where callers are
served by their shares, until that of the warm conversation is a trip ahead. Nothing of this applies
to what takes less than `LEAST_REREAD_S` to read again, to models with several slots, to a cache
that was seen to hold more, and between the lanes.
"""

from __future__ import annotations

from collections import deque

from hearth.scheduling.estimates import Habit
from hearth.scheduling.policies import returns_by
from hearth.scheduling.residency import Resident
from hearth.scheduling.shares import lead_s
from hearth.scheduling.state import DeviceState, ModelHold
from hearth.scheduling.waiting import Entry
from hearth.scheduling.warm import Conversation

LEAST_REREAD_S = 1.0
MOST_TRIPS = 4.0
LOOKAHEAD = 32  # so many of a line are looked at for one of the warm conversation


def taker(device: DeviceState, head: Entry, resident: Resident, now: float) -> Entry | ModelHold:
    """Who starts now in a free slot, `head` being the first of its line; or for whom it is kept."""
    model = resident.model
    if resident.parallel > 1 or not device.residency.caches.tables.get(model):
        return head
    if device.residency.caches.kept_conversations(model) > 1:
        return head
    key, conversation = next(iter(device.residency.caches.warm(model).items()))
    item = head.item
    reread_s = device.residency.reread_s(model, now)
    is_other = (item.caller, item.conversation) != key and head.external is conversation.is_external
    trip_s = reread_s + device.read_s(item, model)
    most_s = min(MOST_TRIPS * trip_s, device.gateway.settings.scheduling.max_swap_wait_s)
    until = item.arrived_at + most_s
    is_owed = lead_s(device, conversation.caller, head) >= trip_s
    if not is_other or reread_s < LEAST_REREAD_S or now >= until or is_owed:
        return head
    line = device.gateway.waiting.from_entry(head, LOOKAHEAD)
    for entry in line:
        if (entry.item.caller, entry.item.conversation) == key and not device.is_held(entry, now):
            return entry
    back_at = returns_by(_habit(conversation), now, trip_s, len(line))
    if back_at is None or back_at <= now:
        return head
    return ModelHold(model=model, caller=conversation.caller, until=min(until, back_at))


def _habit(conversation: Conversation) -> Habit:
    """When it goes on, by what was seen of it, or of its caller."""
    return Habit(
        conversation.caller,
        conversation.used_at,
        waits=False,
        gaps=deque(conversation.known_gaps),
    )
