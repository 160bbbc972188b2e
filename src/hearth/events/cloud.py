"""What happens between the house and Claude."""

from __future__ import annotations

from hearth.events.base import Event
from hearth.types import value


@value
class BudgetThresholdReached(Event):
    """External callers have spent `budget.alert_pct` of what they may spend today on cloud models.

    Said once a day, and at each start until a message about it has arrived.
    """

    spent_usd: float
    limit_usd: float
    pct: float


@value
class BudgetExhausted(Event):
    """A call to a cloud model was refused because it could have cost more than is left for today.

    `own`: of the budget of its key, which the amounts are about then; else of that of all external callers.
    """

    caller: str
    own: bool
    wanted_usd: float
    spent_usd: float
    limit_usd: float


@value
class CloudWentDown(Event):
    """Claude takes no work from this house: the key or the account is at fault. It is tried again after `retry_s`, or after a reload."""

    reason: str
    detail: str
    retry_s: float


@value
class CloudCameUp(Event):
    """Claude has answered again."""

    down_s: float
