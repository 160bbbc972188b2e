"""What `hearth status` reads out of the gateway's JSON: values with types, whatever the answer holds.

A missing or odd field becomes None or nothing, so that an older command still shows a newer gateway. Pure; called by `hearth.cli.status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_HUGE = 1e15
"""Nothing that is shown is larger; NaN, infinities and numbers that overflow are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """One request; `seconds` it has waited or run, None where the gateway does not say."""

    sequence: int | None
    lane: str
    caller: str
    model: str
    task: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One queue: how many wait, the first of them, and how many were completed in 24 hours."""

    name: str
    pending: int
    items: tuple[ItemRow, ...]
    completed_24h: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """What the card says of itself; None where it does not. `readings`: ok, lost or unknown."""

    readings: str
    device: str
    used_mib: float | None
    total_mib: float | None
    foreign_mib: float | None
    busy_pct: float | None
    temperature_c: float | None
    power_w: float | None
    held_down_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """Residency and swapping; `resident` has the loaded model first, `offloaded` those that run on the CPU in part or in whole."""

    resident: tuple[str, ...]
    home_model: str
    is_home: bool
    swaps_this_hour: int
    last_swap_s: float | None
    overhead_pct: float
    swapping_to: str | None
    offloaded: tuple[str, ...]
    card: CardState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendState:
    """The model server behind the gateway."""

    mode: str
    url: str
    version: str
    up: bool
    emulator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLatency:
    """What the requests of a lane took in the last hour: median and 95th percentile in seconds, None where nothing was measured."""

    lane: str
    requests: int
    wait_s: tuple[float | None, float | None]
    first_byte_s: tuple[float | None, float | None]
    total_s: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPage:
    """The whole answer; `config_problems` are those of an edit that was refused, so that the configuration before it is in force."""

    mode: str
    running: tuple[ItemRow, ...]
    lanes: tuple[Lane, Lane]
    interrupted_24h: int
    gpu: GpuState
    backend: BackendState | None
    config_problems: tuple[str, ...]
    restart_pending: tuple[str, ...]
    latency: tuple[LaneLatency, ...]


def read_status(answer: Mapping[str, object]) -> StatusPage:
    """The page in an answer of `/llm/queue/status`. Never raises."""
    stats = _part(answer, "stats_24h")
    return StatusPage(
        mode=_text(answer, "mode"),
        running=_running(answer),
        lanes=(_lane("internal", answer, stats), _lane("external", answer, stats)),
        interrupted_24h=int(_number(stats, "external_interrupted") or 0),
        gpu=_gpu(_part(answer, "gpu")),
        backend=_backend(_part(answer, "backend")),
        config_problems=_texts(_part(answer, "config"), "problems"),
        restart_pending=_texts(_part(answer, "config"), "restart_pending"),
        latency=_latency(_part(answer, "latency")),
    )


def _running(answer: Mapping[str, object]) -> tuple[ItemRow, ...]:
    """`running` where the gateway lists several, else seed 004's one `current_request`."""
    several = _items(answer, "running")
    current = _part(answer, "current_request")
    return several or ((_row(current),) if current else ())


def _lane(name: str, answer: Mapping[str, object], stats: Mapping[str, object]) -> Lane:
    queue = _part(answer, f"{name}_queue")
    return Lane(
        name=name,
        pending=int(_number(queue, "pending") or 0),
        items=_items(queue, "next_items"),
        completed_24h=int(_number(stats, f"{name}_completed") or 0),
    )


def _row(item: Mapping[str, object]) -> ItemRow:
    sequence = _number(item, "sequence")
    return ItemRow(
        sequence=None if sequence is None else int(sequence),
        lane=_text(item, "type") or _text(item, "lane"),
        caller=_text(item, "caller"),
        model=_text(item, "model"),
        task=_text(item, "task_type") or _text(item, "priority"),
        seconds=_first_number(item, "running_s", "waited_s"),
    )


def _gpu(gpu: Mapping[str, object]) -> GpuState:
    last_ms = _number(gpu, "last_swap_ms")
    loaded = _text(gpu, "loaded_model")
    return GpuState(
        resident=tuple(dict.fromkeys((*([loaded] if loaded else []), *_texts(gpu, "resident_models")))),
        home_model=_text(gpu, "home_model"),
        is_home=gpu.get("is_home") is True,
        swaps_this_hour=int(_number(gpu, "swaps_this_hour") or 0),
        last_swap_s=None if last_ms is None else last_ms / 1000.0,
        overhead_pct=_number(gpu, "swap_overhead_pct_1h") or 0.0,
        swapping_to=_loading(gpu),
        offloaded=_texts(gpu, "offloaded_models"),
        card=_card(gpu),
    )


def _card(gpu: Mapping[str, object]) -> CardState | None:
    """None where nobody reads it: switched off, an emulator, or an older gateway."""
    readings = _text(gpu, "readings")
    if readings not in {"ok", "lost", "unknown"}:
        return None
    return CardState(
        readings=readings,
        device=_text(gpu, "device"),
        used_mib=_number(gpu, "memory_used_mib"),
        total_mib=_number(gpu, "memory_total_mib"),
        foreign_mib=_number(gpu, "foreign_mib"),
        busy_pct=_number(gpu, "utilisation_pct"),
        temperature_c=_number(gpu, "temperature_c"),
        power_w=_number(gpu, "power_w"),
        held_down_by=_texts(gpu, "throttle_reasons"),
    )


def _loading(gpu: Mapping[str, object]) -> str | None:
    """The model of a swap, or of a load into free memory, that is under way."""
    residents = gpu.get("residents")
    loading = [_text(one, "model") for one in residents if _is_loading(one)] if isinstance(residents, list) else []
    return _text(_part(gpu, "current_swap"), "to_model") or next(iter(loading), None)


def _is_loading(resident: object) -> bool:
    return isinstance(resident, dict) and resident.get("phase") == "loading"


def _backend(backend: Mapping[str, object]) -> BackendState | None:
    if not backend:
        return None
    return BackendState(
        mode=_text(backend, "mode"),
        url=_text(backend, "url"),
        version=_text(backend, "version"),
        up=backend.get("up") is True,
        emulator=backend.get("emulator") is True,
    )


def _latency(latency: Mapping[str, object]) -> tuple[LaneLatency, ...]:
    """The lanes as a whole; an older gateway says nothing of them."""
    rows = latency.get("last_hour")
    lanes = [row for row in rows if isinstance(row, dict) and row.get("model") is None] if isinstance(rows, list) else []
    return tuple(
        LaneLatency(
            lane=_text(row, "lane"),
            requests=int(_number(row, "requests") or 0),
            wait_s=_typical(row, "queue_wait_s"),
            first_byte_s=_typical(row, "first_byte_s"),
            total_s=_typical(row, "total_s"),
        )
        for row in lanes
    )


def _typical(row: Mapping[str, object], phase: str) -> tuple[float | None, float | None]:
    figures = _part(row, phase)
    return _number(figures, "p50"), _number(figures, "p95")


def _part(of: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _items(of: Mapping[str, object], name: str) -> tuple[ItemRow, ...]:
    value = of.get(name)
    return tuple(_row(item) for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _texts(of: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = of.get(name)
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


def _text(of: Mapping[str, object], name: str) -> str:
    value = of.get(name)
    return "" if value is None or isinstance(value, dict | list) else str(value)


def _number(of: Mapping[str, object], name: str) -> float | None:
    value = of.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _HUGE else None


def _first_number(of: Mapping[str, object], *names: str) -> float | None:
    return next((number for name in names if (number := _number(of, name)) is not None), None)
