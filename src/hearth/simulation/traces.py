"""Workloads from files: Hearth's own traces.

A trace file is a header line about models and swaps, then one JSON request a line
(docs/scheduling/traces.md describes the format). Every problem of a file is reported at once, each
as `file:line: what`. `trace_text` writes what `read_trace` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypedDict, TypeVar

import pydantic

from hearth.config.loading import read_text
from hearth.config.settings import ModelSettings
from hearth.errors import ConfigError
from hearth.simulation.workloads import CardLease, JobKind, SleepCosts, Workload, WorkloadJob
from hearth.types import JsonDict, Lane, Priority, SleepLevel, Usage, without_none

Seconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, pydantic.Field(ge=0)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Model(_Strict):
    vram_gb: Rate | None = None
    parallel: Annotated[int, pydantic.Field(ge=1)] = 1
    prompt_tps: Rate | None = None
    tps: Rate | None = None
    s_per_audio_s: Rate | None = None
    s_per_megapixel: Rate | None = None
    pace: Rate | None = None

    @property
    def paced(self) -> float | None:
        """How long an answer takes beside those of other models, None where nobody knows."""
        return self.pace if self.pace is not None or self.tps is None else 1 / self.tps

    def media_s(self, request: _TraceRequest) -> float | None:
        """How long it works on a recording, speech or an image; None where that is not told."""
        size, rate = request.audio_s, self.s_per_audio_s
        if request.kind == "image":
            size, rate = request.megapixels, self.s_per_megapixel
        return None if size is None or rate is None else size * rate


class _ModeChange(_Strict):
    t: Seconds
    active: bool


class _Lease(_Strict):
    t: Seconds
    for_s: Rate
    gb: Rate | None = None
    timed: bool = False


class _SleepLevel(_Strict):
    sleep_s: Seconds
    wake_s: Seconds
    residual_gb: Seconds
    host_gb: Seconds


class _Sleep(_Strict):
    host_ram_gb: Seconds = 0.0
    host_free_gb: Seconds | None = None
    levels: dict[str, dict[SleepLevel, _SleepLevel]]


class _TraceHeader(_Strict):
    models: Annotated[dict[str, _Model], pydantic.Field(min_length=1)]
    aliases: dict[str, Annotated[list[str], pydantic.Field(min_length=1)]] = {}
    swap_s: dict[str, dict[str, Seconds]] = {}
    unload_s: dict[str, Seconds] = {}
    gpu: dict[Literal["vram_gb"], Seconds | None] = {}
    resident: list[str] = []
    home: str = ""
    hours: list[_ModeChange] = []
    cut_s: Seconds | None = None
    until_s: Rate | None = None
    elastic: dict[str, Seconds] = {}
    leases: list[_Lease] = []
    sleep: _Sleep | None = None


class _Reports(_Strict):
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    prompt_s: Seconds | None = None
    decode_s: Seconds | None = None


class _TraceRequest(_Strict):
    id: int
    model: str | None
    kind: JobKind = "text"
    audio_s: Seconds | None = None
    megapixels: Rate | None = None
    t: Seconds = 0.0
    after: int | None = None
    also_after: list[int] = []
    think_s: Seconds = 0.0
    lane: Literal["internal", "external"] = "external"
    priority: Literal["critical", "normal", "background"] = "normal"
    background: bool = False
    caller: str = "trace"
    user: str = ""
    conversation: str = ""
    service_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    first_byte_s: Seconds | None = None
    reports: _Reports | None = None
    stream: bool = False
    continues: bool = False
    cancel_after_s: Seconds | None = None
    max_wait_s: Seconds | None = None


_ADVICE = MappingProxyType(
    {"extra_forbidden": "unknown field; leave it out", "missing": "is missing; add it"}
)

_SOUND = "give either `service_s`, or `audio_s` and a model whose `s_per_audio_s` the header tells"
_UNTIMED: Mapping[JobKind, str] = {
    "audio": _SOUND,
    "speech": _SOUND,
    "image": "give either `service_s`, or `megapixels` and a model whose `s_per_megapixel` the"
    " header tells",
}

Parsed = TypeVar("Parsed", bound=pydantic.BaseModel)


def read_trace(path: Path) -> Workload:
    """The workload in a trace file.

    Raises ConfigError: it cannot be read or is wrong; every problem as `file:line: what`.
    """
    return parse_trace(read_text(path), source=str(path))


def parse_trace(text: str, *, source: str) -> Workload:
    """The workload in a text; `source` is what problems call it.

    Raises ConfigError as `read_trace`.
    """
    return _TraceReader(source).read(text)


class _TraceReader:
    """Collects what is wrong with one trace; made for one text and thrown away."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._problems: list[str] = []
        self._lines_by_id: dict[int, int] = {}

    def read(self, text: str) -> Workload:
        lines = [
            (number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
        ]
        if not lines:
            raise ConfigError(
                [f"{self._source}:1: is empty; the first line must be the header with `models`"]
            )
        header = self._parse(_TraceHeader, *lines[0])
        requests = [
            (number, self._parse(_TraceRequest, number, line)) for number, line in lines[1:]
        ]
        jobs = []
        if header is not None:
            for line, request in requests:
                if request is None:
                    continue
                timing = self._timing(line, request, self._checked_model(header, line, request))
                if timing is not None:
                    jobs.append(_job(request, header.aliases, *timing))
                self._lines_by_id.setdefault(request.id, line)
            self._check_header(lines[0][0], header, jobs)
        if self._problems or header is None:
            raise ConfigError(self._problems)
        return _workload(header, jobs)

    def _parse(self, shape: type[Parsed], line: int, text: str) -> Parsed | None:
        try:
            return shape.model_validate_json(text)
        except pydantic.ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                place = ".".join(str(part) for part in each["loc"])
                what = _ADVICE.get(each["type"], each["msg"])
                self._complain(line, f"{place}: {what}" if place else what)
            return None

    def _complain(self, line: int, text: str) -> None:
        self._problems.append(f"{self._source}:{line}: {text}")

    def _checked_model(
        self, header: _TraceHeader, line: int, request: _TraceRequest
    ) -> _Model | None:
        """What the header has of the request's model, its references having been checked."""
        named = request.model or ""
        model = header.models.get(header.aliases.get(named, [named])[0])
        taken = self._lines_by_id.get(request.id)
        if request.model is not None and model is None:
            self._complain(
                line,
                f'model: "{request.model}" is not in the `models` of the header, nor in its'
                " `aliases`; add it there, or correct the name",
            )
        if taken is not None:
            self._complain(
                line,
                f"id: {request.id} is taken by line {taken}; give each request a number of its own",
            )
        for other in (request.after, *request.also_after):
            if other is not None and other not in self._lines_by_id:
                self._complain(
                    line,
                    f"after: no request above has the id {other}; a request comes after those that"
                    " it waits for",
                )
        if request.continues and not request.stream:
            self._complain(
                line, "continues: only a stream goes on where it was interrupted; add `stream`"
            )
        if request.audio_s is not None and request.kind not in {"audio", "speech"}:
            self._complain(
                line, "audio_s: is of a `kind` audio or speech; name it, or leave it out"
            )
        if request.megapixels is not None and request.kind != "image":
            self._complain(line, "megapixels: is of a `kind` image; name it, or leave it out")
        if request.also_after and request.after is None:
            self._complain(line, "also_after: name one of them in `after`")
        return model

    def _timing(
        self, line: int, request: _TraceRequest, model: _Model | None
    ) -> tuple[float, float, Usage] | None:
        """Whole service time, time to the first byte, and what the answer reports."""
        service_s = request.service_s
        first_byte_s = request.first_byte_s
        output_tokens = request.output_tokens
        if request.kind != "text" and service_s is None and output_tokens is None:
            service_s = None if model is None else model.media_s(request)
            if service_s is None:
                self._complain(line, _UNTIMED[request.kind])
                return None
        if service_s is not None and output_tokens is None:
            if first_byte_s is not None and first_byte_s > service_s:
                self._complain(
                    line, "first_byte_s: is more than `service_s`; an answer begins before it ends"
                )
            if first_byte_s is None:
                first_byte_s = 0.0 if request.stream else service_s
            usage = Usage(prompt_tokens=request.prompt_tokens)
            if request.reports is not None:
                usage = Usage(**request.reports.model_dump())
            return service_s, first_byte_s, usage
        if service_s is not None or output_tokens is None:
            self._complain(line, "give either `service_s`, or `prompt_tokens` and `output_tokens`")
            return None
        prompt_tokens = request.prompt_tokens or 0
        if model is None or model.tps is None or (prompt_tokens and model.prompt_tps is None):
            self._complain(
                line, "tokens need a model whose `tps` and `prompt_tps` the header tells"
            )
            return None
        prompt_s = prompt_tokens / model.prompt_tps if model.prompt_tps else 0.0
        decode_s = output_tokens / model.tps
        usage = Usage(
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prompt_s=prompt_s,
            decode_s=decode_s,
        )
        return prompt_s + decode_s, prompt_s if request.stream else prompt_s + decode_s, usage

    def _check_header(self, line: int, header: _TraceHeader, jobs: list[WorkloadJob]) -> None:
        for alias, choices in header.aliases.items():
            if alias in header.models:
                self._complain(line, f'aliases: "{alias}" is a model; choose another name')
            for name in choices:
                if name not in header.models:
                    self._complain(
                        line, f'aliases: "{name}" of "{alias}" is not in `models`; add it there'
                    )
        home = (header.home,) if header.home else ()
        sleeping = () if header.sleep is None else header.sleep.levels
        for name in (*header.resident, *header.unload_s, *header.elastic, *sleeping, *home):
            if name not in header.models:
                self._complain(
                    line, f'"{name}" is not in `models`; add it there, or correct the name'
                )
        loadable = {target for row in header.swap_s.values() for target in row}
        for name in sorted(
            {
                *header.resident,
                header.home,
                *(job.model for job in jobs if job.model is not None),
                *(name for job in jobs for name in job.choices),
            }
            & header.models.keys()
        ):
            alone = header.resident == [name] and len(header.models) == 1
            if not alone and name not in loadable and name not in header.elastic:
                self._complain(
                    line,
                    f'swap_s: nothing tells what loading "{name}" costs; add "": {{"{name}":'
                    " SECONDS}",
                )


def _workload(header: _TraceHeader, jobs: list[WorkloadJob]) -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={
            name: ModelSettings(vram_gb=model.vram_gb, parallel=model.parallel)
            for name, model in header.models.items()
        },
        swap_costs={
            (origin, target): cost
            for origin, row in header.swap_s.items()
            for target, cost in row.items()
        },
        unload_s=header.unload_s,
        vram_gb=header.gpu.get("vram_gb"),
        resident=tuple(header.resident),
        home=header.home,
        modes=tuple((change.t, change.active) for change in header.hours),
        cut_s=header.cut_s,
        until_s=header.until_s,
        pace={
            name: model.paced for name, model in header.models.items() if model.paced is not None
        },
        elastic=header.elastic,
        leases=tuple(
            CardLease(at=lease.t, for_s=lease.for_s, gb=lease.gb, is_timed=lease.timed)
            for lease in header.leases
        ),
        **_sleep_of(header.sleep),
    )


class _SleepFields(TypedDict, total=False):
    sleeps: Mapping[str, Mapping[SleepLevel, SleepCosts]]
    host_ram_gb: float
    host_free_gb: float | None


def _sleep_of(sleep: _Sleep | None) -> _SleepFields:
    if sleep is None:
        return {}
    return {
        "sleeps": {
            model: {level: SleepCosts(**costs.model_dump()) for level, costs in levels.items()}
            for model, levels in sleep.levels.items()
        },
        "host_ram_gb": sleep.host_ram_gb,
        "host_free_gb": sleep.host_free_gb,
    }


_AS_IT_IS = {
    "id",
    "kind",
    "after",
    "think_s",
    "background",
    "caller",
    "user",
    "conversation",
    "max_tokens",
    "continues",
    "cancel_after_s",
    "max_wait_s",
}


def _job(
    request: _TraceRequest,
    aliases: Mapping[str, Sequence[str]],
    service_s: float,
    first_byte_s: float,
    usage: Usage,
) -> WorkloadJob:
    choices = tuple(aliases.get(request.model or "", ()))
    return WorkloadJob(
        **request.model_dump(include=_AS_IT_IS),
        model=choices[0] if choices else request.model,
        alias=request.model or "" if choices else "",
        choices=choices,
        audio_s=request.audio_s or 0.0,
        at=request.t,
        also_after=tuple(request.also_after),
        lane=Lane(request.lane),
        priority=Priority[request.priority.upper()],
        service_s=service_s,
        first_byte_s=first_byte_s,
        streaming=request.stream,
        prompt_tokens=request.prompt_tokens or 0,
        usage=usage,
    )


def trace_text(workload: Workload) -> str:
    """A workload as the text of a trace file: the header line and a line for each request, every
    line ended.
    """
    swap_s: dict[str, dict[str, float]] = {}
    for (origin, target), seconds in workload.swap_costs.items():
        swap_s.setdefault(origin, {})[target] = seconds
    header = {
        "models": {
            name: _given(
                vram_gb=model.vram_gb, parallel=model.parallel, pace=workload.pace.get(name)
            )
            for name, model in workload.models.items()
        },
        "swap_s": swap_s,
        **_given(
            aliases={job.alias: job.choices for job in workload.jobs if job.alias} or None,
            unload_s=dict(workload.unload_s) or None,
            gpu=_given(vram_gb=workload.vram_gb) or None,
            resident=workload.resident or None,
            home=workload.home or None,
            hours=[{"t": at, "active": active} for at, active in workload.modes] or None,
            cut_s=workload.cut_s,
            until_s=workload.until_s,
            elastic=dict(workload.elastic) or None,
            leases=[
                {
                    "t": lease.at,
                    "for_s": lease.for_s,
                    **_given(gb=lease.gb, timed=lease.is_timed or None),
                }
                for lease in workload.leases
            ]
            or None,
            sleep=_sleep_line(workload) or None,
        ),
    }
    return "".join(json.dumps(line) + "\n" for line in (header, *map(_request_line, workload.jobs)))


def _sleep_line(workload: Workload) -> JsonDict:
    if not workload.sleeps:
        return {}
    return {
        "host_ram_gb": workload.host_ram_gb,
        **_given(host_free_gb=workload.host_free_gb),
        "levels": {
            model: {level: asdict(costs) for level, costs in levels.items()}
            for model, levels in workload.sleeps.items()
        },
    }


def _request_line(job: WorkloadJob) -> JsonDict:
    return {
        "id": job.id,
        "t": job.at,
        "model": job.alias or job.model,
        "lane": job.lane.value,
        "priority": job.priority.name.lower(),
        "caller": job.caller,
        **_given(user=job.user or None, audio_s=job.audio_s or None),
        **({} if job.kind == "text" else {"kind": job.kind}),
        "service_s": job.service_s,
        "first_byte_s": job.first_byte_s,
        **_given(
            prompt_tokens=job.prompt_tokens or None,
            stream=job.streaming or None,
            continues=job.continues or None,
            background=job.background or None,
            conversation=job.conversation or None,
            also_after=job.also_after or None,
            after=job.after,
            think_s=job.think_s or None,
            max_tokens=job.max_tokens,
            cancel_after_s=job.cancel_after_s,
            max_wait_s=job.max_wait_s,
        ),
        # without the load time, from which nothing is learned
        "reports": _given(
            **{name: value for name, value in asdict(job.usage).items() if name != "load_s"}
        ),
    }


def _given(**fields: object) -> JsonDict:
    return without_none(fields)
