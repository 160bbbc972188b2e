"""Nobody's fault: come back later."""

from __future__ import annotations

from hearth.errors.base import HearthError


class CapacityError(HearthError):
    """Hearth cannot take this now."""

    status = 503
    retryable = True
    reason = "capacity"


class QueueFull(CapacityError):
    """The queue is full."""

    reason = "queue_full"


class NoRoomForBodies(CapacityError):
    """The bodies of other requests take all the room that `server.max_bodies_mib` gives. Try again when some have ended."""

    reason = "no_room_for_bodies"


class TooManyConnections(CapacityError):
    """Too many connections are open. Close some, or try again later."""

    reason = "too_many_connections"


class ShuttingDown(CapacityError):
    """Hearth is shutting down."""

    reason = "shutting_down"


class Draining(CapacityError):
    """Hearth takes no new work at the moment: its owner is draining it. Try again later."""

    reason = "draining"


class WaitExpired(CapacityError):
    """The request waited longer than `queue.max_wait_s`."""

    reason = "wait_expired"


class Interrupted(CapacityError):
    """The answer was interrupted for more urgent work. Ask again."""

    reason = "interrupted"
