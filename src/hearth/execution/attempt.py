"""What has happened to one run of a request."""

from __future__ import annotations

from hearth.engines.port import LaterRun
from hearth.errors import HearthError
from hearth.types import NO_USAGE, Usage, entity


@entity
class Attempt:
    """One run of a request. Whoever carries the request out owns it; others read it.

    Attributes:
        number: counts from 1; 0 before the first. dispatched_at, first_byte_at: None before, and
        once the request is back in line. swap_s: seconds of the wait spent bringing in the model.
        emulated: the emulator works on it. engine: the name of the one that does. forwarded: the
        caller has been given bytes of it. resumed: what goes on with what earlier attempts have
        sent; None where it does not. status: HTTP status of the backend's answer. error: why it
        failed, or what its answer, which its caller has, says of itself. held_up: the model server
        had to wait for its reader.
    """

    number: int = 0
    dispatched_at: float | None = None
    swap_s: float = 0.0
    emulated: bool = False
    engine: str = ""
    first_byte_at: float | None = None
    forwarded: bool = False
    held_up: bool = False
    resumed: LaterRun | None = None
    status: int | None = None
    usage: Usage = NO_USAGE
    error: HearthError | None = None
