"""Whether a call to Claude that failed unseen is made again, and after how long. Pure: the spread comes from the item's number."""

from __future__ import annotations

from hearth.errors import BackendBusy, BackendError, BackendUnreachable, CloudUnavailable, HearthError
from hearth.types import Sequence

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
LONGEST_ADVICE_S = 10.0
"""Where Claude asks for a longer pause, the caller is told instead of kept."""
_GOLDEN = 0.6180339887498949


def retry_delay_s(error: HearthError, attempt: int, *, max_retries: int, sequence: Sequence) -> float | None:
    """Seconds until the next attempt after `attempt` (from 1) failed; None for the end.

    To be asked only for what was refused before anything was charged.
    """
    if attempt > max_retries or not error.retryable or isinstance(error, CloudUnavailable):
        return None
    if type(error) not in (BackendBusy, BackendError, BackendUnreachable):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= LONGEST_ADVICE_S else None
    delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (attempt - 1))
    return delay_s * (0.75 + 0.5 * (sequence * _GOLDEN % 1.0))
