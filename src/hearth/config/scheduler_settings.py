"""The settings that the scheduler decides by: `scheduling`, `queue`, `gpu` and `models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from hearth.config import fields
from hearth.config.choices import (
    PackingMode,
    PolicyName,
    Sharing,
    SleepPolicy,
    StartedStreams,
    UnreplayableStreams,
    Window,
    YieldWatch,
)
from hearth.config.engines import RunSettings
from hearth.config.fields import RESTART, Section
from hearth.types import Priority, frozen

if TYPE_CHECKING:
    from hearth.config.settings import Settings


class Announcement(Section):
    """A recurring internal task. The GPU is kept free for it."""

    task_type: fields.Name
    """Type of the internal task."""
    cron: fields.Cron
    """When the task runs: minute, hour, day of month, month and day of week as a cron expression,
    in `scheduling.time_zone`.
    """


class CostAwareSettings(Section):
    """Settings of the `cost_aware` policy, which swaps models when enough requests wait for the
    other one.
    """

    coalesce_window_s: fields.Duration = 2.0
    """Seconds a request for another model waits for more requests like it before it causes a
    swap.
    """
    amortization_factor: Annotated[fields.Number, Field(ge=0, le=1000)] = 0.5
    """A swap starts at once if this many requests wait per second of its cost.

    With 0.5, a swap of 10 seconds needs 5 requests.
    """
    max_wait_s: fields.Duration = 15.0
    """Seconds after which a waiting request causes a swap, even if it waits alone."""
    min_active_s: fields.Duration = 5.0
    """Seconds a model stays loaded before another one replaces it, unless a request has waited for
    `max_wait_s`.
    """


class TimeSliceSettings(Section):
    """Settings of the `time_slice` policy, which serves models in turn."""

    min_slice_factor: Annotated[fields.Number, Field(ge=0, le=1000)] = 3.0
    """Minimum length of a slice, as a multiple of the cost of the swap that ends it."""


class AgingSettings(Section):
    """How waiting raises the priority of internal requests.

    External requests do not rise; they are served in order of arrival.
    """

    promote_after_s: fields.Duration = 300.0
    """Seconds of waiting after which an internal request rises by one priority, and again after the
    same time. 0 turns this off.
    """
    ceiling: fields.PriorityName = Priority.NORMAL
    """Highest priority a request can reach by waiting: `critical`, `normal` or `background`."""


class PackingSettings(Section):
    """How a model with `parallel` above 1 fills its free slots.

    Requests start in rounds; a round ends when its prompts are read.
    """

    mode: PackingMode = "fifo"
    """`fifo` starts requests in order of arrival.

    `pack` starts those with the smallest prompts while more than one slot is free.
    """
    lookahead: Annotated[fields.Integer, Field(ge=1, le=10_000)] = 64
    """Number of waiting requests per model that `pack` chooses from."""
    prefill_max_tokens: Annotated[fields.Integer, Field(ge=1, le=100_000_000)] | None = None
    """Maximum prompt tokens per round; one request always starts.

    Unset: 2048 for `pack`, no limit for `fifo`.
    """
    force_fifo_every: fields.Count = 8
    """After this many rounds, one starts in order of arrival, so that long prompts do not wait
    forever. 0 turns this off.
    """


class SchedulingSettings(Section):
    """How the scheduler chooses the next request and the next model, and when it interrupts."""

    active_hours: fields.ActiveHours = (Window(start_minute=6 * 60, end_minute=22 * 60),)
    """Hours in which internal requests interrupt external ones, as `"HH:MM-HH:MM"` in quotes. May
    cross midnight. Several are a list, and days go before the hours at which a window begins on
    them: `["Mon-Fri 06:00-09:00", "Sat,Sun 10:00-23:00"]`. `[]` is never.
    """
    time_zone: fields.TimeZone = "local"
    """Time zone of `active_hours`, `announcements` and daily budgets, such as `Europe/Berlin`.

    `local` is the zone of this machine.
    """
    schedule_drain_minutes: Annotated[fields.Number, Field(ge=0, le=1440)] = 2.0
    """Minutes before an announced internal task in which external requests that could still run
    when it begins do not start.
    """
    policy: PolicyName = PolicyName.ADAPTIVE
    """Which model is served next: `adaptive`, `affinity`, `time_slice`, `cost_aware` or `fifo`
    (docs/scheduling/rules.md).
    """
    max_swap_wait_s: fields.Duration = 120.0
    """Seconds a request waits before it may force a swap (`affinity`; `adaptive`, which waits
    longer if the queue is long).
    """
    residency_factor: Annotated[fields.Number, Field(ge=0, le=1000)] = 3.0
    """A busy model is replaced only after it was loaded for this many times the measured cost of
    the swap. `fifo` ignores it.
    """
    cost_aware: CostAwareSettings = CostAwareSettings()
    time_slice: TimeSliceSettings = TimeSliceSettings()
    preemption: Literal["priced", "at_once"] = "priced"
    """How internal requests that need a swap treat external ones. `priced` weighs the swap: it
    holds the model of a caller that is about to return, and gives external requests turns.
    `at_once` interrupts whatever is in the way, whatever the swap costs.
    """
    others_share: Annotated[fields.Number, Field(ge=0.02, le=0.9)] = 0.4
    """Share of the time, swaps included, that external requests get in turns while internal callers
    keep the GPU busy.
    """
    warm_conversations: fields.Flag = True
    """Count what it costs to read conversations again as part of the cost of a swap.

    A model whose callers are about to go on with long conversations is kept for longer.
    """
    preempt_min_remaining_s: fields.Duration = 2.0
    """An external request that is expected to end within this many seconds is not interrupted."""
    started_streams: StartedStreams = "resume"
    """How an internal request treats a started external stream: `resume` interrupts it and
    continues or replays it later, `replay` interrupts it only if a replay can be compared with what
    was sent, `finish` lets it finish.
    """
    on_divergence: Literal["continue", "error"] = "continue"
    """If a replay differs from what was sent: `continue` lets the model continue the sent text,
    `error` ends it with a retryable error.
    """
    unreplayable_streams: UnreplayableStreams = "finish"
    """If a started stream cannot be resumed: `finish` lets it finish, `error` ends it with a
    retryable error.
    """
    preempt_finish_bound_s: fields.Duration = 60.0
    """Maximum seconds an internal request waits for a stream to finish.

    After that, the stream ends with a retryable error.
    """
    preempt_restart_bound_s: fields.Duration = 10.0
    """Maximum seconds an internal request waits for an answer that would start over, if
    interrupting it loses time; 0 interrupts it at once.
    """
    replay_limit_mib: Annotated[fields.Number, Field(ge=0, le=1024)] = 1.0
    """Maximum size of a stream that is kept to resume it, in MiB.

    Longer streams cannot be resumed.
    """
    aging: AgingSettings = AgingSettings()
    packing: PackingSettings = PackingSettings()
    announcements: fields.Items[Announcement] = ()
    """Internal tasks that run at known times, as `task_type` and `cron`."""


class QueueSettings(Section):
    """How many requests may wait, and how often one may be interrupted."""

    max_external_depth: fields.Depth = 20
    """Maximum number of waiting external requests. Further ones get 503.

    Where several callers ask, none of them gets more than half.
    """
    max_internal_depth: fields.Depth = 1000
    """Maximum number of waiting internal requests. Further ones get 503."""
    sharing: Sharing = "fifo"
    """Order of external requests. `fifo`: in order of arrival. `fair`: every caller gets the same
    share of the GPU's time, swaps included, and none fills the queue.
    """
    internal_sharing: Sharing = "fifo"
    """The same for internal requests, within each priority."""
    max_interrupt_count: fields.Count = 3
    """Maximum interruptions of one answer that would start over. After that, it finishes. Streams
    that can be continued are protected by turns instead. With `preemption: at_once` it counts for
    streams too, and so do loads that were undone. 0 turns interruptions off.
    """
    max_wait_s: fields.Duration = 0.0
    """Seconds a request may wait before it gets 503. 0 means no limit. Jobs have no limit."""
    paused_callers: fields.Items[fields.Name] = ()
    """Callers whose requests and jobs are accepted and wait for as long as they are listed here,
    such as `["n8n"]`. What runs goes on.
    """


class GpuAlertSettings(Section):
    """When you get an alert about the GPU."""

    swaps_per_hour_warning: fields.Count | None = None
    """Alert if there are more model swaps than this in an hour, however short.

    Unset: no such alert.
    """
    swap_wait_ms_warning: Annotated[fields.Number, Field(ge=0, le=fields.YEAR_S * 1000)] = 60000.0
    """Alert if a swap takes longer than this, in milliseconds."""
    swap_overhead_pct_warning: fields.Percentage = 25.0
    """Alert if swaps take more than this percentage of the time the GPU was busy in the last hour,
    if that was ten minutes at least.
    """
    temperature_c: Annotated[fields.Number, Field(ge=1, le=150)] = 85.0
    """Alert if the GPU reaches this temperature, in degrees Celsius."""


_WatchOrFalse = Annotated[
    YieldWatch, fields.OFF_FOR_FALSE, fields.schema_or_false(*get_args(YieldWatch))
]


class YieldSettings(Section):
    """When other programs get the GPU, and what happens to requests meanwhile.

    `hearth yield` and `/llm/gpu/leases` work whatever is set here.
    """

    watch: _WatchOrFalse = "off"
    """What frees the GPU without being asked (docs/yielding.md): `games`: a game of Steam, Heroic,
    Lutris or gamescope starts. `named`: also one of `programs` runs. `pressure`: also other
    programs take memory and little is left. `off`: nothing.
    """
    programs: fields.Items[fields.PlainText] = ("*.exe", "steam_app_*")
    """Names of programs that get the GPU with `named` and `pressure`, with `*` as wildcard."""
    game_gb: fields.Gibibytes | None = None
    """GPU memory in GiB that is freed for a game or a program. Unset: all of it."""
    headroom_gb: fields.Gibibytes = 1.5
    """With `pressure`: GPU memory in GiB that stays free for other programs that take more."""
    calm_s: fields.Duration = 60.0
    """Seconds after a named program has ended, or memory has become free again, before models are
    loaded into that memory.
    """
    grace_s: fields.Duration = 5.0
    """Seconds a running answer may go on before it is interrupted for another program. It goes on
    afterwards.
    """
    hold_s: fields.Duration = 60.0
    """Seconds a request waits for memory that another program has. After that it gets 503 with a
    `Retry-After`. Jobs have no limit.
    """
    comfyui: fields.HttpUrlOrNothing = ""
    """URL of a ComfyUI that uses this GPU, which gets it while its queue has work. Empty: none."""
    comfyui_gb: fields.Gibibytes | None = None
    """GPU memory in GiB that is freed for it. Unset: all of it."""
    suspend: fields.Flag = True
    """Interrupt answers and unload models before this machine sleeps, as far as logind announces
    it. Answers go on after it has woken.
    """


class SleepSettings(Section):
    """What becomes of a model that has to make room, where its engine can keep it asleep
    (docs/sleep.md).
    """

    host_ram_gb: fields.Gibibytes = 0.0
    """Main memory in GiB that sleeping models may take, all together. 0: none sleeps."""
    max_residual_gb: fields.Gibibytes = 1.5
    """GPU memory in GiB that a sleeping model may keep. One that keeps more is stopped."""
    policy: SleepPolicy = "lru"
    """Who gives up more when main memory is short: `lru`: the model that was not used for longest.
    `ages`: none; a model gives up its weights 60 s after its last use, and is stopped after 300 s.
    """


class GpuSettings(Section):
    """The GPU and the models on it."""

    home_model: fields.ModelNameOrNothing = ""
    """Model to load when no request needs another one, such as `llama3.1:8b`. Empty: none."""
    swap_timeout_s: fields.Timeout = 120.0
    """Seconds for which a load may show no progress: no growth of the GPU's memory, nor of Ollama's
    own where it runs on this machine. A model that took long before gets twice as long as its
    longest load. Raise it for large models on a slow disk.
    """
    restore_home_delay_s: fields.Duration = 120.0
    """Maximum seconds without work before the home model is loaded again.

    Hearth learns when less is better; 0 loads it at once.
    """
    vram_gb: fields.Gibibytes | None = None
    """GPU memory in GiB. 0: no GPU, no limit.

    Unset: what the GPU reports; if it reports nothing, one model is loaded at a time. Where the GPU
    shares main memory, the most that models may have of it.
    """
    reserve_gb: fields.Gibibytes | None = None
    """Main memory in GiB that stays free where the GPU shares it (DGX Spark, Strix Halo, APUs).

    Unset: a tenth of it, at least 4 and at most 12.
    """
    parallel: fields.Slots = 1
    """Requests one model serves at the same time, unless `models` sets it.

    At most Ollama's `OLLAMA_NUM_PARALLEL`.
    """
    nvml: Annotated[fields.Flag, RESTART] = True
    """Read the GPU's memory, load and temperature (NVIDIA: NVML, AMD: sysfs).

    Set it to false if Ollama runs on another machine.
    """
    device: Annotated[fields.GpuDevice, RESTART] = "0"
    """GPU to read, in quotes: its number, or the UUID of an NVIDIA GPU as `nvidia-smi -L` prints
    it. `all`: the memory of all GPUs counts as one, for a model server that splits models over
    them.
    """
    sample_interval_s: Annotated[fields.Number, Field(ge=1, le=3600)] = 5.0
    """Seconds between two readings of the GPU."""
    task_vram_gb: fields.ReadOnlyTable[fields.Name, fields.Gibibytes] = fields.EMPTY
    """GPU memory in GiB to reserve for a model loaded for this task type, in place of its own size,
    such as `cover_letter: 2.5`.
    """
    swap_cost_prior_s: fields.Duration = 10.0
    """Assumed seconds for a swap that was not measured yet."""
    restart_command: Annotated[fields.Items[fields.PlainText], Field(max_length=100)] = ()
    """Command that restarts the model server, as a list, run without a shell for 60 seconds at
    most. It runs when a model stays many times slower than usual after it was loaded again, as
    after a suspend that the GPU did not survive. Empty: none.
    """
    alerts: GpuAlertSettings = GpuAlertSettings()
    sleep: SleepSettings = SleepSettings()
    # `yield` is a keyword, so the field cannot be written as the others are
    __annotations__["yield"] = YieldSettings
    vars()["yield"] = YieldSettings()

    @property
    def yielding(self) -> YieldSettings:
        """What stands under `yield`."""
        found: YieldSettings = getattr(self, "yield")
        return found


class ModelSettings(Section):
    """Settings of one model."""

    vram_gb: fields.Gibibytes | None = None
    """GPU memory the model needs, in GiB. Unset: learned from its engine."""
    parallel: fields.Slots | None = None
    """Requests the model serves at the same time. Unset: `gpu.parallel`."""
    num_ctx: Annotated[
        Annotated[fields.Integer, Field(ge=1, le=100_000_000)] | None, fields.Reload.NEXT_LOAD
    ] = None
    """Context length in tokens for loading the model and for every native request. Unset: the
    model's own. The OpenAI and Anthropic APIs cannot set one: give their callers a tag made with
    `PARAMETER num_ctx`.
    """
    engine: Annotated[fields.PlainText, RESTART] = ""
    """Row of `engines` that has the model. Empty: the first that lists it."""
    upstream_name: Annotated[fields.PlainText, RESTART] = ""
    """Name of the model in requests to its engine, where that knows it by another one."""
    run: RunSettings | None = None


@frozen
class SchedulerSettings:
    """The part of the settings that the scheduler decides by."""

    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    wait_when_down_s: float = 10.0

    @classmethod
    def of(cls, settings: Settings, name_of: Callable[[str], str] = str) -> SchedulerSettings:
        """The scheduler's view of a whole settings tree; `name_of`: the one name of a model that
        may have several.
        """
        home = settings.gpu.home_model
        # what is said of a model under its one name goes before what is said of its other names
        others_first = sorted(
            settings.models.items(), key=lambda named: name_of(named[0]) == named[0]
        )
        return cls(
            scheduling=settings.scheduling,
            queue=settings.queue,
            gpu=settings.gpu.model_copy(update={"home_model": home and name_of(home)}),
            models=MappingProxyType({name_of(name): model for name, model in others_first}),
            wait_when_down_s=settings.backend.wait_when_down_s,
        )

    def parallel(self, model: str) -> int:
        chosen = self.models.get(model)
        return self.gpu.parallel if chosen is None or chosen.parallel is None else chosen.parallel
