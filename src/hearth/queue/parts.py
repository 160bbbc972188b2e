"""What everybody works with who carries requests out."""

from __future__ import annotations

from hearth.execution.aliases import Aliases
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.card_health import CardHealth
from hearth.execution.runtime import Runtime
from hearth.queue.admission import QueueAdmission
from hearth.queue.forecaster import Forecaster
from hearth.queue.mailbox import Mailbox
from hearth.queue.registry import Registry
from hearth.scheduling.core import Scheduler
from hearth.types import frozen


@frozen
class QueueParts:
    """What the queue and Claude share."""

    runtime: Runtime
    mailbox: Mailbox
    scheduler: Scheduler
    registry: Registry
    watch: BackendWatch
    health: CardHealth
    aliases: Aliases
    forecaster: Forecaster
    admission: QueueAdmission
