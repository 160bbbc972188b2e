"""Workloads from the log of a gateway: what `/llm/log` and `/llm/swaps` answer.

A log knows when each request came and how long its answer took, not what its caller waited for
before sending it: every request arrives when it did arrive, whatever becomes of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import median

import pydantic

from hearth.cloud.calls import asks_for_claude
from hearth.config.choices import MIB_PER_GB
from hearth.config.settings import GatewayConfig, ModelSettings, SchedulerSettings
from hearth.simulation.traces import Parsed, Seconds, Tokens
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Lane, Outcome, Usage

MINUTE_S = 60.0
LEAST_TOKENS = 200  # of a prompt, for the time of a token to be known from it
UNKNOWN_SERVICE_S = 1.0  # for an answer that never came, where no answer of any model did
# it would have been answered had its caller waited
UNANSWERED = frozenset({Outcome.CANCELLED, Outcome.EXPIRED})


class _Row(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore", hide_input_in_errors=True)


class LoggedItem(_Row):
    """What is needed of a row of `/llm/log` (`types.Invocation`)."""

    epoch: int
    sequence: int
    caller: str
    lane: Lane
    task_type: str | None = None
    model: str | None = None
    alias: str | None = None
    conversation: str | None = None
    user: str | None = None
    accepted_wall_s: Seconds
    first_byte_s: Seconds | None = None
    backend_s: Seconds | None = None
    total_s: Seconds
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cost_usd: float | None = None
    outcome: Outcome

    @property
    def was_streamed(self) -> bool:
        """Its first byte came before its last one, and so when its prompt had been read."""
        return (
            self.output_tokens is not None
            and self.first_byte_s is not None
            and self.first_byte_s < (self.backend_s or 0.0)
        )

    @property
    def used_the_gpu(self) -> bool:
        """A model of the GPU worked on it, or would have if its caller had waited; what Claude
        answered never came near it.
        """
        is_claudes = self.cost_usd is not None or asks_for_claude(self.model)
        return not is_claudes and (self.backend_s is not None or self.outcome in UNANSWERED)


class _SwapRow(_Row):
    from_models: list[str] = []
    to_model: str
    swap_s: Seconds
    vram_mib: Seconds | None = None
    failed: bool = False


def workload_from_log(
    items: Iterable[object], swaps: Iterable[object], config: GatewayConfig
) -> tuple[Workload, int]:
    """The workload that a log records, on the GPU and in the active hours of `config`; rows as the
    gateway lists them, in any order.

    And how many rows could not become a request of it: never sent to the GPU, or not readable.
    """
    rows, unreadable = _read(LoggedItem, items)
    usable = sorted(
        (row for row in rows if row.used_the_gpu),
        key=lambda row: (row.accepted_wall_s, row.epoch, row.sequence),
    )
    done = [swap for swap in _read(_SwapRow, swaps)[0] if not swap.failed]
    began_wall_s = usable[0].accepted_wall_s if usable else 0.0
    usual_s = _usual_service_s(usable)
    token_s = _cold_token_s(usable)
    jobs = tuple(
        _read_cold(
            _logged_job(number, row, row.accepted_wall_s - began_wall_s, usual_s, config), token_s
        )
        for number, row in enumerate(usable)
    )
    jobs = _of_aliases(jobs, usable, config)
    names = dict.fromkeys(job.model for job in jobs if job.model is not None) | dict.fromkeys(
        swap.to_model for swap in done
    )
    scheduler = config.scheduler_settings
    home = scheduler.gpu.home_model if scheduler.gpu.home_model in names else ""
    workload = Workload(
        jobs=jobs,
        models={name: _model(name, done, scheduler) for name in names},
        swap_costs=_logged_costs(done, names, scheduler.gpu.swap_cost_prior_s),
        vram_gb=scheduler.gpu.vram_gb,
        resident=(home,) if home else (),
        home=home,
        modes=_hours(began_wall_s, jobs[-1].at, config) if jobs else (),
        pace=_pace(usable),
    )
    return workload, unreadable + len(rows) - len(usable)


def _read(shape: type[Parsed], rows: Iterable[object]) -> tuple[list[Parsed], int]:
    """The rows that can be read, and how many cannot: a newer gateway must not stop an older
    command.
    """
    read = list[Parsed]()
    unreadable = 0
    for row in rows:
        try:
            read.append(shape.model_validate(row))
        except pydantic.ValidationError:
            unreadable += 1
    return read, unreadable


def _usual_service_s(rows: Iterable[LoggedItem]) -> Mapping[str | None, float]:
    """The median time of an answer by model; under None that of all models."""
    found: dict[str | None, list[float]] = {None: []}
    for row in rows:
        if row.outcome is Outcome.COMPLETED and row.backend_s is not None:
            found[None].append(row.backend_s)
            found.setdefault(row.model, []).append(row.backend_s)
    return {model: median(times) for model, times in found.items() if times}


def _logged_job(
    number: int,
    row: LoggedItem,
    at: float,
    usual_s: Mapping[str | None, float],
    config: GatewayConfig,
) -> WorkloadJob:
    service_s = row.backend_s or 0.0
    if row.outcome in UNANSWERED:
        service_s = max(service_s, usual_s.get(row.model, usual_s.get(None, UNKNOWN_SERVICE_S)))
    first_byte_s = min(service_s, service_s if row.first_byte_s is None else row.first_byte_s)
    usage = Usage(prompt_tokens=row.prompt_tokens, output_tokens=row.output_tokens)
    if row.output_tokens is not None and first_byte_s < service_s:
        usage = replace(usage, prompt_s=first_byte_s, decode_s=service_s - first_byte_s)
    return WorkloadJob(
        id=number,
        model=row.model,
        at=at,
        lane=row.lane,
        priority=config.priority_for_task_type(row.task_type),
        caller=row.caller,
        user=row.user or "",
        conversation=f"{row.epoch}.{row.conversation}" if row.conversation else "",
        service_s=service_s,
        first_byte_s=first_byte_s,
        prompt_tokens=row.prompt_tokens or 0,
        usage=usage,
        cancel_after_s=row.total_s if row.outcome is Outcome.CANCELLED else None,
        max_wait_s=row.total_s if row.outcome is Outcome.EXPIRED else None,
    )


def _of_aliases(
    jobs: Iterable[WorkloadJob], rows: Sequence[LoggedItem], config: GatewayConfig
) -> tuple[WorkloadJob, ...]:
    """Requests that named an alias which the configuration has are for any of its models that the
    log knows; others are for the model that ran.
    """
    ran = {row.model for row in rows}
    found = list[WorkloadJob]()
    for job, row in zip(jobs, rows, strict=True):
        models = config.settings.aliases.get(row.alias or "", ())
        choices = tuple(model for model in models if model in ran)
        if job.model not in choices:
            found.append(job)
        else:
            found.append(replace(job, alias=row.alias or "", choices=choices))
    return tuple(found)


def _pace(rows: Iterable[LoggedItem]) -> Mapping[str, float]:
    """The median of the seconds that each model takes to write a token."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.model is None or row.backend_s is None or not row.output_tokens:
            continue
        read_s = (row.first_byte_s or 0.0) if row.was_streamed else 0.0
        found.setdefault(row.model, []).append((row.backend_s - read_s) / row.output_tokens)
    return {model: median(times) for model, times in found.items() if median(times) > 0}


def _cold_token_s(rows: Iterable[LoggedItem]) -> Mapping[str | None, float]:
    """Seconds to read a token, by model: medians of the first turns of conversations, of which
    nothing can have been cached.
    """
    found: dict[str | None, list[float]] = {}
    begun = set[tuple[int, str, str]]()
    for row in rows:
        if row.conversation is None or (row.epoch, row.caller, row.conversation) in begun:
            continue
        begun.add((row.epoch, row.caller, row.conversation))
        if row.prompt_tokens and row.prompt_tokens >= LEAST_TOKENS and row.was_streamed:
            found.setdefault(row.model, []).append((row.first_byte_s or 0.0) / row.prompt_tokens)
    return {model: median(times) for model, times in found.items()}


def _read_cold(job: WorkloadJob, token_s: Mapping[str | None, float]) -> WorkloadJob:
    """A turn as long as it takes where nothing of it is cached, which the log cannot say: the
    simulator has a cache of its own.
    """
    prompt_s = job.usage.prompt_s
    cold_s = job.prompt_tokens * token_s.get(job.model, 0.0)
    if not job.conversation or prompt_s is None or prompt_s >= cold_s:
        return job
    return replace(
        job,
        service_s=job.service_s + cold_s - prompt_s,
        first_byte_s=job.first_byte_s + cold_s - prompt_s,
        usage=replace(job.usage, prompt_s=cold_s),
    )


def _model(name: str, swaps: Sequence[_SwapRow], scheduler: SchedulerSettings) -> ModelSettings:
    """As the owner configured it; what it needs in memory is else what it took when it was loaded
    last.
    """
    chosen = scheduler.models.get(name)
    vram_gb = chosen.vram_gb if chosen is not None else None
    if vram_gb is None:
        taken_mib = next(
            (swap.vram_mib for swap in swaps if swap.to_model == name and swap.vram_mib), None
        )
        vram_gb = None if taken_mib is None else round(taken_mib / MIB_PER_GB, 3)
    return ModelSettings(vram_gb=vram_gb, parallel=scheduler.parallel(name))


def _logged_costs(
    swaps: Iterable[_SwapRow], names: Iterable[str], prior_s: float
) -> dict[tuple[str, str], float]:
    """Medians by direction; a model that was never seen to be loaded costs what is assumed before
    anything is measured.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for swap in swaps:
        for origin in swap.from_models or [""]:
            seen.setdefault((origin, swap.to_model), []).append(swap.swap_s)
    loaded = {target for _, target in seen}
    return {pair: median(times) for pair, times in seen.items()} | {
        ("", name): prior_s for name in names if name not in loaded
    }


def _hours(
    began_wall_s: float, last_at: float, config: GatewayConfig
) -> tuple[tuple[float, bool], ...]:
    """When active hours began and ended, to the minute of the calendar."""
    changes = []
    active = config.is_active_hours(began_wall_s)
    if not active:
        changes.append((0.0, False))
    for minute in range(
        ceil(began_wall_s / MINUTE_S), ceil((began_wall_s + last_at) / MINUTE_S) + 1
    ):
        if config.is_active_hours(minute * MINUTE_S) != active:
            active = not active
            changes.append((max(0.0, minute * MINUTE_S - began_wall_s), active))
    return tuple(changes)
