"""The settings that the scheduler decides by: `scheduling`, `queue`, `gpu` and `models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hearth.config.choices import PackingMode, PolicyName, StartedStreams, UnreplayableStreams, Window
from hearth.config.fields import (
    EMPTY,
    RESTART,
    YEAR_S,
    Count,
    Cron,
    Depth,
    Duration,
    Flag,
    Gibibytes,
    GpuDevice,
    Integer,
    Items,
    ModelNameOrNothing,
    Name,
    Number,
    Percentage,
    PriorityName,
    Reload,
    Section,
    Slots,
    Table,
    Timeout,
    TimeZone,
    WindowText,
)
from hearth.types import LoadOptions, Priority, canonical_model

if TYPE_CHECKING:
    from hearth.config.settings import Settings


class Announcement(Section):
    """A recurring internal task, so that the GPU is free when it comes."""

    task_type: Name
    """The internal task type that comes."""
    cron: Cron
    """When it comes: minute, hour, day of month, month, day of week, in `scheduling.time_zone`."""


class CostAwareSettings(Section):
    """The policy `cost_aware`: when waiting work is worth a swap."""

    coalesce_window_s: Duration = 2.0
    """Seconds that the first item for another model waits for company."""
    amortization_factor: Annotated[Number, Field(ge=0, le=1000)] = 0.5
    """Items per second of swap cost that make a swap worthwhile at once."""
    max_wait_s: Duration = 15.0
    """Seconds after which a waiting item asks for its swap whatever it costs."""
    min_active_s: Duration = 5.0
    """Seconds that a model is in memory at least before it is swapped away."""


class TimeSliceSettings(Section):
    """The policy `time_slice`: how long the models serve in turn."""

    min_slice_factor: Annotated[Number, Field(ge=0, le=1000)] = 3.0
    """A slice lasts at least this many times what the swap that ends it costs."""


class AgingSettings(Section):
    """What waiting does for the rank of internal work; external work keeps its order of arrival and never passes internal work."""

    promote_after_s: Duration = 300.0
    """Seconds of waiting after which an internal item rises one band, and again after as long; 0 is never."""
    ceiling: PriorityName = Priority.NORMAL
    """The highest band that waiting alone can reach: critical, normal or background."""


class PackingSettings(Section):
    """How the free slots of a model with several (`gpu.parallel`) are filled: in rounds, each of which ends when its prompts are read."""

    mode: PackingMode = PackingMode.FIFO
    """`fifo`: in order of arrival; `pack`: the smallest prompts first, while there is more than one free slot."""
    lookahead: Annotated[Integer, Field(ge=1, le=10_000)] = 64
    """Waiting items of a model among which `pack` chooses."""
    prefill_max_tokens: Annotated[Integer, Field(ge=1, le=100_000_000)] | None = None
    """Prompt tokens that one round takes, though always one item; unset is 2048 for `pack` and no limit for `fifo`."""
    force_fifo_every: Count = 8
    """Every so many rounds one goes in order of arrival, so that no long prompt is passed for ever; 0 is never."""


class SchedulingSettings(Section):
    """When and how the queue decides."""

    active_hours: WindowText = Window(start_minute=6 * 60, end_minute=22 * 60)
    """Hours in which internal work preempts external work; `"HH:MM-HH:MM"`, quoted, may cross midnight."""
    time_zone: TimeZone = "local"
    """IANA zone of `active_hours` and `announcements` (`Europe/Berlin`); `local` is the machine's zone."""
    schedule_drain_minutes: Annotated[Number, Field(ge=0, le=1440)] = 2.0
    """Minutes before an announced internal task in which no external item that would overrun it starts."""
    policy: PolicyName = PolicyName.ADAPTIVE
    """Which model a band serves next: `adaptive`, `affinity`, `time_slice`, `cost_aware` or `fifo` (docs/scheduling.md)."""
    max_swap_wait_s: Duration = 120.0
    """Seconds after which a waiting item may force a swap away from a busy model (`affinity`; `adaptive`, later for a long queue)."""
    residency_factor: Annotated[Number, Field(ge=0, le=1000)] = 3.0
    """A forced swap comes only after the resident model has served this many times the measured cost of a swap; not under `fifo`."""
    cost_aware: CostAwareSettings = CostAwareSettings()
    time_slice: TimeSliceSettings = TimeSliceSettings()
    preempt_min_remaining_s: Duration = 2.0
    """A running external item that is estimated to end within this many seconds is not interrupted."""
    started_streams: StartedStreams = StartedStreams.RESUME
    """`resume`: interrupt a started external stream and go on with it later; `replay`: only by verified replay; `finish` first."""
    on_divergence: Literal["continue", "error"] = "continue"
    """Where a replay says something else than was sent: `continue` from what was sent, or end with a retryable `error`."""
    unreplayable_streams: UnreplayableStreams = UnreplayableStreams.FINISH
    """A started stream that cannot be resumed: `finish` first, or end it with a retryable `error`."""
    preempt_finish_bound_s: Duration = 60.0
    """Seconds an internal item waits for a stream that is left to finish; then the stream ends with a retryable error."""
    preempt_restart_bound_s: Duration = 10.0
    """Seconds an internal item waits for an answer that would start over, where stopping it loses more than it gains; 0 is never."""
    replay_limit_mib: Annotated[Number, Field(ge=0, le=1024)] = 1.0
    """MiB of a stream that are kept to go on from or to compare with; a longer one cannot be resumed."""
    aging: AgingSettings = AgingSettings()
    packing: PackingSettings = PackingSettings()
    announcements: Items[Announcement] = ()
    """Internal tasks with a known time: `task_type` and a five-field `cron` expression in `time_zone`."""


class QueueSettings(Section):
    """How much may wait and how often it may be interrupted."""

    max_external_depth: Depth = 20
    """External items that may wait; one more is refused with 503."""
    max_internal_depth: Depth = 1000
    """Internal items that may wait; one more is refused with 503."""
    max_interrupt_count: Count = 3
    """Interruptions of one item, loads in vain included, after which it is protected and finishes; 0 interrupts nobody."""
    max_wait_s: Duration = 0.0
    """Seconds a request may wait before it is given up with 503; 0 is for ever. Jobs wait for as long as it takes."""


class GpuAlertSettings(Section):
    """When swapping is worth a word to the owner."""

    swaps_per_hour_warning: Count = 4
    """More swaps than this in an hour."""
    swap_wait_ms_warning: Annotated[Number, Field(ge=0, le=YEAR_S * 1000)] = 60000.0
    """A swap longer than this many milliseconds."""
    swap_overhead_pct_warning: Percentage = 25.0
    """More than this percentage of busy time spent on swaps."""
    temperature_c: Annotated[Number, Field(ge=1, le=150)] = 85.0
    """A card as hot as this, in degrees Celsius."""


class GpuSettings(Section):
    """The card and what lives on it."""

    home_model: ModelNameOrNothing = ""
    """The model that is resident when nobody needs another one; empty for none."""
    swap_timeout_s: Timeout = 120.0
    """Seconds for a load; longer is a failure."""
    restore_home_delay_s: Duration = 120.0
    """Most idle seconds before the home model is loaded again; less where less has proved better, 0 for at once."""
    vram_gb: Gibibytes | None = None
    """GPU memory in GiB, 0 for a machine without GPU (no limit); unset is what the card says, else unknown: one model at a time."""
    parallel: Slots = 1
    """Requests that one model serves at once, unless `models` says otherwise; at most OLLAMA_NUM_PARALLEL."""
    nvml: Annotated[Flag, RESTART] = True
    """Read the card's own numbers: NVIDIA's through NVML, AMD's from sysfs. false where Ollama runs on another machine."""
    device: Annotated[GpuDevice, RESTART] = "0"
    """Which card, by its number or an NVIDIA card's UUID."""
    sample_interval_s: Annotated[Number, Field(ge=1, le=3600)] = 5.0
    """Seconds between two readings of the card."""
    task_vram_gb: Table[Name, Gibibytes] = EMPTY
    """GPU memory in GiB that is reserved for a model when it is loaded for a task of this type, instead of the model's own."""
    swap_cost_prior_s: Duration = 10.0
    """Assumed seconds for a swap that has not been measured yet."""
    alerts: GpuAlertSettings = GpuAlertSettings()


class ModelSettings(Section):
    """What is known of one model."""

    vram_gb: Gibibytes | None = None
    """GPU memory it needs in GiB; unset is learned from `/api/ps`."""
    parallel: Slots | None = None
    """Requests it serves at once; unset is `gpu.parallel`."""
    num_ctx: Annotated[Annotated[Integer, Field(ge=1, le=100_000_000)] | None, Reload.NEXT_LOAD] = None
    """Context length it is loaded with and every native request is sent with; unset is the model's own. The OpenAI and Anthropic routes
    cannot carry one and use the model's own, so give their callers a tag made with `PARAMETER num_ctx`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The part of the settings that the scheduler decides by."""

    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    wait_when_down_s: float = 10.0

    @classmethod
    def of(cls, settings: Settings, find: Callable[[str], str | None] = canonical_model) -> SchedulerSettings:
        """The scheduler's view of a whole settings tree; `find`: the one name of a model, None where it is not installed."""
        home = settings.gpu.home_model

        def name_of(model: str) -> str:
            return find(model) or canonical_model(model)

        others_first = sorted(settings.models.items(), key=lambda named: name_of(named[0]) == canonical_model(named[0]))
        return cls(
            scheduling=settings.scheduling,
            queue=settings.queue,
            gpu=settings.gpu.model_copy(update={"home_model": home and name_of(home)}),
            models=MappingProxyType({name_of(name): model for name, model in others_first}),
            wait_when_down_s=settings.backend.wait_when_down_s,
        )

    def parallel(self, model: str) -> int:
        """Slots of a model."""
        chosen = self.models.get(model)
        return self.gpu.parallel if chosen is None or chosen.parallel is None else chosen.parallel


def load_options(settings: Settings, model: str, name_of: Callable[[str], str | None] = canonical_model) -> LoadOptions:
    """How a model is loaded, and so how every request for it must be sent; `name_of`: the one name of a model that has several."""
    if not settings.models:
        return LoadOptions()
    wanted = canonical_model(name_of(model) or model).lower()
    pinned = (known for name, known in settings.models.items() if canonical_model(name).lower() == wanted)
    return LoadOptions(num_ctx=next((known.num_ctx for known in pinned), None))
