"""Who takes the slot of a model that has only one: two long conversations take turns there no more
often than they must.

Where the prompt cache of a model is full, whoever takes its slot and is not in there displaces the
conversation that was not used for longest. So a request of a warm conversation goes before the
first of its line, and where none waits, the slot is kept as long as the return of one is likely and
pays (`policies.returns_by`, the trip being the reading of what is displaced and of what displaces
it). The first of a line waits for that no longer than `MOST_TRIPS` such trips and
`scheduling.max_swap_wait_s` since its arrival, and where callers are served by their shares, only
for those who are less than a trip ahead of it. Nothing of this applies to what takes less than
`LEAST_REREAD_S` to read again, to models with several slots, under `fifo`, between the lanes, to
internal requests with `preemption: at_once`, and for conversations whose requests would come behind
the first of the line, being less urgent; and no slot is kept from the caller of what would be
displaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hearth.config.choices import PolicyName
from hearth.scheduling.estimates import Habit
from hearth.scheduling.policies import returns_by
from hearth.scheduling.residency import Resident
from hearth.scheduling.shares import lead_s
from hearth.scheduling.state import DeviceState, ModelHold
from hearth.scheduling.waiting import Entry
from hearth.scheduling.warm import Conversation, ConversationKey
from hearth.types import Band

LEAST_REREAD_S = 1.0
MOST_TRIPS = 4.0
LOOKAHEAD = 32  # so many of a line are looked at for one of the warm conversation


def taker(device: DeviceState, head: Entry, resident: Resident, now: float) -> Entry | ModelHold:
    """Who starts now in a free slot, `head` being the first of its line; or for whom it is kept."""
    if not _is_cold(device, head, resident):
        return head
    model = resident.model
    caches = device.residency.caches
    warm = caches.warm(model)
    displaced = list(warm)[-1]
    reread_s = caches.expected_s(model, now)[displaced]
    trip_s = reread_s + device.read_s(head.item, model)
    most_s = min(MOST_TRIPS * trip_s, device.gateway.settings.scheduling.max_swap_wait_s)
    until = head.item.arrived_at + most_s
    own = {
        key: each
        for key, each in warm.items()
        if _goes_before(each, head) and lead_s(device, each.caller, head) < trip_s
    }
    if reread_s < LEAST_REREAD_S or displaced not in own or now >= until:
        return head
    line = device.gateway.waiting.from_entry(head, LOOKAHEAD)
    for entry in line:
        if entry.item.conversation_key in own and not device.is_held(entry, now):
            return entry
    back = _next_return(own, trip_s, len(line), now)
    if back is None or displaced[0] == head.item.caller:  # it may well have begun anew
        return head
    back_at, caller = back
    return ModelHold(model=model, caller=caller, until=min(until, back_at))


def _is_cold(device: DeviceState, head: Entry, resident: Resident) -> bool:
    """Would it displace a conversation from a full cache, and may it have to wait for that?"""
    settings = device.gateway.settings.scheduling
    if settings.policy is PolicyName.FIFO or not (head.external or device.gateway.priced):
        return False
    model = resident.model
    caches = device.residency.caches
    if resident.parallel > 1 or not caches.tables.get(model):
        return False
    warm = caches.warm(model)
    return head.item.conversation_key not in warm and len(warm) == caches.kept_conversations(model)


def _goes_before(conversation: Conversation, head: Entry) -> bool:
    """Would its next request stand in the line of this one, or in a more urgent one of its lane?"""
    is_external = conversation.band >= Band.INTERRUPTED
    return is_external is head.external and conversation.band <= head.band


def _next_return(
    warm: Mapping[ConversationKey, Conversation], trip_s: float, waiting: int, now: float
) -> tuple[float, str] | None:
    """The first instant by which one of these is likely to go on, and whose it is; None where it is
    not worth waiting for any while so many others wait.
    """
    returns = [
        (returns_by(_habit(each), now, trip_s, waiting) or now, each.caller)
        for each in warm.values()
        if each.tokens
    ]
    return min([each for each in returns if each[0] > now], default=None)


def _habit(conversation: Conversation) -> Habit:
    """When it goes on, by what was seen of it, or of its caller."""
    return Habit(
        conversation.caller,
        conversation.used_at,
        waits=False,
        gaps=deque(conversation.known_gaps),
    )
