"""What the parts of the live shell share: clock, events, settings and the scheduler's mailbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hearth.clock import Clock
from hearth.config.settings import GatewayConfig, Settings
from hearth.events import InternalFault
from hearth.execution.gpu_tracker import GpuTracker
from hearth.execution.tasks import WakeableSleep
from hearth.ports import EventSink
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.inputs import Input
from hearth.scheduling.views import StatusView


@dataclass(slots=True, eq=False, kw_only=True)
class Runtime:
    """What each part works with.

    Attributes:
        config: in force; replaced as a whole.
        view: the scheduler as it is, for reading.
        forecasts: what it expects.
        post: reports a fact to the scheduler.
        engine_of: the row of `engines` that has a model.
        emulated: the emulator answers, so all answers are made up.
        card_beat: the pause between two readings of the card; ring it for one at once.
        lease_beat: the same between two looks at who else has the card.
    """

    config: GatewayConfig
    clock: Clock
    events: EventSink
    view: StatusView
    forecasts: ForecastView
    tracker: GpuTracker
    post: Callable[[Input], None]
    engine_of: Callable[[str], str]
    emulated: bool = False
    card_beat: WakeableSleep = field(default_factory=WakeableSleep)
    lease_beat: WakeableSleep = field(default_factory=WakeableSleep)

    @property
    def settings(self) -> Settings:
        return self.config.settings

    def report_fault(self, where: str, error: BaseException) -> None:
        """Emit that a defect was caught; its type only, since texts may quote a prompt."""
        self.events.emit(
            InternalFault(at=self.clock.monotonic(), where=where, detail=type(error).__name__)
        )
